"""Does a whole training step equal the formula, to the picosecond?"""

import pytest
from synthetic import MS, Chain, Proportional

import trine
from trine.cluster import build_topology
from trine.common.units import transfer_ps
from trine.engine import run
from trine.graph.taskgraph import TRANSFER
from trine.parallel.build import build_job
from trine.parallel.instantiate import instantiate
from trine.parallel.plan import Plan
from trine.training import placement_of

GBS = 10**9
VGG13, RESNET50 = "vgg13-h100-b128", "resnet50-h100-b128"
GRADIENTS = {VGG13: 532_191_392, RESNET50: 102_228_128}


def simulate_chain(chain: Chain, plan: Plan, cluster, **options):
    """Task graph and records of a chain under a compute model without intercept."""
    workload = chain.workload()
    job, _ = build_job(workload, plan.filled(), Proportional(workload), **options)
    graph, _ = instantiate(job, placement_of(cluster, plan.num_ranks))
    return graph, run(graph)


@pytest.mark.parametrize(("name", "milliseconds"), [(VGG13, 94.038), (RESNET50, 70.723)])
def test_one_gpu_is_the_recorded_sum(name, milliseconds):
    result = trine.simulate(name)
    assert result.step_time_ps == round(milliseconds * MS)
    assert result.compute_s == milliseconds / 1e3
    assert result.communication_s == result.exposed_communication_s == result.bubble_s == result.idle_s == 0


