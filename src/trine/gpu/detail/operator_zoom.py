"""An operator of a step at both levels: its two times, their difference by cause, and the effect on the step."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

from trine.cluster.topologies import build_topology
from trine.common.arguments import takes
from trine.common.evidence import Evidence
from trine.common.units import format_bytes, format_time
from trine.compute.clock import StepClock
from trine.compute.origin import known_gpu
from trine.errors import InputError
from trine.gpu.collective.options import plain_model
from trine.gpu.detail.operator_choice import StepOperator, choose_operator
from trine.gpu.model import GpuModel
from trine.gpu.operators.gemm import GemmKernel, GemmShape, gemm_kernel
from trine.gpu.operators.run import Gpu, KernelTime, time_of_gemm, time_of_stream, time_without_bandwidth
from trine.gpu.operators.stream import StreamKernel
from trine.gpu.operators.tensor_cores import at_clock, tensor_cores
from trine.graph.workload import Workload
from trine.parallel.plan import Plan
from trine.results import Result
from trine.results.report import Report, Row, Table, seconds
from trine.results.text import aligned, wrapped
from trine.training.options import SimulateOptions, observed
from trine.training.run import simulate
from trine.training.setup import Setup, setup_of

LAUNCH, ARITHMETIC, MEMORY = "launch", "arithmetic", "bytes at the memory's bandwidth"
TILES, LATENCY, BANDWIDTH = "tiles and waves", "first loads and last stores", "NoC, L2 and memory"
#: The part of an operator-level time that is neither arithmetic nor bytes.
NOT_SPLIT = "not split at the operator level"
_ESTIMATE = "estimated: operators of one rank run one after the other, and each changes by the same time"
#: Not part of the kernel at the load-store level.
NOT_MODELLED = "instructions beside loads, stores and matrix products, bank conflicts, the library's choice of tiles"


@dataclass(frozen=True, kw_only=True, slots=True)
class KernelPart:
    """A part of a kernel's time at the load-store level, in ps, with its meaning. The parts add up to the time."""

    name: str
    time_ps: int
    why: str


