"""Times of compute-bound operators at the clock of another batch."""

from __future__ import annotations

from dataclasses import replace

from compute_cases import US, linear, relus

from trine.cluster import load_gpu
from trine.compute import Split, make_compute
from trine.compute.other_batch import AtClockOfBatch
from trine.compute.power_curve import has_tensor_clocks
from trine.graph.workload import Workload

GPU = load_gpu("h100-sxm")


def products(batch: int, time_us: int) -> Workload:
    """Return large TF32 products next to a copy that keeps its size: with a larger batch, products fill the step."""
    made, _, _ = linear(batch, (8192, 8192))
    made.operators = [replace(made.operators[0], gpu_time_ps=time_us * US)]
    made.tensor("big", (2**28,), "weight")
    made.tensor("copy", (2**28,), "weight")
    made.run("aten::clone", ["big"], ["copy"], time_ps=20_000 * US)
    return made.workload("NVIDIA H100 80GB HBM3")


def test_a_larger_batch_lowers_the_clock_and_lengthens_products() -> None:
    """16 TFLOP of products take 20 ms of 40 ms at batch 120,000, 320 ms of 340 ms at 16 times the batch."""
    workload = products(120_000, 40_000)
    plain = make_compute("auto", workload)
    model = AtClockOfBatch(plain, workload, GPU)
    product, copy = workload.operators
    same, large = Split(workload.batch), Split(16 * workload.batch)
    assert model.duration(product, same) == plain.duration(product, same)
    clock = model.clock(large.batch)
    assert clock.clock < clock.base
    slower = model.duration(product, large).ps / plain.duration(product, large).ps
    print(f"{clock.base * 1980:.0f} MHz, then {clock.clock * 1980:.0f} MHz: {slower:.3f}")
    assert slower > 1.005
    assert model.duration(copy, large) == plain.duration(copy, large)
    assert clock.load.power_w(clock.curve, clock.clock) <= GPU.power_w * 1.001


def test_memory_bound_steps_keep_their_times() -> None:
    workload = relus([(2**20, 10 * US)] * 3).workload("NVIDIA H100 80GB HBM3")
    plain = make_compute("auto", workload)
    model = AtClockOfBatch(plain, workload, GPU)
    for op in workload.operators:
        assert model.duration(op, Split(64)) == plain.duration(op, Split(64))


def test_only_gpus_with_tensor_clocks() -> None:
    assert has_tensor_clocks(GPU)
    assert not has_tensor_clocks(None)
    assert not has_tensor_clocks(load_gpu("v100"))
