"""ASTRA-sim's system layer as task graphs: its collectives, with endpoint delays, reductions and chunk queues.

Rules and arithmetic: docs/background/astra-sim.md. The network is trine's: ``fifo`` stands for the congestion-aware
back end. The congestion-unaware back end has no queues, so a message there is just a delay.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from math import floor

import numpy as np

from trine.engine.run import run
from trine.graph.builder import TaskGraphBuilder

NS = 1000  # ps
GIB = 2**30


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One run. ``gib_per_s``, ``latency_ns``: per link. ``memory_gb_per_s``: None makes reductions free.

    ``queues``: number of queues that share ``active`` chunks; chunks go round robin. ``both_ways`` (``baseline``) uses
    all queues, the second half backwards; otherwise (``localBWAware``) only the first half is used. ``reduce_ns``:
    overrides the memory's reduction time. ``aware``: of congestion. ``rendezvous``: 8 KiB go back before each message.
    """

    topology: str
    ranks: int
    gib_per_s: float
    latency_ns: float
    collective: str
    algorithm: str
    size_bytes: int
    chunks: int = 1
    active: int = 1
    queues: int = 1
    both_ways: bool = False
    endpoint_ns: float = 10
    memory_gb_per_s: float | None = 1600
    reduce_ns: int | None = None
    aware: bool = True
    rendezvous: bool = False


class System:
    """Builder of the tasks of one run.

    ``whole_ns``: truncate every time to whole ns as ASTRA-sim does; links of 1 byte/ps then carry ns instead of bytes.
    Otherwise links have the bandwidth and latency of the setting, and times are trine's.
    """

    def __init__(self, setting: Setting, *, whole_ns: bool = True) -> None:
        self.setting = setting
        self.whole_ns = whole_ns
        self.bytes_per_ns = Fraction(setting.gib_per_s).limit_denominator(10**6) * GIB / 10**9
        self.latency_ns = Fraction(setting.latency_ns)
        self.hop_ns: set[int] = set()
        links = setting.ranks * max(2, setting.ranks)
        bandwidth = 10**12 if whole_ns else round(self.bytes_per_ns * 10**9)
        self.builder = TaskGraphBuilder([bandwidth] * links, [0] * links)

    def delay(self, ns: float, after: Sequence[int]) -> int:
        """Add a wait of ``ns`` that occupies no resource."""
        return self.builder.compute(0, f"delay {self.builder.num_tasks}", round(ns * NS), after)

    def reduction_ns(self, size_bytes: int) -> int:
        """Return the time of a reduction: one write and two reads of local memory."""
        if self.setting.reduce_ns is not None:
            return self.setting.reduce_ns
        if self.setting.memory_gb_per_s is None:
            return 0
        return 3 * floor(Fraction(size_bytes) / Fraction(self.setting.memory_gb_per_s))

    def send(self, source: int, target: int, size_bytes: int, after: Sequence[int]) -> int:
        """Add one message, truncated to whole ns on each link."""
        if self.setting.rendezvous:
            after = [self._message(target, source, 8192, after)]
        return self._message(source, target, size_bytes, after)

    def _message(self, source: int, target: int, size_bytes: int, after: Sequence[int]) -> int:
        route = self.route(source, target)
        alone_ns = size_bytes / self.bytes_per_ns
        if not self.setting.aware:
            return self.delay(floor(len(route) * self.latency_ns + alone_ns), after)
        if not self.whole_ns:
            return self.builder.transfer(source, target, route, size_bytes, after)
        busy_ns = floor(alone_ns)
        self.hop_ns.add(floor(self.latency_ns + alone_ns) - busy_ns)
        return self.builder.transfer(source, target, route, busy_ns * NS, after)

    def route(self, source: int, target: int) -> list[int]:
        """Return links. Ring: i to i + 1 or N + i to i - 1, shorter way, else clockwise. Switch: up i, down N + j."""
        n = self.setting.ranks
        if self.setting.topology == "Switch":
            return [source, n + target]
        if self.setting.topology == "FullyConnected":
            return [source * n + target]
        forward = (target - source) % n
        if forward <= n - forward:
            return [(source + hop) % n for hop in range(forward)]
        return [n + (source - hop) % n for hop in range(n - forward)]

    def ends_ns(self) -> list[Fraction]:
        """Return the end time of each task, in ns, on network ``fifo``."""
        graph = self.builder.build()
        hop_ns: Fraction | int = self.latency_ns
        if self.whole_ns:
            (hop_ns,) = self.hop_ns or {0}  # truncated along with the byte time; links allow only one value
        hop_ps = int(hop_ns * NS)
        graph = replace(
            graph,
            link_latency_ps=np.full(len(graph.link_bytes_per_s), hop_ps),
            route_latency_ps=np.diff(graph.route_ptr) * hop_ps,
        )
        return [Fraction(end, NS) for end in run(graph, network="fifo").end_ps.tolist()]


#: Tasks by rank: the task to wait for (input), or the rank's last task (output).
Ends = list[int]


def ring(
    system: System, ranks: Sequence[int], size_bytes: int, ready: Ends, steps: int, reducing: int, way: int = 1
) -> Ends:
    """Add ``steps`` rounds of messages of ``size_bytes`` to the next rank; the first ``reducing`` rounds reduce."""
    n, e = len(ranks), system.setting.endpoint_ns
    for step in range(steps):
        sent = [system.send(ranks[i], ranks[(i + way) % n], size_bytes, [ready[i]]) for i in range(n)]
        cost = e + (system.reduction_ns(size_bytes) if step < reducing else 0)
        ready = [system.delay(cost, [sent[(i - way) % n], ready[i]]) for i in range(n)]
    return ready