@dataclass(frozen=True, kw_only=True, slots=True)
class OperatorKernelRun:
    """A kernel of the operator: its shape and its division in words, its time, and the parts of this."""

    shape: str
    division: str
    time: KernelTime
    parts: tuple[KernelPart, ...]


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class OperatorZoom(Report):
    """One operator of a step at both levels, alone on its GPU.

    chosen: the operator. kernels: its kernels load by load, one after the other. ideal_ps: the part of the
    operator-level time that both levels have: arithmetic at the clock of the step, or bytes at the memory's bandwidth.
    clock_mhz: of the matrix cores. gpu: name of the GPU model. step_ps: time of the step.
    """

    SCHEMA: ClassVar[str] = "operator-zoom"

    chosen: StepOperator
    kernels: tuple[OperatorKernelRun, ...]
    ideal_ps: int
    clock_mhz: int
    gpu: str
    step_ps: int

    @property
    def operator_ps(self) -> int:
        """Time at the operator level, alone."""
        return self.chosen.operator_ps

    @property
    def loadstore_ps(self) -> int:
        """Time at the load-store level: of all kernels, one after the other."""
        return sum(kernel.time.time_ps for kernel in self.kernels)

    @property
    def difference_ps(self) -> int:
        """Load-store level - operator level."""
        return self.loadstore_ps - self.operator_ps

    @property
    def change_ps(self) -> int:
        """Estimated change of the step if each such operator took the load-store time."""
        return self.chosen.count * self.difference_ps

    @property
    def causes(self) -> tuple[KernelPart, ...]:
        """The difference by cause; the times add up to it."""
        rest_ps = self.operator_ps - self.ideal_ps
        why = f"operator level {format_time(rest_ps)} beyond its arithmetic or bytes ({self.chosen.evidence})"
        own = [part for part in self.parts if part.name not in (ARITHMETIC, MEMORY)]
        return (*own, KernelPart(name=NOT_SPLIT, time_ps=-rest_ps, why=why))

    @property
    def parts(self) -> tuple[KernelPart, ...]:
        """The parts of the load-store time, of all kernels together."""
        together: dict[str, KernelPart] = {}
        for kernel in self.kernels:
            for part in kernel.parts:
                known = together.get(part.name)
                time_ps = part.time_ps if known is None else known.time_ps + part.time_ps
                why = part.why if known is None or known.why == part.why else f"{known.why}; {part.why}"
                together[part.name] = KernelPart(name=part.name, time_ps=time_ps, why=why)
        return tuple(together.values())

    # Views

    @property
    def headline(self) -> str:
        chosen = self.chosen
        return (
            f"{chosen.word}: {chosen.name} of {chosen.layer or 'no layer'} on rank {chosen.rank}: "
            f"{format_time(self.operator_ps)} at the operator level, {format_time(self.loadstore_ps)} load by load; "
            f"{_signed(self.change_ps)} a step if all took that"
        )

    @property
    def evidence(self) -> tuple[Evidence, ...]:
        words = [kernel.time.extension for kernel in self.kernels if kernel.time.extension]
        found = [
            Evidence("time at the operator level", self.chosen.evidence, "operator tables, alone on the GPU"),
            Evidence("time load by load", "modelled", "; ".join(words) or f"all loads and stores on {self.gpu}"),
            Evidence("change of the step", "modelled", _ESTIMATE),
        ]
        return tuple(found)

    @property
    def notes(self) -> tuple[str, ...]:
        return (f"not modelled: {NOT_MODELLED}",)

    def details(self) -> str:
        """Return both times, the parts, the difference by cause, and the effect on the step."""
        chosen = self.chosen
        longest = f"the longest of {chosen.matches:,} on rank {chosen.rank}, the slowest"
        lines = wrapped("zoom", f"{chosen.words}; {longest}")
        lines += aligned(self._level_lines(), 1)
        for kernel in self.kernels:
            lines += wrapped("kernel", ", ".join(filter(None, (kernel.shape, kernel.division))))
            lines += wrapped("load by load", kernel.time.extension)
        lines += ["", *aligned([("load by load, parts", "time"), *self._part_lines()], 1), ""]
        rows = [(cause.name, _signed(cause.time_ps)) for cause in self.causes if cause.time_ps]
        lines += aligned([("difference by cause", "time"), *rows, ("together", _signed(self.difference_ps))], 1)
        lines += [line for cause in self.causes if cause.time_ps for line in wrapped(cause.name, cause.why)]
        share = 100 * self.change_ps / self.step_ps if self.step_ps else 0.0
        plural = "s" if chosen.count > 1 else ""
        lines += ["", *wrapped(
            "step",
            f"{chosen.count:,} such operator{plural}: {_signed(self.change_ps)} ({share:+.2f} %) of "
            f"{format_time(self.step_ps)} if each took the load-store time ({_ESTIMATE})",
        )]  # fmt: skip
        lines += wrapped("not modelled", NOT_MODELLED)
        return "\n".join(line.rstrip() for line in lines)

    def summary(self) -> str:
        """Return the same text as :meth:`details`; it is short."""
        return self.details()

    def _level_lines(self) -> list[tuple[str, ...]]:
        of_ideal = [
            f"{100 * self.ideal_ps / time_ps:.0f} %" if time_ps else ""
            for time_ps in (self.operator_ps, self.loadstore_ps)
        ]
        bound = ARITHMETIC if any(part.name == ARITHMETIC for part in self.parts) else "memory bandwidth"
        at_clock_words = f" at {self.clock_mhz:,} MHz" if bound == ARITHMETIC else ""
        return [
            ("alone on the GPU", "time", f"reaches of {bound}{at_clock_words}"),
            ("operator level", format_time(self.operator_ps), of_ideal[0]),
            ("load by load", format_time(self.loadstore_ps), of_ideal[1]),
        ]

    def _part_lines(self) -> Iterator[tuple[str, str]]:
        for part in self.parts:
            yield part.name, format_time(part.time_ps) if part.time_ps >= 0 else _signed(part.time_ps)

    def document(self) -> Row:
        """Return the result as plain data (docs/reference/detail-json.md)."""
        chosen = self.chosen
        return {
            "word": chosen.word,
            "matches": chosen.matches,
            "operator": {
                "name": chosen.name, "layer": chosen.layer or None, "phase": chosen.phase, "rank": chosen.rank,
                "precision": chosen.precision,
            },
            "operator_s": seconds(self.operator_ps),
            "operator_evidence": chosen.evidence,
            "loadstore_s": seconds(self.loadstore_ps),
            "ideal_s": seconds(self.ideal_ps),
            "clock_mhz": self.clock_mhz,
            "difference_s": seconds(self.difference_ps),
            "causes": _rows(self.causes),
            "kernels": [
                {
                    "shape": kernel.shape, "division": kernel.division or None, "time_s": seconds(kernel.time.time_ps),
                    "extension": kernel.time.extension or None, "parts": _rows(kernel.parts),
                }
                for kernel in self.kernels
            ],
            "step": {
                "count": chosen.count, "step_time_s": seconds(self.step_ps), "change_s": seconds(self.change_ps),
                "how": _ESTIMATE,
            },
            "notes": list(self.notes),
        }  # fmt: skip

    def tables(self) -> dict[str, Table]:
        """Return ``causes`` and ``parts``."""
        return {"causes": _rows(self.causes), "parts": _rows(self.parts)}


