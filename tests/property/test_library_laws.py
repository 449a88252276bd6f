"""Is the library model lawful: monotone in size, bounded by all_reduce, indifferent to names, parts that add up?"""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trine.cluster import Cluster, known_clusters, load_cluster
from trine.collectives.nccl import Collectives, collective_time
from trine.collectives.nccl.predict import OPS
from trine.collectives.options import CollectiveOptions
from trine.errors import InputError

ONE_NODE = [(name, 1, None) for name in known_clusters() if name not in ("dgx-spark", "wafer-a100-photonic")]
PARTIAL = [("dgx1-v100", 1, 5), ("dgx-h100", 1, 2), ("hgx-b200", 1, 5), ("mi300x-node", 1, 3), ("gb200-nvl72", 1, 40)]
SEVERAL = [("dgx-h100", 2, None), ("dgx-a100", 4, None), ("dgx-h100", 3, 20), ("hgx-b200", 16, None),
           ("mi300x-node", 4, None), ("l40s-pcie", 8, None), ("dgx-spark", 4, None),
           ("gb200-nvl72", 2, None)]  # fmt: skip
MACHINES = ONE_NODE + PARTIAL + SEVERAL
#: Every power of two, numbers between them, and sizes that are no multiples of anything.
SIZES = sorted({int(2 ** (half / 2)) + odd for half in range(68) for odd in (0, 1)} | {0, 3, 12_345_677, 999_999_937})


@cache
def cluster_of(machine: tuple[str, int, int | None]) -> Cluster:
    name, nodes, gpus = machine
    return load_cluster(name, nodes=nodes, gpus=gpus)


@cache
def asked(machine: tuple[str, int, int | None]) -> Collectives:
    return Collectives(cluster_of(machine))


@pytest.mark.parametrize("machine", MACHINES, ids=str)
def test_never_falls_as_the_size_grows(machine: tuple[str, int, int | None]) -> None:
    model = asked(machine)
    for op in OPS:
        around = {first + step for first, *_ in model.crossovers(op) for step in range(-17, 18) if first + step >= 0}
        times = [model.predict(op, size).time_ps for size in sorted({*SIZES, *around})]
        assert times == sorted(times), op


@pytest.mark.parametrize("machine", MACHINES, ids=str)
def test_reduce_scatter_and_all_gather_never_take_longer_than_all_reduce(machine: tuple[str, int, int | None]) -> None:
    model = asked(machine)
    for size in SIZES:
        whole = model.predict("all_reduce", size)
        for op in ("reduce_scatter", "all_gather"):
            assert model.predict(op, size) <= whole, (op, size)


def test_whoever_is_bounded_by_all_reduce_says_so() -> None:
    row = asked(("gb200-nvl72", 1, None)).predict("reduce_scatter", 65536)
    assert row.time_ps == asked(("gb200-nvl72", 1, None)).predict("all_reduce", 65536).time_ps
    assert "bounded by the all_reduce" in row.notes[0]
    assert "ring/ll alone" in row.notes[0]
    demanded = Collectives(cluster_of(("gb200-nvl72", 1, None)), None, CollectiveOptions(algorithm="ring"))
    assert demanded.predict("reduce_scatter", 65536) > row
    assert demanded.predict("reduce_scatter", 65536) <= demanded.predict("all_reduce", 65536)


@pytest.mark.parametrize("machine", MACHINES, ids=str)
def test_parts_add_up_and_the_band_holds_the_time(machine: tuple[str, int, int | None]) -> None:
    model = asked(machine)
    for op in OPS:
        for size in SIZES[::9]:
            row = model.predict(op, size)
            assert sum(part.time_ps for part in row.parts) == row.time_ps
            assert all(part.time_ps > 0 and part.why for part in row.parts)
            assert 0 < row.low_ps <= row.time_ps <= row.high_ps
            assert (row.size_bytes, row.num_ranks, row.op) == (size, model.topology.num_ranks, op)
            assert 0 <= row.sent_bytes <= size


def slower(cluster: Cluster, factor: float) -> Cluster:
    links = (replace(link, bytes_per_s=int(link.bytes_per_s * factor), peak_bytes_per_s=None) for link in cluster.links)
    return replace(cluster, links=tuple(links))


SPREAD = [("dgx-h100", 1, None), ("dgx1-v100", 1, None), ("mi300x-node", 2, None), ("l40s-pcie", 1, None),
          ("dgx-a100", 4, None)]  # fmt: skip


@pytest.mark.parametrize("machine", SPREAD, ids=str)
@pytest.mark.parametrize("factor", [0.97, 0.5])
def test_less_bandwidth_is_never_faster(machine: tuple[str, int, int | None], factor: float) -> None:
    """Of each algorithm and protocol. (The library's choice among them may get worse with more bandwidth.)"""
    usual, less = asked(machine), Collectives(slower(cluster_of(machine), factor))
    for op in OPS:
        for pair in usual.candidates(op):
            for size in SIZES[::11]:
                before, after = usual.cost(op, size, pair).total_us, less.cost(op, size, pair).total_us
                assert after >= before, (op, pair, size)
        if machine[0] != "l40s-pcie" and op != "barrier":  # there the root complex bounds, whatever the links
            assert less.predict(op, 1 << 30) > usual.predict(op, 1 << 30)


