"""What a library's software adds to each step of a simulated schedule, so that alone it takes what the library takes.

A training step simulates the messages of its collectives on the links, where they meet other traffic. The links know
nothing of launches, protocols and synchronisation; spread over the rounds of the schedule, these are added to the
latency of its messages. Where the library would be faster than the schedule on bare links (in-network reduction,
several rings), nothing is taken off.
"""

from __future__ import annotations

from collections.abc import Sequence

from trine.cluster.cluster import Cluster
from trine.collectives.closed_forms import has_closed_form, uncontended_ps
from trine.collectives.library.predict import OPS, Collectives
from trine.collectives.library.view import group_view
from trine.collectives.registry import ROOTED, make_schedule
from trine.collectives.run import run_schedule
from trine.model.schedule import Schedule
from trine.units import PS_PER_US

#: Groups whose schedules use all links of a domain or all NICs of a node by exchanging with everybody.
#: Larger groups are judged by the closed form of their schedule instead of by simulating it alone.
MAX_SIMULATED = 64
_SPREAD = ("all_reduce", "reduce_scatter", "all_gather")


class StepCosts:
    """Answers for one cluster. ``worst``: how many times as long as the library a schedule takes on bare links."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.worst = 0.0
        self.library = cluster.library or "nccl"
        self._asked: dict[tuple[int, ...], Collectives] = {}
        self._before: dict[tuple[object, ...], tuple[str | None, int]] = {}

    def __call__(
        self, kind: str, size_bytes: int, ranks: Sequence[int], algorithm: str | None
    ) -> tuple[str | None, int]:
        """The algorithm to simulate (as given, else one that uses all links), and ps to add to each message.

        ranks: the group, as positions in ``cluster.gpus``.
        """
        group = tuple(ranks)
        if len(group) < 2 or kind not in OPS:
            return algorithm, 0
        key = (kind, size_bytes, group, algorithm)
        if key not in self._before:
            self._before[key] = self._find(kind, size_bytes, group, algorithm)
        return self._before[key]

    def _find(self, kind: str, size: int, group: tuple[int, ...], algorithm: str | None) -> tuple[str | None, int]:
        if group not in self._asked:
            self._asked[group] = Collectives(self.cluster, group)
        asked = self._asked[group]
        name = algorithm if algorithm is not None else self._usual(kind, asked, group)
        schedule = make_schedule(kind, len(group), size, name, 0 if kind in ROOTED else -1)
        if schedule.num_agents or (len(group) > MAX_SIMULATED and not has_closed_form(schedule)):
            return name, 0
        bare_ps = self._alone(schedule, group, 0)
        rounds = (self._alone(schedule, group, PS_PER_US) - bare_ps) // PS_PER_US
        wanted_ps = asked.predict(kind, size).time_ps
        self.worst = max(self.worst, bare_ps / wanted_ps)
        if wanted_ps <= bare_ps or rounds < 1:
            return name, 0
        return name, (wanted_ps - bare_ps) // rounds

    def _alone(self, schedule: Schedule, group: tuple[int, ...], step_ps: int) -> int:
        """How long the schedule takes on the links with nothing else on them; large groups by its closed form."""
        if len(group) > MAX_SIMULATED:
            rate, latency_ps = self._hop(group)
            return uncontended_ps(schedule, rate, latency_ps + step_ps)
        gpus = [self.cluster.gpus[rank] for rank in group]
        return run_schedule(schedule, self.cluster, gpus, step_ps=step_ps).end_ps

    def _usual(self, kind: str, asked: Collectives, group: tuple[int, ...]) -> str | None:
        """``direct`` where every pair has a link, ``hierarchical`` across domains of one size, else the default."""
        view = asked.view
        if kind not in _SPREAD:
            return None
        if view.num_domains == 1:
            return "direct" if view.inside is not None and view.inside.lanes == view.num_ranks - 1 > 1 else None
        if view.min_per_domain == view.max_per_domain > 1 and self._in_order(group, view.min_per_domain):
            return f"hierarchical:{view.num_domains}x{view.min_per_domain}"
        return None

    def _in_order(self, group: tuple[int, ...], width: int) -> bool:
        """Whether each run of ``width`` ranks is one domain."""
        runs = (group[first : first + width] for first in range(0, len(group), width))
        return all(group_view(self.cluster, run).num_domains == 1 for run in runs)

    def _hop(self, group: tuple[int, ...]) -> tuple[int, int]:
        """Rate of the slowest link and mean latency from each rank to the next."""
        gpus = [self.cluster.gpus[rank] for rank in group]
        rates, latencies = [], []
        for here, there in zip(gpus, [*gpus[1:], gpus[0]], strict=True):
            route, _ = self.cluster.paths(here, there)[0]
            rates.append(min(self.cluster.links[link].bytes_per_s for link in route))
            latencies.append(self.cluster.route_latency_ps(route))
        return min(rates), sum(latencies) // len(latencies)
