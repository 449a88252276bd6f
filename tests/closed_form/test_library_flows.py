"""Does a lone collective in a training step match 'trine collective', and does it share links like any flow?"""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from folded_cases import chain

from trine import Plan, collective_time, load_cluster, simulate
from trine.cluster import Cluster
from trine.cluster.presets import known_clusters
from trine.collectives.library_flows import FlowPlan, message_of
from trine.collectives.nccl import Collectives
from trine.collectives.nccl.steps import FlowCosts
from trine.collectives.one_operation import schedule_of
from trine.collectives.query import link_load
from trine.collectives.run import link_bytes
from trine.collectives.schedule import ROOTED
from trine.collectives.transfers import append_transfers
from trine.engine.run import run
from trine.errors import InputError, TrineError
from trine.graph.assembler import PlacedAssembler
from trine.graph.placement import Placement
from trine.graph.taskgraph import JOIN, TRANSFER, TaskGraph

MIB = 1 << 20
SIZES = (MIB, 16 * MIB, 1024 * MIB)
KINDS = (
    "all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce", "all_to_all", "gather", "scatter", "send_recv",
    "shift", "barrier",
)  # fmt: skip
#: Presets without a joining fabric or without a known library.
NO_LIBRARY = ("astra3-generic", "wafer-a100-mesh", "wafer-a100-photonic")


@cache
def machine(name: str, nodes: int) -> Cluster | None:
    try:
        return load_cluster(name, nodes=nodes)
    except TrineError:
        return None


def graph_of(
    cluster: Cluster, calls: list[tuple[str, int, tuple[int, ...]]], factors: tuple[float, float] = (1.0, 1.0)
) -> TaskGraph:
    """Return the task graph of collectives (kind, bytes, group) that all begin at 0."""
    costs = FlowCosts(cluster, factors)
    assembler = PlacedAssembler(Placement(devices=np.array(cluster.gpus), cluster=cluster))
    for kind, size, group in calls:
        plan, software_ps = costs(kind, size, group, None)
        assert isinstance(plan, FlowPlan)
        schedule = schedule_of(kind, len(group), size, plan, 0 if kind in ROOTED else -1)
        entered = assembler.tasks(2 * len(group), kind=JOIN) + 2 * np.arange(len(group))
        assembler.connect(entered + 1, entered)
        append_transfers(assembler, schedule, group, entered, software_ps)
    return assembler.build(rank_names=[str(gpu) for gpu in cluster.gpus])


def alone_ps(
    cluster: Cluster, kind: str, size: int, group: tuple[int, ...], factors: tuple[float, float] = (1.0, 1.0)
) -> int:
    return int(run(graph_of(cluster, [(kind, size, group)], factors)).end_ps.max())


@pytest.mark.parametrize("nodes", [1, 2])
@pytest.mark.parametrize("name", [name for name in known_clusters() if name not in (*NO_LIBRARY, "eidola")])
def test_alone_it_takes_what_the_formula_says_and_moves_what_the_algorithm_moves(name: str, nodes: int) -> None:
    cluster = machine(name, nodes)
    if cluster is None or len(cluster.gpus) < 2:
        pytest.skip("no such machine")
    for group in (tuple(range(len(cluster.gpus))), (0, len(cluster.gpus) - 1)):
        asked = Collectives(cluster, group)
        for kind in KINDS if len(group) > 2 else ("send_recv", "all_reduce"):
            if kind == "send_recv" and len(group) > 2:
                continue
            for size in SIZES if kind != "barrier" else (0,):
                wanted = asked.predict("send_recv" if kind == "shift" else kind, size)
                graph = graph_of(cluster, [(kind, size, group)])
                off = int(run(graph).end_ps.max()) / wanted.time_ps - 1
                assert abs(off) <= 0.02, (kind, size, group)
                moved, expected = link_bytes(graph), link_load(cluster, group, wanted)
                if kind in ROOTED or (name == "dgx1-v100" and wanted.algorithm == "direct") or not expected.any():
                    continue  # a chain does not come back to its root; messages go through other GPUs of a mesh
                assert np.abs(moved - expected).max() <= 0.025 * expected.max() + 64, (kind, size, group)


