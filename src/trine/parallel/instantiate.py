"""Conversion of rank programs to the task graph: steps of ranks become tasks, symbolic references become numbers.

Task numbers: first the tasks of rank 0, then of rank 1, ..., each in program order; then the transfers of the
collectives. A program step becomes one task; a collective becomes two joins (entered, ended) plus its transfers.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from trine.collectives.library_flows import message_of
from trine.collectives.one_operation import schedule_of
from trine.collectives.schedule import check_sent_by_ranks
from trine.collectives.transfers import append_transfers
from trine.common.arrays import Int64
from trine.errors import PlanError
from trine.graph.assembler import PlacedAssembler
from trine.graph.grid import RankGrid
from trine.graph.memory import MemoryEvents
from trine.graph.placement import Placement
from trine.graph.program import COMPUTE_STREAM, Collective, Job, RankProgram
from trine.graph.taskgraph import CollectiveLabel, TaskGraph
from trine.parallel.program_parts import steps_as_written, table_of
from trine.parallel.template import LABEL_FIELDS, ProgramTemplate, make_template


def memory_events(
    job: Job, templates: Sequence[ProgramTemplate], program_of: Sequence[int], base: Int64
) -> MemoryEvents:
    """Return the memory changes of ranks; each has a program and ``base``, its first task: int64[ranks]."""
    tables = {number: _memory_table(templates[number]) for number in dict.fromkeys(program_of)}
    table = np.concatenate([tables[number] for number in program_of], axis=1)
    num_changes = [tables[number].shape[1] for number in program_of]
    programs = [job.programs[number] for number in program_of]
    clocks = None
    if any(program.clocks for program in programs):
        ranks = zip(programs, program_of, base.tolist(), strict=True)
        clocks = np.concatenate([_clock_table(program, templates[number], first) for program, number, first in ranks])
    return MemoryEvents(
        task=(table[0] + np.repeat(base, num_changes)).astype(np.int32),
        at_end=table[1].astype(np.int8),
        rank=np.repeat(np.arange(len(programs), dtype=np.int32), num_changes),
        delta_bytes=table[2].copy(),
        category=table[3].astype(np.int8),
        resident_bytes=np.array([program.resident_bytes for program in programs], dtype=np.int64),
        block=table[4].copy(),
        held=clocks,
    )


def _clock_table(program: RankProgram, template: ProgramTemplate, base: int) -> Int64:
    """Return :attr:`trine.graph.memory.MemoryEvents.held` of one rank, whose first task is ``base``."""
    rows = template.memory
    columns = np.full((len(rows), 4), -1, np.int64)
    if program.clocks:
        columns[:, :3], columns[:, 3] = table_of(program.clocks, 3)[rows[:, 0]], rows[:, 5]
        for column in (0, 2, 3):
            steps = columns[:, column]
            columns[:, column] = np.where(steps >= 0, template.last_task[steps] + base, -1)
    return columns


def _memory_table(template: ProgramTemplate) -> Int64:
    """Return int64[5, changes]: task of the program, whether at its end, bytes, category, block."""
    rows = template.memory
    steps = rows[:, 0]
    task = np.where(rows[:, 1] == 1, template.last_task[steps], template.first_task[steps])
    return np.stack([task, *rows[:, 1:5].T])


#: Larger jobs (about 10 GB) are refused before large arrays are built.
MAX_TASKS = 50_000_000
#: Columns that are equal on all ranks of a program.
OWN_COLUMNS = ("kind", "duration_ps")


class _Instantiation:
    """All ranks' tasks, numbered rank by rank, followed by the tasks of the collectives."""

    def __init__(self, job: Job, placement: Placement) -> None:
        self.job = job
        self.placement = placement
        self.assembler = PlacedAssembler(placement)
        self.grid = RankGrid(job.axes)
        self.streams: dict[str, int] = {}
        self.templates = [make_template(program, self.streams) for program in job.programs]
        self.sizes = np.array([len(self.templates[p].kind) for p in job.program_of], dtype=np.int64)
        self.base = np.cumsum(self.sizes) - self.sizes
        self.collectives: list[CollectiveLabel] = []
        num_tasks = int(self.sizes.sum())
        sizes = [self.templates[p].size_bytes for p in job.program_of]
        self.size_bytes = np.concatenate(sizes) if sizes else np.zeros(0, np.int64)
        self.peer = np.full(num_tasks, -1, dtype=np.int32)
        self.route = np.full(num_tasks, -1, dtype=np.int32)
        self.collective = np.full(num_tasks, -1, dtype=np.int32)

    # -- tasks of the ranks --------------------------------------------------------------------------------------

    def ranks(self) -> None:
        templates = [self.templates[p] for p in self.job.program_of]
        streams = len(self.streams)
        self.assembler.repeat_streams(tuple(self.streams), len(templates))
        of_rank = [np.where(t.stream >= 0, t.stream + rank * streams, -1) for rank, t in enumerate(templates)]
        labels = np.concatenate([template.labels for template in templates], axis=1)
        own_columns = {}
        for name in OWN_COLUMNS:
            own_columns[name] = np.concatenate([getattr(t, name) for t in templates])
        self.assembler.tasks(
            len(self.peer),
            **own_columns,
            **dict(zip(LABEL_FIELDS, labels, strict=True)),
            rank=np.repeat(np.arange(len(templates)), self.sizes),
            size_bytes=self.size_bytes,
            peer=self.peer,
            stream=np.concatenate(of_rank),
            route=self.route,
            collective=self.collective,
            **self._pressure(templates),
        )
        for rank, template in enumerate(templates):
            self.assembler.connect(template.edges[0] + self.base[rank], template.edges[1] + self.base[rank])

    def _pressure(self, templates: Sequence[ProgramTemplate]) -> dict[str, npt.NDArray[np.int32]]:
        """Return the slowdown that tasks cause on their ranks' compute streams; empty without any slowdown."""
        if COMPUTE_STREAM not in self.streams or all(template.pressure_ppm is None for template in templates):
            return {}
        ppm = np.zeros(len(self.peer), dtype=np.int32)
        stream = np.full(len(self.peer), -1, dtype=np.int32)
        for rank, template in enumerate(templates):
            if template.pressure_ppm is not None:
                tasks = slice(self.base[rank], self.base[rank] + self.sizes[rank])
                compute = rank * len(self.streams) + self.streams[COMPUTE_STREAM]
                ppm[tasks] = template.pressure_ppm
                stream[tasks] = np.where(template.pressure_ppm != 0, compute, -1)
        return {"pressure_ppm": ppm, "pressure_stream": stream}

    def messages(self) -> None:
        """Resolve the sends, receives and host copies of every rank."""
        send_tasks: dict[tuple[int, int, tuple[int | str, ...]], int] = {}
        for rank, program in enumerate(self.job.program_of):
            for task, send in self.templates[program].sends:
                target = self.grid.resolve(rank, send.peer)
                number = int(self.base[rank]) + task
                if (rank, target, send.tag) in send_tasks:
                    raise PlanError(f"rank {rank} sends message {send.tag} to rank {target} twice")
                send_tasks[rank, target, send.tag] = number
                self.peer[number] = target
                self._message(rank, target, number)
            copies, stores = self.templates[program].copies, self.templates[program].stores
            for tasks, route_of in ((copies, self.assembler.from_host), (stores, self.assembler.to_host)):
                for task in tasks:
                    self.peer[int(self.base[rank]) + task] = rank
                    self.route[int(self.base[rank]) + task] = route_of(rank)
        self._received(send_tasks)

    def _message(self, rank: int, target: int, task: int) -> None:
        """Set the route of one message between pipeline stages."""
        size_bytes = int(self.size_bytes[task])
        message = message_of(size_bytes, *self.placement.collective("send_recv", size_bytes, (rank, target), None))
        self.size_bytes[task] = message.size_bytes
        self.route[task] = self.assembler.between(rank, target, message.software_ps, message.cap)

    def _received(self, send_tasks: dict[tuple[int, int, tuple[int | str, ...]], int]) -> None:
        """Connect each receive to its send. Raises PlanError for a message without a sender or receiver."""
        tasks, predecessors = [], []
        for rank, program in enumerate(self.job.program_of):
            for task, receive in self.templates[program].receives:
                source = self.grid.resolve(rank, receive.peer)
                if (source, rank, receive.tag) not in send_tasks:
                    raise PlanError(f"rank {rank} waits for message {receive.tag}, which rank {source} never sends")
                tasks.append(int(self.base[rank]) + task)
                predecessors.append(send_tasks.pop((source, rank, receive.tag)))
        if send_tasks:
            source, target, tag = next(iter(send_tasks))
            raise PlanError(f"rank {source} sends message {tag}, which rank {target} never receives")
        self.assembler.connect(tasks, predecessors)

    # -- transfers of the collectives ----------------------------------------------------------------------------

    def all_collectives(self) -> None:
        """Add the transfers of every collective, group by group."""
        axes = dict.fromkeys(step.axis for t in self.templates for _, step in t.collectives.values())
        order = {name: number for number, (name, _) in enumerate(self.job.axes)}
        for axis in sorted(axes, key=lambda axis: [order[name] for name in axis.split("+")]):
            if self.grid.size(axis) > 1:
                for group in self.grid.groups(axis):
                    for key, step in self._agreed(group, axis).items():
                        self._collective(group, key, step)

    def _agreed(self, group: tuple[int, ...], axis: str) -> dict[tuple[int | str, ...], Collective]:
        """Return the collectives of a group, in order. Raises PlanError unless all members have equal ones."""
        first = self._collectives_of(group[0], axis)
        expected = [(key, c.kind, c.size_bytes, c.root, c.algorithm) for key, c in first.items()]
        checked = {self.job.program_of[group[0]]}
        for rank in group[1:]:
            if self.job.program_of[rank] in checked:  # ranks of one program agree
                continue
            checked.add(self.job.program_of[rank])
            steps = self._collectives_of(rank, axis)
            if [(key, c.kind, c.size_bytes, c.root, c.algorithm) for key, c in steps.items()] != expected:
                raise PlanError(f"ranks {group[0]} and {rank} disagree on the collectives of axis {axis}")
        return first

    def _collectives_of(self, rank: int, axis: str) -> dict[tuple[int | str, ...], Collective]:
        steps = self.templates[self.job.program_of[rank]].collectives
        return {key: step for key, (_, step) in steps.items() if step.axis == axis}

    def _collective(self, group: tuple[int, ...], key: tuple[int | str, ...], step: Collective) -> None:
        algorithm, software_ps = self.placement.collective(step.kind, step.size_bytes, group, step.algorithm)
        schedule = schedule_of(step.kind, len(group), step.size_bytes, algorithm, step.root)
        check_sent_by_ranks(schedule)
        entered = np.array([self._entry(rank, key) for rank in group], dtype=np.int64)
        number = len(self.collectives)
        self.collective[entered] = number
        self.collective[entered + 1] = number
        labels = step.label._asdict()
        append_transfers(self.assembler, schedule, group, entered, software_ps, collective=number, **labels)
        self.collectives.append(CollectiveLabel.of(step, schedule.algorithm, group))

    def _entry(self, rank: int, key: tuple[int | str, ...]) -> int:
        return int(self.base[rank]) + self.templates[self.job.program_of[rank]].collectives[key][0]

    def graph(self) -> TaskGraph:
        return self.assembler.build(
            rank_names=[self.placement.rank_name(rank) for rank in range(len(self.sizes))],
            operator_names=self.job.operator_names,
            layer_names=self.job.layer_names,
            collectives=tuple(self.collectives),
        )


