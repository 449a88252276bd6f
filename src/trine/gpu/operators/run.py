"""Times of operators at the load-store level: a short kernel runs whole, a long product in some waves and steps.

A long product repeats itself: once loads and arithmetic overlap, each further wave of tiles, and each further step of
the inner loop, costs the same time. Its time is therefore linear in both. A long stream is extended by its bytes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from trine.cluster.cluster import Cluster
from trine.common.observer import announce_stage
from trine.gpu.collective.extension import extend
from trine.gpu.collective.time_split import without_bandwidth
from trine.gpu.model import GpuModel
from trine.gpu.operators.gemm import STAGES, GemmKernel, GemmPart
from trine.gpu.operators.stream import StreamKernel
from trine.gpu.run import run_gpus
from trine.gpu.system import KernelTasks
from trine.graph.builder import TaskGraphBuilder

#: A product with at most this many cache lines runs whole: about two seconds of CPU time.
WHOLE_LINES = 2_000_000
#: Steps of the inner loop in the parts of a longer product. The rates between them show whether it is steady.
STEPS = (8, 16, 24)
#: Products with more waves are extended from their first two.
WHOLE_WAVES = 2
#: Parts of a stream, of which longer ones are extended; up to the last one it runs whole.
STREAM_PARTS_BYTES = (16 << 20, 32 << 20, 64 << 20)


@dataclass(frozen=True, kw_only=True, slots=True)
class KernelTime:
    """Time of a kernel on an otherwise idle GPU, with its launch. extension: how it follows from parts; "" if whole."""

    time_ps: int
    extension: str


class Gpu(NamedTuple):
    """One GPU of a cluster: its device, and its model."""

    cluster: Cluster
    device: int
    model: GpuModel


def time_of_gemm(gpu: Gpu, kernel: GemmKernel) -> KernelTime:
    """Run a product, or parts of a long one. Raises KeyboardInterrupt on Ctrl-C before the end."""
    if kernel.num_lines <= WHOLE_LINES or kernel.splits > 1:
        announce_stage(f"product load by load: {kernel.shape.words}")
        return KernelTime(time_ps=_gemm_ps(gpu, kernel, kernel.whole), extension="")
    steps = [count for count in STEPS if count < kernel.steps]
    if len(steps) < 2:
        steps = [kernel.steps]
    times_ps = []
    for count in steps:
        announce_stage(f"product load by load: {count} of {kernel.steps} steps, {kernel.shape.words}")
        times_ps.append(_all_waves_ps(gpu, kernel, count))
    words = f"extended from {steps[-1]} of {kernel.steps} steps of the inner loop"
    if kernel.waves > WHOLE_WAVES:
        words += f" and from {WHOLE_WAVES} of {kernel.waves} waves"
    if len(steps) == 1:
        return KernelTime(time_ps=times_ps[0], extension=words)
    rates = (np.diff(times_ps) / np.diff(steps)).tolist()
    if len(rates) > 1:
        words += f"; the rates of its last two parts differ by {100 * abs(rates[-1] / rates[-2] - 1):.1f} %"
    # In the first steps, loads of the next tile overlap more than later; no step is faster than its arithmetic.
    rate = max(rates[-1], float(kernel.waves * kernel.step_ps))
    return KernelTime(time_ps=times_ps[-1] + round(rate * (kernel.steps - steps[-1])), extension=words)


def time_without_bandwidth(gpu: Gpu, kernel: GemmKernel) -> int:
    """Return the time in ps of a product whose loads and stores cost only latency.

    Its arithmetic never waits for loads but for the first ones of a wave, so that short waves show all other delays.
    """
    fast = gpu._replace(model=without_bandwidth(gpu.model))
    if kernel.num_lines <= WHOLE_LINES or kernel.splits > 1:
        return _gemm_ps(fast, kernel, kernel.whole)
    steps = min(STEPS[0], kernel.steps)
    delays_ps = _all_waves_ps(fast, kernel, steps) - kernel.waves * steps * kernel.step_ps
    return kernel.arithmetic_ps + max(delays_ps, gpu.model.launch_ps)


def _all_waves_ps(gpu: Gpu, kernel: GemmKernel, steps: int) -> int:
    """Return the time of all waves with ``steps`` steps each: of the first two, extended to all."""
    if kernel.waves <= WHOLE_WAVES:
        return _gemm_ps(gpu, kernel, GemmPart(kernel.num_units, steps))
    wave = kernel.model.num_cus
    one_ps = _gemm_ps(gpu, kernel, GemmPart(wave, steps))
    two_ps = _gemm_ps(gpu, kernel, GemmPart(2 * wave, steps))
    return two_ps + (kernel.waves - 2) * (two_ps - one_ps)


def _gemm_ps(gpu: Gpu, kernel: GemmKernel, part: GemmPart) -> int:
    # Shared memory holds the stages of one workgroup, and its loads need no registers.
    model = replace(gpu.model, workgroups_per_cu=1, max_outstanding=STAGES * kernel.step_lines)
    return run_gpus(kernel.program(part), gpu.cluster, (gpu.device,), model).whole().end_ps


def time_of_stream(gpu: Gpu, kernel: StreamKernel) -> KernelTime:
    """Run a stream, or the first parts of a long one. Raises KeyboardInterrupt on Ctrl-C before the end."""
    size_bytes = kernel.shape.size_bytes

    def time_at(part_bytes: int) -> int:
        return _stream_ps(gpu, replace(kernel, shape=kernel.shape.part(part_bytes)))

    announce_stage(f"{kernel.num_lines:,} cache lines load by load")
    if size_bytes <= STREAM_PARTS_BYTES[-1]:
        return KernelTime(time_ps=time_at(size_bytes), extension="")
    extension = extend(size_bytes, STREAM_PARTS_BYTES, time_at)
    return KernelTime(time_ps=extension.time_ps, extension=extension.words)


def _stream_ps(gpu: Gpu, kernel: StreamKernel) -> int:
    """Return the time of the second kernel, which follows the one that fills the L2."""
    graph = TaskGraphBuilder((), ())
    graph.compute(0, "compute", 0)
    graph.compute(0, "compute", 0)
    tasks = KernelTasks(graph.build(), np.arange(2, dtype=np.int32))
    run = run_gpus(kernel.program(), gpu.cluster, (gpu.device,), gpu.model, tasks=tasks).whole()
    return int(run.records.end_ps[1] - run.records.end_ps[0])
