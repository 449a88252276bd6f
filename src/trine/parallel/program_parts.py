"""The steps and memory changes of a rank program in parts: written steps, and passes that share one written pass.

Most passes of a pipeline rank are copies of a few (:mod:`trine.parallel.pass_copies`). A copy is a reference to the
written pass and the numbers in which it differs. So the tables of a program are written once for each different pass
and repeated as arrays; the steps of a copy become objects only for readers that ask for them.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import overload

import numpy as np

from trine.common.arrays import Int64
from trine.graph.program import Collective, Compute, HostCopy, Label, MemoryChange, Recv, Send, Step
from trine.parallel.chunks import MicroBatch

#: Steps and memory changes are the most numerous objects of a program; their own constructors take twice as long.
new_tuple = tuple.__new__


@dataclass(frozen=True, kw_only=True, eq=False)
class WrittenPass:
    """The steps of a pass, which its copies share.

    codes: the steps that each one waits for: from 0 within the pass, or -1 - position among the steps that the pass
    begins after. key_places: position of the micro-batch in each step's key or tag; -1 for a step without one.
    labels: the distinct ones; label_of: the index of each step's label.
    """

    steps: tuple[Step, ...]
    codes: tuple[tuple[int, ...], ...]
    key_places: tuple[int, ...]
    labels: tuple[Label, ...]
    label_of: tuple[int, ...]


@dataclass(frozen=True, kw_only=True, eq=False)
class PassCopy:
    """A pass of a program. source: the written pass that it equals but for numbers; perhaps itself.

    first: number of its first step. outside: the steps that it begins after.
    """

    source: WrittenPass
    first: int
    outside: tuple[int, ...]
    microbatch: MicroBatch

    def __len__(self) -> int:
        return len(self.source.steps)

    @cached_property
    def _numbers(self) -> list[int]:
        """The step of each code; codes below 0 count from the end."""
        return [*range(self.first, self.first + len(self)), *reversed(self.outside)]

    @cached_property
    def _known_labels(self) -> dict[int, Label]:
        """The labels of the pass by index in the source's ``labels``, made when first used."""
        return {}

    def _label(self, index: int) -> Label:
        """Return the label of the step with this index in the pass."""
        number = self.source.label_of[index]
        label = self._known_labels.get(number)
        if label is None:
            label = self.source.labels[number]
            if label.microbatch >= 0:
                label = Label(label.phase, label.operator, label.layer, label.stage, self.microbatch, label.step)
            self._known_labels[number] = label
        return label

    def number(self, code: int) -> int:
        """Return the number in the program of a step of the pass, or of a step that it begins after."""
        return self.first + code if code >= 0 else self.outside[-1 - code]

    def collectives(self, indices: Iterable[int]) -> Iterator[Collective]:
        """Yield the collectives with these indices in the pass, but with the ``after`` of the written pass."""
        microbatch, label_of = self.microbatch, self._label
        steps, places = self.source.steps, self.source.key_places
        for index in indices:
            step, at = steps[index], places[index]
            assert isinstance(step, Collective)
            key = (*step.key[:at], microbatch, *step.key[at + 1 :])
            call = step.kind, step.axis, key, step.size_bytes, step.root, step.algorithm
            yield new_tuple(Collective, (*call, step.after, label_of(index), step.queue, step.pressure_ppm))

    def steps(self) -> list[Step]:
        """Return all steps."""
        return [self.step(index) for index in range(len(self))]

    def step(self, index: int) -> Step:
        """Return the step with this index in the pass."""
        source, numbers = self.source, self._numbers
        step, at = source.steps[index], source.key_places[index]
        after = tuple([numbers[code] for code in source.codes[index]])
        label = self._label(index)
        if isinstance(step, Compute):
            return new_tuple(Compute, (step.stream, step.duration_ps, after, label))
        if isinstance(step, Collective):
            key = (*step.key[:at], self.microbatch, *step.key[at + 1 :])
            fields = (step.kind, step.axis, key, step.size_bytes, step.root, step.algorithm, after, label, step.queue)
            return new_tuple(Collective, (*fields, step.pressure_ppm))
        if isinstance(step, HostCopy):
            return HostCopy(step.size_bytes, after, label, step.to_host)
        tag = (*step.tag[:at], self.microbatch, *step.tag[at + 1 :])
        if isinstance(step, Send):
            return Send(step.peer, step.size_bytes, tag, after, label, step.pressure_ppm)
        return Recv(step.peer, tag, after, label)


Part = tuple[Step, ...] | PassCopy


class ProgramSteps(Sequence[Step]):
    """The steps of a program in parts; they become objects when they are first read one by one."""

    def __init__(self, parts: Iterable[Part]) -> None:
        self.parts = tuple(part for part in parts if len(part))

    @cached_property
    def _steps(self) -> tuple[Step, ...]:
        return tuple(chain.from_iterable(_steps_of(part) for part in self.parts))

    def __len__(self) -> int:
        return sum(map(len, self.parts))

    def __iter__(self) -> Iterator[Step]:
        return iter(self._steps)

    @overload
    def __getitem__(self, index: int) -> Step: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Step, ...]: ...
    def __getitem__(self, index: int | slice) -> Step | tuple[Step, ...]:
        return self._steps[index]

    def __eq__(self, other: object) -> bool:
        return tuple(self) == tuple(other) if isinstance(other, ProgramSteps | tuple) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._steps)


def _steps_of(part: Part) -> Sequence[Step]:
    return part.steps() if isinstance(part, PassCopy) else part