def _rows(parts: tuple[KernelPart, ...]) -> list[Row]:
    return [{"name": part.name, "time_s": seconds(part.time_ps), "why": part.why} for part in parts]


def _signed(time_ps: int) -> str:
    return f"{'-' if time_ps < 0 else '+'}{format_time(abs(time_ps))}"


@takes(SimulateOptions)
@observed
def zoom_operator(
    workload: Workload | str | os.PathLike[str],
    plan: Plan,
    word: str,
    result: Result | None = None,
    *,
    options: SimulateOptions,
) -> OperatorZoom:
    """Simulate one operator of a step at the load-store level, and compare it with the operator level.

    Parameters
    ----------
    workload, plan, options: the step, as in :func:`trine.simulate`. word: names the operator
        (:func:`trine.gpu.detail.operator_choice.choose_operator`). result: the step's result, if known.

    A matrix product runs in tiles at the clock that the step's power balance gives, other operators as a stream of
    bytes. Long kernels run in part (:mod:`trine.gpu.operators.run`).

    Raises
    ------
    InputError, SpecError, PlanError: for a step without a known GPU, an unknown word, an operator without a program, or
        a GPU without a model. KeyboardInterrupt: on Ctrl-C before the end.
    """
    setup = setup_of(workload, plan, options)
    if result is None:
        result = simulate(setup.workload, setup.plan, options=replace(options, compare=False))
    chosen = choose_operator(setup, result, word)
    gpu = _gpu_of(setup, chosen.rank)
    model = gpu.model
    clock = setup.clocks[0] if setup.clocks else None
    runs, ideal_ps = [], 0
    clock_mhz = round(1e6 / model.cycle_ps)
    for shape in chosen.kernels:
        if isinstance(shape, GemmShape):
            kernel = _gemm(setup, model, clock, chosen.precision, shape)
            clock_mhz = round(1e6 / kernel.model.cycle_ps)
            run = _gemm_run(gpu._replace(model=kernel.model), kernel)
        else:
            run = _stream_run(gpu, StreamKernel(shape=shape, model=model))
        ideal_ps += sum(part.time_ps for part in run.parts if part.name in (ARITHMETIC, MEMORY))
        runs.append(run)
    return OperatorZoom(
        chosen=chosen, kernels=tuple(runs), ideal_ps=ideal_ps, clock_mhz=clock_mhz, gpu=model.name,
        step_ps=result.step_time_ps,
    )  # fmt: skip


