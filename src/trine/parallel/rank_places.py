"""Which GPU each rank sits on."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from trine.common.arrays import Int64, spans
from trine.common.inputs import exists, read_text
from trine.common.units import whole_number
from trine.errors import InputError, nearest

if TYPE_CHECKING:
    pass


WORDS = ("packed", "round-robin", "random")

MAX_FILE_BYTES = 16 * 2**20


def places(
    placement: str | os.PathLike[str] | Sequence[int],
    num_ranks: int,
    num_gpus: int,
    nodes: Sequence[int] | npt.NDArray[np.int32],
) -> Int64:
    """Return the position of each rank's GPU among the cluster's GPUs: int64[ranks].

    placement: ``packed`` (rank i on GPU i), ``round-robin`` (over the nodes), ``random:SEED``, a list of
    positions, or a file with one position a line. nodes: the node of each GPU (-1: none).

    Raises InputError for another word, or a list that names a GPU twice, none, or one that does not exist.
    """
    if placement == "packed":
        return np.arange(num_ranks, dtype=np.int64)
    if placement == "round-robin":
        return _round_robin(nodes)[:num_ranks]
    if isinstance(placement, str) and placement.startswith("random"):
        return np.random.default_rng(_seed(placement)).permutation(num_gpus)[:num_ranks].astype(np.int64)
    if isinstance(placement, str | os.PathLike):
        return _checked(_read_places(os.fspath(placement)), num_ranks, num_gpus, os.fspath(placement))
    return _checked(list(placement), num_ranks, num_gpus)


def _round_robin(nodes: Sequence[int] | npt.NDArray[np.int32]) -> Int64:
    node_of = np.asarray(nodes, np.int64)
    turn = np.zeros(len(node_of), np.int64)  # number of each GPU within its node
    order = np.argsort(node_of, kind="stable")
    counts = np.unique(node_of, return_counts=True)[1]
    turn[order] = spans(0, counts)
    return np.lexsort((np.arange(len(node_of)), turn)).astype(np.int64)


def _seed(word: str) -> int:
    _, _, seed = word.partition(":")
    number = whole_number(seed, most=2**128 - 1)
    if number is None:
        raise InputError(f"a random placement needs a seed, as in random:7; got {word!r}", field="placement")
    return number


def _read_places(path: str) -> list[int]:
    if not exists(path):
        hint = nearest(path, WORDS)
        raise InputError(
            f"is neither packed, round-robin, random:SEED nor a file that exists: {path!r}{hint}", field="placement"
        )
    positions = []
    for number, line in enumerate(read_text(path, MAX_FILE_BYTES, InputError).splitlines(), start=1):
        text = line.partition("#")[0].strip()
        if text:
            place = whole_number(text)
            if place is None:
                raise InputError(f"line {number} is no position of a GPU: {text!r}", file=path, field="placement")
            positions.append(place)
    return positions


def _checked(positions: Sequence[object], num_ranks: int, num_gpus: int, file: str | None = None) -> Int64:
    for position in positions:
        if isinstance(position, bool) or not isinstance(position, int | np.integer) or not 0 <= position < num_gpus:
            raise InputError(
                f"the cluster has GPUs 0 to {num_gpus - 1}, got {position!r}", file=file, field="placement"
            )
    if len(positions) != num_ranks:
        raise InputError(f"needs one GPU a rank, {num_ranks}; got {len(positions)}", file=file, field="placement")
    array = np.array(positions, np.int64)
    if len(np.unique(array)) < len(array):
        twice = next(position for position in array.tolist() if (array == position).sum() > 1)
        raise InputError(f"two ranks are on GPU {twice}", file=file, field="placement")
    return array
