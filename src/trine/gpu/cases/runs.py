"""Runs of collectives on the GPU of the case studies, their reported figures, and their simulation cost (case 5)."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache

from trine.cluster import load_cluster
from trine.cluster.cluster import Cluster
from trine.collectives.sizes import format_size
from trine.common.units import format_time
from trine.errors import SimulationError
from trine.gpu.cases.case import CaseStudy, Curve, Finding, Panel
from trine.gpu.kernels.build import build_kernel
from trine.gpu.model import GpuModel
from trine.gpu.model.files import load_gpu_model
from trine.gpu.run import GpuRun, GpuRunOptions, run_gpus

PRESET = "astra3-generic"
#: 1024 threads in wavefronts, each reading a line with 32 lanes of 4 bytes; assumed, as the paper gives no number.
WAVEFRONTS = 32
#: The default of `trine kernel build`.
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
    """Pass a sentence to ``on_run`` after each run inside the context: a study takes a minute and may be stopped."""
    token = _ON_RUN.set(on_run)
    try:
        yield
    finally:
        _ON_RUN.reset(token)


def tell(sentence: str) -> None:
    """Report a finished run."""
    on_run = _ON_RUN.get()
    if on_run is not None:
        on_run(sentence)


@cache
def machine() -> Cluster:
    """Return the paper's cluster."""
    return load_cluster(PRESET)


def gpu_model() -> GpuModel:
    """Return the paper's GPU."""
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
    """Build and run one collective on the first ``ranks`` GPUs. Raises the errors of build_kernel and run_gpus."""
    target_cluster = machine() if cluster is None else cluster
    program = build_kernel(
        op, ranks, size_bytes, algorithm=algorithm, workgroups=workgroups, wavefronts=wavefronts, protocol=protocol
    )
    began = time.perf_counter()
    gpu = model or gpu_model()
    run = run_gpus(program, target_cluster, target_cluster.gpus[:ranks], gpu, options=GpuRunOptions(fold=fold)).whole()
    wall_s = time.perf_counter() - began
    tell(
        f"{program.name} ({protocol}) of {format_size(size_bytes)} on {ranks} GPUs; unroll {gpu.unroll}, "
        f"{gpu.max_outstanding} requests a CU, ports {gpu.ports.arbitration}: {format_time(run.end_ps)}"
    )
    loads = int(run.gpu.loads[0])
    return Measured(
        size_bytes=size_bytes, time_ps=run.end_ps, events=run.gpu.num_events, wall_s=wall_s,
        load_ps=int(run.gpu.load_latency_ps[0]) / loads if loads else 0.0, memory_lines=loads + int(run.gpu.stores[0]),
        run=run,
    )  # fmt: skip


SIZES = (MIB, 4 * MIB, 16 * MIB)
GPUS = (2, 8, 32, 128)
#: Only on the largest number of GPUs.
LARGER = (64 * MIB, 256 * MIB)
#: Unfolded runs, small ones only.
WHOLE = ((2, MIB), (2, 4 * MIB), (8, MIB), (8, 4 * MIB))


def cost(
    sizes: Sequence[int] = SIZES,
    gpus: Sequence[int] = GPUS,
    larger: Sequence[int] = LARGER,
    whole: Sequence[tuple[int, int]] = WHOLE,
    workgroups: int = 32,
) -> CaseStudy:
    """Measure ``sizes`` (ascending) on ``gpus``, ``larger`` on the most GPUs, folded; ``whole``: pairs unfolded too."""
    measured_sizes = [(n, size) for n in gpus for size in sizes]
    larger_sizes = [(gpus[-1], size) for size in larger]
    cases = measured_sizes + larger_sizes
    _gather(2, sizes[0], workgroups, "auto")  # load the compiled kernels
    runs = {case: _gather(*case, workgroups, "auto") for case in cases}
    unfolded = {case: _gather(*case, workgroups, "off") for case in whole}
    return CaseStudy(
        name="cost",
        title="Case 5: what simulating an all-gather (put) costs, by output and GPUs",
        settings=(GPU, f"{workgroups} workgroups. Folded: one GPU is simulated for all; unfolded: each by itself."),
        columns=("GPUs", "output bytes", "simulated", "us", "events", "events a line", "s"),
        rows=tuple(
            (n, size, simulated, run.time_us, run.events, _per_line(run), run.wall_s)
            for runs_of_kind, simulated in ((runs, "one GPU"), (unfolded, "all"))
            for (n, size), run in runs_of_kind.items()
        ),
        findings=(*_linear(runs, sizes, gpus), _exact(runs, unfolded)),
        panels=(_panel(runs, unfolded, gpus),),
        volatile=("s",),
    )


