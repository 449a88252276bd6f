"""Timing of kernels by a fake clock: median, budget, Ctrl-C, and kernels that do not run."""

from __future__ import annotations

import pytest
from measured_gpus import ReplayedDevice

from trine.measure import timing
from trine.measure.kernels import Kernel, gpu_kernels
from trine.measure.timing import (
    INTERRUPTED,
    MAX_REPEATS,
    MIN_REPEATS,
    NO_MEMORY,
    NO_TIME,
    WARM_UPS,
    KernelUnavailable,
    measure_kernels,
)

KERNELS = gpu_kernels(("bfloat16", "float32"))
SMALL = Kernel("copy", "bfloat16", (4, 4096))


def measured(device, kernels, budget_s=300.0, **options):
    return measure_kernels(device, kernels, budget_s=budget_s, now=device.now, **options)


def test_a_row_has_the_median_and_the_spread_of_its_repeats():
    row = measured(ReplayedDevice({SMALL: 100.0}), [SMALL]).kernels[0]
    assert (row.kind, row.dtype, tuple(row.shape)) == (SMALL.kind, SMALL.dtype, SMALL.shape)
    assert row.us == pytest.approx(100.0)
    assert row.spread == pytest.approx(0.02, abs=0.005)  # the noise is -2, -1, 0, 1 and 2 % in turn
    assert row.repeats == MAX_REPEATS


class WarmingDevice(ReplayedDevice):
    """The first runs take ten times as long."""

    def prepare(self, kernel):
        run, first = super().prepare(kernel), self.runs

        def slow_at_first():
            seconds = run()
            return 10 * seconds if self.runs - first <= WARM_UPS else seconds

        return slow_at_first


def test_warm_up_runs_do_not_count():
    row = measured(WarmingDevice({SMALL: 100_000.0}), [SMALL]).kernels[0]
    assert row.us == pytest.approx(100_000.0, rel=0.02)
    assert row.spread < 0.1


def test_long_kernels_have_the_least_repeats():
    device = ReplayedDevice({SMALL: 2e6})
    assert measured(device, [SMALL], budget_s=1.0).kernels[0].repeats == MIN_REPEATS
    assert device.runs == WARM_UPS + MIN_REPEATS


def test_the_budget_ends_the_run_and_names_the_kernels_left_out():
    times = dict.fromkeys(KERNELS, 20_000.0)  # 20 ms: 205 kernels of 8 runs need 28 s
    device = ReplayedDevice(times)
    result = measured(device, KERNELS, budget_s=5.0)
    assert 0 < len(result.kernels) < len(KERNELS)
    assert len(result.kernels) + len(result.left_out) == len(KERNELS)
    assert {row.reason for row in result.left_out} == {NO_TIME}
    assert result.seconds == pytest.approx(5.0, abs=0.5)
    assert [tuple(row.shape) for row in result.kernels] == [each.shape for each in KERNELS[: len(result.kernels)]]


def test_five_minutes_suffice_for_slow_setups():
    """With a second of set-up for every kernel the budget still holds."""
    device = ReplayedDevice(dict.fromkeys(KERNELS, 50_000.0), overhead_s=0.2)
    assert measured(device, KERNELS).seconds < 303


class InterruptedDevice(ReplayedDevice):
    """Ctrl-C arrives when the third kernel runs."""

    prepared = 0

    def prepare(self, kernel):
        self.prepared += 1
        if self.prepared == 3:
            raise KeyboardInterrupt
        return super().prepare(kernel)


def test_ctrl_c_keeps_the_rows_measured_so_far():
    device = InterruptedDevice(dict.fromkeys(KERNELS, 10.0))
    result = measured(device, KERNELS)
    assert result.is_interrupted
    assert len(result.kernels) == 2
    assert [row.reason for row in result.left_out] == [INTERRUPTED] * (len(KERNELS) - 2)


def test_ctrl_c_during_the_report_keeps_the_kernel_too():
    def interrupt(done, total):
        raise KeyboardInterrupt

    result = measured(ReplayedDevice(dict.fromkeys(KERNELS, 10.0)), KERNELS, report=interrupt)
    assert (len(result.kernels), len(result.left_out)) == (1, len(KERNELS) - 1)


class FailingDevice(ReplayedDevice):
    """Copies do not fit, and softmax does not exist."""

    def prepare(self, kernel):
        if kernel.kind == "copy":
            raise KernelUnavailable(NO_MEMORY)
        if kernel.kind == "softmax":
            raise KernelUnavailable("softmax not implemented for 'Half'")
        return super().prepare(kernel)


def test_kernels_that_do_not_run_are_left_out_with_the_reason():
    result = measured(FailingDevice(dict.fromkeys(KERNELS, 10.0)), KERNELS)
    reasons = {(row.kind, row.reason) for row in result.left_out}
    assert reasons == {("copy", NO_MEMORY), ("softmax", "softmax not implemented for 'Half'")}
    assert not result.is_interrupted


def test_kernels_beyond_the_memory_are_not_prepared():
    device = ReplayedDevice({SMALL: 10.0})
    device.memory_bytes = SMALL.num_bytes
    result = measured(device, [SMALL])
    assert [row.reason for row in result.left_out] == [NO_MEMORY]
    assert device.runs == 0


def test_a_time_of_zero_is_no_row():
    result = measured(ReplayedDevice({SMALL: 0.0}, overhead_s=1e-3), [SMALL])
    assert [row.reason for row in result.left_out] == ["shorter than the clock's resolution"]


def test_progress_is_reported_after_each_kernel():
    reports = []
    measured(ReplayedDevice(dict.fromkeys(KERNELS[:3], 10.0)), KERNELS[:3], report=lambda *args: reports.append(args))
    assert reports == [(1, 3), (2, 3), (3, 3)]


@pytest.mark.parametrize(("step_s", "samples"), [(1 / 64, 9), (1 / 32, 5), (1 / 16, 5)])
def test_timed_runs_end_at_their_share_of_the_time_and_not_before_the_least_number(step_s, samples):
    """Of 18/64 s, half is for timed runs: nine runs of 1/64 s end exactly there."""
    clock = [0.0]

    def run():
        clock[0] += step_s
        return step_s

    timed = timing._time(run, 18 / 64, lambda: clock[0])
    assert timed == [step_s] * samples
