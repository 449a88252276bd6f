"""The semantics of the engine in plain Python: the readable definition and the oracle of the compiled loop.

Also the place where network models written in plain Python run. Slow (about 10**5 events a second); shares no code
with the kernels. The order of events is described in docs/design/time-and-order.md.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic

import numpy as np

from trine.engine.circuits import CircuitState
from trine.engine.latency import entry_ps
from trine.engine.paced import PacedStreams
from trine.errors import SimulationError
from trine.graph.taskgraph import COMPUTE, JOIN, Records, TaskGraph
from trine.network._limits import MAX_PS
from trine.network.circuit import CircuitModel
from trine.network.models import Network, NetworkModel, QueueModel, WeightedModel, drain_ps
from trine.units import PS_PER_S

PROGRESS_S = 0.25


@dataclass(slots=True)
class Flow:
    """Bytes of one transfer in flight."""

    task: int
    route: tuple[int, ...]
    counts: tuple[int, ...]
    remaining: float
    rate: float = 0.0
    since_ps: int = 0
    end_ps: int = -1


def simulate(
    graph: TaskGraph,
    model: Network,
    progress: Callable[[int, int, int], None] | None = None,
    on_compile: Callable[[], None] | None = None,
) -> Records:
    """Run a validated ``graph``; -1 in the records of tasks that never ran. Never compiles, so never says so."""
    run = Reference(graph, model)
    run.run(progress)
    return run.records()


class Reference:
    """One run of one task graph."""

    def __init__(self, graph: TaskGraph, model: Network) -> None:
        n = graph.num_tasks
        self.graph = graph
        self.model = model
        self.capacity = graph.link_bytes_per_s.tolist()
        self.routes = [
            tuple(graph.route_links[a:b].tolist())
            for a, b in zip(graph.route_ptr[:-1], graph.route_ptr[1:], strict=True)
        ]
        self.counts = _route_counts(graph, self.routes)
        self.kind = graph.kind.tolist()
        self.waits = graph.need.tolist()
        self.ready_ps = [-1] * n
        self.start_ps = [-1] * n
        self.end_ps = [-1] * n
        self.successors: list[list[int]] = [[] for _ in range(n)]
        for task in range(n):
            for before in graph.predecessor_idx[graph.predecessor_ptr[task] : graph.predecessor_ptr[task + 1]]:
                self.successors[before].append(task)
        self.next_in_stream, self.is_first = _stream_order(graph)
        self.now = 0
        self.num_events = 0
        self.num_done = 0
        self.events: list[tuple[int, int]] = []
        self.ready: list[int] = [task for task in range(n) if self.waits[task] == 0]
        self.flows: dict[int, Flow] = {}
        self.flows_changed = False
        self.held: set[int] = set()
        self.is_held_back = False
        self.paces: PacedStreams | None = None
        if graph.pressure_ppm is not None and graph.pressure_stream is not None:
            self.paces = PacedStreams(graph, graph.pressure_ppm, graph.pressure_stream)
        self.queues = _Queues(graph, model) if isinstance(model, QueueModel) else None
        self.circuits: CircuitState | None = None
        if isinstance(model, CircuitModel):
            self.circuits = CircuitState(graph, model, self._at, self._begin)

    def run(self, progress: Callable[[int, int, int], None] | None = None) -> None:
        """Let everything happen that can happen, or until held tasks have become ready."""
        reported = monotonic()
        while True:
            while self.ready:  # priority 0: what follows at once from what has ended
                self._become_ready(heapq.heappop(self.ready))
            if self.events and self.events[0][0] == self.now:  # priority 1: everything else of this instant
                self._event(*heapq.heappop(self.events))
                continue
            if self.paces is not None and self.paces.changed:
                self._repace(self.paces)
            if self.is_held_back:
                return
            if self.flows_changed:  # priority 2: the network, once an instant
                self._share()
            if self.queues is not None and self.queues.arrived:
                self._serve(self.queues)
            if self.circuits is not None and self.circuits.has_changed:
                self.circuits.settle(self.now)
            if not self.events:
                return
            if progress is not None and monotonic() - reported > PROGRESS_S:
                progress(self.num_done, self.graph.num_tasks, self.now)
                reported = monotonic()
            self.now = self.events[0][0]

    def records(self) -> Records:
        return Records(
            ready_ps=np.array(self.ready_ps, np.int64),
            start_ps=np.array(self.start_ps, np.int64),
            end_ps=np.array(self.end_ps, np.int64),
            num_events=self.num_events,
            engine="reference",
            network=self.model.name,
        )

    def _become_ready(self, task: int) -> None:
        if self.ready_ps[task] < 0:  # else it was held when it became ready
            self.ready_ps[task] = self.now
        if task in self.held:
            self.is_held_back = True
            return
        kind = self.kind[task]
        if kind == JOIN:
            self.start_ps[task] = self.now
            self._end(task)
        elif kind == COMPUTE:
            if self.is_first[task]:
                self._compute(task)
        else:
            self.start_ps[task] = self.now
            route = self.graph.route[task]
            delay_ps = int(self.graph.route_latency_ps[route])
            if self.queues is not None and self.graph.size_bytes[task] > 0 and self.routes[route]:
                delay_ps = self.queues.entry_ps[route]
            if self.circuits is not None and self.circuits.is_circuit[task]:
                self.circuits.ready(task)
            self._at(delay_ps, task)

    def _compute(self, task: int) -> None:
        self.start_ps[task] = self.now
        if self.paces is None or not self.paces.begin(task, self.now):
            self._at(int(self.graph.duration_ps[task]), task)

    def _event(self, time_ps: int, task: int) -> None:
        flow = self.flows.get(task)
        if self.kind[task] == COMPUTE:
            if self.paces is None or self.paces.ends(task, self.now):
                self._end(task)
        elif flow is not None:
            if flow.end_ps == time_ps:  # else its rate has changed since
                del self.flows[task]
                self.flows_changed = True
                self._end(task)
        elif self.end_ps[task] < 0:
            self._enter_network(task)

    def _enter_network(self, task: int) -> None:
        """The latency is over: that of the route, or where messages go link by link, that before the next link."""
        route = self.routes[self.graph.route[task]]
        size = int(self.graph.size_bytes[task])
        if self.circuits is not None and self.circuits.is_circuit[task]:
            if self.circuits.event(task, self.now):
                self._end(task)
            return
        if size == 0 or not route:
            self._end(task)
            return
        if self.queues is not None:
            if self.queues.hop[task] == len(route):
                self._end(task)
            else:
                self.queues.arrived.append(task)
            return
        self.num_events += 1
        self.flows[task] = Flow(task, route, self.counts[self.graph.route[task]], float(size), since_ps=self.now)
        self.flows_changed = True

    def _end(self, task: int) -> None:
        self.end_ps[task] = self.now
        self.num_events += 1
        self.num_done += 1
        if self.paces is not None:
            self.paces.press(task)
        for after in self.successors[task]:
            self.waits[after] -= 1
            if self.waits[after] == 0:  # below 0: a join that did not need this one any more
                heapq.heappush(self.ready, after)
        following = self.next_in_stream[task]
        if following >= 0:
            self.is_first[following] = True
            if self.ready_ps[following] >= 0 and following not in self.held:
                self._compute(following)

    def _repace(self, paces: PacedStreams) -> None:
        """Foresee anew the ends of the compute tasks whose stream has changed its speed."""
        for task, due_ps in paces.foresee(self.now, is_over=not self.is_held_back):
            self._at(due_ps - self.now, task)

    def _share(self) -> None:
        """Ask the model for the rates, and foresee the end of each flow whose rate has changed."""
        self.flows_changed = False
        flows = [self.flows[task] for task in sorted(self.flows)]
        assert isinstance(self.model, NetworkModel)
        routes = [flow.route for flow in flows]
        if self.graph.route_counts is None:
            rates = self.model.rates(routes, self.capacity)
        else:
            assert isinstance(self.model, WeightedModel)
            rates = self.model.weighted_rates(routes, [flow.counts for flow in flows], self.capacity)
        if len(rates) != len(flows) or not all(math.isfinite(rate) and rate >= 0 for rate in rates):
            raise SimulationError(f"network model {self.model.name!r} must return one rate >= 0 a flow")
        for flow, rate in zip(flows, rates, strict=True):
            if rate == flow.rate:
                continue
            flow.remaining -= flow.rate * float(self.now - flow.since_ps) / 1e12
            flow.rate, flow.since_ps, flow.end_ps = float(rate), self.now, -1
            if rate > 0:
                flow.end_ps = self._at(drain_ps(flow.remaining, flow.rate), flow.task)

    def _serve(self, queues: _Queues) -> None:
        """Let the links take the messages that have come to them at this instant."""
        for task, begin_ps, arrival_ps in queues.serve(self.now, self.routes, self.capacity):
            if queues.hop[task] == 0:
                self.start_ps[task] = begin_ps - queues.entry_ps[self.graph.route[task]]
            queues.hop[task] += 1
            self.num_events += 1
            self._at(arrival_ps - self.now, task)

    def _begin(self, task: int) -> None:
        """A circuit takes ``task`` now, after the latency of its route."""
        self.start_ps[task] = self.now - int(self.graph.route_latency_ps[self.graph.route[task]])

    def _at(self, delay_ps: int, task: int) -> int:
        time_ps = self.now + delay_ps
        if time_ps > MAX_PS:
            raise SimulationError(f"simulated time passes {MAX_PS // PS_PER_S} s at task {task}")
        heapq.heappush(self.events, (time_ps, task))
        return time_ps


class _Queues:
    """The state of a network that carries messages from link to link."""

    def __init__(self, graph: TaskGraph, model: QueueModel) -> None:
        assert graph.link_latency_ps is not None
        self.graph = graph
        self.model = model
        self.latency_ps = graph.link_latency_ps.tolist()
        self.entry_ps = entry_ps(graph).tolist()
        self.free_ps = [0] * len(self.latency_ps)
        self.hop = [0] * graph.num_tasks
        self.arrived: list[int] = []

    def serve(self, now: int, routes: list[tuple[int, ...]], capacity: list[int]) -> list[tuple[int, int, int]]:
        """Who of those that arrived is served from when, and comes to the next link when: (task, ps, ps)."""
        at_link: dict[int, list[int]] = {}
        for task in sorted(self.arrived):
            at_link.setdefault(routes[self.graph.route[task]][self.hop[task]], []).append(task)
        self.arrived = []
        served = []
        for link, tasks in at_link.items():
            sizes = [int(self.graph.size_bytes[task]) for task in tasks]
            free_ps = max(now, self.free_ps[link])
            service_ps = list(self.model.service_ps(sizes, capacity[link]))
            alone_ps = [drain_ps(float(size), float(capacity[link])) for size in sizes]
            if len(service_ps) != len(sizes) or any(s < a for s, a in zip(service_ps, alone_ps, strict=True)):
                raise SimulationError(
                    f"network model {self.model.name!r} must return one time of service a message, "
                    "no less than its bytes take"
                )
            for task, service, alone in zip(tasks, service_ps, alone_ps, strict=True):
                served.append((task, free_ps + service - alone, free_ps + service + self.latency_ps[link]))
            self.free_ps[link] = free_ps + max(service_ps)
        return served


def _route_counts(graph: TaskGraph, routes: list[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """How often the flows of each route cross each of its links."""
    if graph.route_counts is None:
        return [(1,) * len(route) for route in routes]
    return [
        tuple(graph.route_counts[first : first + len(route)].tolist())
        for first, route in zip(graph.route_ptr.tolist(), routes, strict=False)
    ]


def _stream_order(graph: TaskGraph) -> tuple[list[int], list[bool]]:
    """The next task of the same stream (-1: none), and whether a task has none before it."""
    following = [-1] * graph.num_tasks
    is_first = [True] * graph.num_tasks
    last: dict[int, int] = {}
    for task, (kind, stream) in enumerate(zip(graph.kind.tolist(), graph.stream.tolist(), strict=True)):
        if kind == COMPUTE and stream >= 0:
            if stream in last:
                following[last[stream]] = task
                is_first[task] = False
            last[stream] = task
    return following, is_first
