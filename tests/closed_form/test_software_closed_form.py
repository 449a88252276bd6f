"""Software profiles against closed forms: what operators move, what launches cost, how pipelines are cut."""

import math
from fractions import Fraction
from itertools import pairwise

import pytest

import trine
from trine.cluster import load_gpu
from trine.compute import work
from trine.compute.launch import software_launches
from trine.compute.tables.operators import OperatorTables
from trine.compute.tables.times import GAP_US
from trine.graph.program import COMPUTE_STREAM, LAUNCH_STREAM, Compute
from trine.graph.workload import BACKWARD, FORWARD, OPTIMIZER
from trine.parallel.build import build_job
from trine.parallel.plan import Plan
from trine.software.profile import Factors, FixedCost, LaunchStyle, OperatorStyle, Software

MODEL = "gpt-2-medium"
UNFUSED = OperatorStyle(
    attention="unfused", loss="unfused", dropout=True, gradient_dtype="float32", accumulation="separate"
)


def profile(**fields):
    return Software(name="of a test", description="Numbers of a test.", **fields)


def written(software, **options):
    return trine.synthesize(MODEL, layers=2, sequence=256, batch=2, software=software, **options)


def simulated(software, plan=None, cluster=None, **options):
    model = f"model:{MODEL},layers=4,sequence=256,batch=4"
    return trine.simulate(model, plan, cluster=cluster, software=software, compare=False, **options)


# -- operators ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("style", [OperatorStyle(), UNFUSED])
def test_profiles_change_no_parameters(style):
    none, own = written("none"), written(profile(operators=style))
    shapes = [[w.tensors[p.weight].shape for p in w.parameters] for w in (none, own)]
    assert shapes[0] == shapes[1]
    assert none.metadata["parameters"] == own.metadata["parameters"]
    assert own.metadata["software"] == "of a test"


def test_a_separate_bias_reads_and_writes_what_the_product_made():
    """Forward two passes over it, backward one over its gradient; the product keeps the weights and their bytes."""
    fused, separate = (written(profile(operators=OperatorStyle(biases=b))) for b in ("fused", "separate"))
    made = [op for op in separate.operators if op.layer.endswith("_bias")]
    elements = 2 * 256 * (3 * 1024 + 4 * 1024)  # of queries, keys and values, and of the product up
    moved = {phase: sum(work(op, separate).bytes for op in made if op.phase == phase) for phase in (FORWARD, BACKWARD)}
    assert moved == {FORWARD: 2 * 2 * elements * 2, BACKWARD: 2 * 2 * elements}
    assert len(separate.operators) - len(made) == len(fused.operators)
    assert separate.metadata["parameters"] == fused.metadata["parameters"]
    biasless = trine.synthesize(
        "llama-3-8b", layers=2, sequence=256, software=profile(operators=OperatorStyle(biases="separate"))
    )
    assert not any(op.layer.endswith("_bias") for op in biasless.operators)


def test_scores_go_through_memory_so_often_as_korthikanti_counts():
    """4.5 times forward and 5.5 backward, twice b a s^2 bytes each, besides the products (section 4.1)."""
    workload = written(profile(operators=UNFUSED))
    scores = 2 * 16 * 256 * 256
    between = [op for op in workload.operators if "core.softmax" in op.layer or "core.dropout" in op.layer]
    moved = {
        phase: sum(work(op, workload).bytes for op in between if op.phase == phase) for phase in (FORWARD, BACKWARD)
    }
    assert moved == {FORWARD: 2 * (2 * scores * Fraction(9, 2)), BACKWARD: 2 * (2 * scores * Fraction(11, 2))}
    kept = [t for op in between if op.phase == FORWARD for t in op.outputs]
    assert sum(workload.tensors[t].size_bytes for t in kept) == 2 * 5 * scores


def test_products_of_scores_are_of_all_tokens():
    workload = written(profile(operators=UNFUSED))
    products = [op for op in workload.operators if op.name == "aten::matmul"]
    assert [work(op, workload).flops for op in products] == [2 * 2 * 16 * 256 * 256 * 64] * 4
    backward = [op for op in workload.operators if op.name == "matmul_backward"]
    assert [work(op, workload).flops for op in backward] == [2 * 2 * 2 * 16 * 256 * 256 * 64] * 4


def test_gradients_are_added_to_float32_sums_at_ten_bytes_a_parameter():
    workload = written(profile(operators=UNFUSED))
    added = next(op for op in workload.operators if op.attributes.get("cost") == "accumulation")
    parameters = int(workload.metadata["parameters"])
    assert work(added, workload).bytes == 10 * parameters
    assert all(workload.tensors[p.gradient].dtype == "float32" for p in workload.parameters)


def test_what_reduces_gradients_carries_their_dtype():
    sizes = {}
    for dtype in ("model", "float32"):
        software = profile(operators=OperatorStyle(gradient_dtype=dtype, accumulation="fused"))
        result = simulated(software, Plan(dp=4, bucket_bytes=2**30, first_bucket_bytes=2**30), "dgx-h100")
        sizes[dtype] = sum(use.size_bytes * use.count for use in result.collectives)
    assert sizes["float32"] == 2 * sizes["model"]


