"""Do rank programs stay right on the awkward traces: tied, frozen and unlinked weights, views, divided tensors?"""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from synthetic import MS, Chain, Proportional

import trine
from trine.cluster import Cluster, Device, build_topology
from trine.errors import PlanError
from trine.graph.program import Collective, Compute, HostCopy, Job, Label, Peer, RankProgram, Recv, Send
from trine.graph.workload import Parameter
from trine.parallel.build import build_job
from trine.parallel.data_parallel import split_off_loss
from trine.parallel.instantiate import instantiate
from trine.parallel.job import JobContext
from trine.parallel.plan import Plan
from trine.parallel.splits import split_operators
from trine.parallel.stages import cut_into_stages
from trine.parallel.tensor_layout import local_parameter_bytes
from trine.training import placement_of

DATA = Path(__file__).parents[2] / "data"
RING = build_topology("ring", "10 GB/s", "1 us", 4)


def transformer():
    return trine.load(
        kineto=DATA / "torch213-cpu" / "tf_kineto.json.gz", execution_trace=DATA / "torch213-cpu" / "tf_et.json.gz"
    )


def context(workload, plan):
    return JobContext(workload, plan.filled(), Proportional(workload), None)


def graph_of(workload, plan, **options):
    job, report = build_job(workload, plan.filled(), Proportional(workload), **options)
    return instantiate(job, placement_of(RING, plan.num_ranks))[0], report


# -- weights ---------------------------------------------------------------------------------------------------------


def test_a_weight_that_no_forward_operator_is_seen_to_read_is_still_reduced_and_updated():
    workload = Chain([MS] * 2, [MS] * 2, [4000, 8000], optimizer_ps=MS).workload()
    lost = workload.parameters[0].weight
    operators = tuple(
        replace(op, inputs=tuple(t for t in op.inputs if t != lost)) if op.phase == "forward" else op
        for op in workload.operators
    )
    workload = replace(workload, operators=operators)
    graph, report = graph_of(workload, Plan(dp=2, first_bucket_bytes=1, bucket_bytes=1))
    assert sorted(c.size_bytes for c in graph.collectives) == [4000, 8000]
    assert context(workload, Plan()).optimizer_share(0) == 1
    assert report.warnings == ()


@pytest.mark.parametrize("plan", [Plan(), replace(Plan().filled(), sequence_parallel=True)])
def test_programs_need_a_plan_without_open_fields(plan):
    workload = Chain([MS], [MS]).workload()
    with pytest.raises(ValueError, match="open fields"):
        build_job(workload, plan, Proportional(workload))


def test_data_parallel_training_without_gradients_is_refused():
    workload = replace(Chain([MS], [MS]).workload(), parameters=())
    with pytest.raises(PlanError, match="nothing to reduce"):
        context(workload, Plan(dp=2))
    assert context(workload, Plan()).optimizer_share(0) == 1  # one GPU runs the recorded optimizer whole
    assert context(workload, Plan(pp=1, tp=1)).optimizer_share(0) == 1


def test_frozen_weights_take_no_part_in_the_optimizer_or_the_buckets():
    workload = Chain([MS] * 4, [MS] * 4, [1000] * 4, optimizer_ps=MS).workload()
    frozen = tuple(
        replace(p, gradient=None, gradient_operator=None) if i < 2 else p for i, p in enumerate(workload.parameters)
    )
    job = context(replace(workload, parameters=frozen), Plan(pp=2, cuts=("linear.3",)))
    assert [job.optimizer_share(stage) for stage in (0, 1)] == [0, 1]


def tied_chain():
    """Return a chain whose first and last layers read the same weight."""
    workload = Chain([MS] * 4, [MS] * 4, [1000] * 4, optimizer_ps=MS).workload()
    first, last = workload.parameters[0].weight, workload.parameters[3].weight
    swap = {last: first}
    operators = tuple(replace(op, inputs=tuple(swap.get(t, t) for t in op.inputs)) for op in workload.operators)
    return replace(workload, operators=operators, parameters=workload.parameters[:3])


