"""Are collectives simulated message by message as asked: any algorithm, plan, protocol, network, root and matrix?"""

from __future__ import annotations

import math
from pathlib import Path

import pytest

import trine
from trine.cluster import Cluster, build_topology, load_cluster
from trine.collectives.options import CollectiveOptions
from trine.collectives.query import collective
from trine.collectives.result import CollectiveResult
from trine.collectives.sizes import read_matrix
from trine.errors import InputError

PLANS = Path(__file__).parents[2] / "data" / "mscclpp"
GB, US = 10**9, 10**6


def ring(gpus: int) -> Cluster:
    return build_topology("ring", "50 GB/s", "1 us", gpus)


def simulate(op: str, size: int, cluster: Cluster, network: str | None = "fair", **options: object) -> CollectiveResult:
    return collective(op, [size], cluster, options=CollectiveOptions(**options), network=network)


@pytest.mark.parametrize("network", ["fair", "equal", "fifo"])
@pytest.mark.parametrize("gpus", [2, 3, 4, 8, 13])
@pytest.mark.parametrize(("op", "turns"), [("all_reduce", 2), ("all_gather", 1), ("reduce_scatter", 1)])
def test_a_ring_of_bare_links_is_the_closed_form_to_the_picosecond(
    op: str, turns: int, gpus: int, network: str
) -> None:
    part = 5_000_000 // 16 * 16
    row = simulate(op, part * gpus, ring(gpus), network).rows[0]
    step = math.ceil(part * 10**12 / (50 * GB)) + US
    assert row.time_ps == turns * (gpus - 1) * step
    assert (row.low_ps, row.high_ps, row.evidence) == (row.time_ps, row.time_ps, "modelled")
    assert row.protocol == "none"
    assert row.channels == 0


@pytest.mark.parametrize(("protocol", "wire"), [("simple", 1), ("ll", 2), ("ll128", 128 / 120)])
def test_protocols_cost_bytes_steps_and_a_launch(protocol: str, wire: float) -> None:
    cluster, size, n = load_cluster("dgx-h100"), 64 << 20, 8
    answer = simulate("all_reduce", size, cluster, algorithm="ring", protocol=protocol)
    row = answer.rows[0]
    model = trine.Collectives(cluster)
    medium = model.library.media["nvlink4"]
    rate = cluster.links[cluster.paths(cluster.gpus[0], cluster.gpus[1])[0][0][0]].bytes_per_s
    messages_us = 14 * (medium.step_us[protocol] + 0.7 + size / n * wire / (rate / 1e6))
    parts = {part.name: part.time_ps for part in row.parts}
    assert parts["launch"] == round(model.context.launch_us * 1e6)
    assert parts["messages"] / 1e6 == pytest.approx(messages_us, rel=1e-6)
    assert sum(parts.values()) == row.time_ps
    assert (answer.launch, answer.library, answer.network) == ("process-per-gpu", "nccl", "fair")


@pytest.mark.parametrize("launch", ["single-process", "graph"])
def test_launches_differ_step_by_step_too(launch: str) -> None:
    cluster = load_cluster("dgx-h100")
    usual, other = (
        simulate("all_reduce", 1 << 20, cluster, algorithm="ring", protocol="simple", **given).rows[0]
        for given in ({}, {"launch": launch})
    )
    assert usual.parts[1] == other.parts[1]
    assert usual.parts[0] != other.parts[0]


@pytest.mark.parametrize(
    ("op", "algorithm"),
    [
        ("all_reduce", "halving-doubling"), ("all_reduce", "direct"), ("all_reduce", "torus:4x4"),
        ("all_reduce", "hierarchical:2x8"), ("all_reduce", "double-binary-tree"), ("all_reduce", "one-shot"),
        ("all_gather", "bruck"), ("all_gather", "pat"), ("all_gather", "hierarchical:2x8"),
        ("reduce_scatter", "pat"), ("all_to_all", "bruck"), ("broadcast", "tree"), ("reduce", "tree"),
    ],
)  # fmt: skip
def test_algorithms_that_the_library_has_not(op: str, algorithm: str) -> None:
    cluster = load_cluster("dgx-h100", nodes=2)
    answer = collective(op, [1 << 20], cluster, options=CollectiveOptions(algorithm=algorithm))
    assert answer.network is not None
    assert answer.rows[0].algorithm == algorithm
    assert answer.load
    assert answer.rows[0].limit in answer.load


