"""NCCL's internal cost model, used by NCCL to choose algorithm and protocol. It is not trine's estimate of the time.

Constants and formulas: github.com/NVIDIA/nccl src/graph/tuning.cc and the search for channels in src/graph/search.cc,
snapshot of 2026-06-11 (NCCL 2.28; the ring and tree parts are unchanged since 2.19). The model has NCCL's omissions.
Times are in microseconds, rates in bytes/us.
"""

from __future__ import annotations

import math

from trine.collectives.nccl.costs import CostContext
from trine.collectives.nccl.parameters import LL, LL128, SIMPLE
from trine.collectives.nccl.topology import AMPERE, CommTopology, architecture

NVLINK, PCI, NET = "nvlink", "pci", "net"

BASE_US = {
    ("tree", LL): 6.8, ("tree", LL128): 14.0, ("tree", SIMPLE): 8.4,
    ("ring", LL): 6.6, ("ring", LL128): 14.0, ("ring", SIMPLE): 8.4,
    ("pat", SIMPLE): 8.0,
}  # fmt: skip
HOP_US = {
    NVLINK: {
        ("tree", LL): 0.6, ("tree", LL128): 1.25, ("tree", SIMPLE): 4.0,
        ("ring", LL): 0.6, ("ring", LL128): 1.9, ("ring", SIMPLE): 3.4,
        ("nvls", SIMPLE): 25.0, ("nvlstree", SIMPLE): 25.0, ("collnet", SIMPLE): 3.7, ("pat", SIMPLE): 4.0,
    },
    PCI: {
        ("tree", LL): 1.0, ("tree", LL128): 1.9, ("tree", SIMPLE): 4.0,
        ("ring", LL): 1.0, ("ring", LL128): 2.5, ("ring", SIMPLE): 5.7,
        ("nvls", SIMPLE): 25.0, ("nvlstree", SIMPLE): 25.0, ("collnet", SIMPLE): 3.7, ("pat", SIMPLE): 4.0,
    },
    NET: {
        ("tree", LL): 5.0, ("tree", LL128): 8.5, ("tree", SIMPLE): 14.0,
        ("ring", LL): 2.7, ("ring", LL128): 4.0, ("ring", SIMPLE): 14.0,
        ("nvls", SIMPLE): 18.0, ("nvlstree", SIMPLE): 20.9, ("collnet", SIMPLE): 31.0, ("pat", SIMPLE): 14.0,
    },
}  # fmt: skip
#: GB/s by architecture, for 1, 2 and at least 4 nodes.
LL_MAX = ((39, 39, 20.4), (87.7, 22.5, 19), (141, 45, 35), (282, 90, 70))
CHANNEL_RING_LL128 = ((20, 20, 20), (20, 20, 20), (36.7, 36.7, 36.7), (40, 40, 40))
CHANNEL_TREE_LL128 = ((20, 20, 20), (20, 20, 20), (36.7, 36.7, 29), (55.6, 31.67, 20))
CHANNEL_TREE = ((26.5, 18.5, 10), (24, 23.6, 17.8), (38.7, 41.4, 36), (70, 42.8, 24))
NVLS_PART = (0.0, 0.0, 0.85, 0.74)
#: Rate factor of tree all-reduce by the binary logarithm of size / 64 bytes.
TREE_CORRECTION = {
    LL: (1, 1, 1, 1, 0.9, 0.8, 0.7, 0.7, 0.7, 0.7, 0.6, 0.5, 0.4, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1, 1, 1, 1),
    LL128: (1, 1, 1, 1, 1, 0.9, 0.8, 0.8, 0.8, 0.7, 0.6, 0.6, 0.6, 0.6, 0.6, 0.6, 0.8, 0.9, 0.9, 0.9, 0.9, 1, 1),
    SIMPLE: (0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.8, 0.7, 0.6, 0.6, 0.5, 0.5, 0.5, 0.5, 0.6, 0.7, 0.8, 0.7, 0.7, 0.8,
             0.9, 0.9),
}  # fmt: skip
#: Rate factor of trees that are only a chain inside a node.
CHAIN_PART = 0.85
#: Rate factor of CollNet, and on nodes with NVLS, where NCCL prefers NVLS over the fabric's reduction (assumed).
COLLNET_PART, COLLNET_PART_NVLS = 0.8, 0.6
#: Minimum time of a ring step with a network operation; three times this for Simple.
NET_OVERHEAD_US = 1.0


def tuner_us(context: CostContext, op: str, size: float, algorithm: str, protocol: str) -> float | None:
    """Return the time in NCCL's model, or None for combinations that NCCL does not consider."""
    topology = context.topology
    if op in ("gather", "scatter", "all_to_all", "send_recv"):
        return 0.0
    key = op, algorithm, protocol
    if key not in context.tuner_terms:
        context.tuner_terms[key] = _rate(context, *key), _latency(topology, *key)
    rate, latency = context.tuner_terms[key]
    if rate <= 0.0:
        return None
    if algorithm == "tree" and op == "all_reduce":
        index = int(math.log2(max(1.0, size / 64)))
        table = TREE_CORRECTION[protocol]
        if index < len(table):
            rate *= table[index]
    plateau = size / (context.channels * topology.num_ranks) >= 64
    if algorithm == "ring" and protocol == SIMPLE and topology.num_nodes > 1 and op == "all_reduce" and plateau:
        latency *= 1.9 if architecture(topology.gpu) < AMPERE else 1.4
    return latency + size / rate


def _log2i(number: int) -> int:
    """Return the binary logarithm, rounded down like NCCL's log2i."""
    return number.bit_length() - 1


def _hardware(topology: CommTopology) -> str:
    return NVLINK if topology.inside is not None and topology.inside.medium.startswith(("nvlink", "xgmi")) else PCI


