"""Time of one collective with a given algorithm and protocol: launch + base + steps + bytes + delay.

Times are microseconds and rates bytes/us, as floats; :mod:`predict` rounds to picoseconds. Every cost grows with the
size. Formulas and their evidence: docs/background/collectives.md.

:func:`channels_between` gives NCCL's number of channels (one thread block, and so one SM, each) between nodes. NCCL
searches for rings that each leave a node over a separate NIC, at the highest rate of a table that the NIC carries.
It then duplicates each ring: github.com/NVIDIA/nccl, snapshot of 2026-06-11, src/graph/search.cc (the tables of
rates, ``ncclTopoDupChannels``) and src/graph/connect.cc (``ncclTopoPostset``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from trine.collectives.nccl.parameters import LL, LL128, P2P, SIMPLE, Library, Medium
from trine.collectives.nccl.topology import AMPERE, BLACKWELL, HOPPER, VOLTA, CommTopology, Tier, architecture

#: Base time of a collective with in-network reduction on the fabric, us (NCCL's CollNet base, tuning.cc: 31).
COLLNET_US = 31.0
#: Fraction of a NIC's rate that CollNet reaches (assumed).
COLLNET_EFFICIENCY = 0.8
#: Maximum NICs of a domain that NVLS channels use; racks of 72 GPUs have more.
NVLS_PATHS = 16
#: Chunk of an NVLS channel for one buffer share, in bytes, from LARGE_CHUNKS of them on, and the chunk of smaller
#: messages (NCCL: src/enqueue.cc, calcCollChunking; src/transport/nvls.cc, NVLS_CHUNKSIZE). AWS's plug-in sets 512 KiB
#: on P5 and P6 (github.com/aws/aws-ofi-nccl, src/platform-aws.cpp): 8 B200 there reach 741 GB/s at 4 GiB, below 64 such
#: chunks, and 839 at 8 GiB.
NVLS_CHUNK_BYTES, NVLS_SMALL_CHUNK_BYTES, LARGE_CHUNKS = 128 << 10, 64 << 10, 64
#: NVLS channels inside one domain, by generation (NCCL: src/transport/nvls.cc, ncclNvlsTuning).
NVLS_CHANNELS = {"hopper": 16, "blackwell": 24}
#: Time that the ranks need to agree on a chunk, in us: 8 H200 reach 480 GB/s with the large chunk (8 and 16 GiB), and
#: 8 H100 445 to 450 with its half (512 MiB): measured/series.csv, h200-8 and aic-h100.
NVLS_CHUNK_US = 4.1
#: The rate of smaller groups is that of eight GPUs, on which it was measured; so is what a large chunk saves.
NVLS_FITTED_GPUS = 8
#: The generation of a GPU, by the beginning of its name.
GENERATIONS = (
    ("v100", "volta"), ("a100", "ampere"), ("h100", "hopper"), ("h200", "hopper"), ("h20", "hopper"),
    ("gh200", "hopper"), ("h800", "hopper"), ("b200", "blackwell"), ("b300", "blackwell"), ("gb200", "blackwell"),
    ("gb300", "blackwell"), ("mi250", "cdna2"), ("mi300", "cdna3"), ("mi325", "cdna3"), ("mi350", "cdna4"),
    ("mi355", "cdna4"),
)  # fmt: skip
#: Size with half of the cost of additional channels (measured LL curves show a step at 8 to 32 KiB).
SPREAD_BYTES = 16 << 10


@dataclass(frozen=True, kw_only=True, slots=True)
class Cost:
    """Cost parts: ``steps_us`` latency, ``bytes_us`` bandwidth, ``delay_us`` pipeline fill; ``limit``: slowest link."""

    launch_us: float
    base_us: float
    steps_us: float
    bytes_us: float
    delay_us: float
    num_steps: int
    limit: str

    @property
    def total_us(self) -> float:
        return self.launch_us + self.base_us + self.steps_us + self.bytes_us + self.delay_us


@dataclass(frozen=True, kw_only=True)
class CostContext:
    """Inputs of a cost besides the size. ``min_channels``, ``max_channels``: limits that the user sets.

    ``nvls_chunk_bytes``: largest chunk of NVLS. ``bytes_factors``: factors on the time of a collective's bytes, by
    collective (:mod:`trine.collectives.nccl.measured`).
    """

    topology: CommTopology
    library: Library
    launch: str
    min_channels: int | None = None
    max_channels: int | None = None
    nvls_chunk_bytes: int = NVLS_CHUNK_BYTES
    bytes_factors: Mapping[str, float] = field(default_factory=dict)

    @cached_property
    def inner(self) -> Medium:
        return self.library.medium(self.topology.inside.medium if self.topology.inside else "", between=False)

    @cached_property
    def outer(self) -> Medium:
        return self.library.medium(self.topology.between.medium if self.topology.between else "", between=True)

    @cached_property
    def channels(self) -> int:
        """Number of channels that the group uses."""
        return self.limited(self._usual_channels(self.outer if self.topology.between else self.inner))

    def channels_to_usual(self, medium: Medium) -> float:
        """Return the ratio of channels over ``medium`` with the user's limits to channels without them."""
        number = self._usual_channels(medium)
        return self.limited(number) / number

    def part_of_rate(self, medium: Medium) -> float:
        """Return the fraction of a medium's rate that the limited channels reach, at most 1."""
        return min(1.0, self.channels_to_usual(medium))

    def _usual_channels(self, medium: Medium) -> int:
        """Return the channels without limits; at most NCCL's number for a group that spans domains."""
        between = self._channels_between if self.library.name == "nccl" and medium is self.outer else None
        return medium.channels if between is None else min(medium.channels, between)

    @cached_property
    def _channels_between(self) -> int | None:
        return channels_between(self.topology)

    @cached_property
    def tuner_terms(self) -> dict[tuple[str, str, str], tuple[float, float]]:
        """Cache: NCCL's rate and latency by (op, algorithm, protocol); :mod:`trine.collectives.nccl.tuner`."""
        return {}

    def limited(self, number: int) -> int:
        """Return a number of channels within the user's limits."""
        limit = number if self.max_channels is None else min(number, self.max_channels)
        return max(limit, self.min_channels or 0)

    @property
    def launch_us(self) -> float:
        factor = self.library.launch_factor
        return self.library.launch_us[self.launch] * factor.get(launch_class(self.topology), factor["default"])


