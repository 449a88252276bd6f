"""Choice of the collective of a step to zoom into: the longest one of the slowest rank, or the longest of a name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from trine.common.arrays import Int64
from trine.errors import InputError, nearest
from trine.gpu.detail.choice import (
    DetailOptions,
    StepCollective,
    first_tasks,
    has_unknown_root,
    layers_called,
    of_rank,
    simulated_records,
    with_kernels,
)
from trine.gpu.kernels.build import known_kernels

if TYPE_CHECKING:
    from trine.graph.grid import RankGrid
    from trine.results import Result

#: The word for the longest collective of all.
LARGEST = "largest"
#: The way to wait: the GPU's own, so that one run suffices.
_SYNC = "default"


@dataclass(frozen=True, kw_only=True, slots=True)
class ZoomChoice:
    """The chosen collective. word: as asked. what: the collective on the rank. operator_ps: its time, from the arrival
    of its last rank to its end on the rank. number: its position among all collectives of the rank's last step that
    have a kernel, from 1. matches: number of collectives that fit the word.
    """

    word: str
    what: StepCollective
    rank: int
    number: int
    operator_ps: int
    matches: int

    @property
    def options(self) -> DetailOptions:
        """The same choice as ``--detail`` takes it."""
        return DetailOptions(rank=self.rank, number=self.number, sync=_SYNC)

    @property
    def detail_words(self) -> str:
        """The same choice as text of ``--detail``."""
        return f"rank={self.rank},number={self.number}"


def choose_zoom(result: Result, grid: RankGrid, word: str) -> ZoomChoice:
    """Return the matching collective of the slowest rank that takes longest at the operator level.

    word: ``largest``; or a kind (``all_reduce``), an axis (``tp``), a phase (``backward``), or a layer as in
    :class:`DetailOptions`. Of equally long ones, the first counts.

    Raises InputError for a word that no collective of the rank fits, and for collectives without a kernel.
    """
    rank = result.slowest_rank
    alone = result.rank(rank)
    of_step = [one for one in of_rank(alone, 0) if one.step == result.num_steps - 1]
    with_kernel = with_kernels(of_step, rank)
    matches = _matching(of_step, with_kernel, word, alone.graph.layer_names, rank)
    candidates = [one for one in matches if not has_unknown_root(one)] or matches
    operator_ps = _times_after_last(result, grid, rank, candidates)
    longest = int(np.argmax(operator_ps))
    chosen = candidates[longest]
    return ZoomChoice(
        word=word, what=chosen, rank=rank, number=with_kernel.index(chosen) + 1,
        operator_ps=int(operator_ps[longest]), matches=len(matches),
    )  # fmt: skip


def _matching(
    of_step: Sequence[StepCollective],
    with_kernel: list[StepCollective],
    word: str,
    layer_names: Sequence[str],
    rank: int,
) -> list[StepCollective]:
    """Return the collectives with a kernel that the word describes; raise InputError without one."""
    if word == LARGEST:
        return with_kernel
    matches = [one for one in with_kernel if word in (one.kind, one.axis, one.phase)]
    if matches:
        return matches
    numbers = layers_called(word, layer_names)
    matches = [one for one in with_kernel if one.layer_number in numbers]
    if matches:
        return matches
    if any(word == one.kind for one in of_step) and not known_kernels(word):
        kinds = ", ".join(sorted({one.kind for one in with_kernel}))
        raise InputError(f"there is no kernel for {word}; the step has these kinds with a kernel: {kinds}")
    names = dict.fromkeys(name for one in with_kernel for name in (one.kind, one.axis, one.phase, one.layer) if name)
    if numbers:
        raise InputError(f"layer {word[:80]} has no collective with a kernel{nearest(word[:80], names)}")
    hint = nearest(word[:80], [LARGEST, *names])
    raise InputError(f"no collective of rank {rank} is called {word[:80]!r}{hint}")


def _times_after_last(result: Result, grid: RankGrid, rank: int, collectives: Sequence[StepCollective]) -> Int64:
    """Return the time of each collective from the arrival of its last rank to its end on ``rank``: int64[collectives].

    The ranks of one axis are looked at together, because each look at other ranks of a folded step costs time.
    """
    times_ps = np.zeros(len(collectives), np.int64)
    for axis in dict.fromkeys(one.axis for one in collectives):
        group = grid.group(rank, axis)
        group_result = result.of_ranks(group)
        of_axis = [index for index, one in enumerate(collectives) if one.axis == axis]
        tasks = first_tasks(group_result, group.index(rank))
        labels = [int(group_result.graph.labels.collective[tasks[collectives[index].place]]) for index in of_axis]
        times_ps[of_axis] = _after_last(group_result, len(group), group.index(rank), labels)
    return times_ps


def _after_last(result: Result, num_rows: int, row: int, labels: Sequence[int]) -> Int64:
    """Return the end on ``row`` - the last row's first start, of each labelled collective: int64[labels]."""
    graph, records = result.graph, simulated_records(result)
    label_of_task = graph.labels.collective
    tasks = np.flatnonzero(np.isin(label_of_task, labels) & (graph.rank >= 0))
    index_of_label = np.full(len(graph.collectives), -1, np.int64)
    index_of_label[labels] = np.arange(len(labels))
    index, rows = index_of_label[label_of_task[tasks]], graph.rank[tasks]
    starts_ps = np.full((len(labels), num_rows), np.iinfo(np.int64).max, np.int64)
    np.minimum.at(starts_ps, (index, rows), records.ready_ps[tasks])
    ends_ps = np.zeros((len(labels), num_rows), np.int64)
    np.maximum.at(ends_ps, (index, rows), records.end_ps[tasks])
    times_ps: Int64 = ends_ps[:, row] - starts_ps.max(axis=1)
    return times_ps
