"""Random Hop protocols on random graphs and links, and the protocol itself, written down a second time."""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field

import numpy as np

from trine.decentralised.protocol import HopProtocol, WorkerGraph, worker_graph
from trine.decentralised.tasks import HopNetwork, HopWork
from trine.engine.models import FairSharing, drain_ps
from trine.errors import PlanError


def random_case(rng):
    """A graph, a protocol that it can run, work and a network: often with ties, sometimes with shared links."""
    while True:
        graph = worker_graph(str(rng.choice(["ring", "ring-based", "double-ring", "full"])), int(rng.choice([4, 8])))
        if rng.random() < 0.3:
            graph = one_way(rng, graph.num_workers)
        try:
            protocol = random_protocol(rng)
            protocol.check(graph)
        except PlanError:
            continue
        return graph, protocol, random_work(rng, graph, protocol), random_network(rng, graph)


def one_way(rng, n):
    """A directed ring with some chords."""
    out = [{(i + 1) % n} | {int(j) for j in rng.choice(n, 2) if j != i} for i in range(n)]
    return WorkerGraph("one way", tuple(tuple(sorted(others)) for others in out))


def random_protocol(rng):
    return HopProtocol(
        iterations=int(rng.choice([1, 2, 12])),
        backup=int(rng.choice([0, 1, 2])),
        staleness=int(rng.choice([0, 0, 1, 3])),
        max_gap=[None, 1, 2, 4, 6][int(rng.integers(5))],
        max_skip=int(rng.choice([0, 1, 5])),
        skip_behind=int(rng.choice([2, 3])),
        order=str(rng.choice(["parallel", "serial"])),
        drop_late=bool(rng.integers(2)),
    )


def random_work(rng, graph, protocol):
    shape = (graph.num_workers, protocol.iterations)
    slow = rng.choice([1, 1, 1, 4], (shape[0], 1))
    jitter = rng.integers(0, 1000, shape) if rng.random() < 0.5 else 0
    return HopWork(
        gradient_ps=np.asarray(10**6 * slow + jitter * np.ones(shape)).astype(np.int64) * np.ones(shape, np.int64),
        apply_ps=np.full(shape, int(rng.choice([0, 10**5])), np.int64),
        update_bytes=int(rng.choice([0, 1000, 1001])),
    )


def random_network(rng, graph):
    latency = int(rng.choice([0, 1000]))
    if rng.random() < 0.4:  # a switch: one link up and one down each worker
        count = 2 * graph.num_workers
        routes = {(a, b): (2 * a, 2 * b + 1) for a, b in graph.edges}
    else:
        count = len(graph.edges)
        routes = {edge: (i,) for i, edge in enumerate(graph.edges)}
    rates = [int(r) for r in rng.choice([10**9, 10**9, 333_333_333, 10**8], count)]
    return HopNetwork(
        route=lambda a, b: routes[a, b],
        link_bytes_per_s=rates,
        link_latency_ps=[latency] * count,
        link_names=[f"link {i}" for i in range(count)],
        rank_names=[f"worker {i}" for i in range(graph.num_workers)],
    )


@dataclass(eq=False)
class Message:
    sender: int
    receiver: int
    iteration: int
    route: tuple
    remaining: float
    rate: float = 0.0
    since_ps: int = 0
    due_ps: int = -1


@dataclass
class Worker:
    """iteration: that it is in (or was last in). queue: updates that came, (sender, iteration), and when."""

    iteration: int = -1
    state: str = "entering"
    target: int = 0
    computing_until: int = -1
    is_averaged: bool = False
    queue: dict = field(default_factory=dict)
    entries: list = field(default_factory=list)  # (ps, iteration)
    finishes: list = field(default_factory=list)  # (iteration, trains, ps)
    starts: dict = field(default_factory=dict)


