"""How many channels NCCL gives a group of ranks between nodes: a thread block, and so an SM, each.

NCCL looks for rings that each leave a node over a NIC of their own, as fast as the first entry of a table of rates that
the NIC carries, and then takes each ring several times: github.com/NVIDIA/nccl, snapshot of 2026-06-11,
src/graph/search.cc (the tables of rates, ``ncclTopoDupChannels``) and src/graph/connect.cc (``ncclTopoPostset``).
"""

from __future__ import annotations

from trine.collectives.nccl.generations import AMPERE, BLACKWELL, HOPPER, VOLTA, architecture
from trine.collectives.nccl.topology import CommTopology

#: GB/s of a ring over a NIC before Hopper, of Hopper and of Blackwell, as far as NICs of today tell them apart.
_BEFORE = (48.0, 30.0, 28.0, 24.0, 20.0, 18.0, 15.0, 12.0, 10.0)
_RING_RATES = {
    VOLTA: _BEFORE,
    AMPERE: _BEFORE,
    HOPPER: (48.0, 45.0, 42.0, 40.0, 30.0, 24.0, 22.0, 20.0, 17.5, 15.0, 12.0),
    BLACKWELL: (96.0, 86.0, 80.0, 48.0, 45.1, 42.0, 40.0, 30.0, 24.0, 22.0, 20.0, 17.5, 15.0, 12.0),
}
#: Rings slower than this are not taken twice.
_TWICE_FROM_GBPS = 25.0
#: On Hopper and later, so many rings or fewer are taken twice although each is slower than the second number.
_FEW_RINGS, _FAST_GBPS = 4, 50.0
#: On Hopper and later, rings faster than this are taken twice more while there are fewer than so many channels.
_VERY_FAST_GBPS, _MANY_CHANNELS = 45.0, 16


def channels_between(topology: CommTopology) -> int | None:
    """Channels of a group whose ranks are in several domains; None where it is in one.

    A ring goes over each NIC that the ranks of a domain have: eight H100 with eight NICs of 400 Gb/s get 16 channels,
    two of them 8 (NCCL's log in github.com/NVIDIA/nccl/issues/1189), one of them 4.
    """
    between = topology.between
    if between is None:
        return None
    generation, rings = architecture(topology.gpu), between.lanes
    nic_GBps = between.ring_bytes_per_s * between.headroom / rings / 1e9
    rate = next((rate for rate in _RING_RATES[generation] if rate <= nic_GBps), 0.0)
    is_recent = generation >= HOPPER
    if rate >= _TWICE_FROM_GBPS and not (is_recent and rate < _FAST_GBPS and rings > _FEW_RINGS):
        rings, rate = 2 * rings, rate / 2
    channels = 2 * rings
    if is_recent and rate > _VERY_FAST_GBPS and channels < _MANY_CHANNELS:
        channels *= 2
    return channels
