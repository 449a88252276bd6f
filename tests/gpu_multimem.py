"""Programs with multimem operands, and machines whose switches reduce and multicast."""

from __future__ import annotations

import numpy as np
from gpu_cases import GB, NS, Programmer
from gpu_random import RandomCase
from gpu_relative import RelativeCase, relative_cluster

from trine.cluster.cluster import Cluster
from trine.cluster.parts import SWITCH, Device, Link
from trine.cluster.tables import LinkTable
from trine.gpu.program import (
    ADD_ALL,
    DATA_OPS,
    READ,
    READ_MEMBER,
    READ_SUM,
    RELEASE,
    WRITE,
    WRITE_ALL,
    WRITE_FLAGGED,
    WRITE_MEMBER,
)


def star(num_gpus, num_switches=1, bandwidth=100 * GB, latency=700 * NS, reduces=True):
    """Return a cluster with each GPU on each switch, and routes over all switches."""
    gpus = [Device(name=f"g{i}") for i in range(num_gpus)]
    switches = [Device(name=f"s{i}", kind=SWITCH, forwards=True, reduces=reduces) for i in range(num_switches)]
    link = Link(bytes_per_s=bandwidth, latency_ps=latency)
    wires = [(g, num_gpus + s, link) for s in range(num_switches) for g in range(num_gpus)]
    wires += [(b, a, link) for a, b, link in wires]
    names = [device.name for device in (*gpus, *switches)]
    routing = "shortest" if num_switches == 1 else "ecmp-split"
    return Cluster(
        name="star", devices=(*gpus, *switches), links=LinkTable.joined(names, wires), routing=routing
    )  # fmt: skip


def multimem(role, ranks, address=0, step=128, semaphore=-1):
    """Return the rows of a multimem operand."""
    member = READ_MEMBER if role == READ_SUM else WRITE_MEMBER
    return [(role if i == 0 else member, rank, address, step, semaphore) for i, rank in enumerate(ranks)]


def with_multimem(rng, kind, row, ranks):
    """Return the row, or a multimem operand of ``ranks`` in its place, starting with this rank."""
    role, _, address, step, semaphore = row
    if kind == RELEASE and role == WRITE:
        return multimem(WRITE_ALL, ranks, address, step, semaphore)
    if role == WRITE_FLAGGED:
        return multimem(WRITE_ALL, ranks, address, step, semaphore)
    if kind in DATA_OPS and role == READ:
        return multimem(READ_SUM, ranks, address, step)
    if kind in DATA_OPS and role == WRITE:
        return multimem(WRITE_ALL if rng.random() < 0.7 else ADD_ALL, ranks, address, step)
    return [row]


class SwitchedCase(RandomCase):
    """:class:`RandomCase` on switches that reduce; some operands span several ranks.

    Releasing additional semaphores makes no workgroup wait longer, so the programs still end.
    """

    def __init__(self, seed, size=6, without=(), monitored=False):
        super().__init__(seed, size, without, monitored)
        self.num_ranks = int(self.rng.choice([2, 3, 4, 5]))
        self.next_semaphore = [0] * self.num_ranks
        rng = np.random.default_rng([seed, 8])
        self.programmer = _SwitchedProgrammer(self.num_ranks, self.model.line_bytes, rng, monitored)

    def _cluster(self):
        switches = int(self.rng.choice([1, 1, 2, 3]))
        bandwidth, latency = self._choose(50, 100, 111) * GB, self._choose(0, 1000, 500_000)
        return star(self.num_ranks + int(self.rng.choice([0, 0, 1])), switches, bandwidth, latency)


class _SwitchedProgrammer(Programmer):
    """Programmer that turns some rows into multimem operands when it builds the program. Flagged rows stay if a
    monitor watches the lines of semaphores: at other members, these semaphores may belong to other lines."""

    def __init__(self, num_ranks, line_bytes, rng, monitored):
        super().__init__(num_ranks, 1, line_bytes)
        self.rng, self.monitored = rng, monitored

    def build(self):
        first = [*(kernel[2] for kernel in self.kernels), len(self.workgroups)]
        for kernel, (rank, _, _) in enumerate(self.kernels):
            for group in range(first[kernel], first[kernel + 1]):
                self.workgroups[group] = [
                    (kind, amount, unroll, tuple(new for row in rows for new in self._rows(kind, rank, row)))
                    for kind, amount, unroll, rows in self.workgroups[group]
                ]
        return super().build()

    def _rows(self, kind, rank, row):
        if self.rng.random() < 0.5 or (self.monitored and row[0] == WRITE_FLAGGED):
            return [row]
        others = [other for other in range(self.num_ranks) if other != rank]
        members = self.rng.permutation(others)[: self.rng.integers(1, len(others) + 1)].tolist()
        if kind == RELEASE or row[0] == WRITE_FLAGGED:  # the rank of the row must be a member
            members = [row[1], *(other for other in members if other != row[1])]
            members = members if rank in members else [*members, rank]
        else:
            members = [rank, *members]
        return with_multimem(self.rng, kind, row, members) if len(members) > 1 else [row]


def switched_case(seed, **how):
    return SwitchedCase(seed, **how).case()


class RelativeSwitchedCase(RelativeCase):
    """:class:`RelativeCase` on one switch that reduces, most of the time; members are by distance."""

    def _machine(self):
        rng = self.rng
        if rng.random() < 0.15:
            return relative_cluster(rng, self.all_ranks)
        switches = int(rng.choice([1, 1, 1, 1, 2]))
        bandwidth, latency = int(rng.choice([50, 100, 111])) * GB, int(rng.choice([0, 1000, 500_000]))
        return star(self.all_ranks + int(rng.choice([0, 0, 2])), switches, bandwidth, latency), (self.all_ranks,)

    def _rows(self, rank, op, i, kind, row, shift):
        own = np.random.default_rng([self.seed, 12, op, i])
        if own.random() < 0.5 or not any(device.reduces for device in self.cluster.devices):
            return [row]
        by_peer = shift * (row[1] if i % 2 else rank)
        distances = own.permutation(np.arange(1, self.all_ranks))[: own.integers(1, self.all_ranks)].tolist()
        members = [rank, *(self.moved(rank, distance) for distance in distances)]
        if kind == RELEASE or row[0] == WRITE_FLAGGED:
            members += [row[1]] if row[1] not in members else []
        rows = with_multimem(own, kind, row, members)
        if len(rows) == 1 or kind == RELEASE:
            return rows
        base = row[2] - by_peer
        return [(role, peer, base + shift * (peer if i % 2 else rank), step, sem) for role, peer, _, step, sem in rows]


def relative_switched_case(seed, **how):
    return RelativeSwitchedCase(seed, **how).case()