def test_an_operator_that_is_not_fused_moves_its_bytes_several_times():
    plain = written(profile())
    own = written(profile(operators=OperatorStyle(passes={"norm": [9, 2.5]})))
    bytes_of = [
        {(op.layer, op.phase): work(op, w).bytes for op in w.operators if "norm" in op.name} for w in (plain, own)
    ]
    for key, size in bytes_of[0].items():
        assert bytes_of[1][key] == (9 * size if key[1] == FORWARD else Fraction(5, 2) * size)


def test_a_loss_in_several_kernels_moves_its_bytes_as_elementwise_operators_do():
    """Maximum, difference, exponential, sum, quotient: no kernel of a softmax, which reads and writes more slowly.

    On an H100 the SMs limit both: 2.35 TB/s where kernels broadcast a value per row, 1.51 of one kernel's forward pass.
    """
    several = OperatorStyle(loss="unfused", passes={"loss": [4, 1]})
    tables = OperatorTables(load_gpu("h100-sxm"))
    forward_only = {FORWARD: 1.51e12, BACKWARD: math.inf}
    by_row = {FORWARD: 2.35e12, BACKWARD: 2.35e12}
    for style, curve, limit in ((several, "other", by_row), (OperatorStyle(loss="unfused"), "loss", forward_only)):
        made = trine.synthesize(MODEL, layers=1, batch=8, gpu="h100-sxm", software=profile(operators=style))
        losses = [op for op in made.operators if op.layer == "loss"]
        assert [op.phase for op in losses] == [FORWARD, BACKWARD]
        for op in losses:
            num_bytes = work(op, made).bytes
            us = max(tables.memory(num_bytes, curve).us, num_bytes / limit[op.phase] * 1e6) + GAP_US
            assert op.gpu_time_ps == pytest.approx(us * 1e6, rel=1e-6)


def test_a_fixed_cost_passes_over_all_gradients():
    software = profile(step=[FixedCost(name="gradient norm", gradient_passes=3)])
    workload = written(software)
    norm = next(op for op in workload.operators if op.attributes.get("cost") == "gradient norm")
    assert norm.phase == OPTIMIZER
    assert work(norm, workload).bytes == 3 * (2 * int(workload.metadata["parameters"]) + 4)


@pytest.mark.parametrize("model", [MODEL, "t5-small", "bert-base", "resnet18"])
def test_costs_on_gradients_come_before_the_optimizer_and_those_on_parameters_behind(model):
    costs = [FixedCost(name="copies", parameter_passes=4), FixedCost(name="norm", gradient_passes=1)]
    sizes = {"batch": 2} if model == "resnet18" else {"batch": 2, "sequence": 64}
    workload = trine.synthesize(model, software=profile(step=[*costs, FixedCost(name="logging", cpu_us=1)]), **sizes)
    optimizer = [op for op in workload.operators if op.phase == OPTIMIZER]
    names = [op.attributes.get("cost", "") for op in optimizer]
    assert [name for name in names if name] == ["norm", "logging", "copies"]
    assert names[0] == "norm"
    assert names[-1] == "copies"
    assert "" in names[2:-1]
    assert {workload.tensors[t].role for t in optimizer[-1].inputs} == {"weight"}
    trained = sum(workload.tensors[parameter.weight].size_bytes for parameter in workload.parameters)
    assert work(optimizer[-1], workload).bytes == 4 * (trained + 4)


# -- launches ----------------------------------------------------------------------------------------------------------


def launching(us, **fields):
    return profile(launch=LaunchStyle(cpu_us_per_kernel=us, **fields))


def test_a_step_that_the_cpu_bounds_takes_its_launches_and_the_last_operator():
    software = launching(5000.0, layer_us=500.0)
    result = simulated(software)
    workload = trine.synthesize(MODEL, layers=4, sequence=256, batch=4, software=software)
    operators = [op for op in workload.operators if op.name != "aten::view"]
    # Each layer has a forward and a backward pass.
    expected = (5000 * len(operators) + 500 * 2 * 4) * 10**6 + operators[-1].gpu_time_ps
    assert result.step_time_ps == expected


def test_a_step_that_the_gpu_bounds_waits_for_its_first_launch_only():
    slow = "model:llama-3-8b,layers=2,sequence=8192,batch=1,times=roofline"  # the same for every kernel of attention
    none = trine.simulate(slow, software="none", gpu="h100-sxm", compare=False)
    own = trine.simulate(slow, software=launching(2.0), gpu="h100-sxm", compare=False)
    assert own.step_time_ps == none.step_time_ps + 2 * 10**6


