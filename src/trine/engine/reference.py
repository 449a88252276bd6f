"""Reference engine in plain Python: the readable definition of the semantics and the oracle of the compiled loop.

It also runs network models written in plain Python. It is slow (about 10**5 events per second) and shares no code with
the kernels. Order of events: docs/design/time-and-order.md.
"""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass
from fractions import Fraction
from math import ceil
from time import monotonic
from typing import TYPE_CHECKING, NamedTuple, cast

import numpy as np

from trine.common.arrays import Int32
from trine.common.observer import PROGRESS_S, current_observer
from trine.common.units import PS_PER_S
from trine.engine._limits import FULL_PPM, MAX_PS, MIN_PPM
from trine.engine.circuit_model import CircuitModel
from trine.engine.models import Network, NetworkModel, QueueModel, WeightedModel, drain_ps
from trine.engine.validate import software_latency_ps
from trine.errors import SimulationError
from trine.graph.taskgraph import COMPUTE, JOIN, Records, TaskGraph

if TYPE_CHECKING:
    from trine.engine.circuits import CircuitState

# Streams below full speed, in plain Python: the readable definition, and the oracle of ``_loop.py``.
#
# A task runs at the speed of its stream: full speed less all slowdowns, at least one hundredth. All changes at one
# instant apply together. Work is an exact fraction of a picosecond.


@dataclass(slots=True)
class RunningTask:
    """Remaining work of a task at ``since_ps``, in ps at full speed, and its predicted end (-1: unknown)."""

    task: int
    left_ps: Fraction
    since_ps: int
    due_ps: int = -1


class RateLimitedStreams:
    """All streams of a run. Tasks without a duration or without a stream are not affected."""

    def __init__(self, graph: TaskGraph, slowdown_ppm: Int32, slowdown_stream: Int32) -> None:
        self.graph = graph
        self.slowdown_ppm = slowdown_ppm.tolist()
        self.slowdown_stream = slowdown_stream.tolist()
        self.nominal_ppm = [FULL_PPM] * len(graph.stream_names)
        self.speed_ppm = [FULL_PPM] * len(graph.stream_names)
        self.running: dict[int, RunningTask] = {}
        self.changed: set[int] = set()

    def apply_slowdown(self, finished: int) -> None:
        """Change the stream's speed after a task has ended."""
        stream = self.slowdown_stream[finished]
        if stream >= 0:
            self.nominal_ppm[stream] -= self.slowdown_ppm[finished]
            self.changed.add(stream)

    def begin(self, task: int, now: int) -> bool:
        """Start ``task`` on its stream. Returns False if it has no stream or no duration."""
        stream, duration_ps = int(self.graph.stream[task]), int(self.graph.duration_ps[task])
        if stream < 0 or duration_ps == 0:
            return False
        self.running[stream] = RunningTask(task, Fraction(duration_ps), now)
        self.changed.add(stream)
        return True

    def ends(self, task: int, now: int) -> bool:
        """Return whether the event of ``task`` is still valid; if so, the task ends now."""
        stream = int(self.graph.stream[task])
        if stream < 0 or not self.graph.duration_ps[task]:
            return True
        running = self.running.get(stream)
        if running is None or (running.task, running.due_ps) != (task, now):
            return False
        del self.running[stream]
        return True

    def predict_completion(self, now: int, *, is_over: bool) -> list[tuple[int, int]]:
        """Apply the changes of an instant; return the tasks whose end has moved, with the new end.

        ``is_over``: no more changes come at this instant, so a stream above full speed is an error.
        """
        moved = []
        for stream in sorted(self.changed):
            if is_over and self.nominal_ppm[stream] > FULL_PPM:
                from trine.engine.describe import faster_than_full

                raise faster_than_full(self.graph, stream, now)
            running = self.running.get(stream)
            if running is not None:
                running.left_ps -= Fraction((now - running.since_ps) * self.speed_ppm[stream], FULL_PPM)
                running.since_ps = now
            self.speed_ppm[stream] = max(MIN_PPM, self.nominal_ppm[stream])
            if running is not None:
                due_ps = now + ceil(running.left_ps * FULL_PPM / self.speed_ppm[stream])
                if due_ps != running.due_ps:
                    running.due_ps = due_ps
                    moved.append((running.task, due_ps))
        self.changed.clear()
        return moved


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


def simulate(graph: TaskGraph, model: Network, most_shared: int | None = None) -> Records:
    """Run a validated ``graph``; tasks that never ran have -1 in the records."""
    run = Reference(graph, model, most_shared)
    run.run()
    return run.records()


class SharingLimit(Exception):
    """Signal that bandwidth sharing exceeded the caller's limit."""


class _SharedLinks(NamedTuple):
    """Links that flows share: routes and counts of each flow, and the capacity of each link in bytes/s."""

    routes: list[tuple[int, ...]]
    counts: list[tuple[int, ...]]
    capacity: list[int]