def launch_class(topology: CommTopology) -> str:
    """Return the class of a machine's launch cost: ``pcie`` without scale-up links, otherwise the GPU's generation."""
    if topology.inside is not None and not topology.inside.medium.startswith(("nvlink", "xgmi")):
        return "pcie"
    return next((name for start, name in GENERATIONS if topology.gpu.startswith(start)), "default")


def step_us(tier: Tier | None, medium: Medium, protocol: str) -> float:
    """Return the latency of one hop: software plus hardware."""
    return 0.0 if tier is None else medium.step_us[protocol] + tier.latency_ps / 1e6


def _rate(tier: Tier | None, rate: float, efficiency: float, share: float = 1.0) -> float:
    """Return bytes/us; infinite without the tier."""
    return math.inf if tier is None else rate * efficiency * share / 1e6


def _peak(tier: Tier | None, rate: float, share: float) -> float:
    """Return the bytes/us that ``share`` of a tier's links carry; infinite without the tier.

    Fitted ring efficiencies exceed 1 on some media because they are fitted together with ``extra_steps``. Without
    those bytes a link would carry more than its rate.
    """
    return _rate(tier, rate, 1.0, share)


def ring_rate(context: CostContext, protocol: str) -> tuple[float, str]:
    """Return the bytes/us of all rings, and the name of the link that bounds them."""
    topology, inner, outer = context.topology, context.inner, context.outer
    tier = topology.inside
    tier_rate = tier.ring_bytes_per_s if tier and topology.between is None else topology.path_bytes_per_s
    a = _rate(tier, tier_rate, inner.efficiency[protocol], context.part_of_rate(inner))
    b = math.inf
    if topology.between is not None:
        b = _rate(
            topology.between, topology.between.ring_bytes_per_s, outer.efficiency[protocol], context.part_of_rate(outer)
        )
    if b < a and topology.between is not None:
        return b, topology.between.limit
    return a, tier.limit if tier else ""


