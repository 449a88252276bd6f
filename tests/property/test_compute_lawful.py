"""Are predicted times lawful: positive, growing with the batch, at most in proportion, the same each time?"""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trine.cluster import load_gpu
from trine.compute import Split, make_compute
from trine.compute.cost import Work
from trine.compute.kinds import is_compute_bound, kind_of
from trine.compute.law import Law, Sample, fit_law
from trine.compute.linear import anchored
from trine.workload import load

coefficients = st.floats(0, 1e3, allow_subnormal=False).map(lambda x: round(x, 6))
laws = st.builds(Law, coefficients, coefficients, st.floats(0, 1e9).map(round).map(float))


@given(
    law=laws,
    flops=st.integers(1, 10**12),
    extra=st.integers(0, 10**10),
    recorded=st.integers(1, 10**13),
    parts=st.integers(2, 512),
)
@settings(max_examples=200, deadline=None)
def test_parts_take_less_but_more_in_all(law: Law, flops: int, extra: int, recorded: int, parts: int) -> None:
    """A part of the work takes no longer than all of it, and the parts together no less than the whole."""
    whole, part = Work(flops * parts, flops + extra), Work(flops, flops // parts + extra)
    before = anchored(law, whole, recorded, whole)
    after = anchored(law, whole, recorded, part)
    assert 0 <= after <= before == recorded
    slack = parts + recorded * 1e-9
    assert after * parts >= recorded - slack or part.bytes * parts < whole.bytes


@given(
    data=st.lists(
        st.tuples(st.integers(0, 10**12), st.integers(1, 10**11), st.integers(1, 10**12)), min_size=3, max_size=12
    )
)
@settings(max_examples=100, deadline=None)
def test_fits_are_finite_non_negative_and_repeatable(data: list[tuple[int, int, int]]) -> None:
    samples = [Sample(Work(f, b), t) for f, b, t in data]
    law = fit_law(samples, Law(0.0, 0.3, 1e6))
    for value in (law.ps_per_flop, law.ps_per_byte, law.fixed_ps):
        assert 0.0 <= value < float("inf")
    assert fit_law(samples, Law(0.0, 0.3, 1e6)) == law


@pytest.mark.parametrize("name", ["resnet50-h100-b128", "vgg13-h100-b128"])
def test_bundled_traces_from_batch_1_to_4096(name: str) -> None:
    """Times rise with the batch, by at most its ratio; a read that leaves the L2 costs up to 2.3 times as much."""
    workload, gpu = load(name), load_gpu("h100-sxm")
    from_memory = gpu.l2_bytes_per_s / gpu.memory_bytes_per_s
    model = make_compute("auto", workload)
    batches = [1, 2, 5, 16, 64, 100, 128, 129, 256, 1000, 4096]
    for op in workload.operators:
        times = [model.duration(op, Split(batch)).ps for batch in batches]
        assert all(time > 0 for time in times) or op.gpu_time_ps == 0
        assert times[batches.index(128)] == op.gpu_time_ps
        for (a, at_a), (b, at_b) in zip(
            zip(batches, times, strict=True), zip(batches[1:], times[1:], strict=True), strict=False
        ):
            assert at_a <= at_b, f"{op.layer}: slower at batch {a} than at {b}"
            dearer = 1.0 if is_compute_bound(kind_of(op)) else from_memory
            assert at_b * a <= at_a * b * dearer + 2 * b, f"{op.layer}: more than proportional from batch {a} to {b}"
        if op.phase == "optimizer":
            assert set(times) == {op.gpu_time_ps}


@pytest.mark.parametrize("ways", [2, 4, 8])
def test_splitting_layers_is_no_faster_than_ideal(ways: int) -> None:
    workload = load("resnet50-h100-b128")
    model = make_compute("auto", workload)
    for op in workload.operators:
        if op.name in ("aten::conv2d", "aten::linear"):
            part = model.duration(op, Split(128, ways, "column")).ps
            assert op.gpu_time_ps <= part * ways + ways
            assert part <= op.gpu_time_ps
