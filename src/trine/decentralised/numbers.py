"""Metrics of the workers of a Hop run: waiting times, ages of updates, bytes."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np

from trine.common.arrays import Int64
from trine.decentralised.choices import HopRun
from trine.decentralised.protocol import HopProtocol, WorkerGraph
from trine.decentralised.tasks import Visit, VisitTasks
from trine.graph.taskgraph import TRANSFER


@dataclass(frozen=True, kw_only=True, eq=False)
class HopNumbers:
    """Metrics of a settled run per worker; int64[workers] unless noted."""

    graph: WorkerGraph
    protocol: HopProtocol
    run: HopRun

    @cached_property
    def end_ps(self) -> Int64:
        """End of each worker's last iteration."""
        ends = self.run.records.end_ps
        return np.array([ends[visits[-1].finish] for visits in self.run.tasks.visits], np.int64)

    @cached_property
    def trained(self) -> Int64:
        """Number of iterations that each worker computed."""
        return np.array([sum(visit.trains for visit in path) for path in self.run.choices.paths], np.int64)

    @cached_property
    def skipped(self) -> Int64:
        """Number of iterations that each worker skipped."""
        return self.protocol.iterations - self.trained

    @cached_property
    def waiting_updates_ps(self) -> Int64:
        """Time each worker waited for updates after its own work of the iteration was done."""
        own = "gradient" if self.protocol.order == "parallel" else "apply"
        ends = self.run.records.end_ps
        return np.array(
            [
                sum(max(0, int(ends[v.got] - ends[getattr(v, own) if v.gradient >= 0 else v.enter])) for v in visits)
                for visits in self.run.tasks.visits
            ],
            np.int64,
        )

    @cached_property
    def waiting_tokens_ps(self) -> Int64:
        """Time each worker waited to enter the next iteration because it was too far ahead."""
        ends = self.run.records.end_ps
        return np.array(
            [
                sum(int(ends[after.enter] - ends[before.finish]) for before, after in pairwise(v))
                for v in self.run.tasks.visits
            ],
            np.int64,
        )

    @cached_property
    def computing_ps(self) -> Int64:
        """Compute time of each worker."""
        tasks = self.run.tasks.graph
        is_compute = tasks.stream >= 0
        total = np.zeros(self.graph.num_workers, np.int64)
        np.add.at(total, tasks.rank[is_compute], tasks.duration_ps[is_compute])
        return total

    @cached_property
    def staleness(self) -> dict[int, int]:
        """Age in iterations -> number of updates averaged; age 0 is the same iteration's update.

        With a staleness of 0 only the same iteration's update counts, otherwise the newest arrived update.
        """
        return dict(sorted((age, count) for age, count in self._ages.items() if age is not None))

    @cached_property
    def num_missed(self) -> int:
        """Number of averages taken without an in-neighbour's update, over all in-neighbours."""
        return self._ages[None]

    @cached_property
    def num_sent(self) -> int:
        """Number of updates sent."""
        return int((self.run.tasks.graph.kind == TRANSFER).sum())

    @property
    def num_unused(self) -> int:
        """Number of updates sent but never averaged: too late, or overtaken by a newer one."""
        return self.num_sent - len(self._used)

    @property
    def sent_bytes(self) -> int:
        """Bytes of all updates sent."""
        return int(self.run.tasks.graph.size_bytes.sum())

    @cached_property
    def _ages(self) -> Counter[int | None]:
        return Counter(age for _, age in self._averaged)

    @cached_property
    def _used(self) -> set[int]:
        return {task for task, _ in self._averaged if task >= 0}

    @cached_property
    def _averaged(self) -> list[tuple[int, int | None]]:
        """For each average and in-neighbour: the update (its task, or -1) and its age (None: missed)."""
        found: list[tuple[int, int | None]] = []
        for worker, path in enumerate(self.run.choices.paths):
            for other in self.graph.into[worker]:
                arrived = self._arrivals(other, worker)
                for visit, tasks in zip(path, self.run.tasks.visits[worker], strict=True):
                    found.append(self._taken(visit, self._averaged_ps(tasks), *arrived))
        return found

    def _averaged_ps(self, tasks: VisitTasks) -> int:
        """Return the time of a visit's average; it includes every update that has arrived by then."""
        records = self.run.records
        if tasks.apply >= 0 and self.protocol.order == "parallel":
            return int(records.start_ps[tasks.apply])
        return int(records.end_ps[tasks.finish])

    def _arrivals(self, sender: int, receiver: int) -> tuple[list[int], list[int], list[int]]:
        """Return the arrival times, iterations and tasks of the updates, in arrival order (also the send order)."""
        place = self.graph.out[sender].index(receiver)
        rows = [
            (int(self.run.records.end_ps[tasks.sends[place]]), visit.iteration, tasks.sends[place])
            for visit, tasks in zip(self.run.choices.paths[sender], self.run.tasks.visits[sender], strict=True)
            if visit.trains and (sender, receiver, visit.iteration) not in self.run.choices.dropped
        ]
        return [row[0] for row in rows], [row[1] for row in rows], [row[2] for row in rows]

    def _taken(
        self, visit: Visit, now_ps: int, ends_ps: list[int], iterations: list[int], tasks: list[int]
    ) -> tuple[int, int | None]:
        newest = bisect_right(ends_ps, now_ps) - 1
        if self.protocol.staleness == 0:
            newest = min(newest, bisect_right(iterations, visit.iteration) - 1)
        if newest < 0 or visit.iteration - iterations[newest] > self.protocol.staleness:
            return -1, None
        return tasks[newest], max(0, visit.iteration - iterations[newest])