def test_stages_that_share_a_weight_reduce_it_each_and_exchange_its_gradient():
    graph, _ = graph_of(tied_chain(), Plan(pp=2, dp=2, cuts=("linear.3",), first_bucket_bytes=1, bucket_bytes=1))
    by_stage = {ranks: [] for ranks in {c.ranks for c in graph.collectives}}
    for collective in graph.collectives:
        by_stage[collective.ranks].append(collective.size_bytes)
    assert by_stage == {(0, 1): [1000, 1000], (2, 3): [1000, 1000]}
    exchanged = [
        (int(graph.rank[i]), int(graph.peer[i]))
        for i in range(graph.num_tasks)
        if graph.kind[i] == 1 and graph.size_bytes[i] == 1000 and graph.labels.collective[i] < 0
    ]
    assert sorted(exchanged) == [(0, 2), (1, 3), (2, 0), (3, 1)]


def test_a_weight_in_three_stages_is_refused_by_name():
    workload = tied_chain()
    weight = workload.parameters[0].weight
    operators = tuple(
        replace(op, inputs=(*op.inputs, weight)) if op.layer == "linear.2" and op.phase == "forward" else op
        for op in workload.operators
    )
    with pytest.raises(PlanError, match="is kept by 3 pipeline stages"):
        context(replace(workload, operators=operators), Plan(pp=4))


# -- cuts ------------------------------------------------------------------------------------------------------------


def test_a_cut_inside_attention_sends_the_whole_storage_not_its_last_view():
    workload = transformer()
    found = cut_into_stages(workload, 2, ("scaled_dot_product_attention.1",), {})
    sent = {workload.tensors[c.tensor].storage: workload.tensors[c.tensor].size_bytes for c in found.crossings}
    for storage, size in sent.items():
        assert size == max(t.size_bytes for t in workload.tensors.values() if t.storage == storage)


def test_a_cut_that_the_trace_does_not_link_is_warned_about_or_refused():
    workload = Chain([MS] * 2, [MS] * 2).workload()
    second = next(op for op in workload.operators if op.layer == "linear.2" and op.phase == "forward")
    broken = replace(second, inputs=second.inputs[1:])
    operators = tuple(broken if op is second else op for op in workload.operators)
    _, report = graph_of(replace(workload, operators=operators), Plan(pp=2, micro_batch=4, cuts=("linear.2",)))
    assert any("does not link the stages at linear.2" in text for text in report.warnings)
    first = next(op for op in workload.operators if op.layer == "linear.1" and op.phase == "forward")
    operators = tuple(replace(op, outputs=()) if op is first else op for op in operators)
    with pytest.raises(PlanError, match=r"has no tensor from 'linear\.1' to 'linear\.2'"):
        context(replace(workload, operators=operators), Plan(pp=2, cuts=("linear.2",)))


def test_a_skip_tensor_is_sent_to_every_stage_that_reads_it_and_its_gradient_comes_back():
    workload = Chain([MS] * 3, [MS] * 3).workload()
    skip = workload.operators[0].outputs[0]
    third = workload.operators[2]
    operators = tuple(replace(op, inputs=(*op.inputs, skip)) if op is third else op for op in workload.operators)
    found = cut_into_stages(replace(workload, operators=operators), 3, ("linear.2", "linear.3"), {})
    assert sorted((c.source, c.target, c.tensor == skip) for c in found.crossings) == [
        (0, 1, True),
        (0, 2, True),
        (1, 2, False),
    ]
    assert all(c.has_gradient for c in found.crossings)