def _gather(ranks: int, size: int, workgroups: int, fold: str) -> Measured:
    return measure("all_gather", ranks, size, "put", workgroups, fold=fold)


def _per_line(run: Measured) -> float:
    """Return the events per line of output: a cost that does not depend on the size."""
    return run.events * gpu_model().line_bytes / run.size_bytes


def _linear(runs: dict[tuple[int, int], Measured], sizes: Sequence[int], gpus: Sequence[int]) -> tuple[Finding, ...]:
    lines = {case: _per_line(run) for case, run in runs.items()}
    large = [run for (n, size), run in runs.items() if n == gpus[-1] and size >= sizes[-1]]
    costs = [_per_line(run) for run in large]
    spread, share = max(costs) / min(costs) - 1, lines[gpus[-1], sizes[-1]] / lines[gpus[0], sizes[-1]]
    top = large[-1]
    return (
        Finding(
            paper="the time of a simulation grows linearly with bytes",
            here=f"{gpus[-1]} GPUs: events a line of output differ by {100 * spread:.1f} % from "
            f"{format_size(large[0].size_bytes)} to {format_size(top.size_bytes)}",
            holds=spread < 0.05,
            assumed="events are judged, not time; one GPU is simulated for all, as they behave alike",
        ),
        Finding(
            paper="",
            here=f"folded, {gpus[-1]} GPUs take {share:.2f} times the events of {gpus[0]} for the same output; in the "
            "paper each of them is simulated (57 344 endpoints at 128)",
            holds=None,
        ),
        Finding(
            paper="",
            here=f"{top.events:,} events in {top.wall_s:.1f} s: {top.events / top.wall_s / 1e6:.1f} million a second",
            holds=None,
            volatile=True,
        ),
    )


def _exact(runs: dict[tuple[int, int], Measured], unfolded: dict[tuple[int, int], Measured]) -> Finding:
    """Return the finding on folding; raise SimulationError if a folded run differs from its unfolded one."""
    for case, run in unfolded.items():
        if case in runs and runs[case].time_ps != run.time_ps:
            raise SimulationError(
                f"{case[0]} GPUs, {case[1]} B: folded {runs[case].time_ps} ps, unfolded {run.time_ps} ps"
            )
    share = [run.events / runs[case].events / case[0] for case, run in unfolded.items() if case in runs]
    return Finding(
        paper="",
        here=f"unfolded runs end at the same picosecond, with {min(share):.2f} to {max(share):.2f} times GPUs x "
        "the events",
        holds=None,
    )


def _panel(runs: dict[tuple[int, int], Measured], apart: dict[tuple[int, int], Measured], gpus: Sequence[int]) -> Panel:
    curves = []
    for runs_of_kind, style, word in ((runs, "o-", "folded"), (apart, "s--", "unfolded")):
        for n in sorted({case[0] for case in runs_of_kind}):
            row = [run for (m, _), run in runs_of_kind.items() if m == n]
            x = tuple(float(run.size_bytes) for run in row)
            y = tuple(run.wall_s for run in row)
            colour = gpus.index(n) if n in gpus else len(gpus)
            curves.append(Curve(label=f"{n} GPUs, {word}", x=x, y=y, style=style, colour=colour))
    return Panel(
        title="All-gather: time of the simulation", x_label="output", y_label="wall time (s)", curves=tuple(curves),
        sizes=True, log="xy",
    )  # fmt: skip