def best_ring_rate(context: CostContext) -> float:
    """Return the maximum bytes/us of all rings together."""
    inside, between = context.topology.inside, context.topology.between
    share_in, share_out = context.part_of_rate(context.inner), context.part_of_rate(context.outer)
    if between is None:
        return _peak(inside, inside.ring_bytes_per_s if inside else math.inf, share_in)
    return min(
        _peak(inside, context.topology.path_bytes_per_s, share_in), _peak(between, between.ring_bytes_per_s, share_out)
    )


def _delays(steps_us: float, bytes_us: float, ramp: float) -> float:
    """Return the pipeline fill time; it grows with the bytes and levels off because a pipeline fills once."""
    return 2.0 * ramp * steps_us * bytes_us / (steps_us + bytes_us) if bytes_us else 0.0


def _base_us(context: CostContext, protocol: str, size: float) -> float:
    """Return a protocol's fixed cost; LL adds channels from about 16 KiB, each starting a fixed time after the last."""
    media = [context.inner] if context.topology.inside else []
    media += [context.outer] if context.topology.between else []
    base_us = max(medium.base_us[protocol] for medium in media)
    if protocol != LL:
        return base_us
    spread_us = max(medium.spread_us * context.channels_to_usual(medium) for medium in media)
    return base_us + spread_us * size / (size + SPREAD_BYTES)


def _ramp(context: CostContext, protocol: str) -> float:
    medium = context.outer if context.topology.between else context.inner
    return medium.ramp[protocol]


def _cost(
    context: CostContext, op: str, base_us: float, steps_us: float, bytes_us: float, ramp: float, num_steps: int,
    limit: str,
) -> Cost:  # fmt: skip
    """Return a cost with the bytes delayed by set-up and steps."""
    steps_us = max(steps_us, _way_us(context.topology, op))
    bytes_us *= context.bytes_factors.get(op, 1.0)
    return Cost(
        launch_us=context.launch_us, base_us=base_us, steps_us=steps_us, bytes_us=bytes_us,
        delay_us=_delays(base_us + steps_us, bytes_us, ramp), num_steps=num_steps, limit=limit,
    )  # fmt: skip


def ring_cost(context: CostContext, op: str, size: float, protocol: str) -> Cost:
    """Return the cost of a ring: 2(N-1) rounds for all_reduce, otherwise N-1; broadcast and reduce pipeline a chain."""
    topology = context.topology
    n, domains = topology.num_ranks, topology.num_domains
    turns = 2 if op in ("all_reduce", "barrier") else 1
    steps, crossings = turns * (n - 1), turns * (domains - 1)
    inner_us = step_us(topology.inside, context.inner, protocol)
    outer_us = step_us(topology.between, context.outer, protocol)
    steps_us = (steps - crossings) * inner_us + crossings * outer_us
    rate, limit = ring_rate(context, protocol)
    extra = context.library.extra_steps.get(op, 0.0)
    sent_bytes = size if op in ("broadcast", "reduce") else steps * size / n
    volume = sent_bytes if op in ("broadcast", "reduce") else sent_bytes + extra * size / n
    base_us = _base_us(context, protocol, size)
    bytes_us = max(volume / rate, sent_bytes / best_ring_rate(context))
    return _cost(context, op, base_us, steps_us, bytes_us, _ramp(context, protocol), steps, limit)