@pytest.mark.parametrize(
    ("plan", "op", "gpus"),
    [
        ("v1_v0.7.0_allreduce_ring_4gpu.json", "all_reduce", 4),
        ("v2_HEAD_allreduce_allpairs_4gpu.json", "all_reduce", 4),
        ("v2_HEAD_allreduce_nvls_zero_copy_4gpu.json", "all_reduce", 4),
        ("v2_HEAD_reducescatter_2node_8gpu.json", "reduce_scatter", 8),
        ("allgather_ring_4_1_1.xml", "all_gather", 4),
    ],
)
def test_plans_are_algorithms(plan: str, op: str, gpus: int) -> None:
    cluster = load_cluster("dgx-h100", nodes=2 if "2node" in plan else 1, gpus=gpus)
    row = collective(op, [1 << 20], cluster, options=CollectiveOptions(algorithm=str(PLANS / plan))).rows[0]
    assert row.algorithm == plan
    assert row.time_ps > 0
    with pytest.raises(InputError, match=f"for {gpus} ranks, the group has 3"):
        collective(op, [1 << 20], load_cluster("dgx-h100", gpus=3),
                   options=CollectiveOptions(algorithm=str(PLANS / plan)))  # fmt: skip
    with pytest.raises(InputError, match="not for broadcast"):
        collective("broadcast", [1 << 20], cluster, options=CollectiveOptions(algorithm=str(PLANS / plan)))


def test_a_plan_that_adds_in_switches_needs_one() -> None:
    plan = str(PLANS / "v2_HEAD_allreduce_nvls_zero_copy_4gpu.json")
    with pytest.raises(InputError, match="the plan needs a switch that reduces"):
        simulate("all_reduce", 1 << 20, load_cluster("dgx-a100", gpus=4), algorithm=plan)


@pytest.mark.parametrize("network", ["fair", "fifo"])
def test_rooted_collectives_have_rank_0_as_root(network: str) -> None:
    cluster, size = build_topology("switch", "50 GB/s", "1 us", 4), 4_000_000
    one = math.ceil(size / 4 * 1000 / 50)
    gather, scatter = (simulate(op, size, cluster, network) for op in ("gather", "scatter"))
    # Three quarters go over the root's link; fifo stores and forwards the last of them once more.
    last = one if network == "fifo" else 0
    assert gather.rows[0].time_ps == scatter.rows[0].time_ps == 3 * one + last + US * _hops(cluster)
    assert next(iter(gather.load)).endswith("gpu0")
    assert next(iter(scatter.load)).startswith("gpu0")
    for op in ("broadcast", "reduce"):
        assert simulate(op, size, cluster, network).rows[0].time_ps > 4 * one


def _hops(cluster: Cluster) -> int:
    """Links of latency 1 us on the way between two GPUs."""
    route = cluster.route(cluster.gpus[0], cluster.gpus[1])
    return cluster.route_latency_ps(route) // US


@pytest.mark.parametrize("gpus", [2, 5])
def test_send_recv_goes_round_as_in_nccl_tests(gpus: int) -> None:
    size = 50_000_000
    answer = simulate("send_recv", size, ring(gpus))
    assert answer.rows[0].time_ps == size * 1000 // 50 + US  # all at once, each over its own link
    assert sorted(answer.load.values()) == [size] * gpus
    assert answer.rows[0].bus_factor == 1.0


def test_unequal_all_to_all(tmp_path: Path) -> None:
    file = tmp_path / "m.csv"
    file.write_text("0, 1K, 3\n7,0,9\n\n1000,2K,5\n")
    matrix = read_matrix(file)
    assert matrix == ((0, 1024, 3), (7, 0, 9), (1000, 2048, 5))
    cluster = build_topology("full", "50 GB/s", "1 us", 3)
    answer = collective("all_to_all_v", [3053], cluster, matrix=matrix)
    row = answer.rows[0]
    assert row.time_ps == 2048 * 20 + US
    assert (row.size_bytes, row.sent_bytes) == (3053, 3053)
    assert row.bus_factor == pytest.approx(3048 / 3053)
    assert answer.load == {"gpu2->gpu1": 2048, "gpu0->gpu1": 1024, "gpu2->gpu0": 1000, "gpu1->gpu2": 9,
                           "gpu1->gpu0": 7, "gpu0->gpu2": 3}  # fmt: skip
    equal = collective("all_to_all_v", [3 * 1024], cluster).rows[0]
    assert equal.time_ps == collective("all_to_all", [3 * 1024], cluster).rows[0].time_ps
    assert equal.bus_factor == pytest.approx(2 / 3)


