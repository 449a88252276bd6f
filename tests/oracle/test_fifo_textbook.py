"""Is the fifo network equal to a textbook simulation with explicit queues and servers?

The engine keeps no queues: a link remembers when it will be free. Here every link has a queue, a server and an event
for the end of each service.
"""

import heapq

import numpy as np
import pytest

from trine.common.units import transfer_ps
from trine.engine.run import run
from trine.graph.builder import TaskGraphBuilder


class Queues:
    """Messages without predecessors but a release time; events (time, kind, task): service ends before arrivals."""

    def __init__(self, bandwidth, latency, messages):
        self.bandwidth, self.latency, self.messages = bandwidth, latency, messages
        self.waiting = [[] for _ in bandwidth]
        self.serving = [None] * len(bandwidth)
        self.hop = [0] * len(messages)
        self.end = [None] * len(messages)
        self.events = [(release, 1, task) for task, (release, _, _) in enumerate(messages)]
        heapq.heapify(self.events)

    def run(self):
        while self.events:
            now = self.events[0][0]
            touched = set()
            while self.events and self.events[0][0] == now:
                _, kind, which = heapq.heappop(self.events)
                touched |= self._server_free(now, which) if kind == 0 else self._arrive(now, which)
            for link in touched:
                self._serve(now, link)
        return self.end

    def _arrive(self, now, task):
        route = self.messages[task][1]
        if self.hop[task] == len(route):
            self.end[task] = now
            return set()
        link = route[self.hop[task]]
        self.waiting[link].append((now, task))
        return {link}

    def _server_free(self, now, link):
        task, self.serving[link] = self.serving[link], None
        self.hop[task] += 1
        heapq.heappush(self.events, (now + self.latency[link], 1, task))
        return {link}

    def _serve(self, now, link):
        if self.serving[link] is None and self.waiting[link]:
            self.waiting[link].sort()
            _, task = self.waiting[link].pop(0)
            self.serving[link] = task
            heapq.heappush(self.events, (now + transfer_ps(self.messages[task][2], self.bandwidth[link]), 0, link))


@pytest.mark.parametrize("engine", ["compiled", "reference"])
@pytest.mark.parametrize("seed", range(30))
def test_random_messages(seed, engine):
    rng = np.random.default_rng(seed)
    num_links, count = int(rng.integers(1, 7)), int(rng.integers(1, 150))
    bandwidth = rng.choice([10**9, 10**9 + 7, 5 * 10**9, 65 * 10**9], num_links).tolist()
    latency = rng.choice([0, 1, 1000, 10**6], num_links).tolist()
    messages = []
    for _ in range(count):
        hops = int(rng.integers(1, min(num_links, 4) + 1))
        route = rng.choice(num_links, hops, replace=False).tolist()
        messages.append((int(rng.choice([0, 1, 500_000, 10**6])), route, int(rng.choice([1, 1000, 1001, 4096, 10**6]))))
    builder = TaskGraphBuilder(bandwidth, latency)
    for release, route, size in messages:
        wait = builder.compute(0, f"wait {builder.num_tasks}", release)
        builder.transfer(0, 1, route, size, [wait])
    ends = run(builder.build(), network="fifo", engine=engine).end_ps[1::2].tolist()
    assert ends == Queues(bandwidth, latency, messages).run()
