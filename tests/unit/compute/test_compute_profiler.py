"""What remains of recorded launches without the profiler, and the GPU's idle time between kernels."""

from __future__ import annotations

from dataclasses import replace

import pytest
from compute_cases import US, relus
from test_compute_launch import with_launches

import trine
from trine.compute import Split, launch_costs, make_compute
from trine.compute.gaps import WithKernelGaps, kernel_gap_ps
from trine.compute.profiler import USUAL_SHARE, without_profiler
from trine.graph.workload import KERNEL_GAP, LAUNCH_CALL, Workload

#: Start and duration of four launches, each 10 us before the next.
LAUNCHES = [(0, 5), (10, 6), (20, 4), (30, 10)]


def recorded(gpu_us: int, unprofiled_us: int, **metadata: str) -> Workload:
    workload = with_launches(relus([(10, gpu_us * US)] * 4), LAUNCHES)
    return replace(workload, unprofiled_step_ps=unprofiled_us * US, metadata=metadata)


def test_without_unprofiled_steps_launches_stay() -> None:
    share, note = without_profiler(replace(recorded(5, 1), unprofiled_step_ps=None), [10 * US] * 4, [10 * US] * 4)
    assert share == 1.0
    assert "with the profiler on" in note


def test_steps_that_wait_for_the_cpu_show_the_share() -> None:
    """Four launches of 10 us and the last kernel of 5 us take 45 us with the profiler, and 37 us without."""
    costs = launch_costs(recorded(5, 37))
    assert [cost / US for cost in costs.cost_ps] == pytest.approx([8, 8, 8, 8], rel=1e-6)
    assert "20% shorter than recorded" in costs.notes[0]


def test_steps_that_keep_the_gpu_busy_get_the_usual_share() -> None:
    """The first launch of 10 us is 2 % of a step of 410 us, so any share fits 405 us within 1 %."""
    costs = launch_costs(recorded(100, 405))
    assert [cost / US for cost in costs.cost_ps] == pytest.approx([10 * USUAL_SHARE] * 4)
    assert "assumed 24% shorter" in costs.notes[0]


def test_gaps_belong_to_the_gpus_time() -> None:
    """Kernels of 5 us with gaps of 2 us: the last operator takes 7 us, so launches take 30 of 37 us."""
    workload = recorded(5, 37, **{KERNEL_GAP: str(2 * US)})
    operators = tuple(replace(op, kernel_times_ps=(op.gpu_time_ps,)) for op in workload.operators)
    costs = launch_costs(replace(workload, operators=operators))
    assert [cost / US for cost in costs.cost_ps] == pytest.approx([7.5] * 4, rel=1e-6)


def test_launches_of_a_disturbed_cpu_are_scaled_to_the_usual_call() -> None:
    """Steps of 20 us of kernels took 22 us. Launches of 10 us would make them longer, and a call took 24 us, not 6."""
    costs = launch_costs(recorded(5, 22, **{LAUNCH_CALL: str(24 * US)}))
    assert [cost / US for cost in costs.cost_ps] == pytest.approx([10 / 4 * USUAL_SHARE] * 4)
    assert "a launch call took 24 us instead of the usual 6 us" in costs.notes[0]


@pytest.mark.parametrize("call_us", [3, 6])
def test_a_usual_call_is_no_disturbance(call_us: int) -> None:
    plain, slow = (launch_costs(recorded(5, 37, **meta)) for meta in ({}, {LAUNCH_CALL: str(call_us * US)}))
    assert plain == slow


def test_each_kernel_is_followed_by_a_gap() -> None:
    """Two operators of 10 us in 1 and 3 kernels with gaps of 2 us; at twice the batch their gaps stay."""
    made = relus([(10, 10 * US), (20, 10 * US)])
    kernels = (1, 3)
    operators = tuple(
        replace(op, kernel_times_ps=(op.gpu_time_ps // n,) * n) for op, n in zip(made.operators, kernels, strict=True)
    )
    workload = replace(made.workload(), operators=operators, metadata={KERNEL_GAP: str(2 * US)})
    assert kernel_gap_ps(workload) == 2 * US
    busy = make_compute("auto", workload)
    model = WithKernelGaps(busy, 2 * US)
    for batch in (workload.batch, 2 * workload.batch):
        for op, n in zip(operators, kernels, strict=True):
            assert model.duration(op, Split(batch)).ps == busy.duration(op, Split(batch)).ps + 2 * n * US
    assert trine.simulate(workload, trine.Plan(inputs="none"), cpu=False).step_time_ps == 28 * US