def _columns(topology: CommTopology) -> tuple[int, int]:
    """Return the table indices of the architecture and of the number of nodes (1, 2, 4 and more)."""
    if topology.num_nodes == 1:
        column = 0
    elif topology.num_nodes == 2:
        column = 1
    else:
        column = 2
    return architecture(topology.gpu), column


def _graph_rate(context: CostContext, algorithm: str) -> float:
    """Return the total rate of NCCL's channels in bytes/us.

    On two nodes NCCL rates trees by their links inside a node. Each NIC carries half the data of those links, and the
    search for trees raises the inner rate to at most twice the NICs' rate.
    """
    topology = context.topology
    inner = (
        topology.inside.ring_bytes_per_s if topology.inside and topology.between is None else topology.path_bytes_per_s
    )
    outer = topology.between.ring_bytes_per_s if topology.between else math.inf
    if algorithm == "tree" and topology.num_nodes <= 2:
        outer *= 2.0
    return min(inner, outer) / 1e6 * context.part_of_rate(context.inner if topology.inside else context.outer)


def _rate(context: CostContext, op: str, algorithm: str, protocol: str) -> float:
    """Return the algorithm bandwidth in bytes/us."""
    topology = context.topology
    generation, nodes = _columns(topology)
    channels = context.channels / (2 if topology.between else 1)  # NCCL rates them before it duplicates each
    bus = _graph_rate(context, algorithm)
    n = topology.num_ranks
    if algorithm == "ring":
        if protocol == LL:
            bus = min(LL_MAX[generation][nodes] * 1e3, bus * 0.5)
        elif protocol == LL128:
            bus = min(
                bus * (0.7 if topology.per_domain < 2 else 0.92), channels * CHANNEL_RING_LL128[generation][nodes] * 1e3
            )
        steps = (
            2 * (n - 1) if op in ("all_reduce", "barrier") else n - 1 if op in ("all_gather", "reduce_scatter") else n
        )
        return bus * n / steps
    if algorithm == "tree":
        bus = min(bus * 0.92, channels * CHANNEL_TREE[generation][nodes] * 1e3)
        if protocol == LL:
            bus = min(bus / 3.8, LL_MAX[generation][nodes] * 1e3)
        elif protocol == LL128:
            part = 7.0 / 9.0 if topology.num_nodes == 1 else 120.0 / 128.0
            bus = min(bus * part, channels * CHANNEL_TREE_LL128[generation][nodes] * 1e3)
        return bus * 0.5 * (CHAIN_PART if topology.max_per_domain == 1 else 1.0)
    if algorithm in ("nvls", "nvlstree"):
        inner = topology.inside.ring_bytes_per_s / 1e6 if topology.inside else 0.0
        inner *= NVLS_PART[generation] * (topology.min_per_domain - 1) / topology.min_per_domain
        outer = (
            topology.between.ring_bytes_per_s / 1e6 / (2 if topology.num_domains > 2 and algorithm == "nvlstree" else 1)
            if topology.between
            else math.inf
        )
        return min(inner, outer)
    if algorithm == "pat":
        return bus * n / (n - 1) * 0.75
    return bus * (COLLNET_PART_NVLS if topology.multicast else COLLNET_PART)


def _rings_are_equal(topology: CommTopology) -> bool:
    """Return whether all channels go through the GPUs in the same order (NCCL's sameChannels).

    NCCL prefers equal rings. They are impossible if each ring leaves a node over a separate NIC (nccl#1453: H100, rings
    that differ) or if rings share direct links of more than two GPUs (nccl#713: four V100, samechannels="0"). With one
    NIC per node, nccl-tests broadcast shows 9.3 and 22.4 us for LL and Simple: one hop (eunomia-bpf/nccl-eBPF, logs).
    """
    if topology.between is not None:
        return topology.between.lanes == 1
    return topology.inside is None or topology.inside.lanes == 1 or topology.num_ranks == 2


def _latency(topology: CommTopology, op: str, algorithm: str, protocol: str) -> float:
    key = (algorithm, protocol)
    inner_us = HOP_US[_hardware(topology)][key] if topology.inside else 0.0
    is_spread = topology.max_per_domain == 1  # nothing hides the network's latency, and NCCL uses the trees' latency
    outer_us = HOP_US[NET]["tree" if is_spread and algorithm == "ring" else algorithm, protocol]
    if (
        protocol == SIMPLE and topology.between and not topology.by_hand
    ):  # hand-described links report no latency to NCCL
        outer_us += topology.between.latency_ps / 1e6
    base_us = BASE_US.get(key, 0.0)
    domains, n = topology.num_domains, topology.num_ranks
    if algorithm == "ring":
        if op in ("broadcast", "reduce"):
            hop_us = HOP_US[NET if topology.between else _hardware(topology)]
            if _rings_are_equal(topology):
                return base_us + hop_us[key]
            return base_us + n * hop_us["tree" if protocol == SIMPLE else algorithm, protocol]
        turns = 2 if op in ("all_reduce", "barrier") else 1
        if topology.between:
            inner_us = max(inner_us, NET_OVERHEAD_US * (3 if protocol == SIMPLE else 1))
        return base_us + turns * ((n - domains) * inner_us + (domains - 1) * outer_us)
    if algorithm == "tree":
        return base_us + 2 * ((n // domains - 1) * inner_us + _log2i(domains) * outer_us)
    if algorithm == "nvlstree":
        return base_us + inner_us + 2 * _log2i(domains) * outer_us
    if algorithm == "pat":
        return base_us + _log2i(topology.num_nodes) * outer_us / 3.5 + n * 2.8
    crosses = algorithm == "collnet" or topology.between is not None
    return base_us + inner_us + (outer_us if crosses else 0.0)
