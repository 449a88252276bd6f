"""Random programs that depend only on relative rank, on GPUs partly joined by NICs."""

from __future__ import annotations

from dataclasses import replace

from gpu_cases import GB, NS
from gpu_relative import RelativeCase

from trine.cluster.cluster import Cluster
from trine.cluster.parts import NIC, SCALE_OUT, Device, Link
from trine.cluster.tables import LinkTable
from trine.gpu.model import Nic
from trine.gpu.program import (
    ACQUIRE,
    BARRIER,
    COMPUTE,
    COPY,
    DELAY,
    DMA,
    FENCE,
    LOAD,
    NOP,
    REDUCE,
    RELEASE,
    STORE,
    WAITCNT,
)

ALL_BUT_DMA = (LOAD, STORE, COPY, REDUCE, WAITCNT, BARRIER, COMPUTE, NOP, RELEASE, FENCE, DELAY)


def islands(rng, ranks, apart):
    """Join GPUs directly if their distance is a multiple of ``apart``, else by a NIC per GPU or per pair."""
    bandwidth, latency = int(rng.choice([50, 100, 111])) * GB, int(rng.choice([0, 1000, 500_000]))
    is_shared, unequal = rng.random() < 0.5, rng.random() < 0.3
    devices = [Device(name=f"g{i}", forwards=True) for i in range(ranks)]
    wires = []
    for distance in range(1, ranks):
        out = Link(
            bytes_per_s=bandwidth // (1 + unequal * (distance % 3)), latency_ps=latency + 777 * unequal * distance
        )
        for gpu in range(ranks):
            peer = (gpu + distance) % ranks
            if distance % apart == 0:
                wires.append((gpu, peer, out))
                continue
            out = replace(out, link_class=SCALE_OUT)
            if not is_shared or distance == 1:
                devices.append(Device(name=f"n{gpu}.{distance}", kind=NIC, forwards=True))
                wires.append((gpu, len(devices) - 1, out))
            nic = len(devices) - 1 if not is_shared else ranks + gpu
            wires.append((nic, peer, out))
    names = [device.name for device in devices]
    return Cluster(name="islands", devices=tuple(devices), links=LinkTable.joined(names, wires), routing="shortest")


class RelativeNicCase(RelativeCase):
    """:class:`RelativeCase` with loads and stores only between directly joined GPUs; dmas go anywhere.

    Accesses that would cross a NIC stay on their rank, on all ranks alike, so that all waits end.
    """

    def __init__(self, seed, **how):
        super().__init__(seed, **how)
        rng, size = self.rng, self.all_ranks
        self.apart = int(rng.choice([d for d in range(2, size + 1) if size % d == 0]))
        if rng.random() < 0.8:
            interval, proxy = int(rng.choice([0, 40, 333])) * NS, int(rng.choice([0, 700])) * NS
            nic = Nic(latency_ps=900 * NS, interval_ps=interval, proxy_ps=900 * NS + proxy, proxy_interval_ps=proxy)
            self.model = replace(self.model, nic=nic)

    def _machine(self):
        return islands(self.rng, self.all_ranks, self.apart), (self.all_ranks,)

    def _operation(self, rank, group, groups):
        given = self.without
        if self.rng.random() < 0.4:
            self.without = ALL_BUT_DMA
        super()._operation(rank, group, groups)
        self.without = given

    def _rows(self, rank, op, i, kind, row, shift):
        role, peer, address, step, semaphore = row
        if kind in (DMA, ACQUIRE) or (peer - rank) % self.apart == 0:
            return [row]
        by_peer = shift * (peer - rank) if semaphore < 0 and i % 2 else 0
        return [(role, rank, address - by_peer, step, semaphore)]


def relative_nic_case(seed, **how):
    return RelativeNicCase(seed, **how).case()