class LiteralHop:
    """Hop with real queues: workers as state machines that count tokens and look into their update queues.

    Nothing here knows of task graphs; it shares only the sharing rule and the rounding of the network with trine.
    """

    def __init__(self, graph, protocol, work, network):
        self.graph, self.protocol, self.work, self.network = graph, protocol, work, network
        n = graph.num_workers
        self.workers = [Worker() for _ in range(n)]
        gap = protocol.max_gap
        # tokens[i, j]: at worker i, for its in-neighbour j to take; worker i puts one in for each iteration it enters
        self.tokens = {(i, j): gap for j, i in graph.edges} if gap is not None else {}
        self.waiting = {edge: [] for edge in graph.edges}  # of each connection: iterations not yet begun
        self.busy = set()
        self.flows = []
        self.changed = False
        self.events = []
        self.count = 0
        self.now = 0
        self.sent = []
        self.dropped = set()

    def run(self):
        while True:
            while self._step():
                pass
            if self.changed:
                self._share()
            self.events = [event for event in self.events if event[3] is None or event[3].due_ps == event[0]]
            if not self.events:
                break
            heapq.heapify(self.events)
            self.now = self.events[0][0]
            while self.events and self.events[0][0] == self.now:
                _, _, what, flow = heapq.heappop(self.events)
                if flow is not None and (flow.due_ps != self.now or flow not in self.flows):
                    continue
                what()
        assert all(w.state == "over" for w in self.workers), [w.state for w in self.workers]
        return self

    def _at(self, time_ps, what, flow=None):
        self.count += 1
        heapq.heappush(self.events, (time_ps, self.count, what, flow))

    # -- workers

    def _step(self):
        """Let everyone who can go on at this instant go on; whether somebody could."""
        moved = False
        for i, worker in enumerate(self.workers):
            moved |= getattr(self, "_" + worker.state)(i, worker)
        for edge in self.waiting:
            moved |= self._connection(edge)
        return moved

    def _entering(self, i, worker):
        steps = worker.target - worker.iteration
        out = self.graph.out[i]
        if self.tokens and any(self.tokens[o, i] < steps for o in out):
            return False
        for o in out if self.tokens else ():
            self.tokens[o, i] -= steps
        for j in self.graph.into[i] if self.tokens else ():
            self.tokens[i, j] += steps
        worker.iteration = worker.target
        worker.entries.append((self.now, worker.iteration))
        worker.state, worker.is_averaged = "computing", False
        worker.computing_until = self.now + int(self.work.gradient_ps[i, worker.iteration])
        self._at(worker.computing_until, lambda: None)
        if self.protocol.order == "parallel":
            self._offer(i, worker.iteration)
        return True

    def _computing(self, i, worker):
        if self.now < worker.computing_until:
            return False
        if self.protocol.order == "parallel":
            worker.state = "averaging"
        else:
            worker.state = "applying"
            self._apply(i, worker)
        return True

    def _averaging(self, i, worker):
        if not self._enough(i, worker.iteration):
            return False
        if self.protocol.order == "parallel":
            worker.state = "applying"
            self._apply(i, worker)
        else:
            self._finish(i, worker)
        return True

    def _apply(self, i, worker):
        worker.computing_until = self.now + int(self.work.apply_ps[i, worker.iteration])
        self._at(worker.computing_until, lambda: None)

    def _applying(self, i, worker):
        if self.now < worker.computing_until:
            return False
        if self.protocol.order == "parallel":
            self._finish(i, worker)
        else:
            self._offer(i, worker.iteration)
            worker.state = "averaging"
        return True

    def _finish(self, i, worker):
        worker.finishes.append((worker.iteration, True, self.now))
        if worker.iteration == self.protocol.iterations - 1:
            worker.state = "over"
            return
        reached = min(self._iteration_before(o) for o in self.graph.out[i])
        worker.target, worker.state = worker.iteration + 1, "entering"
        if self.protocol.max_skip and reached - worker.iteration >= self.protocol.skip_behind:
            worker.target = min(worker.iteration + 1 + self.protocol.max_skip, reached)
            if worker.target > worker.iteration + 1:
                worker.state = "renewing"

    def _renewing(self, i, worker):
        if not self._enough(i, worker.target - 1):
            return False
        worker.finishes.append((worker.target - 1, False, self.now))
        worker.state = "entering"
        return True

    def _over(self, i, worker):
        return False

    def _iteration_before(self, o):
        return max((k for ps, k in self.workers[o].entries if ps < self.now), default=-1)

    def _enough(self, i, iteration):
        """Recv: enough in-neighbours with an update that is not too old."""
        oldest = iteration - self.protocol.staleness
        good = 0
        for j in self.graph.into[i]:
            mine = [k for (sender, k) in self.workers[i].queue if sender == j]
            if self.protocol.staleness == 0:
                good += iteration in mine
            else:
                good += oldest < 0 or any(k >= oldest for k in mine)
        return good >= len(self.graph.into[i]) - self.protocol.backup

    # -- messages

    def _offer(self, i, iteration):
        for o in self.graph.out[i]:
            self.waiting[i, o].append(iteration)

    def _connection(self, edge):
        if edge in self.busy or not self.waiting[edge]:
            return False
        iteration = self.waiting[edge].pop(0)
        if self.protocol.drop_late and self._iteration_before(edge[1]) > iteration + self.protocol.staleness:
            self.dropped.add((*edge, iteration))
            return True
        self.busy.add(edge)
        self.sent.append((*edge, iteration))
        route = tuple(self.network.route(*edge))
        latency = sum(self.network.link_latency_ps[link] for link in route)
        message = Message(*edge, iteration, route, float(self.work.update_bytes))
        if latency:
            self._at(self.now + latency, lambda: self._enter(message))
        else:
            self._enter(message)
        return True

    def _enter(self, message):
        if not message.remaining or not message.route:
            self._arrive(message)
            return
        self.flows.append(message)
        self.changed = True

    def _arrive(self, message):
        self.workers[message.receiver].queue[message.sender, message.iteration] = self.now
        self.busy.discard((message.sender, message.receiver))

    def _drained(self, message):
        self.flows.remove(message)
        self.changed = True
        self._arrive(message)

    def _share(self):
        self.changed = False
        rates = FairSharing().rates([flow.route for flow in self.flows], self.network.link_bytes_per_s)
        for flow, rate in zip(self.flows, rates, strict=True):
            if rate == flow.rate:
                continue
            flow.remaining -= flow.rate * float(self.now - flow.since_ps) / 1e12
            flow.rate, flow.since_ps = rate, self.now
            flow.due_ps = self.now + drain_ps(flow.remaining, rate)
            self._at(flow.due_ps, lambda flow=flow: self._drained(flow), flow)