def test_a_dgx_1_uses_all_its_rings() -> None:
    """The step and 'collective' used to differ by a factor of 16: 22.1 and 1.4 ms."""
    cluster = load_cluster("dgx1-v100")
    wanted_ps = collective_time("all_reduce", 96 * MIB, None, cluster).time_ps
    assert alone_ps(cluster, "all_reduce", 96 * MIB, tuple(range(8))) == pytest.approx(wanted_ps, rel=1e-6)


@pytest.mark.parametrize("kind", ["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast"])
@pytest.mark.parametrize("name", ["a40-pcie", "dgx-h100", "l40s-pcie"])
def test_groups_that_share_a_nic_take_at_least_the_bytes_of_both(name: str, kind: str) -> None:
    """Two groups that leave a node by one NIC, or all 8 of a node, take bytes / bandwidth of the busiest link."""
    cluster = load_cluster(name, nodes=2)
    width = len(cluster.gpus) // 2
    groups = [(rank, width + rank) for rank in range(width)]
    size = 256 * MIB
    graph = graph_of(cluster, [(kind, size, group) for group in groups])
    together_ps = int(run(graph).end_ps.max())
    expected = sum(link_load(cluster, group, Collectives(cluster, group).predict(kind, size)) for group in groups)
    if kind == "broadcast":  # the way back to the root is not used
        expected = expected / 2
    least_ps = float((expected / cluster.link_bytes_per_s).max()) * 1e12
    assert together_ps >= least_ps * 0.999
    one_ps = alone_ps(cluster, kind, size, groups[0])
    assert together_ps >= one_ps
    if name == "a40-pcie":  # one NIC a node
        assert together_ps > 1.2 * one_ps


def test_in_lock_step_two_that_share_take_exactly_the_sum_of_their_bytes() -> None:
    cluster = load_cluster("a40-pcie", nodes=2)
    size = 512 * MIB
    plan, software_ps = FlowCosts(cluster)("all_reduce", size, (0, 2), None)
    assert isinstance(plan, FlowPlan)
    gpus = [cluster.gpus[rank] for rank in (0, 2)]
    route = cluster.route(*gpus)
    nic = min(int(cluster.link_bytes_per_s[link]) for link in route)
    assert sum(plan.caps) > nic / 2  # so that the NIC bounds two of them
    expected = software_ps + cluster.route_latency_ps(route) + 2 * max(plan.size_bytes) * 10**12 / nic
    graph = graph_of(cluster, [("all_reduce", size, (0, 2)), ("all_reduce", size, (1, 3))])
    assert int(run(graph).end_ps.max()) == pytest.approx(expected, rel=1e-9)


def test_factors_multiply_durations_between_domains_and_in_one() -> None:
    cluster = load_cluster("dgx-h100", nodes=2)
    for group, factor in ((tuple(range(16)), 1.5), (tuple(range(8)), 2.0)):
        for kind in ("all_reduce", "all_to_all", "barrier"):
            one, slower = (alone_ps(cluster, kind, 64 * MIB, group, factors) for factors in ((1.0, 1.0), (1.5, 2.0)))
            assert slower == pytest.approx(factor * one, rel=1e-6)
    for name, factors in (("communication", (0.0, 1.0)), ("scale_up", (1.0, 200.0))):
        with pytest.raises(InputError, match=f"{name} factor"):
            FlowCosts(cluster, factors)