def _gpu_of(setup: Setup, rank: int) -> Gpu:
    """Return the GPU of a rank; of a step without a cluster, a GPU of its model beside another one."""
    if setup.machine is not None:
        device = setup.machine.gpus[int(setup.places[rank])]
        return Gpu(setup.machine, device, plain_model(None, setup.machine, (device,), is_plan=False))
    name = setup.gpu_names[0] if setup.gpu_names else None
    if name is None or known_gpu(name) is None:
        raise InputError("a zoom into an operator needs a known GPU: --gpu NAME or --cluster NAME")
    pair = build_topology("full", "1 GB/s", "1 us", 2, gpu=name)
    device = pair.gpus[0]
    return Gpu(pair, device, plain_model(None, pair, (device,), is_plan=False))


def _gemm(setup: Setup, model: GpuModel, clock: StepClock | None, precision: str, shape: GemmShape) -> GemmKernel:
    """Return the kernel of a product at the clock of the step, if that is known."""
    gpu = known_gpu(setup.gpu_names[0])
    if gpu is None:
        raise InputError(f"the GPU {setup.gpu_names[0]} has no data sheet, so that its matrix cores' rate is unknown")
    cores = tensor_cores(gpu, model, precision)
    if clock is not None:
        model = at_clock(model, clock.gemm_clock * clock.curve.max_mhz)
    return gemm_kernel(shape, model, cores)


def _gemm_run(gpu: Gpu, kernel: GemmKernel) -> OperatorKernelRun:
    launch_ps = gpu.model.launch_ps
    time = time_of_gemm(gpu, kernel)
    without_ps = time_without_bandwidth(gpu, kernel)
    rate = kernel.cores.flop_per_cycle * gpu.model.num_cus
    arithmetic_ps = -(-kernel.shape.flops // rate) * gpu.model.cycle_ps
    mhz = round(1e6 / gpu.model.cycle_ps)
    parts = (
        KernelPart(name=LAUNCH, time_ps=launch_ps, why="before the first workgroup"),
        KernelPart(
            name=ARITHMETIC, time_ps=arithmetic_ps,
            why=f"{kernel.cores.flop_per_cycle:,} FLOPs per cycle of each compute unit at {mhz:,} MHz",
        ),
        KernelPart(name=TILES, time_ps=kernel.arithmetic_ps - arithmetic_ps, why=kernel.words),
        KernelPart(
            name=LATENCY, time_ps=without_ps - launch_ps - kernel.arithmetic_ps,
            why="arithmetic waits for the first operands, and for the result of the last tile to be stored",
        ),
        KernelPart(
            name=BANDWIDTH, time_ps=time.time_ps - without_ps,
            why=f"loads that arrive late: {kernel.step_lines} cache lines a step on each compute unit",
        ),
    )  # fmt: skip
    return OperatorKernelRun(shape=kernel.shape.words, division=kernel.words, time=time, parts=parts)


def _stream_run(gpu: Gpu, kernel: StreamKernel) -> OperatorKernelRun:
    launch_ps = gpu.model.launch_ps
    time = time_of_stream(gpu, kernel)
    shape = kernel.shape
    parts = (
        KernelPart(name=LAUNCH, time_ps=launch_ps, why="before the first workgroup"),
        KernelPart(name=MEMORY, time_ps=kernel.memory_ps, why="each byte once"),
        KernelPart(
            name=BANDWIDTH, time_ps=time.time_ps - launch_ps - kernel.memory_ps,
            why="latency of the first loads and last stores, queues; the L2 keeps the last written lines",
        ),
    )  # fmt: skip
    words = f"reads {format_bytes(shape.read_bytes)}, writes {format_bytes(shape.written_bytes)}"
    return OperatorKernelRun(shape=words, division="", time=time, parts=parts)