@pytest.mark.parametrize("synchronises", ["none", "step", "micro-batch", "pass"])
@pytest.mark.parametrize("us", [3.0, 30.0])
def test_launches_that_are_left_out_change_nothing(synchronises, us):
    style = LaunchStyle(
        cpu_us_per_kernel=us, layer_us=20.0, communication_us=15.0, queue_limit=40, synchronises=synchronises
    )
    software = profile(launch=style, operators=OperatorStyle(kernels={"norm": [4, 8]}))
    workload = trine.synthesize(MODEL, layers=4, sequence=1024, batch=8, software=software)
    plan = Plan(tp=2, pp=2, dp=2, micro_batch=2, steps=2, schedule="1f1b", sequence_parallel=True)
    found = []
    for merges in (True, False):
        compute = trine.compute.make_compute("auto", workload)
        job, _ = build_job(
            workload, plan.filled(), compute, launch=software_launches(workload, software, merges=merges)
        )
        found.append(job)
    launches = [sum(_is_launch(s) for p in job.programs for s in p.steps) for job in found]
    assert launches[0] < launches[1]
    ends = [_ends(job) for job in found]
    assert ends[0] == ends[1]


def _is_launch(step):
    return isinstance(step, Compute) and step.stream == LAUNCH_STREAM


def _ends(job):
    """End of every operator, from the engine's answer on a cluster."""
    from trine.folding.run import JobRunner
    from trine.training import placement_of

    machine = trine.load_cluster("dgx-h100")
    runner = JobRunner(job=job, placement=placement_of(machine, 8), network="fair", engine="compiled", fold="off")
    done = runner.run()
    graph, records = done.graph, done.records
    stream = [graph.stream_names[s] if s >= 0 else "" for s in graph.stream.tolist()]
    rows = zip(graph.rank.tolist(), stream, records.end_ps.tolist(), strict=True)
    return sorted((rank, end) for rank, name, end in rows if name == COMPUTE_STREAM)


def test_folded_is_unfolded_with_launches():
    software = profile(
        operators=UNFUSED,
        launch=LaunchStyle(cpu_us_per_kernel=8.0, communication_us=12.0, synchronises="pass"),
        step=[FixedCost(name="norm", gradient_passes=1, all_reduces=1)],
    )
    plan = Plan(tp=2, pp=2, dp=4, micro_batch=1, batch=4, schedule="1f1b")
    result = simulated(software, plan, trine.load_cluster("dgx-h100", nodes=2), fold="verify")
    assert result.simulator.ranks_simulated < 16


# -- stages ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("pp", "layers"), [(2, 8), (4, 8), (4, 6)])
def test_blocks_are_cut_as_megatron_does(pp, layers):
    sizes = _stage_layers(pp, layers, "blocks")
    assert sum(sizes) == layers
    assert max(sizes) - min(sizes) <= (layers % pp != 0)


def _stage_layers(pp, layers, balance):
    model = f"model:{MODEL},layers={layers},sequence=64,batch=4"
    plan = Plan(pp=pp, balance=balance, micro_batch=1)
    cuts = trine.simulate(model, plan, cluster="dgx-h100", compare=False, software="none").plan["cuts"]
    begins = [0, *(int(c.split(".")[1]) if c.startswith("layers") else layers for c in cuts), layers]
    return [b - a for a, b in pairwise(begins)]


def test_nanotron_counts_the_head_and_not_the_embedding():
    """gpt-2-medium: a block of 12 h^2 + 4 h (two norms), a head of 51.5 M; thresholds by hand (models/base.py)."""
    block, head, layers, pp = 12 * 1024 * 1024 + 4 * 1024, 50257 * 1024, 24, 4
    whole, so_far, stage, sizes = layers * block + head, 0, 0, [0] * pp
    for _ in range(layers):
        sizes[stage] += 1
        so_far += block
        if so_far > whole * (stage + 1) / pp:
            stage += 1
    assert _stage_layers(pp, layers, "nanotron") == sizes


# -- factors -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["gpu", "cpu", "communication"])
def test_a_factor_of_two_doubles_what_it_multiplies(name):
    """Each on a step that is of its kind but for next to nothing."""
    two = {name: {"value": 2.0, "fitted_on": "a test"}}
    cases = {
        "gpu": ("llama-3-8b,layers=2,sequence=8192", Plan(), LaunchStyle()),
        "cpu": ("gpt-2-medium,layers=2,sequence=64", Plan(), LaunchStyle(cpu_us_per_kernel=5000.0)),
        "communication": ("gpt-2-medium,layers=2,sequence=64", Plan(dp=8, dp_overlap=False), LaunchStyle()),
    }
    model, plan, launch = cases[name]
    times = []
    for factors in ({}, two):
        software = profile(launch=launch, factors=Factors.model_validate(factors))
        machine = "dgx-h100" if plan.num_ranks > 1 else None
        result = trine.simulate(f"model:{model},gpu=h100-sxm", plan, cluster=machine, software=software, compare=False)
        hidden = result.step_time_ps - int(result.rank_times.communication.max()) if machine else 0
        times.append(result.step_time_ps - hidden)
    assert times[1] / times[0] == pytest.approx(2, rel=0.01)
