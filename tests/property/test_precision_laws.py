"""Do recipes keep their laws on small models: same parameters, more memory for weights, same compute on each rank?"""

from math import prod

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import trine
from trine.training.memory import stage_programs

RECIPES = ("fp8", "fp8-current", "fp8-block", "mxfp8", "nvfp4")
#: Recipes that an H100 runs, by the bytes of weight copies.
EIGHT_BITS = ("fp8", "fp8-current", "fp8-block")

sizes = st.fixed_dictionaries(
    {"layers": st.integers(2, 4), "sequence": st.sampled_from([512, 640, 1024, 1536, 2048]), "batch": st.integers(1, 2)}
)
recipes = st.sampled_from(RECIPES)


def model(size, precision=None, gpu="b200"):
    return trine.synthesize("llama-3.2-1b", gpu=gpu, precision=precision, **size)


def facts(workload):
    """Return all that a workload says of its operators, tensors and parameters."""
    return workload.operators, workload.tensors, workload.parameters, workload.metadata, workload.assumptions


def resident(workload, plan=None):
    return stage_programs(workload, plan or trine.Plan())[0].resident_bytes


def simulate(workload, plan):
    return trine.simulate(workload, plan, cluster="dgx-h100", gpu_spread=0.0)


@settings(max_examples=32)
@given(sizes, recipes)
def test_the_same_question_has_the_same_answer(size, precision):
    first, second = model(size, precision), model(size, precision)
    assert facts(first) == facts(second)
    plan = trine.Plan(batch=size["batch"])
    steps = [trine.simulate(workload, plan, gpu="b200").step_time_ps for workload in (first, second)]
    assert steps[0] == steps[1]


@settings(max_examples=32)
@given(sizes, recipes)
def test_a_recipe_trains_the_same_parameters(size, precision):
    plain, cast = model(size), model(size, precision)
    for workload in (plain, cast):
        assert all(p.gradient is not None for p in workload.parameters)
    shapes = [[w.tensors[p.weight].shape for p in w.parameters] for w in (plain, cast)]
    assert shapes[0] == shapes[1]
    dtypes = [[w.tensors[p.gradient].dtype for p in w.parameters] for w in (plain, cast)]
    assert dtypes[0] == dtypes[1]
    assert sum(map(prod, shapes[1])) == int(cast.metadata["parameters"])


@settings(max_examples=32)
@given(sizes, recipes, st.sampled_from([1, 2, 4]))
def test_casts_add_to_the_memory_of_weights_alone(size, precision, tp):
    plan = trine.Plan(tp=tp)
    plain, cast = resident(model(size), plan), resident(model(size, precision), plan)
    assert cast[0] > plain[0]
    assert cast[1:] == plain[1:]


@settings(max_examples=16)
@given(sizes)
def test_more_casts_take_no_less_memory_for_weights(size):
    """Recipes by the bytes of their copies, then one more layer: each has at least the memory of the one before."""
    by_copies = [resident(model(size, name))[0] for name in ("nvfp4", "fp8", "fp8-current", "fp8-block", "mxfp8")]
    assert by_copies == sorted(by_copies)
    deeper = {**size, "layers": size["layers"] + 1}
    for name in RECIPES:
        copies = [resident(model(each, name))[0] - resident(model(each))[0] for each in (size, deeper)]
        assert copies[1] / copies[0] == pytest.approx(deeper["layers"] / size["layers"], rel=1e-6)


@settings(max_examples=32)
@given(sizes, st.sampled_from(EIGHT_BITS))
def test_more_replicas_leave_the_compute_of_a_rank(size, precision):
    """Without overlap, communication slows no operator down."""
    workload = model(size, precision, gpu="h100-sxm")
    two, four = (simulate(workload, trine.Plan(dp=dp, batch=size["batch"], overlap="none")) for dp in (2, 4))
    assert two.compute_s == four.compute_s
    assert 2 * two.work.model_flops == four.work.model_flops
    peaks = [{name: result.memory_peaks[0].by_category[name] for name in ("weights", "activations")}
             for result in (two, four)]  # fmt: skip
    assert peaks[0] == peaks[1]


@settings(max_examples=32)
@given(sizes, recipes)
def test_casts_change_no_flops_and_no_operator_but_products(size, precision):
    """Without the casts, the operators of both steps are the same, in the same order."""
    plain, cast = model(size), model(size, precision)
    names = [(op.name, op.phase, op.layer) for op in plain.operators]
    copies = {t.id for t in cast.tensors.values() if t.dtype in ("float8_e4m3fn", "float4_e2m1fn")}
    kept = [
        (op.name, op.phase, op.layer) for op in cast.operators
        if not copies & set(op.outputs) and op.attributes.get("cost") != "weight casts"
    ]  # fmt: skip
    assert kept == names
    results = [trine.simulate(each, trine.Plan(batch=size["batch"]), gpu="b200").work for each in (plain, cast)]
    assert results[0].model_flops == results[1].model_flops