def _tree_load(domains: int) -> int:
    """Return the number of times the whole buffer leaves the busiest domain in a pair of complementary trees."""
    return 1 if domains <= 2 else 2


def tree_cost(context: CostContext, op: str, size: float, protocol: str) -> Cost:
    """Return the cost of double binary trees between domains, chains inside (Sanders, Speck, Traff 2009; NCCL 2.4)."""
    topology, inner, outer = context.topology, context.inner, context.outer
    depth = math.ceil(math.log2(topology.num_domains)) if topology.between else 0
    inner_us = step_us(topology.inside, inner, protocol)
    outer_us = step_us(topology.between, outer, protocol)
    hops = topology.max_per_domain - 1
    steps_us = 2 * (hops * inner_us + depth * outer_us)
    halves = 2 if topology.max_per_domain > 2 else 1  # up and down traffic leaves over one link
    share = context.library.tree_efficiency / halves
    part_in, part_out = context.part_of_rate(inner), context.part_of_rate(outer)
    a = _rate(topology.inside, topology.path_bytes_per_s, inner.efficiency[protocol] * share, part_in)
    rate = topology.between.ring_bytes_per_s / _tree_load(topology.num_domains) if topology.between else 0.0
    b = _rate(topology.between, rate, outer.efficiency[protocol], part_out)
    base_us = _base_us(context, protocol, size)
    peak = min(
        _peak(topology.inside, topology.path_bytes_per_s, part_in) / halves, _peak(topology.between, rate, part_out)
    )
    bytes_us = max(size / min(a, b), size / peak)
    if topology.between and b < a:
        limit = topology.between.limit
    elif topology.inside:
        limit = topology.inside.limit
    else:
        limit = ""
    return _cost(context, op, base_us, steps_us, bytes_us, _ramp(context, protocol), 2 * (hops + depth), limit)


def nvls_cost(context: CostContext, op: str, size: float, protocol: str) -> Cost:
    """Return the cost of NVLS: switches reduce and multicast, each GPU sends S + S/n; trees between domains."""
    topology, inner, outer = context.topology, context.inner, context.outer
    assert topology.inside is not None
    n = topology.min_per_domain
    part_in, part_out = context.part_of_rate(inner), context.part_of_rate(outer)
    tier_rate = topology.inside.ring_bytes_per_s / (1.0 + 1.0 / n)
    a = _rate(topology.inside, tier_rate, inner.nvls_efficiency, part_in)
    b, rate = math.inf, 0.0
    steps_us = 2 * step_us(topology.inside, inner, SIMPLE)
    num_steps = 2
    if topology.between is not None:
        paths = min(1.0, NVLS_PATHS / topology.between.lanes)
        rate = topology.between.ring_bytes_per_s / _tree_load(topology.num_domains) * paths
        b = _rate(topology.between, rate, outer.efficiency[SIMPLE], part_out)
        depth = math.ceil(math.log2(topology.num_domains))
        steps_us += 2 * depth * step_us(topology.between, outer, SIMPLE)
        num_steps += 2 * depth
    peak = min(_peak(topology.inside, tier_rate, part_in), _peak(topology.between, rate, part_out))
    bytes_us = max(_nvls_bytes_us(context, size, a) if topology.between is None else size / min(a, b), size / peak)
    limit = topology.between.limit if topology.between and b < a else topology.inside.limit
    return _cost(context, op, inner.nvls_us, steps_us, bytes_us, _ramp(context, SIMPLE), num_steps, limit)


def _nvls_bytes_us(context: CostContext, size: float, rate: float) -> float:
    """Return the time of NVLS inside one domain for a message; rate: bytes/us with the small chunk.

    The ranks agree once per chunk, so that larger chunks save time. NCCL takes the largest chunk from a size on; the
    largest message below takes at most as long.
    """
    generation = launch_class(context.topology)
    if generation not in NVLS_CHANNELS:
        return size / rate
    channels = context.limited(NVLS_CHANNELS[generation])
    ranks, chunk = context.topology.num_ranks, context.nvls_chunk_bytes
    first = LARGE_CHUNKS * channels * chunk * ranks if chunk > NVLS_SMALL_CHUNK_BYTES else 0
    if size < first:
        return size / rate
    share = size / (channels * max(ranks, NVLS_FITTED_GPUS))
    saved_chunks = share / NVLS_SMALL_CHUNK_BYTES - share / chunk
    return max(first / rate, size / rate - saved_chunks * NVLS_CHUNK_US)