def parts_of(steps: Sequence[Step]) -> tuple[Part, ...]:
    """Return the parts of a program's steps."""
    return steps.parts if isinstance(steps, ProgramSteps) else (tuple(steps),)


def join_parts(parts: Iterable[Part]) -> Sequence[Step]:
    """Return the steps of a program with these parts."""
    steps = ProgramSteps(parts)
    has_copies = any(isinstance(part, PassCopy) for part in steps.parts)
    return steps if has_copies else tuple(steps)


def extend_steps(steps: Sequence[Step], further: Sequence[Step]) -> Sequence[Step]:
    """Return the steps of a program with ``further`` ones behind them."""
    return join_parts((*parts_of(steps), tuple(further)))


def steps_as_written(steps: Sequence[Step]) -> Iterator[Step]:
    """Yield the steps of a program, but in place of each copy of a pass the steps of the written one.

    They have the kinds, sizes and durations of the copies, but other micro-batches and numbers of steps.
    """
    for part in parts_of(steps):
        yield from part.source.steps if isinstance(part, PassCopy) else part


class StepLog:
    """The steps of a program while it is written."""

    def __init__(self) -> None:
        self._parts: list[Part] = []
        self._firsts: list[int] = []  # number of the first step of each part
        self._open: list[Step] = []  # steps behind all parts
        self._num_closed = 0
        self.append = self._open.append

    def __len__(self) -> int:
        return self._num_closed + len(self._open)

    def from_step(self, first: int) -> list[Step]:
        """Return all steps from number ``first`` on."""
        if first >= self._num_closed:
            return self._open[first - self._num_closed :]
        number = bisect_right(self._firsts, first) - 1
        closed = chain.from_iterable(_steps_of(part) for part in self._parts[number:])
        return [*closed, *self._open][first - self._firsts[number] :]

    def close_pass(self, source: WrittenPass, first: int, outside: tuple[int, ...], microbatch: int) -> None:
        """Note that the steps from ``first`` on are a written pass."""
        del self._open[first - self._num_closed :]
        self.add_copy(source, outside, microbatch)

    def add_copy(self, source: WrittenPass, outside: tuple[int, ...], microbatch: int) -> None:
        """Append a copy of a written pass."""
        if self._open:
            self._close(tuple(self._open))
            self._open.clear()
        first, number = self._num_closed, MicroBatch(microbatch)
        self._close(PassCopy(source=source, first=first, outside=outside, microbatch=number))

    def _close(self, part: Part) -> None:
        self._parts.append(part)
        self._firsts.append(self._num_closed)
        self._num_closed += len(part)

    def steps(self) -> Sequence[Step]:
        """Return all steps."""
        return join_parts((*self._parts, tuple(self._open)))


# -- memory changes ------------------------------------------------------------------------------------------------

#: Columns of a table of memory changes: the fields of :class:`trine.graph.program.MemoryChange`.
NUM_COLUMNS = len(MemoryChange._fields)


def table_of(rows: Sequence[tuple[int, ...]], num_columns: int) -> Int64:
    """Return int64[rows, columns]; a flat iterator takes a third of the time of ``np.array``."""
    numbers = np.fromiter(chain.from_iterable(rows), np.int64, len(rows) * num_columns)
    return numbers.reshape(len(rows), num_columns)


class MemoryChanges(Sequence[MemoryChange]):
    """The memory changes of a program as a table: int64[changes, NUM_COLUMNS]."""

    def __init__(self, table: Int64) -> None:
        self.table = table

    def __len__(self) -> int:
        return len(self.table)

    def __iter__(self) -> Iterator[MemoryChange]:
        for step, at_end, *rest in self.table.tolist():
            yield MemoryChange(step, bool(at_end), *rest)

    @overload
    def __getitem__(self, index: int) -> MemoryChange: ...
    @overload
    def __getitem__(self, index: slice) -> MemoryChanges: ...
    def __getitem__(self, index: int | slice) -> MemoryChange | MemoryChanges:
        if isinstance(index, slice):
            return MemoryChanges(self.table[index])
        step, at_end, *rest = self.table[index].tolist()
        return MemoryChange(step, bool(at_end), *rest)

    def __eq__(self, other: object) -> bool:
        return tuple(self) == tuple(other) if isinstance(other, MemoryChanges | tuple) else NotImplemented

    def __hash__(self) -> int:
        return hash(tuple(self))  # equal to the hash of an equal tuple


def memory_table(changes: Sequence[MemoryChange]) -> Int64:
    """Return the memory changes of a program as a table: int64[changes, NUM_COLUMNS]."""
    return changes.table if isinstance(changes, MemoryChanges) else table_of(changes, NUM_COLUMNS)


class MemoryLog:
    """The memory changes of a program while it is written."""

    def __init__(self) -> None:
        self._tables: list[Int64] = []
        self._open: list[MemoryChange] = []  # changes behind all tables
        self._num_closed = 0
        self.append = self._open.append

    def __len__(self) -> int:
        return self._num_closed + len(self._open)

    def from_change(self, first: int) -> list[MemoryChange]:
        """Return the changes from number ``first`` on; no table may have been added since."""
        assert first >= self._num_closed
        return self._open[first - self._num_closed :]

    def add_table(self, table: Int64) -> None:
        """Append changes: int64[changes, NUM_COLUMNS]."""
        for part in (table_of(self._open, NUM_COLUMNS), table):
            self._tables.append(part)
            self._num_closed += len(part)
        self._open.clear()

    def changes(self) -> MemoryChanges:
        """Return all changes."""
        return MemoryChanges(np.concatenate([*self._tables, table_of(self._open, NUM_COLUMNS)]))