@pytest.mark.parametrize("size", [0, 4096, 3 * MIB])
def test_messages_between_stages(size: int) -> None:
    cluster = load_cluster("dgx-a100", nodes=2)
    for pair in ((0, 1), (3, 12)):
        message = message_of(size, *FlowCosts(cluster)("send_recv", size, pair, None))
        assert message.size_bytes == size
        wanted_ps = collective_time("send_recv", size, pair, cluster).time_ps
        route = cluster.route(*(cluster.gpus[rank] for rank in pair))
        bytes_ps = size * 10**12 / message.cap if size else 0
        assert message.software_ps + cluster.route_latency_ps(route) + bytes_ps == pytest.approx(wanted_ps, abs=2)


def test_in_a_step_too() -> None:
    """Without overlap, every collective of a step takes the time of 'collective'."""
    cluster = load_cluster("dgx-h100")
    plan = Plan(dp=8, batch=8, dp_overlap=False, bucket_bytes=10**9, inputs="none")
    result = simulate(chain(4, weight_bytes=10**8), plan, cluster=cluster, gpu="h100-sxm", fold="verify")
    uses = [use for use in result.collectives if use.kind == "all_reduce"]
    wanted = [collective_time("all_reduce", use.size_bytes, None, cluster).time_ps for use in uses]
    assert [use.time_ps for use in uses] == pytest.approx(wanted, rel=1e-9)
    assert {use.algorithms for use in uses} == {("nvls/simple",)}
    named = simulate(
        chain(4, weight_bytes=10**8), Plan(**{**vars_of(plan), "algorithm": (("all_reduce", "ring"),)}),
        cluster=cluster, gpu="h100-sxm",
    )  # fmt: skip
    assert named.graph.route_cap_bytes_per_s is None
    assert next(use for use in named.collectives if use.kind == "all_reduce").algorithms == ("ring",)
    for options in ({"network": "fifo"}, {"collective_costs": "links"}):
        other = simulate(chain(4, weight_bytes=10**8), plan, cluster=cluster, gpu="h100-sxm", **options)
        assert other.graph.route_cap_bytes_per_s is None


def vars_of(plan: Plan) -> dict[str, object]:
    return {"dp": plan.dp, "batch": 8, "dp_overlap": False, "bucket_bytes": 10**9, "inputs": "none"}


def test_few_tasks_for_many_ranks() -> None:
    """A ring of n ranks has 2 (n - 1) messages per rank; as flows it has two, plus log n for synchronisation."""
    cluster = load_cluster("dgx-h100", nodes=32)
    graph = graph_of(cluster, [("all_reduce", 64 * MIB, tuple(range(256)))])
    assert (graph.kind == TRANSFER).sum() == 2 * 256
    assert graph.num_tasks == (2 + 2 + 2 * 8) * 256


def test_a_step_may_demand_nvls() -> None:
    """Steps once refused a demand for NVLS, their default for large sizes. It gives the same flows as this default."""
    cluster, group = load_cluster("dgx-h100"), tuple(range(8))
    costs = FlowCosts(cluster)
    for size in (64 * MIB, 1024 * MIB):
        usual, demanded = (costs("all_reduce", size, group, each) for each in (None, "nvls"))
        assert isinstance(usual[0], FlowPlan)
        assert usual[0].algorithm == "nvls/simple"
        assert demanded == usual
    small = costs("all_reduce", 8192, group, "nvls")
    assert small != costs("all_reduce", 8192, group, None)
    with pytest.raises(InputError, match="nccl has no all_gather with algorithm 'nvls'"):
        costs("all_gather", MIB, group, "nvls")


@pytest.mark.parametrize(("nodes", "algorithm"), [(1, "nvls"), (2, "nvlstree")])
def test_a_step_with_nvls_runs_and_differs_from_rings(nodes: int, algorithm: str) -> None:
    cluster = load_cluster("dgx-h100", nodes=nodes)
    steps = [
        simulate("vgg13-h100-b128", Plan(dp=8 * nodes, algorithm=(("all_reduce", name),)), cluster=cluster)
        for name in (algorithm, "ring")
    ]
    assert steps[0].communication_s != steps[1].communication_s
