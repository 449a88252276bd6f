"""Timing of kernels within a budget: warm-up, median of repeats, and a stop at the limit or at Ctrl-C.

The device, real or a test's, prepares each kernel, and runs it once at a time with cold caches.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import median, quantiles
from typing import Protocol

from trine.cluster.measured_gpu import LeftOutKernel, MeasuredKernel
from trine.measure.kernels import Kernel

#: Least number of warm-up runs and of timed ones, and the most timed ones.
WARM_UPS, MIN_REPEATS, MAX_REPEATS = 3, 5, 50
#: Seconds of warm-up, and of timed runs, if the budget allows them.
WARM_UP_S, TIMED_S = 0.05, 0.25
#: Share of the device's memory that a kernel's tensors may take.
MAX_MEMORY_SHARE = 0.8
NO_TIME, INTERRUPTED, NO_MEMORY = "the time limit came first", "interrupted", "out of memory"


class KernelUnavailable(Exception):
    """A kernel that the device cannot run; the text is the reason."""


class KernelDevice(Protocol):
    """A device that runs kernels."""

    @property
    def memory_bytes(self) -> int:
        """Capacity of its memory."""
        ...

    def prepare(self, kernel: Kernel) -> Callable[[], float]:
        """Return a function that runs the kernel once and returns its seconds. Raises KernelUnavailable."""
        ...

    def release(self) -> None:
        """Free the tensors of the last kernel."""
        ...


@dataclass(slots=True)
class Measurement:
    """Measured and left-out kernels, the seconds of the whole run, and whether Ctrl-C ended it."""

    kernels: list[MeasuredKernel] = field(default_factory=list)
    left_out: list[LeftOutKernel] = field(default_factory=list)
    seconds: float = 0.0
    is_interrupted: bool = False


def measure_kernels(
    device: KernelDevice,
    kernels: Sequence[Kernel],
    *,
    budget_s: float,
    now: Callable[[], float] = time.monotonic,
    report: Callable[[int, int], None] | None = None,
) -> Measurement:
    """Time ``kernels`` in their order, for at most about ``budget_s`` seconds.

    report: called after each kernel with the number done and the total. The result lists
    kernels that the device cannot run with the reason; after Ctrl-C, all remaining ones.
    """
    began, result = now(), Measurement()
    try:
        for done, kernel in enumerate(kernels):
            left_s = budget_s - (now() - began)
            if left_s <= 0:
                _leave_out(result, kernels[done:], NO_TIME)
                break
            _measure_one(device, kernel, left_s / (len(kernels) - done), now, result)
            if report is not None:
                report(done + 1, len(kernels))
    except KeyboardInterrupt:
        result.is_interrupted = True
        _leave_out(result, kernels[len(result.kernels) + len(result.left_out) :], INTERRUPTED)
    result.seconds = now() - began
    return result


def _measure_one(
    device: KernelDevice, kernel: Kernel, share_s: float, now: Callable[[], float], result: Measurement
) -> None:
    """Time one kernel and append its row, or append a left-out kernel with the reason."""
    if kernel.num_bytes > MAX_MEMORY_SHARE * device.memory_bytes:
        _leave_out(result, [kernel], NO_MEMORY)
        return
    try:
        samples = _time(device.prepare(kernel), share_s, now)
    except KernelUnavailable as problem:
        _leave_out(result, [kernel], str(problem))
        return
    finally:
        device.release()
    middle = median(samples)
    if middle <= 0:
        _leave_out(result, [kernel], "shorter than the clock's resolution")
        return
    low, _, high = quantiles(samples, n=4)
    result.kernels.append(
        MeasuredKernel(
            kind=kernel.kind,
            dtype=kernel.dtype,
            shape=list(kernel.shape),
            us=float(f"{middle * 1e6:.6g}"),
            spread=float(f"{(high - low) / middle:.3g}"),
            repeats=len(samples),
        )
    )


def _time(run: Callable[[], float], share_s: float, now: Callable[[], float]) -> list[float]:
    """Return the seconds of each timed run; about ``share_s`` for all runs, but at least MIN_REPEATS timed ones."""
    began = now()
    for _ in range(WARM_UPS):
        run()
    while now() - began < min(WARM_UP_S, share_s / 4):
        run()
    began, samples = now(), [run()]
    while len(samples) < MAX_REPEATS:
        if len(samples) >= MIN_REPEATS and now() - began >= min(TIMED_S, share_s / 2):
            break
        samples.append(run())
    return samples


def _leave_out(result: Measurement, kernels: Sequence[Kernel], reason: str) -> None:
    for kernel in kernels:
        row = LeftOutKernel(kind=kernel.kind, dtype=kernel.dtype, shape=list(kernel.shape), reason=reason)
        result.left_out.append(row)
