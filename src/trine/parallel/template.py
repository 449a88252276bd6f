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


@dataclass(slots=True)
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
    duration = np.zeros(total, dtype=np.int64)
    size = np.zeros(total, dtype=np.int64)
    stream = np.full(total, -1, dtype=np.int32)
    tasks: list[int] = []
    predecessors: list[int] = []
    template = ProgramTemplate(
        kind, duration, size, stream, _label_table(steps, width), (first, first), first, last, [], [], [], [], {},
        _pressures(steps, first, last, total),
    )  # fmt: skip
    previous_on_axis: dict[str, int] = {}
    for i, step in enumerate(steps):
        task = int(first[i])
        tasks += [task] * len(step.after)
        predecessors += [int(last[j]) for j in step.after]
        if isinstance(step, Compute):
            kind[task] = COMPUTE
            duration[task] = step.duration_ps
            stream[task] = streams.setdefault(step.stream, len(streams))
        elif isinstance(step, Send):
            sending = int(last[i])
            if sending > task:  # the kernel slows compute down as soon as the message is ready
                tasks.append(sending)
                predecessors.append(task)
            kind[sending], size[sending] = TRANSFER, step.size_bytes
            template.sends.append((sending, step))
        elif isinstance(step, Recv):
            template.receives.append((task, step))
        elif isinstance(step, HostCopy):
            kind[task], size[task] = TRANSFER, step.size_bytes
            (template.stores if step.to_host else template.copies).append(task)
        else:
            queue = step.queue or step.axis
            if queue in previous_on_axis:
                tasks.append(task)
                predecessors.append(previous_on_axis[queue])
            previous_on_axis[queue] = int(last[i])
            tasks.append(int(last[i]))  # it cannot end before this rank enters it
            predecessors.append(task)
            if step.key in template.collectives:
                raise PlanError(f"program {program.name!r} names collective {step.key} twice")
            template.collectives[step.key] = (task, step)
    template.edges = (np.array(tasks, dtype=np.int64), np.array(predecessors, dtype=np.int64))
    return template


def _width(step: Step) -> int:
    """Return the number of tasks of a step; a step that slows compute down has a task for its start and its end."""
    return 2 if isinstance(step, Collective) or (isinstance(step, Send) and step.pressure_ppm) else 1


def _pressures(steps: Sequence[Step], first: Int64, last: Int64, total: int) -> npt.NDArray[np.int32] | None:
    pressing = [i for i, step in enumerate(steps) if isinstance(step, Collective | Send) and step.pressure_ppm]
    if not pressing:
        return None
    column = np.zeros(total, dtype=np.int32)
    taken = np.array([steps[i].pressure_ppm for i in pressing], dtype=np.int32)  # type: ignore[union-attr]
    column[first[pressing]] = taken
    column[last[pressing]] = -taken
    return column


def _label_table(steps: Sequence[object], width: Int64) -> npt.NDArray[np.int32]:
    rows = np.array([step.label for step in steps], dtype=np.int32)  # type: ignore[attr-defined]
    return np.repeat(rows.reshape(len(steps), len(LABEL_FIELDS)), width, axis=0).T.copy()


def memory_events(
    job: Job, templates: Sequence[ProgramTemplate], program_of: Sequence[int], base: Int64
) -> MemoryEvents:
    """Return the memory changes of ranks; each has a program and ``base``, its first task: int64[ranks]."""
    parts: dict[str, list[npt.NDArray[np.generic]]] = {
        n: [] for n in ("task", "at_end", "rank", "delta", "category", "block")
    }
    tables = {
        program: _memory_table(job.programs[program], templates[program]) for program in dict.fromkeys(program_of)
    }
    for rank, program in enumerate(program_of):
        task, at_end, delta, category, block = tables[program]
        parts["task"].append(task + base[rank])
        parts["at_end"].append(at_end)
        parts["rank"].append(np.full(len(task), rank, dtype=np.int32))
        parts["delta"].append(delta)
        parts["category"].append(category)
        parts["block"].append(block)
    programs = [job.programs[program] for program in program_of]
    held = None
    if any(program.clocks for program in programs):
        parts_of = zip(programs, program_of, base.tolist(), strict=True)
        held = np.concatenate([_held_table(one, templates[number], first) for one, number, first in parts_of])
    joined = {name: np.concatenate(arrays) for name, arrays in parts.items()}
    return MemoryEvents(
        task=joined["task"].astype(np.int32),
        at_end=joined["at_end"].astype(np.int8),
        rank=joined["rank"].astype(np.int32),
        delta_bytes=joined["delta"].astype(np.int64),
        category=joined["category"].astype(np.int8),
        resident_bytes=np.array([program.resident_bytes for program in programs], dtype=np.int64),
        block=joined["block"].astype(np.int64),
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


def _memory_table(program: RankProgram, template: ProgramTemplate) -> tuple[Int64, Int64, Int64, Int64, Int64]:
    """Return int64[changes] each: task of the program, whether at its end, bytes, category, block."""
    rows = np.array(program.memory, dtype=np.int64).reshape(-1, 6)
    steps = rows[:, 0]
    task = np.where(rows[:, 1] == 1, template.last_task[steps], template.first_task[steps])
    return task, rows[:, 1], rows[:, 2], rows[:, 3], rows[:, 4]
