"""Time-dependent decisions of Hop: the iterations that lagging workers skip, and the late updates that are not sent.

A decision at an instant depends only on earlier events. So a run is correct up to the first instant at which its
choices differ from the rule's decision. Running again with the rule's decisions makes it correct for longer. The only
possible choices are those that reproduce themselves, and the iteration reaches them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass

from trine.decentralised.protocol import HopProtocol, WorkerGraph
from trine.decentralised.tasks import Choices, HopNetwork, HopTasks, HopWork, Visit, build_hop, plain
from trine.errors import DeadlockError, SimulationError
from trine.graph.taskgraph import Records, TaskGraph


@dataclass(frozen=True, kw_only=True, slots=True)
class HopRun:
    """A settled run: its tasks, records and choices, and the number of runs needed to find them."""

    tasks: HopTasks
    records: Records
    choices: Choices
    num_runs: int


def run_hop(
    graph: WorkerGraph, protocol: HopProtocol, work: HopWork, network: HopNetwork,
    simulate: Callable[[TaskGraph], Records],
) -> HopRun:  # fmt: skip
    """Simulate the protocol until its choices settle.

    Raises PlanError if the graph cannot run the protocol; exceptions of ``simulate`` propagate.
    """
    protocol.check(graph)
    choices = safe = plain(graph, protocol)
    max_settled = graph.num_workers * protocol.iterations * (1 + max(map(len, graph.out))) + 1
    for number in range(1, 2 * max_settled + 1):
        tasks = build_hop(graph, protocol, work, network, choices)
        try:
            records = simulate(tasks.graph)
        except DeadlockError:
            if choices == safe:
                raise
            choices = safe  # a guess beyond the certain choices deadlocked
            continue
        rule = _Rule(graph, protocol, choices, tasks, records)
        if rule.next == rule.choices:
            return HopRun(tasks=tasks, records=records, choices=rule.choices, num_runs=number)
        safe, choices = rule.certain(), rule.next
    raise SimulationError(f"the choices of {graph.num_workers} workers did not settle")  # each run settles one more


class _Rule:
    """The protocol's decisions at the times of one run; ``next`` are the resulting choices."""

    def __init__(
        self, graph: WorkerGraph, protocol: HopProtocol, choices: Choices, tasks: HopTasks, records: Records
    ) -> None:
        self.graph, self.protocol, self.choices, self.tasks = graph, protocol, choices, tasks
        self.end_ps = records.end_ps.tolist()
        self.ready_ps = records.ready_ps.tolist()
        self.entered = []
        for path, visits in zip(choices.paths, tasks.visits, strict=True):
            self.entered.append(
                [(v.iteration, self.end_ps[t.enter]) for v, t in zip(path, visits, strict=True) if v.trains]
            )
        self.entry_ps = []
        for entries in self.entered:
            self.entry_ps.append([ps for _, ps in entries])
        self.decided_ps: list[dict[int, int]] = []
        for path, visits in zip(choices.paths, tasks.visits, strict=True):
            self.decided_ps.append(
                {v.iteration: self.end_ps[t.finish] for v, t in zip(path, visits, strict=True) if v.trains}
            )
        self.offered_ps = self._offers()
        # Updates the run dropped may belong to visits that no longer exist.
        self.choices = Choices(choices.paths, choices.dropped & self.offered_ps.keys())
        paths = choices.paths
        if protocol.max_skip:
            paths = tuple(self._path(worker, None) for worker in range(graph.num_workers))
        self.next = Choices(paths, self._dropped() if protocol.drop_late else frozenset())

    def iteration_before(self, worker: int, now_ps: int) -> int:
        """Return the last iteration that a worker entered strictly before an instant, or -1."""
        num_entered = bisect_left(self.entry_ps[worker], now_ps)
        return self.entered[worker][num_entered - 1][0] if num_entered else -1

    def certain(self) -> Choices:
        """Return the rule's decisions up to the first instant at which they differ from the run's choices."""
        until_ps = min(self._first_change())
        dropped = frozenset(offer for offer in self.next.dropped if self.offered_ps[offer] <= until_ps)
        paths = self.next.paths
        if self.protocol.max_skip:
            paths = tuple(self._path(worker, until_ps) for worker in range(self.graph.num_workers))
        return Choices(paths, dropped)

    def _first_change(self) -> list[int]:
        """Return the instants of the decisions that differ."""
        instants = [self.offered_ps[offer] for offer in self.next.dropped ^ self.choices.dropped]
        for worker, (old, new) in enumerate(zip(self.choices.paths, self.next.paths, strict=True)):
            if old != new:
                num_equal = next(i for i, (a, b) in enumerate(zip(old, new, strict=False)) if a != b)
                last = next(visit for visit in reversed(old[:num_equal]) if visit.trains)
                instants.append(self.decided_ps[worker][last.iteration])
        return instants

    def _path(self, worker: int, until_ps: int | None) -> tuple[Visit, ...]:
        """Return a worker's visits: by the rule if this run has the time (up to ``until_ps``), else one by one."""
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
        """Return the iteration after ``iteration``: the next one, or the one all out-neighbours have reached."""
        reached = min(self.iteration_before(other, now_ps) for other in self.graph.out[worker])
        if reached - iteration < self.protocol.skip_behind:
            return iteration + 1
        return min(iteration + 1 + self.protocol.max_skip, reached)

    def _offers(self) -> dict[tuple[int, int, int], int]:
        """Return the time of each update's turn, sent or not: (sender, receiver, iteration) -> ps."""
        return {
            (worker, receiver, visit.iteration): self.ready_ps[task]
            for worker, path in enumerate(self.choices.paths)
            for visit, tasks in zip(path, self.tasks.visits[worker], strict=True)
            for receiver, task in zip(self.graph.out[worker], tasks.sends, strict=False)
        }

    def _dropped(self) -> frozenset[tuple[int, int, int]]:
        """Return the updates that are too old for their receiver's current iteration."""
        return frozenset(
            (worker, receiver, iteration)
            for (worker, receiver, iteration), now_ps in self.offered_ps.items()
            if self.iteration_before(receiver, now_ps) > iteration + self.protocol.staleness
        )