def direct(system: System, ranks: Sequence[int], size_bytes: int, ready: Ends, reduces: bool) -> Ends:
    """Add a message from every rank to every other rank at once, the next rank first."""
    n, e = len(ranks), system.setting.endpoint_ns
    sent = {}
    for i in range(n):
        for distance in range(1, n):
            sent[i, (i + distance) % n] = system.send(ranks[i], ranks[(i + distance) % n], size_bytes, [ready[i]])
    cost = e + (system.reduction_ns(size_bytes) if reduces else 0)
    received = [[system.delay(cost, [sent[j, i]]) for j in range(n) if j != i] for i in range(n)]
    return [system.builder.join([*received[i], ready[i]]) for i in range(n)]


def exchange(system: System, ranks: Sequence[int], sizes: Sequence[tuple[int, int, int]], ready: Ends) -> Ends:
    """Add rounds of (distance, bytes sent, bytes reduced): exchanges with the rank that differs in one bit."""
    n, e = len(ranks), system.setting.endpoint_ns
    for distance, size_bytes, reduced_bytes in sizes:
        sent = [system.send(ranks[i], ranks[i ^ distance], size_bytes, [ready[i]]) for i in range(n)]
        cost = e + system.reduction_ns(reduced_bytes)
        ready = [system.delay(cost, [sent[i ^ distance], ready[i]]) for i in range(n)]
    return ready


def tree(system: System, ranks: Sequence[int], size_bytes: int, ready: Ends, root_is_last: bool) -> Ends:
    """Add messages up a tree and down again. The root's only child heads a full tree of the others, in rank order.

    Each message received by a rank with children costs a reduction, on the way down as well.
    """
    n, e = len(ranks), system.setting.endpoint_ns
    cost = e + system.reduction_ns(size_bytes)
    first = 0 if root_is_last else 1
    children: dict[int, list[int]] = {i: [] for i in range(n)}

    def full(low: int, high: int) -> int:
        middle = (low + high) // 2
        if high > low:
            children[middle] = [full(low, middle - 1), full(middle + 1, high)]
        return middle

    root = n - 1 if root_is_last else 0
    children[root] = [full(first, first + n - 2)]

    def up(i: int) -> int:
        arrived = [system.delay(cost, [system.send(ranks[c], ranks[i], size_bytes, [up(c)])]) for c in children[i]]
        at[i] = system.builder.join([*arrived, ready[i]])
        return at[i]

    def down(i: int) -> None:
        ends[i] = at[i]
        for c in children[i]:
            arrived = system.send(ranks[i], ranks[c], size_bytes, [at[i]])
            at[c] = system.delay(cost if children[c] else e, [arrived])
            down(c)

    at, ends = [0] * n, [0] * n
    up(root)
    down(root)
    return ends


def chunk(system: System, ranks: Sequence[int], size_bytes: int, ready: Ends, number: int, way: int) -> Ends:
    """Add one chunk of the setting's collective."""
    setting, n = system.setting, len(ranks)
    ready = [system.delay(setting.endpoint_ns, [task] if task >= 0 else []) for task in ready]
    kind, part = setting.collective, size_bytes // n
    halves = [size_bytes >> bit for bit in range(1, n.bit_length())]  # C / 2, ..., C / N
    halving = [(1 << k, half, halves[k + 1] if k + 1 < len(halves) else 0) for k, half in enumerate(halves)]
    doubling = [(distance, half, 0) for distance, half, _ in reversed(halving)]
    if setting.algorithm == "doubleBinaryTree":  # performs an all-reduce for every collective
        return tree(system, ranks, size_bytes, ready, root_is_last=number % 2 == 0)
    if setting.algorithm == "ring":
        steps, reducing, message = {
            "all_reduce": (2 * (n - 1), n - 1, part),
            "reduce_scatter": (n - 1, n - 1, part),
            "all_gather": (n - 1, 0, size_bytes),
            "all_to_all": (n * (n - 1) // 2, 0, part),
        }[kind]
        return ring(system, ranks, message, ready, steps, reducing, way)
    if setting.algorithm == "direct":
        if kind in ("all_reduce", "reduce_scatter"):
            ready = direct(system, ranks, part, ready, reduces=True)
        if kind != "reduce_scatter":
            ready = direct(system, ranks, size_bytes if kind == "all_gather" else part, ready, reduces=False)
        return ready
    if kind == "all_gather":
        return exchange(
            system, ranks, [(n >> bit, size_bytes << (bit - 1), 0) for bit in range(1, n.bit_length())], ready
        )
    return exchange(system, ranks, halving if kind == "reduce_scatter" else halving + doubling, ready)


def collective(system: System, ranks: Sequence[int] | None = None, start: Ends | None = None) -> Ends:
    """Add all chunks; each queue of a rank starts its next chunk when one of its active chunks ends."""
    setting = system.setting
    ranks = range(setting.ranks) if ranks is None else ranks
    n = len(ranks)
    begun: Ends = [-1] * n if start is None else start
    size = setting.size_bytes // setting.chunks
    if setting.collective != "all_gather":
        size = max(size, n)
    slots = -(-setting.active // setting.queues)
    used = setting.queues if setting.both_ways else -(-setting.queues // 2)
    through: list[list[Ends]] = [[] for _ in range(used)]
    for number in range(setting.chunks):
        before = through[number % used]
        ready = begun
        if len(before) >= slots:
            ready = [system.builder.join([ends[i] for ends in before], need=len(before) - slots + 1) for i in range(n)]
        way = -1 if setting.both_ways and number % used >= -(-used // 2) else 1
        before.append(chunk(system, ranks, size, ready, number, way))
    return [system.builder.join([ends[i] for queue in through for ends in queue]) for i in range(n)]