def nvls_sharp_cost(context: CostContext, op: str, size: float, protocol: str) -> Cost:
    """Return the cost of NVLS; several domains also need SHARP, through which each sends its sum up once."""
    topology, inner, outer = context.topology, context.inner, context.outer
    if topology.between is None:
        return nvls_cost(context, op, size, protocol)
    assert topology.inside is not None
    tier_rate = topology.inside.ring_bytes_per_s / (1.0 + 1.0 / topology.min_per_domain)
    a = _rate(topology.inside, tier_rate, inner.nvls_efficiency, context.part_of_rate(inner))
    rate = topology.between.ring_bytes_per_s * min(1.0, NVLS_PATHS / topology.between.lanes)
    efficiency = min(1.0, COLLNET_EFFICIENCY * outer.efficiency[SIMPLE])
    b = _rate(topology.between, rate, efficiency, context.part_of_rate(outer))
    steps_us = 2 * step_us(topology.inside, inner, SIMPLE) + 2 * step_us(topology.between, outer, SIMPLE)
    limit = topology.between.limit if b < a else topology.inside.limit
    part_in, part_out = context.part_of_rate(inner), context.part_of_rate(outer)
    peak = min(_peak(topology.inside, tier_rate, part_in), _peak(topology.between, rate, part_out))
    bytes_us = max(size / min(a, b), size / peak)
    return _cost(context, op, inner.nvls_us, steps_us, bytes_us, _ramp(context, SIMPLE), 4, limit)


def collnet_cost(context: CostContext, op: str, size: float, protocol: str) -> Cost:
    """Return the cost of SHARP: fabric switches reduce; each domain sends its reduced buffer, gets the result once."""
    topology, inner = context.topology, context.inner
    assert topology.between is not None
    n = topology.min_per_domain
    inner_us = step_us(topology.inside, inner, SIMPLE)
    steps_us = 2 * inner_us + 2 * step_us(topology.between, context.outer, SIMPLE)
    efficiency = min(1.0, inner.efficiency[SIMPLE]), min(1.0, COLLNET_EFFICIENCY * context.outer.efficiency[SIMPLE])
    a = _rate(topology.inside, topology.path_bytes_per_s, efficiency[0], context.part_of_rate(inner))
    b = _rate(topology.between, topology.between.ring_bytes_per_s, efficiency[1], context.part_of_rate(context.outer))
    bytes_us = max(2 * size * (n - 1) / n / a, size / b)
    ramp = _ramp(context, SIMPLE)
    cost = _cost(context, op, COLLNET_US, steps_us, bytes_us, ramp, 4, topology.between.limit)
    return replace(cost, delay_us=_delays(steps_us, cost.bytes_us, ramp))


def pat_cost(context: CostContext, op: str, size: float, protocol: str) -> Cost:
    """Return the cost of parallel aggregated trees with one rank per domain: ceil(log2 N) steps (NCCL 2.23)."""
    topology = context.topology
    depth = math.ceil(math.log2(topology.num_ranks))
    steps_us = depth * step_us(topology.between, context.outer, SIMPLE)
    rate, limit = ring_rate(context, SIMPLE)
    base_us = _base_us(context, SIMPLE, size)
    bytes_us = size * (topology.num_ranks - 1) / topology.num_ranks / min(rate, best_ring_rate(context))
    return _cost(context, op, base_us, steps_us, bytes_us, _ramp(context, SIMPLE), depth, limit)