class Reference:
    """One run of a task graph. most_shared: number of visited links of flows after which SharingLimit is raised."""

    def __init__(self, graph: TaskGraph, model: Network, most_shared: int | None = None) -> None:
        n = graph.num_tasks
        self.graph = graph
        self.model = model
        self.capacity = graph.link_bytes_per_s.tolist()
        self.routes = [
            tuple(graph.route_links[a:b].tolist())
            for a, b in zip(graph.route_ptr[:-1], graph.route_ptr[1:], strict=True)
        ]
        self.counts = _route_counts(graph, self.routes)
        self.caps = None if graph.route_cap_bytes_per_s is None else graph.route_cap_bytes_per_s.tolist()
        self.kind = graph.kind.tolist()
        self.waits = graph.num_required.tolist()
        self.ready_ps = [-1] * n
        self.start_ps = [-1] * n
        self.end_ps = [-1] * n
        self.successors: list[list[int]] = [[] for _ in range(n)]
        for task in range(n):
            for predecessor in graph.predecessors(task):
                self.successors[predecessor].append(task)
        self.next_in_stream, self.is_first = _stream_order(graph)
        self.now = 0
        self.num_events = 0
        self.num_done = 0
        self.events: list[tuple[int, int]] = []
        self.ready: list[int] = [task for task in range(n) if self.waits[task] == 0]
        self.flows: dict[int, Flow] = {}
        self.flows_changed = False
        self.left_to_share = most_shared
        self.held: set[int] = set()
        self.is_held_back = False
        self.slowdowns: RateLimitedStreams | None = None
        if graph.pressure_ppm is not None and graph.pressure_stream is not None:
            self.slowdowns = RateLimitedStreams(graph, graph.pressure_ppm, graph.pressure_stream)
        self.queues = _Queues(graph, model) if isinstance(model, QueueModel) else None
        self.circuits: CircuitState | None = None
        if isinstance(model, CircuitModel):
            from trine.engine.circuits import CircuitState

            self.circuits = CircuitState(graph, model, self._schedule, self._begin)

    def run(self) -> None:
        """Run all events, or stop as soon as held tasks become ready."""
        progress, reported = current_observer().progress, monotonic()
        while True:
            while self.ready:  # priority 0: immediate consequences of ended tasks
                self._become_ready(heapq.heappop(self.ready))
            if self.events and self.events[0][0] == self.now:  # priority 1: other events of this instant
                self._event(*heapq.heappop(self.events))
                continue
            if self.slowdowns is not None and self.slowdowns.changed:
                self._update_speeds(self.slowdowns)
            if self.is_held_back:
                return
            if self.flows_changed:  # priority 2: the network, once per instant
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
        if self.ready_ps[task] < 0:  # set already if the task was held
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
                delay_ps = self.queues.software_latency_ps[route]
            if self.circuits is not None and self.circuits.is_circuit[task]:
                self.circuits.ready(task)
            self._schedule(delay_ps, task)

    def _compute(self, task: int) -> None:
        self.start_ps[task] = self.now
        if self.slowdowns is None or not self.slowdowns.begin(task, self.now):
            self._schedule(int(self.graph.duration_ps[task]), task)

    def _event(self, time_ps: int, task: int) -> None:
        flow = self.flows.get(task)
        if self.kind[task] == COMPUTE:
            if self.slowdowns is None or self.slowdowns.ends(task, self.now):
                self._end(task)
        elif flow is not None:
            if flow.end_ps == time_ps:  # otherwise its rate has changed since
                del self.flows[task]
                self.flows_changed = True
                self._end(task)
        elif self.end_ps[task] < 0:
            self._enter_network(task)

    def _enter_network(self, task: int) -> None:
        """Handle the end of a transfer's latency: of its route, or of one link if messages go link by link."""
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
        if self.slowdowns is not None:
            self.slowdowns.apply_slowdown(task)
        for successor in self.successors[task]:
            self.waits[successor] -= 1
            if self.waits[successor] == 0:  # below 0: a join that no longer needed this task
                heapq.heappush(self.ready, successor)
        following = self.next_in_stream[task]
        if following >= 0:
            self.is_first[following] = True
            if self.ready_ps[following] >= 0 and following not in self.held:
                self._compute(following)

    def _update_speeds(self, slowdowns: RateLimitedStreams) -> None:
        """Update the predicted ends of compute tasks on streams with a changed speed."""
        for task, due_ps in slowdowns.predict_completion(self.now, is_over=not self.is_held_back):
            self._schedule(due_ps - self.now, task)

    def _share(self) -> None:
        """Get the rates from the model, and predict the end of each flow with a changed rate."""
        self.flows_changed = False
        flows = [self.flows[task] for task in sorted(self.flows)]
        routes, counts, capacity = self._with_caps(flows)
        if self.left_to_share is not None:
            self.left_to_share -= sum(map(len, routes))
            if self.left_to_share < 0:
                raise SharingLimit
        if self.graph.route_counts is None:
            rates = cast(NetworkModel, self.model).rates(routes, capacity)
        else:
            rates = cast(WeightedModel, self.model).weighted_rates(routes, counts, capacity)
        if len(rates) != len(flows) or not all(math.isfinite(rate) and rate >= 0 for rate in rates):
            raise SimulationError(f"network model {self.model.name!r} must return one rate >= 0 a flow")
        for flow, rate in zip(flows, rates, strict=True):
            if rate == flow.rate:
                continue
            flow.remaining -= flow.rate * float(self.now - flow.since_ps) / 1e12
            flow.rate, flow.since_ps, flow.end_ps = float(rate), self.now, -1
            if rate > 0:
                flow.end_ps = self._schedule(drain_ps(flow.remaining, flow.rate), flow.task)

    def _with_caps(self, flows: list[Flow]) -> _SharedLinks:
        """Return the links of ``flows``; a rate-limited flow also crosses a private link with that capacity.

        A flow that represents many crosses this link once, since each of the many has a separate limit.
        """
        routes = [flow.route for flow in flows]
        counts = [flow.counts for flow in flows]
        if self.caps is None:
            return _SharedLinks(routes, counts, self.capacity)
        capacity = list(self.capacity)
        for place, flow in enumerate(flows):
            cap = self.caps[self.graph.route[flow.task]]
            if cap:
                routes[place], counts[place] = (*flow.route, len(capacity)), (*flow.counts, 1)
                capacity.append(cap)
        return _SharedLinks(routes, counts, capacity)

    def _serve(self, queues: _Queues) -> None:
        """Start the service of the messages that reached their links at this instant."""
        for task, begin_ps, arrival_ps in queues.serve(self.now, self.routes, self.capacity):
            if queues.hop[task] == 0:
                self.start_ps[task] = begin_ps - queues.software_latency_ps[self.graph.route[task]]
            queues.hop[task] += 1
            self.num_events += 1
            self._schedule(arrival_ps - self.now, task)

    def _begin(self, task: int) -> None:
        """Record the start of ``task``: a circuit accepts it now, after the latency of its route."""
        self.start_ps[task] = self.now - int(self.graph.route_latency_ps[self.graph.route[task]])

    def _schedule(self, delay_ps: int, task: int) -> int:
        time_ps = self.now + delay_ps
        if time_ps > MAX_PS:
            raise SimulationError(f"simulated time passes {MAX_PS // PS_PER_S} s at task {task}")
        heapq.heappush(self.events, (time_ps, task))
        return time_ps


