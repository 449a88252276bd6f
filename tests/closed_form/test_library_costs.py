"""Do the parts of a collective's time match the table of docs/background/collectives.md, term by term?

The table is computed again for every algorithm, on machines bound by links inside domains and between domains.
Rates come from the machine and parameters from the file, so that a new fit changes nothing here.
"""

from __future__ import annotations

from dataclasses import replace
from math import ceil, inf, log2

import pytest

from trine.cluster import known_clusters, load_cluster
from trine.collectives.nccl import Collectives
from trine.collectives.nccl.parameters import Medium
from trine.collectives.nccl.topology import CommTopology, Tier

MI = 1 << 20
SIZES = (4096, MI, 1 << 30)
MACHINES = [
    ("dgx-h100", {"gpus": 2}),
    ("dgx-h100", {"gpus": 3}),
    ("dgx-h100", {}),
    ("dgx-h100", {"nodes": 2, "gpus": 4}),  # two GPUs of each node
    ("dgx-h100", {"nodes": 2}),
    ("dgx-h100", {"nodes": 5}),
    ("dgx-h100", {"nodes": 3, "gpus": 3}),  # one GPU of each node
    ("gb200-nvl72", {"nodes": 2}),
    ("l40s-pcie", {"nodes": 2}),
    ("mi300x-node", {}),
]


def machine(name: str, sizes: dict[str, int], inside: float = 1.0, between: float = 1.0) -> Collectives:
    """Return the collectives of a machine with rates inside and between its domains scaled by these factors.

    Paths that leave a domain again run at 0.7 of the rate of rings that close in it; every fabric reduces.
    """
    model = Collectives(load_cluster(name, **sizes))
    topology = model.topology
    changed = replace(
        topology,
        inside=topology.inside and faster(topology.inside, inside),
        between=topology.between and faster(topology.between, between),
        path_bytes_per_s=topology.path_bytes_per_s * inside * 0.7,
        sharp=topology.between is not None,
    )
    model.topology, model.context = changed, replace(model.context, topology=changed)
    return model


def faster(tier: Tier, factor: float) -> Tier:
    rates = ("ring", "gpu", "shift", "root")
    return replace(tier, **{f"{rate}_bytes_per_s": getattr(tier, f"{rate}_bytes_per_s") * factor for rate in rates})


