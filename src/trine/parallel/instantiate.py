"""From rank programs to the task graph: every rank's steps become tasks, every symbolic reference a number.

Task numbers: first the tasks of rank 0, then of rank 1, ..., each in program order; then the transfers of the
collectives. A step of a program becomes one task, a collective two joins (entered, ended) plus its transfers.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from trine.arrays import Int64
from trine.collectives import expand
from trine.collectives.one_operation import schedule_of
from trine.collectives.registry import check_sent_by_ranks
from trine.errors import PlanError
from trine.graph.grid import RankGrid
from trine.graph.memory import MemoryEvents
from trine.graph.placement import Placement
from trine.graph.program import COMPUTE_STREAM, Collective, Job
from trine.graph.taskgraph import JOIN, TRANSFER, CollectiveLabel, Labels, TaskGraph
from trine.parallel.template import make_template, memory_events

#: More tasks than this (about 10 GB) are refused before anything of their size is built.
MAX_TASKS = 50_000_000


class _Assembly:
    """Collects the arrays of the graph, block by block."""

    def __init__(self, job: Job, placement: Placement) -> None:
        self.job = job
        self.placement = placement
        self.grid = RankGrid(job.axes)
        self.streams: dict[str, int] = {}
        self.templates = [make_template(program, self.streams) for program in job.programs]
        self.sizes = np.array([len(self.templates[p].kind) for p in job.program_of], dtype=np.int64)
        self.base = np.cumsum(self.sizes) - self.sizes
        self.num_rank_tasks = int(self.sizes.sum())
        self.columns: dict[str, list[npt.NDArray[np.generic]]] = {}
        self.edges: list[tuple[Int64, Int64]] = []
        self.collectives: list[CollectiveLabel] = []
        self.num_tasks = self.num_rank_tasks
        self.peer = np.full(self.num_rank_tasks, -1, dtype=np.int32)
        self.route = np.full(self.num_rank_tasks, -1, dtype=np.int32)
        self.collective = np.full(self.num_rank_tasks, -1, dtype=np.int32)

    # -- tasks of the ranks --------------------------------------------------------------------------------------

    def ranks(self) -> None:
        names = ("kind", "duration_ps", "size_bytes")
        for name in names:
            self._put(name, np.concatenate([getattr(self.templates[p], name) for p in self.job.program_of]))
        streams = len(self.streams)
        self._put(
            "stream",
            np.concatenate(
                [
                    np.where(self.templates[p].stream >= 0, self.templates[p].stream + rank * streams, -1)
                    for rank, p in enumerate(self.job.program_of)
                ]
            ).astype(np.int32),
        )
        self._put("rank", np.repeat(np.arange(len(self.sizes), dtype=np.int32), self.sizes))
        self._put("labels", np.concatenate([self.templates[p].labels for p in self.job.program_of], axis=1))
        for rank, program in enumerate(self.job.program_of):
            template, base = self.templates[program], self.base[rank]
            self.edges.append((template.edges[0] + base, template.edges[1] + base))

    def messages(self) -> None:
        """Resolve sends, receives and host copies of every rank."""
        sent: dict[tuple[int, int, tuple[int | str, ...]], int] = {}
        for rank, program in enumerate(self.job.program_of):
            for task, send in self.templates[program].sends:
                target = self.grid.resolve(rank, send.peer)
                number = int(self.base[rank]) + task
                if (rank, target, send.tag) in sent:
                    raise PlanError(f"rank {rank} sends message {send.tag} to rank {target} twice")
                sent[rank, target, send.tag] = number
                self.peer[number] = target
                self.route[number] = self._message(rank, target, int(self.templates[program].size_bytes[task]))
            for task in self.templates[program].copies:
                number = int(self.base[rank]) + task
                self.peer[number] = rank
                self.route[number] = self.placement.from_host(rank)
            for task in self.templates[program].stores:
                number = int(self.base[rank]) + task
                self.peer[number] = rank
                self.route[number] = self.placement.to_host(rank)
        self.edges.append(self._received(sent))

    def _message(self, rank: int, target: int, size_bytes: int) -> int:
        """Number of the route of one message between pipeline stages."""
        _, software_ps = self.placement.collective("send_recv", size_bytes, (rank, target), None)
        return self.placement.between_ranks(rank, target, software_ps)

    def _received(self, sent: dict[tuple[int, int, tuple[int | str, ...]], int]) -> tuple[Int64, Int64]:
        """Edges from each receive to its send. Raises PlanError for a message without a sender or receiver."""
        tasks, predecessors = [], []
        for rank, program in enumerate(self.job.program_of):
            for task, receive in self.templates[program].receives:
                source = self.grid.resolve(rank, receive.peer)
                if (source, rank, receive.tag) not in sent:
                    raise PlanError(f"rank {rank} waits for message {receive.tag}, which rank {source} never sends")
                tasks.append(int(self.base[rank]) + task)
                predecessors.append(sent.pop((source, rank, receive.tag)))
        if sent:
            source, target, tag = next(iter(sent))
            raise PlanError(f"rank {source} sends message {tag}, which rank {target} never receives")
        return np.array(tasks, dtype=np.int64), np.array(predecessors, dtype=np.int64)

    # -- transfers of the collectives ----------------------------------------------------------------------------

    def all_collectives(self) -> None:
        """The transfers of every collective, group by group."""
        used = dict.fromkeys(s.axis for p in self.job.programs for s in p.steps if isinstance(s, Collective))
        order = {name: number for number, (name, _) in enumerate(self.job.axes)}
        for axis in sorted(used, key=lambda axis: [order[name] for name in axis.split("+")]):
            if self.grid.size(axis) > 1:
                for group in self.grid.groups(axis):
                    for key, step in self._agreed(group, axis).items():
                        self._collective(group, key, step)

    def _agreed(self, group: tuple[int, ...], axis: str) -> dict[tuple[int | str, ...], Collective]:
        """The collectives of a group, in order. Raises PlanError unless all members name the same ones alike."""
        first = self._collectives_of(group[0], axis)
        wanted = [(key, c.kind, c.size_bytes, c.root, c.algorithm) for key, c in first.items()]
        checked = {self.job.program_of[group[0]]}
        for rank in group[1:]:
            if self.job.program_of[rank] in checked:  # ranks of one program agree
                continue
            checked.add(self.job.program_of[rank])
            steps = self._collectives_of(rank, axis)
            if [(key, c.kind, c.size_bytes, c.root, c.algorithm) for key, c in steps.items()] != wanted:
                raise PlanError(f"ranks {group[0]} and {rank} disagree on the collectives of axis {axis}")
        return first

    def _collectives_of(self, rank: int, axis: str) -> dict[tuple[int | str, ...], Collective]:
        steps = self.templates[self.job.program_of[rank]].collectives
        return {key: step for key, (_, step) in steps.items() if step.axis == axis}

    def _collective(self, group: tuple[int, ...], key: tuple[int | str, ...], step: Collective) -> None:
        algorithm, software_ps = self.placement.collective(step.kind, step.size_bytes, group, step.algorithm)
        schedule = schedule_of(step.kind, len(group), step.size_bytes, algorithm, step.root)
        check_sent_by_ranks(schedule)
        transfers = expand(schedule)
        number, first, count = len(self.collectives), self.num_tasks, transfers.num_transfers
        self.collectives.append(
            CollectiveLabel(
                kind=step.kind,
                algorithm=schedule.algorithm,
                size_bytes=step.size_bytes,
                ranks=group,
                axis=step.axis,
                step=step.label.step,
            )
        )
        entered = np.array([self._entry(rank, key) for rank in group], dtype=np.int64)
        self.collective[entered] = number
        self.collective[entered + 1] = number
        ranks = np.array(group, dtype=np.int32)
        source, target = ranks[transfers.src], ranks[transfers.dst]
        is_sent = np.full(count, True) if schedule.timed_step < 0 else transfers.step == schedule.timed_step
        has_software = is_sent if schedule.timed_step < 0 else is_sent & (transfers.size_bytes == 0)
        self._put("kind", np.where(is_sent, TRANSFER, JOIN).astype(np.int8))
        self._put("duration_ps", np.zeros(count, dtype=np.int64))
        self._put("size_bytes", transfers.size_bytes)
        self._put("stream", np.full(count, -1, dtype=np.int32))
        self._put("rank", source)
        self._put("labels", np.repeat(np.array(step.label, dtype=np.int32)[:, None], count, axis=1))
        self._put("peer", np.where(is_sent, target, -1).astype(np.int32))
        route = np.full(count, -1, dtype=np.int32)
        for chosen, extra_ps in ((has_software, software_ps), (is_sent & ~has_software, 0)):
            route[chosen] = self._routes(source[chosen], target[chosen], extra_ps)
        self._put("route", route)
        self._put("collective", np.full(count, number, dtype=np.int32))
        own = np.arange(first, first + count, dtype=np.int64)
        self.edges.append(
            (np.repeat(own, np.diff(transfers.predecessor_ptr)), transfers.predecessor_idx.astype(np.int64) + first)
        )
        self.edges.append((own[transfers.entry_src], entered[transfers.src[transfers.entry_src]]))
        self.edges.append((own[transfers.entry_dst], entered[transfers.dst[transfers.entry_dst]]))
        completes = np.repeat(entered + 1, np.diff(transfers.completion_ptr))
        self.edges.append((completes, transfers.completion_idx.astype(np.int64) + first))
        self.num_tasks += count

    def _entry(self, rank: int, key: tuple[int | str, ...]) -> int:
        return int(self.base[rank]) + self.templates[self.job.program_of[rank]].collectives[key][0]

    def _routes(
        self, source: npt.NDArray[np.int32], target: npt.NDArray[np.int32], software_ps: int
    ) -> npt.NDArray[np.int32]:
        pairs = source.astype(np.int64) * len(self.sizes) + target
        unique, inverse = np.unique(pairs, return_inverse=True)
        both = (divmod(int(pair), len(self.sizes)) for pair in unique)
        numbers = [self.placement.between_ranks(a, b, software_ps) for a, b in both]
        return np.array(numbers, dtype=np.int32)[inverse]

    # -- the graph -----------------------------------------------------------------------------------------------

    def _pressure(self) -> dict[str, Any]:
        """What tasks take from the compute streams of their ranks, where any does."""
        columns = [template.pressure_ppm for template in self.templates]
        if COMPUTE_STREAM not in self.streams or all(column is None for column in columns):
            return {}
        ppm = np.zeros(self.num_tasks, dtype=np.int32)
        for rank, program in enumerate(self.job.program_of):
            column = columns[program]
            if column is not None:
                ppm[self.base[rank] : self.base[rank] + len(column)] = column
        own = self._column("rank").astype(np.int32) * len(self.streams) + self.streams[COMPUTE_STREAM]
        return {"pressure_ppm": ppm, "pressure_stream": np.where(ppm != 0, own, -1).astype(np.int32)}

    def _put(self, name: str, values: npt.NDArray[np.generic]) -> None:
        self.columns.setdefault(name, []).append(values)

    def _column(self, name: str, head: npt.NDArray[np.int32] | None = None) -> npt.NDArray[np.generic]:
        return np.concatenate(([] if head is None else [head]) + self.columns.get(name, []), axis=-1)

    def graph(self) -> TaskGraph:
        tasks = np.concatenate([e[0] for e in self.edges]) if self.edges else np.zeros(0, dtype=np.int64)
        predecessors = np.concatenate([e[1] for e in self.edges]) if self.edges else np.zeros(0, dtype=np.int64)
        order = np.argsort(tasks, kind="stable")
        counts = np.bincount(tasks, minlength=self.num_tasks)
        labels = self._column("labels").astype(np.int32)
        routes = self.placement.routes
        latency, software = self.placement.link_latency_ps, self.placement.software_ps
        return TaskGraph(
            kind=self._column("kind").astype(np.int8),
            rank=self._column("rank").astype(np.int32),
            peer=self._column("peer", self.peer).astype(np.int32),
            stream=self._column("stream").astype(np.int32),
            duration_ps=self._column("duration_ps").astype(np.int64),
            size_bytes=self._column("size_bytes").astype(np.int64),
            route=self._column("route", self.route).astype(np.int32),
            need=counts.astype(np.int32),
            predecessor_ptr=np.concatenate(([0], np.cumsum(counts))).astype(np.int64),
            predecessor_idx=predecessors[order].astype(np.int32),
            route_ptr=np.cumsum([0, *(len(r) for r in routes)]).astype(np.int64),
            route_links=np.array([link for r in routes for link in r], dtype=np.int32),
            route_latency_ps=np.array(
                [sum(latency[link] for link in r) + extra for r, extra in zip(routes, software, strict=True)],
                dtype=np.int64,
            ),
            link_bytes_per_s=np.array(self.placement.link_bytes_per_s, dtype=np.int64),
            link_latency_ps=np.array(self.placement.link_latency_ps, dtype=np.int64),
            stream_names=tuple(name for _ in self.sizes for name in self.streams),
            stream_ranks=tuple(rank for rank in range(len(self.sizes)) for _ in self.streams),
            rank_names=tuple(self.placement.device_names[d] for d in self.placement.devices),
            link_names=tuple(self.placement.link_names),
            labels=Labels(
                phase=labels[0].astype(np.int8),
                operator=labels[1],
                layer=labels[2],
                collective=self._column("collective", self.collective).astype(np.int32),
                stage=labels[3],
                microbatch=labels[4],
                step=labels[5],
            ),
            operator_names=self.job.operator_names,
            layer_names=self.job.layer_names,
            collectives=tuple(self.collectives),
            **self._pressure(),
        )


def instantiate(job: Job, placement: Placement) -> tuple[TaskGraph, MemoryEvents]:
    """Turn the programs of ``job`` into one task graph on the devices of ``placement``.

    Raises PlanError when a message has no receiver, a member of a group does not take part in its collective, or the
    graph would have more than MAX_TASKS tasks.
    """
    _check_size(job)
    assembly = _Assembly(job, placement)
    assembly.ranks()
    assembly.messages()
    assembly.all_collectives()
    return assembly.graph(), memory_events(job, assembly.templates, assembly.base)


def _check_size(job: Job) -> None:
    """Refuse collectives on unknown axes, and a job whose graph would not fit into memory, before building anything."""
    sizes, grid = dict(job.axes), RankGrid(job.axes)
    per_program = []
    for program in job.programs:
        unknown = {
            s.axis: None
            for s in program.steps
            if isinstance(s, Collective) and any(name not in sizes for name in s.axis.split("+"))
        }
        if unknown:
            raise PlanError(
                f"program {program.name!r} has collectives on {', '.join(unknown)}, which is no axis of the grid"
            )
        # A ring all-reduce of n ranks is 2 (n - 1) transfers a rank; no algorithm here has many more.
        rings = sum(2 * (grid.size(step.axis) - 1) for step in program.steps if isinstance(step, Collective))
        per_program.append(len(program.steps) + rings)
    total = sum(per_program[program] for program in job.program_of)
    if total > MAX_TASKS:
        raise PlanError(
            f"the job has about {total:,} tasks on {len(job.program_of)} ranks, more than the {MAX_TASKS:,} that fit "
            "into memory: take fewer GPUs, steps or micro-batches"
        )