@pytest.mark.parametrize("machine", SPREAD, ids=str)
def test_half_the_bandwidth_and_twice_the_size_take_longer(machine: tuple[str, int, int | None]) -> None:
    usual, half = asked(machine), Collectives(slower(cluster_of(machine), 0.5))
    for op in OPS:
        for size in [size for size in SIZES if size >= 4096][::7]:
            assert half.predict(op, 2 * size) > usual.predict(op, size), (op, size)


@pytest.mark.parametrize(
    ("machine", "link"),
    [
        (("dgx-h100", 1, None), "nvswitch->gpu5"),
        (("dgx-h100", 2, None), "node1.nic3->leaf3.rail3"),
        (("dgx-h100", 2, None), "node1.gpu6->node1.nvswitch"),
        (("mi300x-node", 1, None), "gpu2->gpu5"),
    ],
    ids=str,
)
def test_one_slow_link_is_never_faster(machine: tuple[str, int, int | None], link: str) -> None:
    name, nodes, gpus = machine
    usual = asked(machine)
    slow = Collectives(load_cluster(name, nodes=nodes, gpus=gpus, slow_links=[(link, "0.25")]))
    for op in ("all_reduce", "all_gather", "all_to_all"):
        for pair in usual.candidates(op):
            for size in SIZES[::11]:
                assert slow.cost(op, size, pair).total_us >= usual.cost(op, size, pair).total_us
    assert slow.predict("all_reduce", 1 << 28) > usual.predict("all_reduce", 1 << 28)


@settings(max_examples=25, deadline=None)
@given(order=st.permutations(range(8)), size=st.integers(0, 1 << 31), op=st.sampled_from(OPS))
def test_names_of_ranks_do_not_matter(order: list[int], size: int, op: str) -> None:
    for name in ("dgx1-v100", "l40s-pcie"):
        cluster = cluster_of((name, 1, None))
        assert collective_time(op, size, order, cluster) == collective_time(op, size, 8, cluster)


@settings(max_examples=25, deadline=None)
@given(size=st.integers(0, 1 << 33), op=st.sampled_from(OPS))
def test_the_same_question_has_the_same_answer(size: int, op: str) -> None:
    fresh = Collectives(load_cluster("dgx-a100", nodes=2))
    assert fresh.predict(op, size) == asked(("dgx-a100", 2, None)).predict(op, size)


def test_ranks_on_two_nodes_are_dearer_than_on_one() -> None:
    one, two = asked(("dgx-h100", 1, None)), Collectives(load_cluster("dgx-h100", nodes=2, gpus=8))
    assert one.topology.num_ranks == two.topology.num_ranks == 8
    assert (one.topology.num_nodes, two.topology.num_nodes, two.topology.max_per_domain) == (1, 2, 4)
    for op in OPS:
        for size in (1 << 10, 1 << 20, 1 << 30):
            assert two.predict(op, size) > one.predict(op, size), (op, size)


def test_more_ranks_are_never_cheaper_with_a_ring() -> None:
    options = CollectiveOptions(algorithm="ring", protocol="simple")
    models = [Collectives(load_cluster("dgx-h100", gpus=gpus), None, options) for gpus in range(2, 9)]
    for op in ("all_reduce", "all_gather", "reduce_scatter", "broadcast"):
        for size in (0, 1 << 20, 1 << 30):
            times = [model.predict(op, size).time_ps for model in models]
            assert times == sorted(times), (op, size)


def test_answers_compare_by_time_and_are_seconds() -> None:
    small, large = (collective_time("all_reduce", size, None, "dgx-h100") for size in ("1K", "1 GiB"))
    assert small < large
    assert large > small
    assert small <= small
    assert large >= small
    assert max(small, large) is large
    assert float(large) == large.time_ps / 1e12
    assert collective_time("all_reduce", 1 << 30, range(8), "dgx-h100") == large
    assert collective_time("all_reduce", 1 << 20, 4, "dgx-h100").num_ranks == 4


def test_wrong_questions_are_refused() -> None:
    for op, size, group, said in (
        ("all_reduc", 1, None, "did you mean 'all_reduce'"),
        ("all_reduce", -1, None, "0 to"),
        ("all_reduce", 1 << 60, None, "0 to"),
        ("all_reduce", "1 parsec", None, "the size"),
        ("all_reduce", 1, [0, 8], "8 GPUs"),
        ("all_reduce", 1, 1, "at least 2"),
    ):
        with pytest.raises(InputError, match=said):
            collective_time(op, size, group, "dgx-h100")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"algorithm": "rin"}, "did you mean 'ring'"),
        ({"protocol": "lll"}, "did you mean 'll"),
        ({"launch": "graphs"}, "did you mean 'graph'"),
        ({"min_channels": 0}, "1 to"),
        ({"max_channels": 5000}, "1 to"),
        ({"min_channels": 8, "max_channels": 4}, "more than max_channels"),
        ({"algorithm": "collnet"}, "it has ring/ll"),
        ({"algorithm": "ring", "nvls": True}, "it has ring/ll"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, object], said: str) -> None:
    with pytest.raises(InputError, match=said):
        collective_time("all_reduce", 1 << 20, None, "dgx-h100", CollectiveOptions(**options))
