"""Conversion of the texts that users type into values of options."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from trine.common.plugins import load_target
from trine.errors import InputError, PlanError, nearest

OVERLAP_WORDS = "ideal|modelled|none|range"


def names(text: str, option: str) -> tuple[str, ...]:
    """Return ``a, b`` as a tuple. Raises PlanError for an empty name."""
    parts = tuple(name.strip() for name in text.split(","))
    if not all(parts):
        raise PlanError(f"{option} holds an empty name: {text!r}")
    return parts


def pairs(text: str) -> tuple[tuple[str, str], ...]:
    """Return ``all_reduce=ring,broadcast=ring`` as pairs. Raises PlanError for another form."""
    choices = []
    for item in names(text, "--algorithm"):
        kind, _, name = item.partition("=")
        if not kind or not name:
            raise PlanError(f"--algorithm takes COLLECTIVE=NAME, such as all_reduce=ring; got {item!r}")
        choices.append((kind.strip(), name.strip()))
    return tuple(choices)


def cut_names(text: str) -> tuple[str, ...]:
    return names(text, "--cuts")


def replica_batches_of(text: str) -> tuple[int, ...] | str:
    """Return ``6,6,2,2`` as numbers; return a word in lower case for the plan to check."""
    from trine.common.units import whole_number

    sizes = [whole_number(size, most=10**12) for size in names(text, "--replica-batches")]
    if sizes == [None]:
        return text.lower()
    if None in sizes:
        raise PlanError(f"--replica-batches takes whole numbers such as 6,6,2,2, or 'time'; got {text[:80]!r}")
    return tuple(size for size in sizes if size is not None)


def layer_counts_of(text: str) -> tuple[int, ...]:
    """Return ``0,1*126,0`` as numbers, where ``N*TIMES`` repeats a number."""
    from trine.common.units import whole_number
    from trine.parallel.plan import MAX_LAYERS

    counts: list[int] = []
    for part in names(text, "--stage-layers"):
        number, star, times = part.partition("*")
        count, repeats = whole_number(number, 0, MAX_LAYERS), whole_number(times, 1, MAX_LAYERS) if star else 1
        if count is None or repeats is None or len(counts) + repeats > MAX_LAYERS:
            raise PlanError(
                f"--stage-layers takes whole numbers of 0 to {MAX_LAYERS}, such as 0,1*126,0; got {part[:40]!r}"
            )
        counts += [count] * repeats
    return tuple(counts)


def nvls_chunk_of(text: str) -> int:
    from trine.collectives.sizes import parse_size

    return parse_size(text, "--nvls-chunk")


def bucket_size_of(text: str) -> int:
    from trine.common.units import parse_bytes

    cap = parse_bytes(text, "--bucket")
    if cap < 1:
        raise PlanError(f"--bucket must be positive, got {text!r}")
    return cap


def overlap_word(text: str) -> str:
    """Return a plan's overlap, or ``range``, which only the command line has. Raises PlanError for another word."""
    word, words = text.lower(), OVERLAP_WORDS.split("|")
    if word not in words:
        hint = nearest(word, words, is_listed=True)
        raise PlanError(f"--overlap must be one of {', '.join(words)}; got {text[:80]!r}{hint}")
    return word


def load_calibration(path: str) -> Any:
    from trine.compute import Calibration

    return Calibration.load(path)


def share_of(text: str) -> float:
    """Return ``1.5%`` or ``0.015`` as a fraction. Raises InputError for another form."""
    from trine.common.units import finite_number

    number = finite_number(text.removesuffix("%"))
    if number is None:
        raise InputError(f"takes a part of the average speed such as 1.5%, got {text[:80]!r}", field="--gpu-spread")
    return number / (100 if text.endswith("%") else 1)


def tile_sizes(text: str) -> tuple[int, ...]:
    if not re.fullmatch(r"\d{1,9}(x\d{1,9}){0,2}", text):
        raise InputError(f"--tile is like 64x256, or 128x128x32 for a GEMM, got {text[:80]!r}")
    return tuple(int(part) for part in text.split("x"))


def straggler_times(texts: Iterable[str]) -> dict[int, str]:
    pairs = [_straggler(text) for text in texts]
    by_rank = dict(pairs)
    if len(by_rank) < len(pairs):
        raise InputError("--straggler names a rank twice")
    return by_rank


def _straggler(text: str) -> tuple[int, str]:
    rank, colon, late = text.partition(":")
    if not colon or not rank.isdecimal() or len(rank) > 6:
        raise InputError(f"--straggler is RANK:TIME, such as '2:5 us', got {text[:80]!r}")
    return int(rank), late


def algorithm_name(algorithm: str) -> str:
    """Return NCCL_ALGO's spelling in lower case, and the path of a plan unchanged."""
    return algorithm.lower() if algorithm.isalpha() else algorithm


def fixed_fields(texts: list[str]) -> dict[str, Any]:
    return dict(load_target("trine.search.space:parse_fixed")(tuple(texts)))