@pytest.mark.parametrize("ranks", [2, 3, 4, 7, 8, 16, 84])
@pytest.mark.parametrize("bandwidth", ["65 GB/s", "12345678901 B/s"])
def test_one_bucket_on_a_ring_is_the_ring_formula(ranks, bandwidth):
    cluster = build_topology("ring", bandwidth, "1 us", ranks)
    whole = Plan(dp=ranks, first_bucket_bytes=10**12, bucket_bytes=10**12)
    result = trine.simulate(VGG13, whole, cluster=cluster)
    chunk = -(-GRADIENTS[VGG13] // ranks)
    expected = 2 * (ranks - 1) * (transfer_ps(chunk, cluster.links[0].bytes_per_s) + 10**6)
    assert round(result.communication_s * 1e12) == expected
    assert result.step_time_ps == 94_038 * 10**6 + expected
    assert [(c["kind"], c["bytes"], c["count"], c["group_size"]) for c in result.to_json()["collectives"]] == [
        ("all_reduce", GRADIENTS[VGG13], 1, ranks)
    ]


@pytest.mark.parametrize("name", [VGG13, RESNET50])
@pytest.mark.parametrize("batch", [32, 128, 256])
def test_gradient_bytes_do_not_depend_on_the_batch(name, batch):
    cluster = build_topology("ring", "65 GB/s", "1 us", 4)
    answer = trine.simulate(name, Plan(dp=4, batch=batch), cluster=cluster).to_json()
    reduced = sum(c["bytes"] * c["count"] for c in answer["collectives"] if c["kind"] == "all_reduce")
    assert reduced == GRADIENTS[name]


@pytest.mark.parametrize(("stages", "micro"), [(2, 1), (2, 4), (4, 2), (4, 8), (8, 8)])
@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
def test_equal_stages_with_free_transfers_fill_and_drain(stages, micro, schedule):
    chain = Chain([2 * MS] * 8, [4 * MS] * 8, batch=8)
    total = 8 * 6 * MS
    cluster = build_topology("full", "1000000 TB/s", 0, stages)
    # transfers of 2 KiB/micro at this rate take far less than a picosecond, which rounds up to 1 ps each
    _, records = simulate_chain(chain, Plan(pp=stages, micro_batch=8 // micro, schedule=schedule), cluster)
    expected = (micro + stages - 1) * total // (micro * stages)
    end = int(records.end_ps.max())
    assert expected <= end <= expected + 4 * (micro + stages)


def test_two_layers_leave_the_tail_that_cannot_overlap():
    """Layer 2's gradient is reduced beside layer 1's backward; layer 1's, ready at the end, is the tail."""
    size = 64 * 10**6
    chain = Chain([10 * MS, 10 * MS], [20 * MS, 20 * MS], [size, size], optimizer_ps=3 * MS)
    cluster = build_topology("ring", "50 GB/s", "2 us", 4)
    _, records = simulate_chain(chain, Plan(dp=4, first_bucket_bytes=1, bucket_bytes=1), cluster)
    reduction = 2 * 3 * (transfer_ps(size // 4, 50 * GBS) + 2 * 10**6)
    assert reduction < 20 * MS
    assert records.end_ps.max() == 60 * MS + reduction + 3 * MS


def test_a_reduction_longer_than_the_backward_delays_the_next_one():
    size = 800 * 10**6
    chain = Chain([10 * MS, 10 * MS], [20 * MS, 20 * MS], [size, size], optimizer_ps=3 * MS)
    cluster = build_topology("ring", "50 GB/s", "2 us", 4)
    _, records = simulate_chain(chain, Plan(dp=4, first_bucket_bytes=1, bucket_bytes=1), cluster)
    reduction = 2 * 3 * (transfer_ps(size // 4, 50 * GBS) + 2 * 10**6)
    assert reduction > 20 * MS
    assert records.end_ps.max() == 40 * MS + 2 * reduction + 3 * MS


def test_column_split_gathers_outputs_and_reduces_input_gradients():
    """Three layers on two ranks: 3 all-gathers in forward, 2 all-reduces in backward (the first input needs none)."""
    chain = Chain([4 * MS] * 3, [8 * MS] * 3, batch=8, width=1000)
    cluster = build_topology("ring", "1 GB/s", "1 us", 2)
    graph, records = simulate_chain(chain, Plan(tp=2), cluster)
    bytes_out = 8 * 1000 * 4
    gather = transfer_ps(bytes_out // 2, GBS) + 10**6
    reduce = 2 * (transfer_ps(bytes_out // 2, GBS) + 10**6)
    assert records.end_ps.max() == 3 * (4 + 8) * MS // 2 + 3 * gather + 2 * reduce
    assert sorted((c.kind, c.size_bytes) for c in graph.collectives) == [
        *[("all_gather", bytes_out)] * 3,
        *[("all_reduce", bytes_out)] * 2,
    ]


def test_megatron_pairs_need_one_reduction_each_way():
    chain = Chain([4 * MS] * 4, [8 * MS] * 4, batch=8, width=1000)
    cluster = build_topology("ring", "1 GB/s", "1 us", 2)
    graph, _ = simulate_chain(chain, Plan(tp=2, tp_style="megatron"), cluster)
    # column, row, column, row: an all-reduce after each row in forward, and before layer 3 in backward
    assert [c.kind for c in graph.collectives] == ["all_reduce"] * 3


def test_data_parallel_serialises_scatter_replicate_compute_gather_reduce():
    size = 40_000
    chain = Chain([10 * MS], [20 * MS], [size], batch=8, width=1000, optimizer_ps=3 * MS)
    cluster = build_topology("full", "1 GB/s", "1 us", 2)
    graph, records = simulate_chain(chain, Plan(dp=2, data="dp"), cluster)
    activation = transfer_ps(8 * 1000 * 4, GBS) + 10**6
    kinds = [c.kind for c in graph.collectives]
    assert kinds == ["broadcast", "reduce"]
    transfers = [i for i in range(graph.num_tasks) if graph.kind[i] == TRANSFER]
    collective = [i for i in transfers if graph.labels.collective[i] >= 0]
    moved = sum(int(graph.size_bytes[i]) for i in collective)
    assert moved >= 2 * size
    broadcast = max(records.end_ps[i] for i in collective if graph.labels.collective[i] == 0) - activation
    reduce_time = max(records.end_ps[i] for i in collective if graph.labels.collective[i] == 1) - min(
        records.start_ps[i] for i in collective if graph.labels.collective[i] == 1
    )
    # inputs out, weights out, forward, outputs back, output gradients out, backward, gradients back, optimizer
    assert records.end_ps.max() == 3 * activation + broadcast + 30 * MS + reduce_time + 3 * MS


@pytest.mark.parametrize(
    ("inputs", "first", "steady"), [("step", True, True), ("prefetch", False, False), ("none", False, False)]
)
def test_inputs_are_copied_at_the_start_of_a_step_or_during_the_one_before(inputs, first, steady):
    cluster = trine.load_cluster("dgx-h100")
    result = trine.simulate(VGG13, Plan(inputs=inputs, steps=3), cluster=cluster)
    route = cluster.route(cluster.host_of(cluster.gpus[0]), cluster.gpus[0])
    rate = min(cluster.links[link].bytes_per_s for link in route)
    copy = transfer_ps(128 * 3 * 224 * 224 * 4 + 128 * 8, rate) + cluster.route_latency_ps(route)
    compute = 94_038 * 10**6
    assert result.step_ends_ps[0] == compute + copy * first
    assert result.step_time_ps == compute + copy * steady


def test_a_job_that_does_not_fit_says_so_first():
    result = trine.simulate(VGG13, Plan(batch=2048))
    assert result.verdict_of_row(0) == "does not fit"
    assert result.warnings[0].startswith("out of memory: 1 of 1 ranks do not fit")
    assert trine.simulate(VGG13, cpu=False).warnings == ()


def test_messages_between_stages_are_listed_with_the_collectives():
    """Two stages, four micro-batches of 32 samples: each sends one activation forward, one gradient comes back."""
    cluster = build_topology("full", "100 GB/s", "1 us", 2)
    plan = Plan(pp=2, micro_batch=32, cuts=("max_pool2d.1",))
    answer = trine.simulate(VGG13, plan, cluster=cluster).to_json()
    activation = 32 * 64 * 224 * 224 * 4
    assert [(c["kind"], c["bytes"], c["count"], c["group_size"]) for c in answer["collectives"]] == [
        ("send_recv", activation, 8, 2)
    ]
    hidden = trine.simulate(VGG13, Plan(dp=2), cluster=cluster).to_json()["collectives"]
    assert {c["kind"] for c in hidden} == {"all_reduce"}
