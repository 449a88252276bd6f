"""Does the library model equal the published formulas, rewritten here from their sources?

nccl-tests: doc/PERFORMANCE.md and the rounding in src/*.cu. NCCL's choice: src/graph/tuning.cc (2.28). The time:
docs/background/collectives.md. Rates come from the cluster and parameters from the file, so that a new fit changes
nothing here.
"""

from __future__ import annotations

import math

import pytest

from trine.cluster import load_cluster
from trine.collectives.bus_bandwidth import bus_factor, sent_bytes
from trine.collectives.nccl import Collectives
from trine.collectives.options import CollectiveOptions
from trine.errors import InputError

# -- nccl-tests ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [2, 3, 7, 8, 72])
def test_bus_factors(n: int) -> None:
    assert bus_factor("all_reduce", n) == pytest.approx(2 * (n - 1) / n)
    for op in ("all_gather", "reduce_scatter", "all_to_all", "gather", "scatter"):
        assert bus_factor(op, n) == pytest.approx((n - 1) / n)
    for op in ("broadcast", "reduce", "send_recv"):
        assert bus_factor(op, n) == 1.0


@pytest.mark.parametrize(
    ("op", "asked", "n", "sent"),
    [
        ("all_reduce", 1023, 8, 1020),  # whole floats
        ("broadcast", 3, 8, 0),
        ("all_gather", 1024, 8, 1024),
        ("all_gather", 1000, 8, 896),  # 125 B a rank: 7 times 16
        ("all_gather", 127, 8, 0),
        ("reduce_scatter", 1 << 20, 3, 3 * (((1 << 20) // 3) // 16 * 16)),
        ("all_to_all", 100, 2, 96),
        ("send_recv", 7, 2, 4),
    ],
)
def test_sizes_are_rounded_as_nccl_tests_rounds(op: str, asked: int, n: int, sent: int) -> None:
    assert sent_bytes(op, asked, n) == sent


def test_bandwidths_are_of_what_is_sent() -> None:
    row = Collectives(load_cluster("dgx-h100")).predict("all_gather", 1000)
    assert row.algbw_bytes_per_s == pytest.approx(896 / float(row))
    assert row.busbw_bytes_per_s == pytest.approx(896 / float(row) * 7 / 8)


# -- NCCL's choice ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("preset", "gpus", "algorithm"),
    # H200: NVLS from 5 GPUs on, B200: from 6 on (stas00/ml-engineering, network/benchmarks, 8 GiB)
    [("hgx-h200", n, "ring" if n < 5 else "nvls") for n in range(2, 9)]
    + [("hgx-b200", n, "ring" if n < 6 else "nvls") for n in range(2, 9)],
)
def test_nvls_is_chosen_from_so_many_gpus_on(preset: str, gpus: int, algorithm: str) -> None:
    assert Collectives(load_cluster(preset, gpus=gpus)).choice("all_reduce", 8 << 30) == (algorithm, "simple")


@pytest.mark.parametrize("preset", ["dgx-h100", "dgx-a100", "dgx1-v100", "hgx-b200", "l40s-pcie"])
def test_the_smallest_sizes_go_by_ll(preset: str) -> None:
    model = Collectives(load_cluster(preset))
    for op in ("all_reduce", "all_gather", "reduce_scatter", "broadcast"):
        assert model.choice(op, 8)[1] == "ll"
        assert model.choice(op, 8 << 30)[1] == "simple"


def test_ll128_needs_nvlink() -> None:
    for preset in ("l40s-pcie", "rtx4090-pcie", "a40-pcie"):
        model = Collectives(load_cluster(preset))
        assert all(protocol != "ll128" for _, protocol in model.candidates("all_reduce"))
        with pytest.raises(InputError, match="it has ring/ll, ring/simple"):
            Collectives(load_cluster(preset), None, CollectiveOptions(protocol="ll128")).predict("all_reduce", 1 << 20)
    assert ("ring", "ll128") in Collectives(load_cluster("dgx-a100")).candidates("all_reduce")


def test_where_an_h200_changes_from_ll_to_nvls() -> None:
    """tuning.cc: base 6.6, LL hop 0.6 on NVLink, LL at most 141 GB/s or half; NVLS 25 us, 0.85 of 7/8 of the links."""
    model = Collectives(load_cluster("hgx-h200"))
    assert model.topology.inside is not None
    bus = model.topology.inside.ring_bytes_per_s / 1e6
    ll_us, ll_rate = 6.6 + 2 * 7 * 0.6, min(141e3, bus / 2) * 8 / 14
    nvls_us, nvls_rate = 25.0, bus * 0.85 * 7 / 8
    size = (nvls_us - ll_us) / (1 / ll_rate - 1 / nvls_rate)
    first, algorithm, protocol = model.crossovers("all_reduce")[1]
    assert (algorithm, protocol) == ("nvls", "simple")
    assert first == math.ceil(size)


@pytest.mark.parametrize("channels", [None, 6, 12])
def test_where_two_h100_change_from_ll_to_simple(channels: int | None) -> None:
    """With two GPUs a ring has two steps; Simple: base 8.4, hop 3.4 on NVLink. Fewer channels carry their part."""
    options = CollectiveOptions(algorithm="ring", max_channels=channels)
    model = Collectives(load_cluster("dgx-h100", gpus=2), None, options)
    assert model.topology.inside is not None
    usual = model.library.media["nvlink4"].channels
    bus = model.topology.inside.ring_bytes_per_s / 1e6 * (channels or usual) / usual
    ll_us, ll_rate = 6.6 + 2 * 0.6, min(141e3, bus / 2) * 2 / 2
    simple_us, simple_rate = 8.4 + 2 * 3.4, bus * 2 / 2
    first = math.ceil((simple_us - ll_us) / (1 / ll_rate - 1 / simple_rate))
    (_, *small), (found, *large) = model.crossovers("all_reduce")
    assert (small, large) == (["ring", "ll"], ["ring", "simple"])
    assert abs(found - first) <= 1  # both cost the same at one byte


def test_crossovers_are_where_the_choice_changes() -> None:
    for preset, nodes in (("dgx-h100", 1), ("dgx-h100", 4), ("dgx-a100", 2), ("hgx-b200", 1)):
        model = Collectives(load_cluster(preset, nodes=nodes))
        for first, algorithm, protocol in model.crossovers("all_reduce")[1:]:
            assert model.choice("all_reduce", first) == (algorithm, protocol)
            assert model.choice("all_reduce", first - 1) != (algorithm, protocol)


def test_a_demand_is_kept_and_the_choice_does_not_matter() -> None:
    model = Collectives(load_cluster("dgx-h100"), None, CollectiveOptions(algorithm="ring", protocol="simple"))
    for size in (8, 1 << 20, 1 << 33):
        row = model.predict("all_reduce", size)
        assert (row.algorithm, row.protocol) == ("ring", "simple")
    assert model.crossovers("all_reduce") == [(0, "ring", "simple")]


# -- the time --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", ["ll", "ll128", "simple"])
@pytest.mark.parametrize("size", [0, 4096, 1 << 20, 1 << 30])
@pytest.mark.parametrize(("op", "turns"), [("all_reduce", 2), ("all_gather", 1), ("reduce_scatter", 1)])
def test_a_ring_on_one_node(op: str, turns: int, size: int, protocol: str) -> None:
    model = Collectives(load_cluster("dgx-a100"), None, CollectiveOptions(algorithm="ring", protocol=protocol))
    library, inside, n = model.library, model.topology.inside, 8
    assert inside is not None
    medium = library.media["nvlink3"]
    launch = library.launch_us["process-per-gpu"] * library.launch_factor.get(
        "ampere", library.launch_factor["default"]
    )
    base = medium.base_us[protocol] + (medium.spread_us * size / (size + 16384) if protocol == "ll" else 0.0)
    steps = turns * (n - 1) * (medium.step_us[protocol] + inside.latency_ps / 1e6)
    volume = (turns * (n - 1) + library.extra_steps.get(op, 0.0)) * size / n
    carried = volume / (inside.ring_bytes_per_s * medium.efficiency[protocol] / 1e6)
    a = base + steps
    ramp = 2 * medium.ramp[protocol] * a * carried / (a + carried) if carried else 0.0
    assert model.predict(op, size).time_ps / 1e6 == pytest.approx(launch + base + steps + carried + ramp, abs=1e-6)


def test_nvls_moves_the_buffer_and_one_shard_more() -> None:
    model = Collectives(load_cluster("dgx-h100"), None, CollectiveOptions(nvls=True))
    medium, inside, size = model.library.media["nvlink4"], model.topology.inside, 8 << 30
    assert inside is not None
    carried = size * (1 + 1 / 8) / (inside.ring_bytes_per_s * medium.nvls_efficiency / 1e6)
    parts = {part.name: part.time_ps / 1e6 for part in model.predict("all_reduce", size).parts}
    saved = 4.1 * size / (16 * 8 * 131072)  # half of the agreements on chunks of 16 channels and 8 GPUs
    assert parts["bandwidth"] == pytest.approx(carried - saved, abs=1e-5)


@pytest.mark.parametrize("channels", [1, 6, 12])
def test_half_the_channels_carry_half(channels: int) -> None:
    cluster = load_cluster("dgx-a100")
    ring = CollectiveOptions(algorithm="ring", protocol="simple")
    usual = Collectives(cluster, None, ring)
    few = Collectives(cluster, None, CollectiveOptions(algorithm="ring", protocol="simple", max_channels=channels))
    all_of_them = usual.library.media["nvlink3"].channels
    size = 1 << 30
    before, after = (model.cost("all_reduce", size, ("ring", "simple")).bytes_us for model in (usual, few))
    assert after == pytest.approx(before * all_of_them / channels)
    assert few.predict("all_reduce", size).channels == channels


def test_launch_conventions_differ_by_what_the_library_says() -> None:
    cluster = load_cluster("dgx-a100")
    times = {
        launch: Collectives(cluster, None, CollectiveOptions(algorithm="ring", protocol="ll", launch=launch)).predict(
            "all_reduce", 4096
        )
        for launch in ("process-per-gpu", "single-process", "graph")
    }
    library = Collectives(cluster).library
    factor = library.launch_factor.get("ampere", library.launch_factor["default"])
    for launch, row in times.items():
        usual = library.launch_us["process-per-gpu"] * factor
        expected = times["process-per-gpu"].time_ps / 1e6 - usual + library.launch_us[launch] * factor
        assert row.time_ps / 1e6 == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize(
    ("name", "gpus_a_node", "channels"),
    [
        ("dgx-h100", 8, 16), ("dgx-h100", 4, 16), ("dgx-h100", 2, 8), ("dgx-h100", 1, 4),
        ("dgx-a100", 8, 16), ("dgx-a100", 4, 8), ("dgx-a100", 1, 2),
    ],
)  # fmt: skip
def test_channels_between_nodes_are_those_of_nccls_search(name: str, gpus_a_node: int, channels: int) -> None:
    """H100: rings of 48 GB/s, up to four of them doubled, and all doubled again; A100: rings of 24 GB/s, doubled once.

    Two GPUs of Hopper on each of two nodes with NICs of 400 Gb/s have 8: NCCL's log in its issue 1189.
    """
    cluster = load_cluster(name, nodes=2)
    group = [node * 8 + gpu for node in range(2) for gpu in range(gpus_a_node)]
    assert Collectives(cluster, group).predict("all_reduce", 1 << 28).channels == channels


def test_a_limit_below_the_groups_own_channels_scales_its_rate() -> None:
    """One H100 a node has 4 channels: a limit of 4 changes nothing, one of 2 halves the rate."""
    cluster, size = load_cluster("dgx-h100", nodes=2), 1 << 30
    took = {}
    for limit in (None, 4, 2):
        options = CollectiveOptions(algorithm="ring", protocol="simple", max_channels=limit)
        took[limit] = Collectives(cluster, [0, 8], options).cost("all_reduce", size, ("ring", "simple")).bytes_us
    assert took[4] == took[None]
    assert took[2] == pytest.approx(2 * took[None])
