"""Runs of collectives on the GPU of the case studies, and what of them is told."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache

from trine.cluster import load_cluster
from trine.cluster.cluster import Cluster
from trine.collectives.kernels.build import build_kernel
from trine.collectives.sizes import format_size
from trine.gpu.model import GpuModel
from trine.gpu.model.files import load_gpu_model
from trine.gpu.run import GpuRun, GpuRunOptions, run_gpus
from trine.units import format_time

PRESET = "astra3-generic"
#: 1024 threads in wavefronts whose requests of one line are 32 lanes of 4 bytes; the paper does not say.
WAVEFRONTS = 32
#: What `trine kernel build` and `trine collective --fidelity loadstore` take if nothing is said.
FEWER_WAVEFRONTS = 8
ASSUMED = f"{WAVEFRONTS} wavefronts a workgroup; headers, latencies and limits of requests inside the GPU"
GPU = "GPU and cluster astra3-generic: its sizes are the paper's, headers and latencies inside are assumed."
SHAPE = (
    f"{WAVEFRONTS} wavefronts a workgroup (assumed: 1024 threads, 32 lanes of 4 B a line), each with up to 16 requests "
    "in flight, a compute unit with up to 512 (assumed)."
)
KIB, MIB = 1 << 10, 1 << 20

#: Called with a sentence after each run.
OnRun = Callable[[str], None]
_ON_RUN: ContextVar[OnRun | None] = ContextVar("on_run", default=None)


@dataclass(frozen=True, kw_only=True, slots=True)
class Measured:
    """One run. load_ps: mean time from a load to its answer; memory_lines: loads and stores of one GPU."""

    size_bytes: int
    time_ps: int
    events: int
    wall_s: float
    load_ps: float
    memory_lines: int
    run: GpuRun

    @property
    def gb_per_s(self) -> float:
        """algbw: payload / time in GB/s, as nccl-tests counts."""
        return self.size_bytes * 1e3 / self.time_ps

    @property
    def time_us(self) -> float:
        return self.time_ps / 1e6


@contextmanager
def telling(on_run: OnRun | None) -> Iterator[None]:
    """Within it, runs are told to ``on_run`` as they end: a study takes a minute, and may be stopped."""
    token = _ON_RUN.set(on_run)
    try:
        yield
    finally:
        _ON_RUN.reset(token)


def tell(sentence: str) -> None:
    """Say what has been run."""
    on_run = _ON_RUN.get()
    if on_run is not None:
        on_run(sentence)


@cache
def machine() -> Cluster:
    """The paper's cluster."""
    return load_cluster(PRESET)


def gpu_model() -> GpuModel:
    """The paper's GPU."""
    return load_gpu_model(PRESET)


def measure(
    op: str,
    ranks: int,
    size_bytes: int,
    algorithm: str,
    workgroups: int,
    *,
    model: GpuModel | None = None,
    cluster: Cluster | None = None,
    protocol: str = "simple",
    fold: str = "auto",
    wavefronts: int = WAVEFRONTS,
) -> Measured:
    """Build and run one collective on the first ``ranks`` GPUs. Raises what build_kernel and run_gpus raise."""
    where = machine() if cluster is None else cluster
    program = build_kernel(
        op, ranks, size_bytes, algorithm=algorithm, workgroups=workgroups, wavefronts=wavefronts, protocol=protocol
    )
    began = time.perf_counter()
    gpu = model or gpu_model()
    run = run_gpus(program, where, where.gpus[:ranks], gpu, options=GpuRunOptions(fold=fold)).whole()
    wall_s = time.perf_counter() - began
    tell(
        f"{program.name} ({protocol}) of {format_size(size_bytes)} on {ranks} GPUs; unroll {gpu.unroll}, "
        f"{gpu.max_outstanding} requests a CU, ports {gpu.ports.arbitration}: {format_time(run.end_ps)}"
    )
    loads = int(run.gpu.loads[0])
    return Measured(
        size_bytes=size_bytes,
        time_ps=run.end_ps,
        events=run.gpu.num_events,
        wall_s=wall_s,
        load_ps=int(run.gpu.load_latency_ps[0]) / loads if loads else 0.0,
        memory_lines=loads + int(run.gpu.stores[0]),
        run=run,
    )