@pytest.mark.parametrize(
    ("text", "said"),
    [("1,2\n3\n", "square"), ("", "square"), ("1,x\n2,3\n", "m.csv:1"), ("1,-2\n3,4\n", "m.csv:1"), ("\xff", "text")],
)
def test_wrong_matrices_are_refused(text: str, said: str, tmp_path: Path) -> None:
    file = tmp_path / "m.csv"
    file.write_bytes(text.encode("latin-1"))
    with pytest.raises(InputError, match=said):
        read_matrix(file)


def test_a_matrix_has_to_fit() -> None:
    with pytest.raises(InputError, match="3 x 3"):
        collective("all_to_all_v", [1], ring(3), matrix=((0, 1), (1, 0)))
    with pytest.raises(InputError, match="all_to_all_v"):
        collective("all_to_all", [1], ring(2), matrix=((0, 1), (1, 0)))


def test_without_an_algorithm_the_library_chooses() -> None:
    cluster = load_cluster("dgx-h100", nodes=2)
    for size in (1 << 10, 1 << 20, 1 << 28):
        row, chosen = (
            simulate("all_reduce", size, cluster).rows[0],
            trine.Collectives(cluster).predict("all_reduce", size),
        )
        assert row.protocol == chosen.protocol
        assert row.algorithm.startswith("hierarchical:2x8")
        assert 0.4 < row.time_ps / chosen.time_ps < 2.0
    inside = simulate("all_reduce", 1 << 28, load_cluster("dgx-h100")).rows[0]
    assert (inside.algorithm, inside.protocol) == ("nvls", "simple")


def test_alternatives_are_all_that_fit_the_fastest_first() -> None:
    answer = collective("all_reduce", [1 << 20], ring(6), explain=True)
    (others,) = answer.alternatives
    names = [other.algorithm for other in others]
    assert {"ring", "tree", "double-binary-tree", "direct", "halving-doubling"} <= set(names)
    assert "nvls" not in names
    assert "sharp" not in names
    assert [other.time_ps for other in others] == sorted(other.time_ps for other in others)
    assert answer.rows[0] in others


def test_alternatives_of_too_many_messages_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trine.collectives.message_level.MAX_MESSAGES", 70)
    (others,) = collective("all_reduce", [1 << 20], ring(6), explain=True).alternatives
    assert "ring" in {other.algorithm for other in others}  # 60 messages
    (others,) = collective("all_reduce", [1 << 20], ring(8), explain=True).alternatives
    assert "ring" not in {other.algorithm for other in others}  # 112


@pytest.mark.parametrize(
    ("op", "options", "network", "said"),
    [
        ("all_reduce", {"algorithm": "rign"}, "fair", "did you mean 'ring'"),
        ("all_redus", {}, "fair", "did you mean 'all_reduce'"),
        ("all_reduce", {"algorithm": "hierarchical:3x3"}, "fair", "3"),
        ("all_reduce", {"algorithm": "nvls"}, "fair", "switch"),
        ("all_reduce", {"algorithm": "no/such.json"}, None, "no/such.json"),
        ("all_reduce", {}, "fairer", "did you mean 'fair'"),
        ("barrier", {}, "fair", "no bytes"),
    ],
)
def test_what_does_not_fit_is_refused(op: str, options: dict[str, object], network: str | None, said: str) -> None:
    with pytest.raises(InputError, match=said):
        simulate(op, 1 << 20, ring(4), network, **options)


def test_one_rank_is_no_collective() -> None:
    for network in (None, "fair"):
        with pytest.raises(InputError, match="at least 2 ranks"):
            collective("all_reduce", [1], ring(4), [2], network=network)


def test_no_bytes_still_take_their_steps() -> None:
    for op in ("all_reduce", "all_gather", "all_to_all", "broadcast", "gather", "send_recv", "barrier"):
        assert simulate(op, 0, ring(4)).rows[0].time_ps >= US, op


def test_sizes_are_bytes_or_texts_as_on_the_command_line() -> None:
    wanted = trine.collective("all_reduce", [1 << 20, 1 << 26], cluster="dgx-h100").times_ps
    for sizes in ("1M,64M", ["1M", "64 MiB"], [1 << 20, "64M"], "1M:64M:x64"):
        assert trine.collective("all_reduce", sizes, cluster="dgx-h100").times_ps == wanted  # type: ignore[arg-type]
    for wrong, said in (("1M:", "FIRST:LAST"), ([1, "64Q"], r"sizes\[1\].*unknown unit 'Q'"), (64, "list of bytes")):
        with pytest.raises(ValueError, match=said):
            trine.collective("all_reduce", wrong, cluster="dgx-h100")  # type: ignore[arg-type]