class Table:
    """Rows of the table for one machine and protocol: steps in us, bytes in us, and the name of the bound."""

    def __init__(self, model: Collectives, protocol: str) -> None:
        self.topology: CommTopology = model.topology
        self.library, self.p = model.library, protocol
        self.inner, self.outer = model.context.inner, model.context.outer
        inside, between = self.topology.inside, self.topology.between
        self.hop_in = self.hop(inside, self.inner)
        self.hop_out = self.hop(between, self.outer)
        self.n, self.d, self.m = self.topology.num_ranks, self.topology.num_domains, self.topology.max_per_domain
        self.r_in = inf if inside is None else inside.ring_bytes_per_s / 1e6
        self.p_in = inf if inside is None else self.topology.path_bytes_per_s / 1e6
        self.r_out = inf if between is None else between.ring_bytes_per_s / 1e6
        self.e_in, self.e_out = self.inner.efficiency[protocol], self.outer.efficiency[protocol]

    def hop(self, tier: Tier | None, medium: Medium) -> float:
        return 0.0 if tier is None else medium.step_us[self.p] + tier.latency_ps / 1e6

    def bound(self, inside: float, between: float) -> str:
        """Return the name of the slower bound; ties go to the inner one."""
        slower = self.topology.between if between < inside else self.topology.inside
        return slower.limit if slower else ""

    def ring(self, op: str, size: int) -> tuple[float, float, str]:
        t = 2 if op == "all_reduce" else 1
        steps = t * (self.d - 1) * self.hop_out + t * (self.n - self.d) * self.hop_in
        through = self.p_in if self.topology.between else self.r_in
        rates = through * self.e_in, self.r_out * self.e_out
        sent = size if op in ("broadcast", "reduce") else t * (self.n - 1) * size / self.n
        extra = 0.0 if op in ("broadcast", "reduce") else self.library.extra_steps.get(op, 0.0) * size / self.n
        least = sent / min(through, self.r_out)
        return steps, max((sent + extra) / min(rates), least), self.bound(*rates)

    def tree(self, op: str, size: int) -> tuple[float, float, str]:
        steps = 2 * (self.m - 1) * self.hop_in + 2 * ceil(log2(self.d)) * self.hop_out
        half = 1 / 2 if self.m > 2 else 1.0
        leaves = self.r_out / (1 if self.d <= 2 else 2)
        rates = self.p_in * self.e_in * self.library.tree_efficiency * half, leaves * self.e_out
        least = size / min(self.p_in * half, leaves)
        return steps, max(size / min(rates), least), self.bound(*rates)

    def nvls(self, op: str, size: int) -> tuple[float, float, str]:
        steps = 2 * self.hop_in + 2 * ceil(log2(self.d)) * self.hop_out
        shard = 1 + 1 / self.topology.min_per_domain
        nics = self.topology.between.lanes if self.topology.between else 1
        leaves = self.r_out / (1 if self.d <= 2 else 2) * (16 / nics if nics > 16 else 1.0)
        rates = self.r_in * self.inner.nvls_efficiency / shard, leaves * self.e_out
        least = size / min(self.r_in / shard, leaves)
        carried = self.large_chunks(size, rates[0]) if self.topology.between is None else size / min(rates)
        return steps, max(carried, least), self.bound(*rates)

    def large_chunks(self, size: int, rate: float) -> float:
        """Inside one domain, NCCL's largest chunk: 128 KiB per channel and GPU, from 64 of them per channel on."""
        channels = {"h": 16, "b": 24}.get(self.topology.gpu.removeprefix("g")[:1])
        if channels is None or size < 64 * channels * self.n * 131072:
            return size / rate
        saved = 4.1 * size / (channels * max(self.n, 8) * 131072)
        return max(64 * channels * self.n * 131072 / rate, size / rate - saved)

    def nvls_sharp(self, op: str, size: int) -> tuple[float, float, str]:
        """NVLS inside, and the fabric's switches between domains: the sum leaves once, the result comes back once."""
        assert self.topology.between is not None
        shard = 1 + 1 / self.topology.min_per_domain
        leaves = self.r_out * min(1.0, 16 / self.topology.between.lanes)
        rates = self.r_in * self.inner.nvls_efficiency / shard, leaves * min(0.8 * self.e_out, 1.0)
        least = size / min(self.r_in / shard, leaves)
        return 2 * self.hop_in + 2 * self.hop_out, max(size / min(rates), least), self.bound(*rates)

    def collnet(self, op: str, size: int) -> tuple[float, float, str]:
        m = self.topology.min_per_domain
        steps = 2 * self.hop_in + 2 * self.hop_out
        inside = 2 * size * (m - 1) / m / (self.p_in * min(self.e_in, 1.0))
        between = size / (self.r_out * min(0.8 * self.e_out, 1.0))
        assert self.topology.between is not None
        return steps, max(inside, between), self.topology.between.limit

    def pat(self, op: str, size: int) -> tuple[float, float, str]:
        steps = ceil(log2(self.n)) * self.hop_out
        rate = self.r_out * min(self.e_out, 1.0)
        return steps, size * (self.n - 1) / self.n / rate, self.bound(inf, 0.0)


def setup_us(model: Collectives, size: int, protocol: str, algorithm: str) -> float:
    """Return the larger set-up time of the crossed media; LL's further channels start later as messages grow."""
    if algorithm.startswith("nvls"):
        return model.context.inner.nvls_us
    if algorithm == "collnet":
        return 31.0
    topology = model.topology
    media = [
        medium
        for tier, medium in ((topology.inside, model.context.inner), (topology.between, model.context.outer))
        if tier
    ]
    later = max(medium.spread_us for medium in media) * size / (size + 16384) if protocol == "ll" else 0.0
    return max(medium.base_us[protocol] for medium in media) + later


OPS = {
    "ring": ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce"),
    "pat": ("all_gather", "reduce_scatter"),
}


@pytest.mark.parametrize(("inside", "between"), [(1.0, 1.0), (0.02, 1.0), (1.0, 0.02)], ids=str)
@pytest.mark.parametrize(("name", "sizes"), MACHINES, ids=str)
def test_each_part_is_that_of_the_table(name: str, sizes: dict[str, int], inside: float, between: float) -> None:
    model = machine(name, sizes, inside, between)
    seen = 0
    for algorithm in ("ring", "tree", "nvls", "nvlstree", "collnet", "pat"):
        for op in OPS.get(algorithm, ("all_reduce",)):
            for pair in model.candidates(op):
                if pair[0] != algorithm:
                    continue
                table = Table(model, pair[1])
                for size in SIZES:
                    found = model.cost(op, size, pair)
                    row = table.nvls if algorithm.startswith("nvls") else getattr(table, algorithm)
                    if algorithm == "nvls" and model.topology.between is not None:
                        row = table.nvls_sharp
                    steps, carried, limit = row(op, size)
                    setup = setup_us(model, size, pair[1], algorithm)
                    medium = model.context.outer if model.topology.between else model.context.inner
                    late = steps if algorithm == "collnet" else setup + steps
                    ramp = 2 * medium.ramp[pair[1]] * late * carried / (late + carried)
                    parts = (found.base_us, found.steps_us, found.bytes_us, found.delay_us)
                    assert parts == pytest.approx((setup, steps, carried, ramp), rel=1e-9), (pair, op, size)
                    assert found.total_us == pytest.approx(found.launch_us + setup + steps + carried + ramp, rel=1e-9)
                    assert found.limit == limit, (pair, op)
                    seen += 1
    assert seen >= 30


