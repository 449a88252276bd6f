"""The lists of a run: a micro-batch's tasks of one rank, step and phase, and which lists are equal.

Lists with the same tasks, in order of micro-batch, form a *sequence*: :mod:`trine.folding.period` looks for the time
after which a sequence repeats.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from trine.common.arrays import Int64
from trine.folding.observe import rank_memory
from trine.folding.run import JobRun
from trine.folding.shown_ranks import one_of_each_class
from trine.graph.memory import MemoryEvents
from trine.graph.program import Phase
from trine.parallel.template import LABEL_FIELDS

PHASE, MICROBATCH, STEP = (LABEL_FIELDS.index(name) for name in ("phase", "microbatch", "step"))
#: Passes in the backward direction are one list, with the operators that they recompute.
_SAME_LIST = {int(Phase.RECOMPUTE): int(Phase.BACKWARD), int(Phase.OPTIMIZER): int(Phase.BACKWARD)}
PASS_KINDS = len(Phase) + 1


class Tasks(NamedTuple):
    """Tasks whose times are compared. columns: int64[facts, n], equal for equal tasks; labels: int32[fields, n]."""

    owner: Int64
    labels: npt.NDArray[np.int32]
    columns: Int64


class Times(NamedTuple):
    """Ready, start and end of tasks, in ps: int64[n]; -1 if not simulated."""

    ready: Int64
    start: Int64
    end: Int64


@dataclass(frozen=True, slots=True, eq=False)
class Lists:
    """The lists of some tasks, sorted by owner, step, phase, content and micro-batch.

    tasks: int64, the tasks of all lists, one list after the other; position: of each in its list; of_task: the list
    of each entry; keys: its place in its sequence. sequence, passes, microbatch, begin: of each list; passes numbers
    (owner, step, phase). first_key, length: of each sequence.
    """

    tasks: Int64
    position: Int64
    of_task: Int64
    sequence: Int64
    passes: Int64
    microbatch: Int64
    begin: Int64
    first_key: Int64
    length: Int64

    @staticmethod
    def of(tasks: Tasks) -> Lists:
        """Divide tasks into lists; leaves out copies of inputs, which run ahead of the micro-batches."""
        labels = tasks.labels.astype(np.int64)
        phase = labels[PHASE].copy()
        for other, same in _SAME_LIST.items():
            phase[labels[PHASE] == other] = same
        listed = np.flatnonzero((labels[MICROBATCH] >= 0) & (phase != Phase.INPUT))
        owner, step, microbatch = tasks.owner[listed], labels[STEP][listed], labels[MICROBATCH][listed]
        phase = phase[listed]
        passes = (owner * (step.max(initial=-1) + 2) + step + 1) * PASS_KINDS + phase + 1
        order = np.lexsort((listed, microbatch, passes))
        listed, passes, microbatch = listed[order], passes[order], microbatch[order]
        is_first = np.ones(len(listed), np.bool_)
        is_first[1:] = (passes[1:] != passes[:-1]) | (microbatch[1:] != microbatch[:-1])
        begin = np.flatnonzero(is_first)
        of_task = np.cumsum(is_first) - 1
        position = np.arange(len(listed)) - begin[of_task]
        content = _content(tasks.columns[:, listed], position, begin)
        _, first, sequence = np.unique(
            np.stack([passes[begin].astype(np.uint64), content]), axis=1, return_index=True, return_inverse=True
        )
        length = np.diff(np.append(begin, len(listed)))[first]
        return Lists(
            tasks=listed, position=position, of_task=of_task, sequence=sequence.ravel().astype(np.int64),
            passes=passes[begin], microbatch=microbatch[begin], begin=begin, first_key=np.cumsum(length) - length,
            length=length,
        )  # fmt: skip

    @property
    def keys(self) -> Int64:
        keys: Int64 = self.first_key[self.sequence[self.of_task]] + self.position
        return keys

    @property
    def num_keys(self) -> int:
        return int(self.length.sum())

    def later(self, period: int) -> Int64:
        """Return for each list the one ``period`` places later in its sequence, or -1: int64[lists]."""
        order = np.lexsort((self.microbatch, self.sequence))
        later = np.full(len(order), -1, np.int64)
        if len(order) > period:
            same = self.sequence[order[period:]] == self.sequence[order[:-period]]
            later[order[:-period][same]] = order[period:][same]
        return later


def _content(columns: Int64, position: Int64, begin: Int64) -> npt.NDArray[np.uint64]:
    """Return a 64-bit hash of each list's tasks, in order; equal lists have equal hashes."""
    mixed = np.zeros(columns.shape[1], np.uint64)
    for column in columns:
        mixed = _mix(mixed ^ column.astype(np.uint64))
    mixed *= _mix(position.astype(np.uint64) + np.uint64(1)) | np.uint64(1)
    return np.add.reduceat(mixed, begin) if len(begin) else mixed


def _mix(values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Return the finaliser of splitmix64 (Steele, Lea and Flood, OOPSLA 2014) of each value."""
    values = values + np.uint64(0x9E3779B97F4A7C15)
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


#: A function that returns other labels of the same tasks: int32[fields, n].
Relabel: TypeAlias = Callable[[npt.NDArray[np.int32]], npt.NDArray[np.int32]]


def as_labelled(labels: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
    return labels


class Track(NamedTuple):
    """The tasks of one rank (or of all, in a complete graph): their lists, and their times."""

    lists: Lists
    times: Times


def tracks_of(run: JobRun, relabel: Relabel = as_labelled, num_stages: int | None = None) -> list[Track]:
    """Return the simulated tasks of a run: of one rank of each class, or of all ranks if none was folded.

    relabel: returns labels of the tasks, which divide them into lists. num_stages: take the classes after as many
    stages of the run (:class:`trine.folding.stages.FoldedRun`); None: the final ones.
    """
    if run.folded is None:
        graph, records = run.graph, run.records
        labels = np.stack([getattr(graph.labels, name) for name in LABEL_FIELDS]).astype(np.int32)
        columns = columns_of(labels, graph.kind, graph.size_bytes, *_memory_of_tasks(run.memory, graph.num_tasks))
        tasks = Tasks(graph.rank.astype(np.int64), relabel(labels), columns)
        return [Track(Lists.of(tasks), Times(records.ready_ps, records.start_ps, records.end_ps))]
    tracks = []
    for pattern in run.folded.job.patterns:
        owner = np.zeros(pattern.num_tasks, np.int64)
        memory = _memory_of_tasks(rank_memory(run.folded, [pattern], np.zeros(1, np.int64)), pattern.num_tasks)
        columns = columns_of(pattern.labels, pattern.kind, pattern.size_bytes, *memory)
        lists = Lists.of(Tasks(owner, relabel(pattern.labels), columns))
        ranks = one_of_each_class(run.folded, pattern.ranks, num_stages)
        tracks += [Track(lists, Times(*run.folded.times(rank))) for rank in ranks.tolist()]
    return tracks


def _memory_of_tasks(memory: MemoryEvents, num_tasks: int) -> Int64:
    """Return the bytes that each task allocates and frees: int64[2, tasks].

    Micro-batches with equal tasks may differ in them: the first one allocates the gradients.
    """
    changes = np.zeros((2, num_tasks), np.int64)
    np.add.at(changes, ((memory.delta_bytes < 0).astype(np.int64), memory.task), memory.delta_bytes)
    return changes


def columns_of(labels: npt.NDArray[np.int32], *columns: npt.NDArray[np.integer]) -> Int64:
    rows = [row for field, row in enumerate(labels) if field not in (MICROBATCH, STEP)]
    return np.stack([*rows, *columns]).astype(np.int64)
