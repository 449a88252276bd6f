"""Does a non-reentrant checkpoint recompute only up to the last operator that its backward pass needs?"""

from __future__ import annotations

import pytest

import trine
from trine.graph.workload import FORWARD
from trine.parallel.plan import Plan
from trine.parallel.recompute import left_out_again, recomputed
from trine.software import Software

LAYERS = 3


def software(checkpoint):
    return Software(name="s", description="a test", operators={"checkpoint": checkpoint})


@pytest.mark.parametrize("model", ["llama-3-8b", "gpt-2"])
def test_the_last_product_and_the_residual_are_left_out(model):
    workload = trine.synthesize(model, layers=LAYERS)
    forward = [op for op in workload.operators if op.phase == FORWARD]
    segments = recomputed(workload, Plan(recompute="full"), forward)
    left = left_out_again(workload, segments)
    names = [op.layer for op in forward if op.id in left]
    assert names == [f"layers.{n}.mlp.{part}" for n in range(LAYERS) for part in ("down", "add")]


def test_a_step_is_shorter_by_what_is_left_out():
    text = f"model:llama-3-8b,layers={LAYERS},sequence=1024,times=roofline"
    plan = Plan(recompute="full", inputs="none")
    steps = {
        kind: trine.simulate(text, plan, gpu="h100-sxm", software=software(kind)) for kind in ("whole", "early-stop")
    }
    workload = trine.synthesize("llama-3-8b", layers=LAYERS, sequence=1024, times="roofline")
    last = sum(
        op.gpu_time_ps
        for op in workload.operators
        if op.phase == FORWARD and op.layer.endswith((".mlp.down", ".mlp.add"))
    )
    assert steps["whole"].step_time_ps - steps["early-stop"].step_time_ps == last
    peaks = {kind: step.memory_peaks[0].total_bytes for kind, step in steps.items()}
    assert peaks["early-stop"] <= peaks["whole"]


def test_selective_recomputation_is_as_before():
    text, plan = "model:gpt-2,layers=2,times=roofline", Plan(recompute="selective")
    steps = [trine.simulate(text, plan, gpu="h100-sxm", software=software(kind)) for kind in ("whole", "early-stop")]
    assert steps[0].step_time_ps == steps[1].step_time_ps