def test_the_gradient_of_prepared_data_is_neither_sent_nor_reduced():
    """The first layer's backward operator has no input gradient, so the producer of the data needs none."""
    workload = Chain([MS] * 2, [MS] * 2, width=8).workload()
    data = workload.operators[0].inputs[0]
    absent = max(workload.tensors) + 1
    tensors = {
        **workload.tensors,
        data: replace(workload.tensors[data], role="activation"),
        absent: replace(workload.tensors[data], id=absent, shape=(0,), size_bytes=0, dtype="none", storage=absent),
    }
    last = workload.operators[-1]
    operators = (*workload.operators[:-1], replace(last, outputs=(absent, last.outputs[1])))
    splits, _ = split_operators(replace(workload, tensors=tensors, operators=operators), "column")
    assert [splits[op.id].backward for op in operators[:2]] == [False, True]


# -- tensor parallelism ----------------------------------------------------------------------------------------------


def test_a_cut_between_column_and_row_sends_the_part_of_a_rank():
    workload = Chain([MS] * 2, [MS] * 2, batch=8, width=1000).workload()
    graph, _ = graph_of(workload, Plan(tp=2, pp=2, tp_style="megatron", cuts=("linear.2",)))
    sizes = {
        int(graph.size_bytes[i])
        for i in range(graph.num_tasks)
        if graph.kind[i] == 1 and graph.labels.collective[i] < 0
    }
    assert sizes == {8 * 1000 * 4 // 2}


def test_the_bias_of_a_row_split_stays_whole_wherever_it_stands():
    workload = Chain([MS] * 2, [MS] * 2, [4 * 64 * 64] * 2, width=64).workload()
    weight = workload.parameters[1].weight
    bias = max(workload.tensors) + 1
    tensors = {
        **workload.tensors,
        weight: replace(workload.tensors[weight], shape=(64, 64)),
        bias: replace(workload.tensors[weight], id=bias, storage=bias, shape=(64,), size_bytes=256),
    }
    operators = tuple(
        replace(op, inputs=(bias, *op.inputs)) if op.layer == "linear.2" and op.phase == "forward" else op
        for op in workload.operators
    )
    parameter = Parameter(weight=bias, size_bytes=256, gradient=None, gradient_operator=None)
    workload = replace(workload, tensors=tensors, operators=operators, parameters=(*workload.parameters, parameter))
    splits, _ = split_operators(workload, "megatron")
    assert [splits[op.id].mode for op in operators[:2]] == ["column", "row"]
    local = local_parameter_bytes(workload, splits, 2)
    assert (local[weight], local[bias]) == (4 * 64 * 64 // 2, 256)


def test_a_softmax_over_divided_features_needs_them_all():
    workload = Chain([MS] * 3, [MS] * 3).workload()
    middle = workload.operators[1]
    operators = list(workload.operators)
    operators[1] = replace(middle, name="aten::softmax", inputs=middle.inputs[:1])
    splits, divided = split_operators(replace(workload, operators=tuple(operators)), "megatron")
    assert splits[operators[0].id].forward == "all_gather"
    assert operators[1].id not in splits
    assert middle.outputs[0] not in divided


# -- memory ----------------------------------------------------------------------------------------------------------


def test_pipeline_memory_by_hand():
    """Two stages of one layer hold weight, saved input, output or gradient, and no tensor of the other stage."""
    width, batch = 64, 8
    activation, weight = batch * width * 4, 4 * width * width
    workload = Chain([MS] * 2, [MS] * 2, batch=batch, width=width).workload()
    job, _ = build_job(workload, Plan(pp=2, cuts=("linear.2",)).filled(), Proportional(workload))
    graph, memory = instantiate(job, placement_of(RING, 2))
    records = trine.run(graph)
    from trine.results.memory import memory_peak, memory_timeline

    timeline = memory_timeline(memory, records)
    peaks = [memory_peak(timeline, rank) for rank in (0, 1)]
    # stage 0 in backward: its input (kept for backward), the gradient that came back, the gradient of its input
    assert peaks[0].by_category["inputs"] == activation
    assert peaks[0].by_category["activations"] == 2 * activation
    # stage 1 in backward: the received tensor, its output (read as the upstream gradient), the gradient that it makes
    assert peaks[1].by_category["activations"] == 3 * activation
    assert [peak.by_category["weights"] for peak in peaks] == [weight, weight]


def test_first_gpu_of_data_parallel_holds_what_it_gathers():
    plan = Plan(dp=4, data="dp")
    result = trine.simulate("vgg13-h100-b128", plan, cluster=build_topology("full", "50 GB/s", "1 us", 4))
    peaks = [peak.by_category for peak in result.memory_peaks]
    assert peaks[0]["activations"] >= peaks[1]["activations"] + 3 * 128 * 1000 * 4


# -- options that must matter ------------------------------------------------------------------------------------------


def test_launch_costs_slow_data_parallel_down_too():
    cluster = build_topology("full", "50 GB/s", "1 us", 2)
    plan = Plan(dp=2, data="dp")
    slow = trine.simulate("vgg13-h100-b128", plan, cluster=cluster, launch_cost_ps=10 * MS)
    assert slow.step_time_ps > 700 * MS > trine.simulate("vgg13-h100-b128", plan, cluster=cluster).step_time_ps


def test_a_given_launch_cost_replaces_the_traces():
    raw = str(DATA / "vgg13-raw-b512")
    times = [trine.simulate(raw, launch_cost_ps=cost).step_time_ps for cost in (MS // 1000, 10 * MS)]
    assert times[1] > times[0]


@pytest.mark.parametrize("fields", [{"micro_batch": 4}, {"inputs": "prefetch"}])
def test_data_parallel_refuses_what_it_cannot_do(fields):
    with pytest.raises(PlanError, match="need ddp"):
        Plan(dp=2, data="dp", **fields)


def test_another_batch_is_refused_where_nothing_scales():
    workload = Chain([MS], [MS]).workload()
    fixed = {i: replace(t, batch_dims=()) for i, t in workload.tensors.items()}
    with pytest.raises(PlanError, match="runs at its own batch of 8 only"):
        context(replace(workload, tensors=fixed), Plan(batch=4))


def test_a_loss_in_the_middle_of_the_model_stays_with_the_model():
    workload = Chain([MS] * 3, [MS] * 3).workload()
    operators = list(workload.operators)
    operators.insert(1, replace(operators[0], id=99, name="aten::mse_loss", inputs=operators[0].outputs, outputs=()))
    model, loss = split_off_loss(replace(workload, operators=tuple(operators)))
    assert len(model) == 4
    assert loss == []


def test_two_batch_dimensions_scale_twice():
    workload = Chain([MS], [MS], batch=8, width=8).workload()
    logits = workload.operators[0].outputs[0]
    tensors = {**workload.tensors, logits: replace(workload.tensors[logits], batch_dims=(0, 1))}
    job = context(replace(workload, tensors=tensors), Plan(batch=16))
    assert job.scaled_bytes(logits, 16) == 4 * 16 * 16


def test_each_rank_is_held_against_its_own_gpu():
    pair = build_topology("full", "50 GB/s", "1 us", 2)
    devices = tuple(replace(d, gpu=name) for d, name in zip(pair.devices, ("h100-sxm", "t4"), strict=True))
    cluster = Cluster(name="mixed", devices=devices, links=pair.links)
    assert isinstance(devices[0], Device)
    result = trine.simulate("resnet50-h100-b128", Plan(dp=2, batch=256), cluster=cluster)
    assert [result.verdict_of_row(rank) for rank in (0, 1)] == ["fits", "does not fit"]
    assert any("times of the h100-sxm alone: times of the t4 are predicted" in text for text in result.warnings)
    assert result.rank_times.compute[1] > 2 * result.rank_times.compute[0]


def test_uneven_tensor_parallelism_is_said():
    result = trine.simulate("vgg13-h100-b128", Plan(tp=3), cluster=build_topology("full", "50 GB/s", "1 us", 3))
    assert any("rounded up" in text for text in result.warnings)


def test_the_algorithm_of_a_collective_is_chosen_by_name():
    cluster = build_topology("full", "50 GB/s", "1 us", 4)
    with pytest.raises(trine.InputError, match="all_reduce has no algorithm 'rign'"):
        trine.simulate("vgg13-h100-b128", Plan(dp=4, algorithm=(("all_reduce", "rign"),)), cluster=cluster)
    result = trine.simulate("vgg13-h100-b128", Plan(dp=4, algorithm=(("all_reduce", "ring"),)), cluster=cluster)
    assert {c.algorithm for c in result.graph.collectives} == {"ring"}


# -- the seam for other builders ---------------------------------------------------------------------------------------


def job(*programs):
    """Return a job of one program per rank, all on the dp axis."""
    made = tuple(
        RankProgram(name=str(i), steps=tuple(steps), memory=(), resident_bytes=(0,) * 6)
        for i, steps in enumerate(programs)
    )
    return Job(
        axes=(("dp", len(made)),), programs=made, program_of=tuple(range(len(made))), operator_names=(), layer_names=()
    )


@pytest.mark.parametrize(
    ("programs", "says"),
    [
        (([Send(Peer("dp", 1), 1, ("m",), (), Label())], []), "which rank 1 never receives"),
        (([], [Recv(Peer("dp", 0), ("m",), (), Label())]), "which rank 0 never sends"),
        (([Send(Peer("dp", 1), 1, ("m",), (), Label())] * 2, []), "to rank 1 twice"),
        (([Collective("all_reduce", "dp", ("c",), 8, -1, None, (), Label())], []), "disagree on the collectives"),
        (
            (
                [Collective("all_reduce", "dp", ("c",), 8, -1, None, (), Label())],
                [Collective("all_reduce", "dp", ("c",), 9, -1, None, (), Label())],
            ),
            "disagree on the collectives",
        ),
        (([Collective("all_reduce", "dp", ("c",), 8, -1, None, (), Label())] * 2, []), r"\('c',\) twice"),
        (([Collective("all_reduce", "ep", ("c",), 8, -1, None, (), Label())], []), "on ep, which is no axis"),
        (([HostCopy(1, (), Label())], []), "no host memory"),
    ],
)
def test_programs_that_do_not_fit_together_are_refused(programs, says):
    with pytest.raises(PlanError, match=says):
        instantiate(job(*programs), placement_of(RING, 2))


def test_a_job_of_bare_computes_runs():
    graph, _ = instantiate(job([Compute("compute", MS, (), Label())] * 2, []), placement_of(RING, 2))
    assert trine.run(graph).end_ps.tolist() == [MS, 2 * MS]
    assert np.array_equal(graph.rank, [0, 0])


def test_gradients_are_reduced_in_the_last_backward_pass_of_the_order(monkeypatch):
    """A schedule that runs backward in reverse order (GPipe's figure) completes the gradients with micro-batch 0."""
    from trine.parallel.schedules import BACKWARD_PASS, FORWARD_PASS, SCHEDULES, PipelineAction, PipelineSchedule

    class Reverse(PipelineSchedule):
        def passes(self, rank, pipeline):
            count = pipeline.num_microbatches
            forward = [PipelineAction(FORWARD_PASS, rank, m) for m in range(count)]
            return forward + [PipelineAction(BACKWARD_PASS, rank, m) for m in reversed(range(count))]

    monkeypatch.setattr(SCHEDULES, "get", lambda name: Reverse())
    graph, _ = graph_of(Chain([MS] * 2, [MS] * 2).workload(), Plan(dp=2, micro_batch=2))
    reduced = graph.labels.microbatch[graph.labels.collective >= 0]
    assert set(reduced.tolist()) == {0}


def test_a_collective_of_one_rank_ends_when_the_rank_enters_it():
    alone = Collective("all_reduce", "dp", ("c",), 8, -1, None, (0,), Label())
    steps = [Compute("compute", MS, (), Label()), alone, Compute("compute", MS, (1,), Label())]
    graph, _ = instantiate(job(steps), placement_of(RING, 1))
    assert trine.run(graph).end_ps.tolist() == [MS, MS, MS, 2 * MS]
