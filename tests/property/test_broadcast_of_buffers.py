"""DDP's broadcast of buffers as one operation: are its time, bytes, simultaneous end and folding right?"""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from trine import Plan, Result, Stragglers, build_topology, collective_time, load, load_cluster, simulate
from trine.cluster import Cluster
from trine.collectives import make_schedule
from trine.collectives.closed_forms import uncontended_ps

#: topology, number of GPUs and link medium; or preset, number of nodes and number of GPUs
MACHINES = [
    ("switch", 5, None), ("ring", 8, None), ("mesh:2x3", 6, None), ("switch", 12, "nvlink4"), ("dgx-h100", 1, 8),
    ("dgx-h100", 2, 16), ("dgx-h100", 2, 12), ("dgx1-v100", 1, 8), ("mi300x-node", 2, 16),
]  # fmt: skip
BUFFERS = 212_904  # of ResNet-50: means and variances of 26 560 channels in float32, and 53 counters of 8 bytes


@cache
def machine(name: str, number: int, what: str | int | None) -> Cluster:
    if what is None or isinstance(what, str):
        return build_topology(name, "65 GB/s", "1 us", number, "h100-sxm", medium=what)
    return load_cluster(name, nodes=number, gpus=what)


def step(cluster: Cluster, buffers: str = "auto", **options: object) -> Result:
    plan = Plan(dp=len(cluster.gpus), buffers=buffers, inputs="none", steps=2 if "stragglers" in options else 1)
    return simulate(load("resnet50-h100-b128"), plan, cluster=cluster, gpu="h100-sxm", **options)  # type: ignore[arg-type]


def broadcast_ps(result: Result) -> int:
    (use,) = (use for use in result.collectives if use.kind == "broadcast")
    assert (use.size_bytes, use.group_size, use.count, use.total) == (BUFFERS, result.num_ranks, 1, 1)
    return use.time_ps


@pytest.mark.parametrize(("name", "number", "what"), MACHINES)
def test_folded_is_unfolded(name: str, number: int, what: str | int | None) -> None:
    result = step(machine(name, number, what), fold="verify")
    assert broadcast_ps(result) > 0


@pytest.mark.parametrize(("name", "number", "what"), [machine for machine in MACHINES if machine[2] is not None])
def test_it_takes_what_the_library_takes(name: str, number: int, what: str | int | None) -> None:
    cluster = machine(name, number, what)
    wanted_ps = collective_time("broadcast", BUFFERS, None, cluster).time_ps
    for buffers in ("auto", "broadcast"):
        assert broadcast_ps(step(cluster, buffers)) == wanted_ps


def test_on_bare_links_it_takes_what_a_chain_takes_in_the_best_number_of_chunks() -> None:
    cluster = machine("switch", 5, None)
    chains = (make_schedule("broadcast", 5, BUFFERS, "ring", 0, chunks=chunks) for chunks in range(1, 100))
    assert broadcast_ps(step(cluster)) == min(uncontended_ps(chain, 65_000_000_000, 2_000_000) for chain in chains)


@pytest.mark.parametrize(("name", "number", "what"), MACHINES)
def test_every_rank_but_the_first_gets_the_buffers_once(name: str, number: int, what: str | int | None) -> None:
    """All GPUs together receive the bytes of a chain of messages, counted on links whose traffic ends there."""
    cluster = machine(name, number, what)
    n = len(cluster.gpus)

    def arrived(buffers: str) -> int:
        graph = step(cluster, buffers, fold="off", collective_costs="links").graph
        of_broadcast = [i for i, label in enumerate(graph.collectives) if label.kind == "broadcast"]
        chosen = np.isin(graph.labels.collective, of_broadcast)
        return int(graph.size_bytes[chosen].sum())

    for buffers in ("auto", "broadcast"):  # parts are rounded up to whole bytes
        assert 0 <= arrived(buffers) - (n - 1) * BUFFERS <= n * n
    assert arrived("none") == 0


def test_links_carry_the_same_folded_and_unfolded() -> None:
    cluster = machine("dgx-h100", 2, 16)
    folded, unfolded = step(cluster), step(cluster, fold="off")
    carried = {one.name: one.size_bytes for one in unfolded.links if one.size_bytes}
    for use in (use for use in folded.links if use.size_bytes):
        assert carried[use.name] == use.size_bytes
        assert sum(size == use.size_bytes for size in carried.values()) >= use.count
    assert sum(use.size_bytes * use.count for use in folded.links) == sum(carried.values())


@pytest.mark.parametrize("fold", ["on", "off"])
def test_nobody_goes_on_before_the_last_has_come(fold: str) -> None:
    """In the second step the slow rank arrives late; all ranks then leave together, after the usual broadcast time."""
    cluster = machine("switch", 5, None)
    even = broadcast_ps(step(cluster))
    result = step(cluster, fold=fold, stragglers=Stragglers(slow=((3, 1.5),)))
    starts, entered = set(), []
    for rank in range(5):
        own = result if fold == "off" else result.rank(rank)
        table = own.record_table.columns
        last = int(table["step"].max())
        mine = (table["rank"] == rank) & (table["step"] == last)
        forward = mine & (table["kind"] == 0) & (table["phase"] == 0)
        starts.add(int(table["start_ps"][forward].min()))
        optimizer = (table["rank"] == rank) & (table["step"] == last - 1) & (table["phase"] == 2) & (table["kind"] == 0)
        entered.append(int(table["end_ps"][optimizer].max()))
    assert starts == {max(entered) + even}
    assert max(entered) > min(entered)


def test_the_answer_says_so_and_an_algorithm_that_is_asked_for_is_simulated() -> None:
    cluster = machine("switch", 5, None)
    detail = {each.what: each.detail for each in step(cluster).evidence}
    assert "as one operation: all replicas end with the last replica" in detail["broadcast of buffers"]
    for result in (
        step(cluster, "broadcast"),
        simulate("resnet50-h100-b128", Plan(dp=5, algorithm=(("broadcast", "tree"),)), cluster=cluster),
    ):
        assert "broadcast of buffers" not in {each.what for each in result.evidence}
    (use,) = (use for use in result.collectives if use.kind == "broadcast")
    assert use.algorithms == ("tree",)


def never_falls(replicas: list[int]) -> None:
    times = []
    for n in replicas:
        cluster = build_topology("switch", "65 GB/s", "1 us", n, "h100-sxm")
        times.append(step(cluster).step_time_ps)
    assert times == sorted(times)


def test_one_replica_more_is_never_faster_around_64() -> None:
    never_falls([2, 3, 32, 33, 64, 65])


@pytest.mark.slow
def test_one_replica_more_is_never_faster_up_to_130() -> None:
    never_falls(list(range(2, 131)))


@pytest.mark.slow
def test_one_replica_more_is_never_faster_up_to_32768() -> None:
    never_falls([2**k + step for k in range(7, 15) for step in (-1, 0, 1)] + [32_767, 32_768])