def instantiate(job: Job, placement: Placement) -> tuple[TaskGraph, MemoryEvents]:
    """Turn the programs of ``job`` into one task graph on the devices of ``placement``.

    Raises PlanError for a message without a receiver, a group member that does not take part in its collective, or a
    graph of more than MAX_TASKS tasks.
    """
    _check_size(job)
    builder = _Instantiation(job, placement)
    builder.ranks()
    builder.messages()
    builder.all_collectives()
    return builder.graph(), memory_events(job, builder.templates, job.program_of, builder.base)


def _check_size(job: Job) -> None:
    """Raise PlanError for collectives on unknown axes, and for a job whose graph would not fit into memory."""
    sizes, grid = dict(job.axes), RankGrid(job.axes)
    per_program = []
    for program in job.programs:
        axes: dict[str, None] = {}
        for s in steps_as_written(program.steps):
            if isinstance(s, Collective) and any(name not in sizes for name in s.axis.split("+")):
                axes[s.axis] = None
        if axes:
            raise PlanError(
                f"program {program.name!r} has collectives on {', '.join(axes)}, which is no axis of the grid"
            )
        # A ring all-reduce of n ranks has 2 (n - 1) transfers per rank; no algorithm here has many more.
        collectives = (step for step in steps_as_written(program.steps) if isinstance(step, Collective))
        rings = sum(2 * (grid.size(step.axis) - 1) for step in collectives)
        per_program.append(len(program.steps) + rings)
    total = sum(per_program[program] for program in job.program_of)
    if total > MAX_TASKS:
        raise PlanError(
            f"the job has about {total:,} tasks on {len(job.program_of)} ranks, more than the {MAX_TASKS:,} that fit "
            "into memory: take fewer GPUs, steps or micro-batches"
        )
