"""Conversion of the Hop protocol to a task graph: joins that need k of n updates, and tokens as dependencies.

All of Hop is a static graph except two decisions: the iterations that a lagging worker skips, and the late updates that
are not sent. :class:`Choices` holds these decisions; :mod:`trine.decentralised.choices` computes them.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from trine.common.arrays import Int64
from trine.decentralised.protocol import HopProtocol, WorkerGraph
from trine.errors import PlanError
from trine.graph.assembler import no_labels
from trine.graph.builder import TaskGraphBuilder
from trine.graph.program import COMPUTE_STREAM, Phase
from trine.graph.taskgraph import TaskGraph

MAX_TASKS = 5_000_000


class Visit(NamedTuple):
    """One stop of a worker on its way through the iterations.

    ``trains``: it computes and sends; otherwise it only takes the updates of the iteration before its jump target.
    """

    iteration: int
    trains: bool = True


class Choices(NamedTuple):
    """The visits of each worker, and the updates (sender, receiver, iteration) that are not sent."""

    paths: tuple[tuple[Visit, ...], ...]
    dropped: frozenset[tuple[int, int, int]] = frozenset()


@dataclass(frozen=True, kw_only=True, slots=True)
class HopNetwork:
    """The links between workers: ``route(sender, receiver)`` returns link numbers."""

    route: Callable[[int, int], Sequence[int]]
    link_bytes_per_s: Sequence[int]
    link_latency_ps: Sequence[int]
    link_names: Sequence[str]
    rank_names: Sequence[str]


@dataclass(frozen=True, kw_only=True, slots=True)
class HopWork:
    """The work of an iteration: gradient_ps, apply_ps: int64[workers, iterations]; update_bytes: of one update."""

    gradient_ps: Int64
    apply_ps: Int64
    update_bytes: int


class VisitTasks(NamedTuple):
    """Task numbers of a visit; -1: no such task. ``sends`` in the order of the out-neighbours."""

    enter: int
    gradient: int
    apply: int
    arrive: int
    finish: int
    sends: tuple[int, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class HopTasks:
    """The task graph, and the tasks of each visit: ``visits[worker][position]``."""

    graph: TaskGraph
    visits: tuple[tuple[VisitTasks, ...], ...]


def plain(graph: WorkerGraph, protocol: HopProtocol) -> Choices:
    """Return the choices without skips and dropped updates."""
    return Choices((tuple(Visit(k) for k in range(protocol.iterations)),) * graph.num_workers)


def build_hop(
    graph: WorkerGraph, protocol: HopProtocol, work: HopWork, network: HopNetwork, choices: Choices
) -> HopTasks:
    """Build the task graph of all workers. Raises PlanError for more than MAX_TASKS tasks."""
    per_visit = 5 + max(map(len, graph.out)) + (max(map(len, graph.into)) if protocol.staleness else 0)
    total = per_visit * sum(map(len, choices.paths))
    if total > MAX_TASKS:
        raise PlanError(f"about {total:,} tasks, more than {MAX_TASKS:,}: take fewer workers or iterations")
    return _HopGraphWriter(graph, protocol, work, network, choices).write()


class _HopGraphWriter:
    def __init__(
        self, graph: WorkerGraph, protocol: HopProtocol, work: HopWork, network: HopNetwork, choices: Choices
    ) -> None:
        self.graph, self.protocol, self.work, self.network, self.choices = graph, protocol, work, network, choices
        self.trained = []
        for path in choices.paths:
            self.trained.append([v.iteration for v in path if v.trains])
        self.visits = self._number()
        self.of_iteration = []
        for path, numbers in zip(choices.paths, self.visits, strict=True):
            self.of_iteration.append({v.iteration: tasks for v, tasks in zip(path, numbers, strict=True) if v.trains})
        self.place = []
        for neighbours in graph.out:
            self.place.append({neighbour: i for i, neighbour in enumerate(neighbours)})
        self.routes = {edge: network.route(*edge) for edge in graph.edges}
        self.builder = TaskGraphBuilder(
            network.link_bytes_per_s, network.link_latency_ps, link_names=network.link_names,
            rank_names=network.rank_names,
        )  # fmt: skip
        self.phase: list[int] = []
        self.iteration: list[int] = []

    def _number(self) -> tuple[tuple[VisitTasks, ...], ...]:
        """Assign task numbers in advance, because dependencies between workers point both ways."""
        count, numbers = 0, []
        for worker, path in enumerate(self.choices.paths):
            own_numbers = []
            num_joins = len(self.graph.into[worker]) if self.protocol.staleness else 0
            for visit in path:
                if visit.trains:
                    sends = range(count + 5 + num_joins, count + 5 + num_joins + len(self.graph.out[worker]))
                    own_numbers.append(VisitTasks(count, count + 1, count + 2, count + 3, count + 4, tuple(sends)))
                    count += 5 + num_joins + len(sends)
                else:
                    own_numbers.append(VisitTasks(count, -1, -1, count + 1, count + 2, ()))
                    count += 3 + num_joins
            numbers.append(tuple(own_numbers))
        return tuple(numbers)

    def write(self) -> HopTasks:
        for worker, path in enumerate(self.choices.paths):
            before: VisitTasks | None = None
            last_sends: list[int | None] = [None] * len(self.graph.out[worker])
            for visit, tasks in zip(path, self.visits[worker], strict=True):
                self._visit(worker, visit, tasks, before, last_sends)
                before = tasks
        graph = self.builder.build()
        labels = replace(
            no_labels(graph.num_tasks), phase=np.array(self.phase, np.int8), step=np.array(self.iteration, np.int32)
        )
        return HopTasks(graph=replace(graph, labels=labels), visits=self.visits)

    def _visit(
        self, worker: int, visit: Visit, tasks: VisitTasks, before: VisitTasks | None, last_sends: list[int | None]
    ) -> None:
        entry = [] if before is None else [before.finish]
        if visit.trains:
            entry += self._tokens(worker, visit.iteration)
        self._join(visit, worker, entry)
        inbound = [self._waited_for(worker, neighbour, visit.iteration) for neighbour in self.graph.into[worker]]
        need = len(inbound) - self.protocol.backup
        first_have = tasks.finish + 1
        if self.protocol.staleness:
            sources = [[first_have + i] for i in range(len(inbound))]
        else:
            sources = inbound
        after = [task for source in sources for task in source]
        if visit.trains:
            self._train(worker, visit, tasks, after, need)
        else:
            self._join(visit, worker, after, need)
            self._join(visit, worker, [tasks.enter, tasks.arrive])
        if self.protocol.staleness:
            for candidates in inbound:
                self._join(visit, worker, candidates, min(1, len(candidates)))
        for i, neighbour in enumerate(self.graph.out[worker] if visit.trains else ()):
            self._send(worker, neighbour, visit, tasks, last_sends[i])
            last_sends[i] = tasks.sends[i]

    def _train(self, worker: int, visit: Visit, tasks: VisitTasks, after: list[int], need: int) -> None:
        gradient_ps = int(self.work.gradient_ps[worker, visit.iteration])
        apply_ps = int(self.work.apply_ps[worker, visit.iteration])
        parallel = self.protocol.order == "parallel"
        self._compute(visit, worker, Phase.BACKWARD, gradient_ps, [tasks.enter])
        self._compute(
            visit, worker, Phase.OPTIMIZER, apply_ps, [tasks.gradient, tasks.arrive] if parallel else [tasks.gradient]
        )
        self._join(visit, worker, after, need)
        self._join(visit, worker, [tasks.apply, tasks.arrive])

    def _send(self, worker: int, receiver: int, visit: Visit, tasks: VisitTasks, before: int | None) -> None:
        """Send an update, or skip a dropped one; each neighbour's connection sends its updates one by one."""
        after = [tasks.enter if self.protocol.order == "parallel" else tasks.apply]
        if before is not None:
            after.append(before)
        if (worker, receiver, visit.iteration) in self.choices.dropped:
            self._join(visit, worker, after)
        else:
            self._label(visit, -1)
            self.builder.transfer(worker, receiver, self.routes[worker, receiver], self.work.update_bytes, after)

    def _tokens(self, worker: int, iteration: int) -> list[int]:
        """Return the entry tasks of the out-neighbours that gave the token for this iteration."""
        if self.protocol.max_gap is None or iteration <= self.protocol.max_gap:
            return []
        return [self._entry(other, iteration - self.protocol.max_gap) for other in self.graph.out[worker]]

    def _entry(self, worker: int, iteration: int) -> int:
        """Return the entry task of the first iteration, from ``iteration`` on, that the worker trains."""
        trained = self.trained[worker]
        return self.of_iteration[worker][trained[bisect_left(trained, iteration)]].enter

    def _waited_for(self, worker: int, sender: int, iteration: int) -> list[int]:
        """Return the alternative updates for one wait; empty while the initial parameters are not too old.

        An in-neighbour that skipped them all shows this by entering a later iteration; by then this worker was past it.
        """
        oldest = iteration - self.protocol.staleness
        if oldest < 0:
            return []
        trained = self.trained[sender]
        window = trained[bisect_left(trained, oldest) : bisect_right(trained, iteration)]
        if not window:
            return [self._entry(sender, iteration)]
        return [self.of_iteration[sender][k].sends[self.place[sender][worker]] for k in window]

    def _join(self, visit: Visit, worker: int, after: Sequence[int], need: int | None = None) -> None:
        self._label(visit, -1)
        self.builder.join(after, need, rank=worker)

    def _compute(self, visit: Visit, worker: int, phase: int, duration_ps: int, after: Sequence[int]) -> None:
        self._label(visit, phase)
        self.builder.compute(worker, COMPUTE_STREAM, duration_ps, after)

    def _label(self, visit: Visit, phase: int) -> None:
        self.phase.append(phase)
        self.iteration.append(visit.iteration)
