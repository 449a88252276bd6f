"""What lagging workers skip and which late updates are not sent: decisions that depend on times.

A decision at an instant looks at what happened strictly before it. So a run under some choices is right up to the
first instant at which one of them differs from what the rule says then, and running again under what the rule said
makes it right for longer: the choices that repeat themselves are the only ones that can be, and they are reached.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass

from trine.errors import DeadlockError, SimulationError
from trine.graph.taskgraph import Records, TaskGraph
from trine.parallel.hop.protocol import HopProtocol, WorkerGraph
from trine.parallel.hop.tasks import Choices, HopNetwork, HopTasks, HopWork, Visit, build_hop, plain


@dataclass(frozen=True, kw_only=True, slots=True)
class HopRun:
    """The settled run: its tasks, records and choices, and how many runs it took to find them."""

    tasks: HopTasks
    records: Records
    choices: Choices
    num_runs: int


def run_hop(
    graph: WorkerGraph,
    protocol: HopProtocol,
    work: HopWork,
    network: HopNetwork,
    simulate: Callable[[TaskGraph], Records],
) -> HopRun:
    """Simulate the protocol, with the choices that it makes on the way.

    Raises PlanError for a protocol that the graph cannot run; what ``simulate`` raises passes through.
    """
    protocol.check(graph)
    choices = safe = plain(graph, protocol)
    most = graph.num_workers * protocol.iterations * (1 + max(map(len, graph.out))) + 1
    for number in range(1, 2 * most + 1):
        tasks = build_hop(graph, protocol, work, network, choices)
        try:
            records = simulate(tasks.graph)
        except DeadlockError:
            if choices == safe:
                raise
            choices = safe  # a guess beyond what is certain made workers wait for each other
            continue
        rule = _Rule(graph, protocol, choices, tasks, records)
        if rule.next == rule.choices:
            return HopRun(tasks=tasks, records=records, choices=rule.choices, num_runs=number)
        safe, choices = rule.certain(), rule.next
    raise SimulationError(f"the choices of {graph.num_workers} workers did not settle")  # each run settles one more


class _Rule:
    """What the protocol decides at the times of one run; ``next`` are the choices."""

    def __init__(
        self, graph: WorkerGraph, protocol: HopProtocol, choices: Choices, tasks: HopTasks, records: Records
    ) -> None:
        self.graph, self.protocol, self.choices, self.tasks = graph, protocol, choices, tasks
        self.end_ps = records.end_ps.tolist()
        self.ready_ps = records.ready_ps.tolist()
        self.entered = [
            [(v.iteration, self.end_ps[t.enter]) for v, t in zip(path, mine, strict=True) if v.trains]
            for path, mine in zip(choices.paths, tasks.visits, strict=True)
        ]
        self.entry_ps = [[ps for _, ps in entries] for entries in self.entered]
        self.decided_ps: list[dict[int, int]] = [
            {v.iteration: self.end_ps[t.finish] for v, t in zip(path, mine, strict=True) if v.trains}
            for path, mine in zip(choices.paths, tasks.visits, strict=True)
        ]
        self.offered_ps = self._offers()
        # What a run leaves unsent may belong to visits that it no longer has.
        self.choices = Choices(choices.paths, choices.dropped & self.offered_ps.keys())
        paths = choices.paths
        if protocol.max_skip:
            paths = tuple(self._path(worker, None) for worker in range(graph.num_workers))
        self.next = Choices(paths, self._dropped() if protocol.drop_late else frozenset())

    def iteration_before(self, worker: int, now_ps: int) -> int:
        """The iteration that a worker had entered strictly before an instant; -1: none."""
        at = bisect_left(self.entry_ps[worker], now_ps)
        return self.entered[worker][at - 1][0] if at else -1

    def certain(self) -> Choices:
        """What the rule decided up to the first instant at which it differs from the run's choices, and no more."""
        until_ps = min(self._first_change())
        dropped = frozenset(offer for offer in self.next.dropped if self.offered_ps[offer] <= until_ps)
        paths = self.next.paths
        if self.protocol.max_skip:
            paths = tuple(self._path(worker, until_ps) for worker in range(self.graph.num_workers))
        return Choices(paths, dropped)

    def _first_change(self) -> list[int]:
        """The instants of the decisions that differ."""
        found = [self.offered_ps[offer] for offer in self.next.dropped ^ self.choices.dropped]
        for worker, (old, new) in enumerate(zip(self.choices.paths, self.next.paths, strict=True)):
            if old != new:
                same = next(i for i, (a, b) in enumerate(zip(old, new, strict=False)) if a != b)
                last = next(visit for visit in reversed(old[:same]) if visit.trains)
                found.append(self.decided_ps[worker][last.iteration])
        return found

    def _path(self, worker: int, until_ps: int | None) -> tuple[Visit, ...]:
        """The visits of a worker: by the rule where this run knows the time (up to ``until_ps``), else step by step."""
        path, iteration = [Visit(0)], 0
        while iteration < self.protocol.iterations - 1:
            now_ps = self.decided_ps[worker].get(iteration)
            target = iteration + 1
            if now_ps is not None and (until_ps is None or now_ps <= until_ps):
                target = self._target(worker, iteration, now_ps)
            if target > iteration + 1:
                path.append(Visit(target - 1, trains=False))
            path.append(Visit(target))
            iteration = target
        return tuple(path)

    def _target(self, worker: int, iteration: int, now_ps: int) -> int:
        """The iteration after ``iteration``: the next, or where all out-neighbours are already."""
        reached = min(self.iteration_before(other, now_ps) for other in self.graph.out[worker])
        if reached - iteration < self.protocol.skip_behind:
            return iteration + 1
        return min(iteration + 1 + self.protocol.max_skip, reached)

    def _offers(self) -> dict[tuple[int, int, int], int]:
        """When the turn of each update came, sent or not: (sender, receiver, iteration) -> ps."""
        return {
            (worker, other, visit.iteration): self.ready_ps[task]
            for worker, path in enumerate(self.choices.paths)
            for visit, tasks in zip(path, self.tasks.visits[worker], strict=True)
            for other, task in zip(self.graph.out[worker], tasks.sends, strict=False)
        }

    def _dropped(self) -> frozenset[tuple[int, int, int]]:
        """Updates too old for the iteration in which their receiver already is."""
        return frozenset(
            (worker, other, iteration)
            for (worker, other, iteration), now_ps in self.offered_ps.items()
            if self.iteration_before(other, now_ps) > iteration + self.protocol.staleness
        )