def direct_cost(context: CostContext, op: str, size: float, protocol: str) -> Cost:
    """Return the cost of direct messages: all_to_all, gather and scatter at the root, send_recv to the next rank."""
    topology, inner, outer = context.topology, context.inner, context.outer
    n, largest, smallest = topology.num_ranks, topology.max_per_domain, topology.min_per_domain
    is_pair = op == "send_recv"
    peers_in, peers_out = (1, 1) if is_pair else (largest - 1, n - smallest)  # of the busiest rank
    part = size if is_pair else size / n
    steps_us = inside_us = between_us = 0.0
    limit = ""
    if topology.inside is not None:
        efficiency = min(1.0, inner.efficiency[SIMPLE] if is_pair else inner.p2p_efficiency)
        rate = _message_rate(topology.inside, op) * efficiency * context.part_of_rate(inner)
        inside_us = part * peers_in / (rate / 1e6)
        steps_us = peers_in * inner.p2p_step_us + topology.inside.latency_ps / 1e6
        limit = topology.inside.limit
    if topology.between is not None:
        efficiency = min(1.0, outer.p2p_efficiency)
        rate = _message_rate(topology.between, op) * efficiency * context.part_of_rate(outer)
        between_us = part * peers_out / (rate / 1e6)
        steps_us = (0.0 if is_pair else steps_us) + peers_out * outer.p2p_step_us + topology.between.latency_ps / 1e6
        limit = topology.between.limit if between_us >= inside_us else limit
    if not is_pair:  # the same kernel also copies the rank's own part
        inside_us += part / ((inner if topology.inside else outer).copy_GBps * 1e3)
    inner_us = inner.p2p_base_us if topology.inside else 0.0
    outer_us = outer.p2p_base_us if topology.between else 0.0
    base_us = max(inner_us, outer_us)
    bytes_us = max(inside_us, between_us)
    if not is_pair:  # traffic inside and between domains may share links
        pair = topology.pair_bytes_per_s if op == "all_to_all" else topology.root_pair_bytes_per_s
        bytes_us = max(bytes_us, part / (pair / 1e6))
    return _cost(context, op, base_us, steps_us, bytes_us, _ramp(context, P2P), 1 if is_pair else n - 1, limit)


def _way_us(topology: CommTopology, op: str) -> float:
    """Return the hardware latency from a rank to the furthest rank that its data must reach."""
    tiers = [tier for tier in (topology.inside, topology.between) if tier is not None]
    if op == "send_recv":
        return max(tier.shift_latency_ps for tier in tiers) / 1e6
    return max(topology.far_latency_ps, sum(tier.far_latency_ps for tier in tiers)) / 1e6


def _message_rate(tier: Tier, op: str) -> float:
    """Return the bytes/s of the busiest rank."""
    if op == "send_recv":
        return tier.shift_bytes_per_s
    return tier.gpu_bytes_per_s if op == "all_to_all" else tier.root_bytes_per_s


#: The built-in algorithms of the libraries.
COSTS: dict[str, Callable[[CostContext, str, float, str], Cost]] = {
    "ring": ring_cost,
    "tree": tree_cost,
    "nvls": nvls_sharp_cost,
    "nvlstree": nvls_cost,
    "collnet": collnet_cost,
    "pat": pat_cost,
    "direct": direct_cost,
}

_PROTOCOLS = {
    "ring": (LL, LL128, SIMPLE),
    "tree": (LL, LL128, SIMPLE),
    "nvls": (SIMPLE,),
    "nvlstree": (SIMPLE,),
    "collnet": (SIMPLE,),
    "pat": (SIMPLE,),
    "direct": (SIMPLE,),
}
#: Algorithms with reduction in a domain's switches.
IN_NETWORK = ("nvls", "nvlstree")
RING_OPS = ("all_reduce", "reduce_scatter", "all_gather", "broadcast", "reduce", "barrier")
DIRECT_OPS = ("all_to_all", "gather", "scatter", "send_recv")


