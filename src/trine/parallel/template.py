"""One rank program as arrays: its tasks, without rank-specific data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from trine.common.arrays import Int64
from trine.errors import PlanError
from trine.graph.memory import MemoryEvents
from trine.graph.program import Collective, Compute, HostCopy, Job, RankProgram, Recv, Send, Step
from trine.graph.taskgraph import COMPUTE, JOIN, TRANSFER

LABEL_FIELDS = ("phase", "operator", "layer", "stage", "microbatch", "step")


@dataclass(frozen=True, kw_only=True, slots=True)
class ProgramTemplate:
    """One program as arrays: its tasks, numbered from 0, without rank-specific data.

    copies, stores: tasks that copy from and to the host. pressure_ppm: int32[tasks], speed that the compute stream
    loses when each task ends, as in TaskGraph; None without pressure.
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
    pressure_ppm: npt.NDArray[np.int32] | None = None


def make_template(program: RankProgram, streams: dict[str, int]) -> ProgramTemplate:
    """Return the tasks of ``program``; ``streams`` numbers the streams of all programs, and grows as needed.

    Raises PlanError for two collectives with the same key.
    """
    steps = program.steps
    width = np.array([_width(step) for step in steps], dtype=np.int64)
    first = np.cumsum(width) - width
    last = first + width - 1
    total = int(width.sum())
    kind = np.full(total, JOIN, dtype=np.int8)
    duration, size = np.zeros(total, dtype=np.int64), np.zeros(total, dtype=np.int64)
    stream = np.full(total, -1, dtype=np.int32)
    tasks: list[int] = []
    predecessors: list[int] = []  # one of each task in ``tasks``
    sends: list[tuple[int, Send]] = []
    receives: list[tuple[int, Recv]] = []
    host_copies: dict[bool, list[int]] = {False: [], True: []}  # whether to the host -> tasks
    collectives: dict[tuple[int | str, ...], tuple[int, Collective]] = {}
    last_of_queue: dict[str, int] = {}
    ends = last.tolist()
    for step, begin, end in zip(steps, first.tolist(), ends, strict=True):
        tasks += [begin] * len(step.after)
        predecessors += [ends[j] for j in step.after]
        if isinstance(step, Compute):
            kind[begin] = COMPUTE
            duration[begin] = step.duration_ps
            stream[begin] = streams.setdefault(step.stream, len(streams))
        elif isinstance(step, Send):
            if end > begin:  # the kernel slows compute down as soon as the message is ready
                tasks.append(end)
                predecessors.append(begin)
            kind[end], size[end] = TRANSFER, step.size_bytes
            sends.append((end, step))
        elif isinstance(step, Recv):
            receives.append((begin, step))
        elif isinstance(step, HostCopy):
            kind[begin], size[begin] = TRANSFER, step.size_bytes
            host_copies[step.to_host].append(begin)
        else:
            queue = step.queue or step.axis
            if queue in last_of_queue:
                tasks.append(begin)
                predecessors.append(last_of_queue[queue])
            last_of_queue[queue] = end
            tasks.append(end)  # it cannot end before this rank enters it
            predecessors.append(begin)
            if step.key in collectives:
                raise PlanError(f"program {program.name!r} names collective {step.key} twice")
            collectives[step.key] = (begin, step)
    return ProgramTemplate(
        kind=kind, duration_ps=duration, size_bytes=size, stream=stream, labels=_label_table(steps, width),
        edges=(np.array(tasks, np.int64), np.array(predecessors, np.int64)), first_task=first, last_task=last,
        sends=sends, receives=receives, copies=host_copies[False], stores=host_copies[True], collectives=collectives,
        pressure_ppm=_pressures(steps, first, last, total),
    )  # fmt: skip


def _width(step: Step) -> int:
    """Return the number of tasks of a step; a step that slows compute down has a task for its start and its end."""
    return 2 if isinstance(step, Collective) or (isinstance(step, Send) and step.pressure_ppm) else 1


def _pressures(steps: Sequence[Step], first: Int64, last: Int64, total: int) -> npt.NDArray[np.int32] | None:
    pressing = [i for i, step in enumerate(steps) if isinstance(step, Collective | Send) and step.pressure_ppm]
    if not pressing:
        return None
    column = np.zeros(total, dtype=np.int32)
    pressure = np.array([steps[i].pressure_ppm for i in pressing], dtype=np.int32)  # type: ignore[union-attr]
    column[first[pressing]] = pressure
    column[last[pressing]] = -pressure
    return column


def _label_table(steps: Sequence[object], width: Int64) -> npt.NDArray[np.int32]:
    rows = np.array([step.label for step in steps], dtype=np.int32)  # type: ignore[attr-defined]
    return np.repeat(rows.reshape(len(steps), len(LABEL_FIELDS)), width, axis=0).T.copy()


def memory_events(
    job: Job, templates: Sequence[ProgramTemplate], program_of: Sequence[int], base: Int64
) -> MemoryEvents:
    """Return the memory changes of ranks; each has a program and ``base``, its first task: int64[ranks]."""
    tables = {number: _memory_table(job.programs[number], templates[number]) for number in dict.fromkeys(program_of)}
    table = np.concatenate([tables[number] for number in program_of], axis=1)
    num_changes = [tables[number].shape[1] for number in program_of]
    programs = [job.programs[number] for number in program_of]
    held = None
    if any(program.clocks for program in programs):
        ranks = zip(programs, program_of, base.tolist(), strict=True)
        held = np.concatenate([_held_table(program, templates[number], first) for program, number, first in ranks])
    return MemoryEvents(
        task=(table[0] + np.repeat(base, num_changes)).astype(np.int32),
        at_end=table[1].astype(np.int8),
        rank=np.repeat(np.arange(len(programs), dtype=np.int32), num_changes),
        delta_bytes=table[2].copy(),
        category=table[3].astype(np.int8),
        resident_bytes=np.array([program.resident_bytes for program in programs], dtype=np.int64),
        block=table[4].copy(),
        held=held,
    )


def _held_table(program: RankProgram, template: ProgramTemplate, base: int) -> Int64:
    """Return :attr:`trine.graph.memory.MemoryEvents.held` of one rank, whose first task is ``base``."""
    rows = np.array(program.memory, dtype=np.int64).reshape(-1, 6)
    held = np.full((len(rows), 4), -1, np.int64)
    if program.clocks:
        held[:, :3], held[:, 3] = np.array(program.clocks, np.int64).reshape(-1, 3)[rows[:, 0]], rows[:, 5]
        for column in (0, 2, 3):
            steps = held[:, column]
            held[:, column] = np.where(steps >= 0, template.last_task[steps] + base, -1)
    return held


def _memory_table(program: RankProgram, template: ProgramTemplate) -> Int64:
    """Return int64[5, changes]: task of the program, whether at its end, bytes, category, block."""
    rows = np.array(program.memory, dtype=np.int64).reshape(-1, 6)
    steps = rows[:, 0]
    task = np.where(rows[:, 1] == 1, template.last_task[steps], template.first_task[steps])
    return np.stack([task, *rows[:, 1:5].T])
