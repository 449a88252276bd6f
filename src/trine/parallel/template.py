"""A rank program as arrays: its tasks, without rank-specific data.

Copies of a pass have the tasks of the written pass with other numbers, so only written steps are read one by one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from trine.common.arrays import Int64
from trine.errors import PlanError
from trine.graph.program import Collective, Compute, HostCopy, Label, RankProgram, Recv, Send, Step
from trine.graph.taskgraph import COMPUTE, JOIN, TRANSFER
from trine.parallel.program_parts import Part, PassCopy, memory_table, parts_of, table_of

LABEL_FIELDS = Label._fields
_MICROBATCH = LABEL_FIELDS.index("microbatch")


@dataclass(frozen=True, kw_only=True, slots=True)
class ProgramTemplate:
    """One program as arrays: its tasks, numbered from 0, without rank-specific data.

    copies, stores: tasks that copy from and to the host. pressure_ppm: int32[tasks], speed that the compute stream
    loses when each task ends, as in TaskGraph; None without pressure. memory: int64[changes, 6], a row for each
    :class:`trine.graph.program.MemoryChange`. collectives: by key; ``after`` of those in copies of a pass are the
    written pass's.
    """

    kind: npt.NDArray[np.int8]
    duration_ps: Int64
    size_bytes: Int64
    stream: npt.NDArray[np.int32]  # 0 compute, 1 cpu, ..., -1 no stream
    labels: npt.NDArray[np.int32]  # [fields, tasks]
    edges: tuple[Int64, Int64]  # task, predecessor
    first_task: Int64  # of each step
    last_task: Int64
    sends: list[tuple[int, Send]]
    receives: list[tuple[int, Recv]]
    copies: list[int]
    stores: list[int]
    collectives: dict[tuple[int | str, ...], tuple[int, Collective]]
    memory: Int64
    pressure_ppm: npt.NDArray[np.int32] | None = None


def make_template(program: RankProgram, streams: dict[str, int]) -> ProgramTemplate:
    """Return the tasks of ``program``; ``streams`` numbers the streams of all programs, and grows as needed.

    Raises PlanError for two collectives with the same key.
    """
    joined, of_pass = _JoinedBlocks(program, streams), dict[int, _StepBlock]()
    for part in parts_of(program.steps):
        if isinstance(part, PassCopy):
            block = of_pass.get(id(part.source))
            if block is None:
                block = of_pass[id(part.source)] = _BlockOfSteps(part.source.steps, part.source.codes).block()
        else:
            block = _BlockOfSteps(part, (step.after for step in part), joined.num_steps).block()
        joined.add(block, part)
    return joined.template()


@dataclass(frozen=True, kw_only=True, slots=True)
class _StepBlock:
    """The tasks of consecutive steps, numbered from 0.

    width: tasks of each step. stream: index in ``streams``, or -1. predecessors: one of each task in ``tasks``, a task
    of the block or -1 - index in ``outside``. outside: steps before the block, counted from its first (below 0), and
    queues (for the latest task before the block, if any). last_of_queue: the latest task in the block.
    sends, receives, collectives: task and index of each step. copies: of the host, by whether they go there.
    """

    width: Int64
    kind: npt.NDArray[np.int8]
    duration_ps: Int64
    size_bytes: Int64
    stream: npt.NDArray[np.int32]
    streams: tuple[str, ...]
    labels: npt.NDArray[np.int32]
    tasks: Int64
    predecessors: Int64
    outside: tuple[int | str, ...]
    last_of_queue: dict[str, int]
    sends: list[tuple[int, int]]
    receives: list[tuple[int, int]]
    collectives: list[tuple[int, int]]
    copies: dict[bool, list[int]]
    pressure_ppm: npt.NDArray[np.int32] | None


class _BlockOfSteps:
    """The block of consecutive steps. waits: the steps that each waits for, counted from ``first``."""

    def __init__(self, steps: Sequence[Step], waits: Iterable[Sequence[int]], first: int = 0) -> None:
        self.steps = steps
        width = np.array([1 if isinstance(step, Compute) else _width(step) for step in steps], np.int64)
        self.width, last = width, np.cumsum(width) - 1
        self.begins, self.ends = (last - width + 1).tolist(), last.tolist()
        self.tasks: list[int] = []
        self.predecessors: list[int] = []
        self.outside: dict[int | str, int] = {}
        self.last_of_queue: dict[str, int] = {}
        self._connect(waits, first)

    def _connect(self, waits: Iterable[Sequence[int]], first: int) -> None:
        """Add the dependencies of each step: on the steps it waits for, on its queue, and on its own start."""
        add_task, add_predecessor, ends, outside = self.tasks.append, self.predecessors.append, self.ends, self.outside
        for step, waits_for, begin, end in zip(self.steps, waits, self.begins, ends, strict=True):
            for number in waits_for:
                index = number - first
                add_task(begin)
                add_predecessor(ends[index] if index >= 0 else -1 - outside.setdefault(index, len(outside)))
            if isinstance(step, Collective):
                queue = step.queue or step.axis
                before = self.last_of_queue.get(queue)
                add_task(begin)
                add_predecessor(-1 - outside.setdefault(queue, len(outside)) if before is None else before)
                self.last_of_queue[queue] = end
            if end > begin:  # a collective cannot end before this rank enters it, nor a message before it is ready
                add_task(end)
                add_predecessor(begin)

    def block(self) -> _StepBlock:
        total = int(self.width.sum())
        kind, duration, size, stream = [JOIN] * total, [0] * total, [0] * total, [-1] * total
        streams: dict[str, int] = {}
        sends: list[tuple[int, int]] = []
        receives: list[tuple[int, int]] = []
        collectives: list[tuple[int, int]] = []
        pressing: list[tuple[int, int, int]] = []  # first task, last task, pressure in millionths
        host_copies: dict[bool, list[int]] = {False: [], True: []}
        for index, (step, begin, end) in enumerate(zip(self.steps, self.begins, self.ends, strict=True)):
            if isinstance(step, Compute):
                kind[begin], duration[begin] = COMPUTE, step.duration_ps
                stream[begin] = streams.setdefault(step.stream, len(streams))
            elif isinstance(step, Collective):
                collectives.append((begin, index))
                if step.pressure_ppm:
                    pressing.append((begin, end, step.pressure_ppm))
            elif isinstance(step, Send):
                kind[end], size[end] = TRANSFER, step.size_bytes
                sends.append((end, index))
                if step.pressure_ppm:  # the kernel slows compute down as soon as the message is ready
                    pressing.append((begin, end, step.pressure_ppm))
            elif isinstance(step, HostCopy):
                kind[begin], size[begin] = TRANSFER, step.size_bytes
                host_copies[step.to_host].append(begin)
            else:
                receives.append((begin, index))
        return _StepBlock(
            width=self.width, kind=np.array(kind, np.int8), duration_ps=np.array(duration, np.int64),
            size_bytes=np.array(size, np.int64), stream=np.array(stream, np.int32), streams=tuple(streams),
            labels=_label_table(self.steps, self.width), tasks=np.array(self.tasks, np.int64),
            predecessors=np.array(self.predecessors, np.int64), outside=tuple(self.outside),
            last_of_queue=self.last_of_queue, sends=sends, receives=receives, collectives=collectives,
            copies=host_copies, pressure_ppm=_pressures(pressing, total),
        )  # fmt: skip


def _width(step: Step) -> int:
    """Return the number of tasks of a step; a step that slows compute down has a task for its start and its end."""
    return 2 if isinstance(step, Collective) or (isinstance(step, Send) and step.pressure_ppm) else 1


def _pressures(pressing: Sequence[tuple[int, int, int]], total: int) -> npt.NDArray[np.int32] | None:
    """Return the speed that compute loses as each task ends: int32[tasks]. pressing: first task, last task, loss."""
    if not pressing:
        return None
    first, last, pressure = np.array(pressing, np.int64).T
    column = np.zeros(total, dtype=np.int32)
    column[first] = pressure
    column[last] = -pressure
    return column


def _label_table(steps: Sequence[Step], width: Int64) -> npt.NDArray[np.int32]:
    rows = table_of([step.label for step in steps], len(LABEL_FIELDS))
    return np.repeat(rows, width, axis=0).T.astype(np.int32, order="C")


class _JoinedBlocks:
    """The blocks of a program, one after the other."""

    def __init__(self, program: RankProgram, streams: dict[str, int]) -> None:
        self.program, self._streams = program, streams
        self.num_steps = self._num_tasks = 0
        self._blocks: list[_StepBlock] = []
        self._stream: list[npt.NDArray[np.int32]] = []
        self._labels: list[npt.NDArray[np.int32]] = []
        self._edges: list[tuple[Int64, Int64]] = []
        self._last_task = np.zeros(len(program.steps), np.int64)
        self._last_of_queue: dict[str, int] = {}
        self._sends: list[tuple[int, Send]] = []
        self._receives: list[tuple[int, Recv]] = []
        self._copies: dict[bool, list[int]] = {False: [], True: []}
        self._collectives: dict[tuple[int | str, ...], tuple[int, Collective]] = {}

    def add(self, block: _StepBlock, part: Part) -> None:
        """Append the block of a part of the program."""
        first = self._num_tasks
        self._last_task[self.num_steps : self.num_steps + len(part)] = first - 1 + np.cumsum(block.width)
        self._blocks.append(block)
        numbers = [self._streams.setdefault(name, len(self._streams)) for name in block.streams]
        self._stream.append(np.array([*numbers, -1], np.int32)[block.stream])
        self._labels.append(_labels_of(block, part))
        self._connect(block, part)
        self._add_steps(block, part)
        for is_to_host, tasks in block.copies.items():
            self._copies[is_to_host] += [first + task for task in tasks]
        self._last_of_queue.update({queue: first + task for queue, task in block.last_of_queue.items()})
        self.num_steps += len(part)
        self._num_tasks += len(block.kind)

    def _connect(self, block: _StepBlock, part: Part) -> None:
        """Add the edges of a block; the first collective of a queue waits for none."""
        tasks, predecessors = block.tasks + self._num_tasks, block.predecessors + self._num_tasks
        if block.outside:
            outside = []
            for each in block.outside:
                if isinstance(each, str):
                    outside.append(self._last_of_queue.get(each, -1))
                else:
                    step = part.number(each) if isinstance(part, PassCopy) else self.num_steps + each
                    outside.append(int(self._last_task[step]))
            is_outside = block.predecessors < 0
            predecessors[is_outside] = np.array(outside, np.int64)[-1 - block.predecessors[is_outside]]
            if -1 in outside:
                has_predecessor = predecessors >= 0
                tasks, predecessors = tasks[has_predecessor], predecessors[has_predecessor]
        self._edges.append((tasks, predecessors))

    def _add_steps(self, block: _StepBlock, part: Part) -> None:
        """Add the messages and collectives of a block."""
        first, step_of = self._num_tasks, part.step if isinstance(part, PassCopy) else part.__getitem__
        self._sends += [(first + task, step_of(index)) for task, index in block.sends]  # type: ignore[misc]
        self._receives += [(first + task, step_of(index)) for task, index in block.receives]  # type: ignore[misc]
        for (task, _), step in zip(block.collectives, _collectives_of(block, part), strict=True):
            if step.key in self._collectives:
                raise PlanError(f"program {self.program.name!r} names collective {step.key} twice")
            self._collectives[step.key] = first + task, step

    def template(self) -> ProgramTemplate:
        """Return the template of all blocks."""
        blocks = self._blocks
        width = np.concatenate([_NONE, *(block.width for block in blocks)])
        pressure = None
        if any(block.pressure_ppm is not None for block in blocks):
            pressure = np.concatenate([_pressure_of(block) for block in blocks])
        return ProgramTemplate(
            kind=np.concatenate([_NONE.astype(np.int8), *(block.kind for block in blocks)]),
            duration_ps=np.concatenate([_NONE, *(block.duration_ps for block in blocks)]),
            size_bytes=np.concatenate([_NONE, *(block.size_bytes for block in blocks)]),
            stream=np.concatenate([_NONE.astype(np.int32), *self._stream]),
            labels=np.concatenate([np.zeros((len(LABEL_FIELDS), 0), np.int32), *self._labels], axis=1),
            edges=(
                np.concatenate([_NONE, *(tasks for tasks, _ in self._edges)]),
                np.concatenate([_NONE, *(predecessors for _, predecessors in self._edges)]),
            ),
            first_task=self._last_task - width + 1,
            last_task=self._last_task,
            sends=self._sends,
            receives=self._receives,
            copies=self._copies[False],
            stores=self._copies[True],
            collectives=self._collectives,
            memory=memory_table(self.program.memory),
            pressure_ppm=pressure,
        )


def _collectives_of(block: _StepBlock, part: Part) -> Iterable[Collective]:
    indices = [index for _, index in block.collectives]
    if isinstance(part, PassCopy):
        return part.collectives(indices)
    return [step for step in map(part.__getitem__, indices) if isinstance(step, Collective)]


_NONE = np.zeros(0, np.int64)


def _labels_of(block: _StepBlock, part: Part) -> npt.NDArray[np.int32]:
    """Return the labels of a block's tasks, with the micro-batch of the part."""
    if not isinstance(part, PassCopy):
        return block.labels
    labels = block.labels.copy()
    labels[_MICROBATCH, labels[_MICROBATCH] >= 0] = part.microbatch
    return labels


def _pressure_of(block: _StepBlock) -> npt.NDArray[np.int32]:
    return np.zeros(len(block.kind), np.int32) if block.pressure_ppm is None else block.pressure_ppm