class _Queues:
    """State of a network that forwards messages link by link."""

    def __init__(self, graph: TaskGraph, model: QueueModel) -> None:
        assert graph.link_latency_ps is not None
        self.graph = graph
        self.model = model
        self.latency_ps = graph.link_latency_ps.tolist()
        self.software_latency_ps = software_latency_ps(graph).tolist()
        self.free_ps = [0] * len(self.latency_ps)
        self.hop = [0] * graph.num_tasks
        self.arrived: list[int] = []

    def serve(self, now: int, routes: list[tuple[int, ...]], capacity: list[int]) -> list[tuple[int, int, int]]:
        """Return (task, service start in ps, arrival at the next link in ps) for each arrived message."""
        at_link: dict[int, list[int]] = {}
        for task in sorted(self.arrived):
            at_link.setdefault(routes[self.graph.route[task]][self.hop[task]], []).append(task)
        self.arrived = []
        served = []
        for link, tasks in at_link.items():
            sizes = [int(self.graph.size_bytes[task]) for task in tasks]
            free_ps = max(now, self.free_ps[link])
            service_ps = list(self.model.service_ps(sizes, capacity[link]))
            drain_times_ps = [drain_ps(float(size), float(capacity[link])) for size in sizes]
            if len(service_ps) != len(sizes) or any(s < a for s, a in zip(service_ps, drain_times_ps, strict=True)):
                raise SimulationError(
                    f"network model {self.model.name!r} must return one time of service a message, "
                    "no less than its bytes take"
                )
            for task, service, drain in zip(tasks, service_ps, drain_times_ps, strict=True):
                served.append((task, free_ps + service - drain, free_ps + service + self.latency_ps[link]))
            self.free_ps[link] = free_ps + max(service_ps)
        return served


def _route_counts(graph: TaskGraph, routes: list[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """Return, for each route, the number of times its flows cross each link."""
    if graph.route_counts is None:
        return [(1,) * len(route) for route in routes]
    return [
        tuple(graph.route_counts[first : first + len(route)].tolist())
        for first, route in zip(graph.route_ptr.tolist(), routes, strict=False)
    ]


def _stream_order(graph: TaskGraph) -> tuple[list[int], list[bool]]:
    """Return each task's successor in its stream (-1 for the last), and True for the first task of a stream."""
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