@pytest.mark.parametrize("op", ["all_to_all", "gather", "scatter", "send_recv"])
@pytest.mark.parametrize(("inside", "between"), [(1.0, 1.0), (0.02, 1.0), (1.0, 0.02)], ids=str)
@pytest.mark.parametrize(("name", "sizes"), MACHINES, ids=str)
def test_messages_to_peers_are_those_of_the_table(
    name: str, sizes: dict[str, int], inside: float, between: float, op: str
) -> None:
    model = machine(name, sizes, inside, between)
    topology, inner, outer = model.topology, model.context.inner, model.context.outer
    one = op == "send_recv"
    peers = {
        "in": 1 if one else topology.max_per_domain - 1,
        "out": 1 if one else topology.num_ranks - topology.min_per_domain,
    }
    field = {"send_recv": "shift", "all_to_all": "gpu"}.get(op, "root") + "_bytes_per_s"
    for size in SIZES:
        part = size if one else size / topology.num_ranks
        took = {"in": 0.0, "out": 0.0}
        steps = 0.0
        if topology.inside:
            efficiency = inner.efficiency["simple"] if one else inner.p2p_efficiency
            rate = getattr(topology.inside, field) * min(efficiency, 1.0) / 1e6
            took["in"] = part * peers["in"] / rate
            steps = peers["in"] * inner.p2p_step_us + topology.inside.latency_ps / 1e6
        if topology.between:
            rate = getattr(topology.between, field) * min(outer.p2p_efficiency, 1.0) / 1e6
            took["out"] = part * peers["out"] / rate
            outside = peers["out"] * outer.p2p_step_us + topology.between.latency_ps / 1e6
            steps = outside if one else steps + outside
        slower = topology.between if topology.between and took["out"] >= took["in"] else topology.inside
        copied = 0.0 if one else part / ((inner if topology.inside else outer).copy_GBps * 1e3)
        pair = {"all_to_all": topology.pair_bytes_per_s}.get(op, topology.root_pair_bytes_per_s)
        carried = max(took["in"] + copied, took["out"], 0.0 if one else part / (pair / 1e6))
        found = model.cost(op, size, ("direct", "simple"))
        furthest = [tier.shift_latency_ps for tier in (topology.inside, topology.between) if tier]
        if one:
            steps = max(steps, max(furthest) / 1e6)
        assert (found.steps_us, found.bytes_us) == pytest.approx((steps, carried), rel=1e-9)
        assert found.limit == (slower.limit if slower else "")
        bases = [medium.p2p_base_us for tier, medium in ((topology.inside, inner), (topology.between, outer)) if tier]
        assert found.base_us == max(bases)
        assert found.num_steps == (1 if one else topology.num_ranks - 1)


def test_steps_are_counted_as_in_the_table() -> None:
    model = machine("dgx-h100", {"nodes": 5})  # n = 40, d = 5, m = 8
    steps = {
        pair[0]: model.cost(op, MI, pair).num_steps
        for op in ("all_reduce", "all_to_all")
        for pair in model.candidates(op)
    }
    assert steps == {"ring": 78, "tree": 2 * (7 + 3), "nvls": 4, "nvlstree": 2 + 2 * 3, "collnet": 4, "direct": 39}
    assert model.cost("all_gather", MI, ("ring", "simple")).num_steps == 39
    alone = machine("dgx-h100", {"nodes": 5, "gpus": 5})
    assert alone.cost("all_gather", MI, ("pat", "simple")).num_steps == 3