#: Algorithms that a library has for an op on any group.
LIBRARY_ALGORITHMS = {
    "all_reduce": ("ring", "tree", "nvls", "nvlstree", "collnet"),
    "barrier": ("ring", "tree", "nvls", "nvlstree", "collnet"),
    "all_gather": ("ring", "pat"),
    "reduce_scatter": ("ring", "pat"),
    "broadcast": ("ring",),
    "reduce": ("ring",),
    **dict.fromkeys(DIRECT_OPS, ("direct",)),
}


def ll128_allowed(topology: CommTopology) -> bool:
    """Return True for GPUs of one model joined by NVLink or xGMI in a node: LL128 needs 128-byte atomic writes."""
    tier = topology.inside
    return topology.same_gpus and tier is not None and tier.medium.startswith(("nvlink", "xgmi"))


def runnable(topology: CommTopology, library: str, op: str) -> list[tuple[str, str]]:
    """Return the (algorithm, protocol) pairs that the library has for ``op`` on this group."""
    nvls = topology.multicast and topology.min_per_domain > 1
    is_available = {
        "ring": True,
        "tree": True,
        "nvls": nvls and (topology.num_domains == 1 or topology.sharp),
        "nvlstree": nvls and topology.num_domains > 1,
        "collnet": topology.sharp,
        "pat": topology.max_per_domain == 1 and library == "nccl",
        "direct": True,
    }
    names = [name for name in LIBRARY_ALGORITHMS[op] if is_available[name]]
    allowed = {LL, SIMPLE, LL128} if ll128_allowed(topology) else {LL, SIMPLE}
    return [(name, protocol) for name in names for protocol in _PROTOCOLS[name] if protocol in allowed]


#: GB/s of a ring over a NIC before Hopper, on Hopper and on Blackwell, at the resolution that today's NICs need.
_OLDER = (48.0, 30.0, 28.0, 24.0, 20.0, 18.0, 15.0, 12.0, 10.0)
_RING_RATES = {
    VOLTA: _OLDER,
    AMPERE: _OLDER,
    HOPPER: (48.0, 45.0, 42.0, 40.0, 30.0, 24.0, 22.0, 20.0, 17.5, 15.0, 12.0),
    BLACKWELL: (96.0, 86.0, 80.0, 48.0, 45.1, 42.0, 40.0, 30.0, 24.0, 22.0, 20.0, 17.5, 15.0, 12.0),
}
#: Rings slower than this are not duplicated.
_TWICE_FROM_GBPS = 25.0
#: On Hopper and later, up to this number of rings are duplicated even if each is slower than the second number.
_FEW_RINGS, _FAST_GBPS = 4, 50.0
#: On Hopper and later, rings faster than this are duplicated again below this number of channels.
_VERY_FAST_GBPS, _MANY_CHANNELS = 45.0, 16


def channels_between(topology: CommTopology) -> int | None:
    """Return the channels of a group that spans several domains, or None for a group in one domain.

    One ring uses each NIC of the ranks of a domain: eight H100 with eight 400 Gb/s NICs get 16 channels, two of them
    8 (NCCL's log in github.com/NVIDIA/nccl/issues/1189), one of them 4.
    """
    tier = topology.between
    if tier is None:
        return None
    generation, rings = architecture(topology.gpu), tier.lanes
    nic_GBps = tier.ring_bytes_per_s * tier.headroom / rings / 1e9
    rate = next((rate for rate in _RING_RATES[generation] if rate <= nic_GBps), 0.0)
    is_recent = generation >= HOPPER
    if rate >= _TWICE_FROM_GBPS and not (is_recent and rate < _FAST_GBPS and rings > _FEW_RINGS):
        rings, rate = 2 * rings, rate / 2
    channels = 2 * rings
    if is_recent and rate > _VERY_FAST_GBPS and channels < _MANY_CHANNELS:
        channels *= 2
    return channels