def test_the_links_bound_a_fit_that_is_too_good() -> None:
    """Efficiencies above 1 do not make a collective faster than its links."""
    model = machine("dgx-h100", {"nodes": 3})
    topology, library = model.topology, model.library
    assert topology.inside is not None
    assert topology.between is not None
    inside, between = topology.path_bytes_per_s / 1e6, topology.between.ring_bytes_per_s / 1e6
    expected = {
        "ring": 2 * 23 / 24 * MI / min(inside, between),
        "tree": MI / min(inside / 2, between / 2),
        "nvlstree": MI / min(topology.inside.ring_bytes_per_s / 1e6 / (1 + 1 / 8), between / 2),
        "collnet": max(2 * MI * 7 / 8 / inside, MI / between),
    }
    media = {
        name: replace(medium, efficiency=dict.fromkeys(medium.efficiency, 1e3), nvls_efficiency=1e3)
        for name, medium in library.media.items()
    }
    model.context = replace(model.context, library=replace(library, media=media))
    for algorithm, carried in expected.items():
        assert model.cost("all_reduce", MI, (algorithm, "simple")).bytes_us == pytest.approx(carried, rel=1e-9)


@pytest.mark.parametrize("nodes", [1, 2])
@pytest.mark.parametrize("preset", [name for name in known_clusters() if name != "wafer-a100-photonic"])
def test_no_bandwidth_exceeds_that_of_the_links(preset: str, nodes: int) -> None:
    """send_recv on dgx-h100 reached 385 GB/s over links of 370.8; broadcast, reduce and rings exceeded them as well."""
    if nodes > 1 and not any(device.kind == "nic" for device in load_cluster(preset).devices):
        pytest.skip("no NICs")
    cluster = load_cluster(preset, nodes=nodes)
    if len(cluster.gpus) < 2:
        pytest.skip("one GPU")
    model = Collectives(cluster)
    topology, size = model.topology, 1 << 40
    tiers = [tier for tier in (topology.inside, topology.between) if tier is not None]
    shift = min(tier.shift_bytes_per_s for tier in tiers)
    inside = topology.inside.ring_bytes_per_s if topology.inside and not topology.between else topology.path_bytes_per_s
    through = min(inside, topology.between.ring_bytes_per_s if topology.between else inside)
    assert model.predict("send_recv", size).algbw_bytes_per_s <= shift
    for op in ("broadcast", "reduce"):
        assert model.predict(op, size).algbw_bytes_per_s <= through
    for op in ("all_reduce", "all_gather", "reduce_scatter"):
        for row in model.alternatives(op, size):
            if row.algorithm in ("ring", "pat"):
                assert row.busbw_bytes_per_s <= through, (op, row.protocol)
    everybody = min(tier.gpu_bytes_per_s for tier in tiers if tier.gpu_bytes_per_s)
    if nodes == 1:
        assert model.predict("all_to_all", size).busbw_bytes_per_s <= everybody


@pytest.mark.parametrize("channels", [1, 4])
def test_fewer_channels_scale_every_rate(channels: int) -> None:
    """``bytes_us`` of each algorithm grows by limit / channels if the same medium bounds it."""
    for inside, between in ((1.0, 0.02), (0.02, 1.0)):
        model = machine("dgx-h100", {"nodes": 3}, inside, between)
        limited = replace(model.context, max_channels=channels)
        for op in ("all_reduce", "all_to_all", "broadcast"):
            for pair in model.candidates(op):
                before = model.cost(op, 1 << 30, pair).bytes_us
                medium = model.context.outer if between < inside else model.context.inner
                usual, model.context = model.context, limited
                after = model.cost(op, 1 << 30, pair).bytes_us
                model.context = usual
                if op == "all_to_all" and inside < between:
                    continue  # no channel copies the part that stays
                assert after == pytest.approx(before * medium.channels / channels, rel=1e-6), (op, pair)


def test_way_to_the_furthest_rank_bounds_the_steps() -> None:
    """Data cannot reach the furthest rank before light does."""
    model = machine("dgx-h100", {"nodes": 2})
    topology = model.topology
    assert topology.inside is not None
    assert topology.between is not None
    for tiers, way_ps in (((7e9, 2e9), 9e9), ((2e9, 7e9), 9e9)):
        far = replace(
            topology,
            inside=replace(topology.inside, far_latency_ps=int(tiers[0])),
            between=replace(topology.between, far_latency_ps=int(tiers[1])),
        )
        model.context = replace(model.context, topology=far)
        assert model.cost("all_reduce", 8, ("ring", "ll")).steps_us == pytest.approx(way_ps / 1e6)
        model.context = replace(model.context, topology=replace(far, far_latency_ps=12_000_000_000))
        assert model.cost("all_to_all", 8, ("direct", "simple")).steps_us == pytest.approx(12_000.0)
