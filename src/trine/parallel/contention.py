"""Slowdown of compute by the kernels of collectives and messages on the same GPU.

A kernel occupies one SM (or CU) per channel from the moment its rank enters until it ends there, because it spins while
it waits. It also reads and writes GPU memory. Compute-bound operators lose the share of the SMs, memory-bound operators
the share of the bandwidth. Products of persistent kernels lose more: the blocks without an SM run in a second wave. See
docs/background/contention.md.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Literal, NamedTuple, TypeGuard, TypeVar

import numpy as np

from trine.cluster.cluster import Cluster
from trine.cluster.parts import SCALE_OUT
from trine.cluster.presets import GpuSpec
from trine.collectives.nccl.costs import IN_NETWORK
from trine.collectives.nccl.steps import StepCosts
from trine.collectives.options import CollectiveTime
from trine.common.arrays import Int64, distinct
from trine.common.kept import keep
from trine.common.schema import Field, Spec
from trine.common.spec import read_spec
from trine.common.units import PS_PER_S, transfer_ps
from trine.compute.cost import Sizing
from trine.compute.kinds import family_of, kind_of
from trine.compute.roofline import dtype_of, peak
from trine.compute.tables.machine import POWER_LIMITED, generation_of
from trine.errors import InputError
from trine.graph.grid import RankGrid
from trine.graph.program import COMPUTE_STREAM, Collective, Compute, Job, RankProgram, Send, Step
from trine.graph.workload import OPTIMIZER, Operator, Workload
from trine.parallel.program_parts import Part, PassCopy, WrittenPass, join_parts, parts_of


class ByReach(Spec):
    """A number within a domain (``scale-up``), and one between domains."""

    scale_up: int = Field(alias="scale-up", ge=1)
    scale_out: int = Field(alias="scale-out", ge=1)


class Accesses(Spec):
    """Bytes read and written in memory per byte sent; with in-network reduction, per byte of the payload."""

    collective: int = Field(ge=1)
    in_network: int = Field(alias="in-network", ge=1)
    message: int = Field(ge=1)


class UserbufferChannels(Spec):
    """SMs of tensor-parallel transfers by userbuffers, by form of overlap."""

    ring: int = Field(ge=0)
    pipeline: int = Field(ge=1)
    bulk: int = Field(ge=1)


class ContentionFile(Spec):
    """Contents of presets/contention.yaml; ``sources`` has one entry per field."""

    channels: ByReach
    message_channels: ByReach
    accesses: Accesses
    full_wave: float = Field(alias="full-wave", gt=0, lt=1)
    most: float = Field(gt=0, lt=1)
    userbuffers: UserbufferChannels
    evidence: Literal["measured", "interpolated", "modelled", "assumed"]
    sources: dict[str, str]


PPM = 10**6
#: Queues of transfers by userbuffers (:mod:`trine.parallel.userbuffers`); they are no kernels of the library.
RING, PIPELINE, BULK = "userbuffers ring", "userbuffers pipeline", "userbuffers bulk"
AnyStep = TypeVar("AnyStep")
#: Families of operators that matrix libraries run.
_PRODUCTS = ("linear", "matmul")
_FILE = Path(__file__).parent.parent / "presets" / "contention.yaml"


class ChannelUse(NamedTuple):
    """GPU resources of a communication kernel: SMs, bytes per second read and written in memory, and its duration."""

    channels: int
    memory_bytes_per_s: float
    time_ps: int = 0


class Bound(NamedTuple):
    """Fractions of the recorded time of forward and backward operators.

    memory: operators that take longer for their bytes than for their FLOPs at the GPU's peaks (Williams et al.,
    Roofline, CACM 2009). waves: other products whose kernels launch as many blocks as the GPU has SMs, each block
    processing one tile at a time.
    """

    memory: float = 0.0
    waves: float = 0.0


@cache
def contention_numbers() -> ContentionFile:
    """Return the numbers of presets/contention.yaml, with their sources."""
    return read_spec(_FILE, ContentionFile)


def userbuffer_channels(queue: str) -> int:
    """Return the SMs of a transfer by userbuffers in this queue."""
    numbers = contention_numbers().userbuffers
    return {RING: numbers.ring, PIPELINE: numbers.pipeline, BULK: numbers.bulk}[queue]


def pressure_ppm(gpu: GpuSpec, use: ChannelUse, bound: Bound, product_ps: int = 0) -> int:
    """Return the speed that compute on ``gpu`` loses while a kernel runs, in millionths; at most the preset's ``most``.

    The memory-bound part of compute time loses the kernel's share of the memory bandwidth, products of persistent
    kernels wait for a part of a second wave (:func:`extra_wave`), and the rest loses the share of the SMs.

    product_ps: duration T of a product of a persistent kernel that starts beside this kernel of duration D. Its blocks
    without an SM start when this kernel or the other blocks have ended. So it takes longer by the shorter of the two
    times, times the part of a wave. Operators after it fill the rest of D.

    More SMs never reduce the loss, and half of the SMs cause at least half of it.
    """
    sms = min(use.channels / gpu.num_compute_units, 1.0)
    wave = extra_wave(sms)
    memory = min(use.memory_bytes_per_s / gpu.memory_bytes_per_s, 1.0)
    of_products = max(wave / (1 + wave), sms)  # a product of T takes (1 + wave) T
    lost = bound.memory * memory + bound.waves * of_products + (1 - bound.memory - bound.waves) * sms
    if product_ps and use.time_ps:
        together_ps = product_ps * (1 + wave)
        if together_ps >= use.time_ps:
            lost = wave * min(product_ps / use.time_ps, 1.0)
        else:
            lost = (wave * product_ps + lost * (use.time_ps - together_ps)) / use.time_ps
    return round(min(lost, contention_numbers().most) * PPM)


def extra_wave(sms: float) -> float:
    """Return the part of a second wave that a persistent product waits for, beside a kernel on ``sms`` of the SMs.

    A whole wave was measured with 10 and 18 % of the SMs. Below, the part is proportional to the SMs (assumed): the
    least loss that grows from zero and of which half of the SMs cause at least half.
    """
    return min(sms / contention_numbers().full_wave, 1.0)


def is_persistent(gpu: GpuSpec, op: Operator) -> bool:
    """Return whether the operator is a product with one kernel block per SM of ``gpu``."""
    return generation_of(gpu.name) in POWER_LIMITED and family_of(kind_of(op)) in _PRODUCTS


@keep
def bound_of(workload: Workload, gpu: GpuSpec) -> Bound:
    """Return the memory-bound and the persistent-kernel fraction of the operators' time on ``gpu``."""
    sizing, memory, waves, total = Sizing(workload), 0, 0, 0
    for op in workload.operators:
        if op.phase != OPTIMIZER and op.gpu_time_ps:
            amount = sizing.recorded(op)
            rate = peak(gpu, dtype_of(op, workload.tensors))
            total += op.gpu_time_ps
            if amount.bytes * rate > amount.flops * gpu.memory_bytes_per_s:
                memory += op.gpu_time_ps
            elif is_persistent(gpu, op):
                waves += op.gpu_time_ps
    return Bound(memory / total, waves / total) if total else Bound()


@keep
def persistent_operators(workload: Workload, gpu: GpuSpec) -> tuple[bool, ...]:
    """Return :func:`is_persistent` of each operator."""
    return tuple(is_persistent(gpu, op) for op in workload.operators)


@dataclass(frozen=True, kw_only=True, slots=True)
class CommunicationKernels:
    """Communication kernels of a job on a machine.

    places: int64[ranks], index of each rank in ``cluster.gpus``. costs: the library's; None if the kinds of the links
    are unknown. persistent: :func:`is_persistent` of each operator.
    """

    gpu: GpuSpec
    cluster: Cluster
    places: Int64
    costs: StepCosts | None
    bound: Bound
    persistent: tuple[bool, ...] = ()

    def of_groups(self, kind: str, size_bytes: int, groups: Int64) -> list[ChannelUse]:
        """Return the resources of a collective on each kind of group; groups: int64[groups, ranks]."""
        numbers = contention_numbers()
        answers = () if self.costs is None else self.costs.predicted(kind, size_bytes, self.places[groups])
        if answers:
            return [_predicted(answer) for answer in answers if answer.time_ps]
        rate, is_outside = self._route(groups[0], np.roll(groups[0], -1))
        channels = numbers.channels.scale_out if is_outside else numbers.channels.scale_up
        time_ps = transfer_ps(size_bytes, rate) if rate else 0
        return [ChannelUse(channels, numbers.accesses.collective * float(rate), time_ps)]

    def of_message(self, ranks: Int64, peers: Int64) -> ChannelUse:
        """Return the resources of sending a message, from the first of the routes from ``ranks`` to ``peers``."""
        numbers = contention_numbers()
        rate, is_outside = self._route(ranks[:1], peers[:1])
        channels = numbers.message_channels.scale_out if is_outside else numbers.message_channels.scale_up
        return ChannelUse(channels, numbers.accesses.message * float(rate))

    def ppm(self, uses: Sequence[ChannelUse], product_ps: int, queue: str = "") -> int:
        """Return the largest pressure of several kinds of groups; product_ps: see :func:`pressure_ppm`.

        queue: of userbuffers, which take SMs of their own; GEMMs of a pipeline leave them free.
        """
        bound = self.bound
        if queue in (RING, PIPELINE, BULK):
            uses = [use._replace(channels=userbuffer_channels(queue)) for use in uses]
        if queue == PIPELINE:
            bound, product_ps = bound._replace(waves=0.0), 0
        return max((pressure_ppm(self.gpu, use, bound, product_ps) for use in uses), default=0)

    def product_ps(self, step: Compute) -> int:
        """Return the duration of a step if it is a product of a persistent kernel, else 0."""
        operator = step.label.operator
        return step.duration_ps if 0 <= operator < len(self.persistent) and self.persistent[operator] else 0

    def describe(self) -> str:
        """Return the basis of the answers as a sentence."""
        name = "collective" if self.costs is None else self.costs.library.upper()
        waves = f", {self.bound.waves:.0%} GEMMs with one block per SM" if self.bound.waves else ""
        return (
            f"{name} kernels take SMs and memory bandwidth of the {self.gpu.name} ({self.gpu.num_compute_units} SMs); "
            f"{self.bound.memory:.0%} of the compute time is memory bound{waves} (trine help contention)"
        )

    def _route(self, sources: Int64, targets: Int64) -> tuple[int, bool]:
        """Return the rate of the slowest link from ``sources`` to ``targets``, and whether any joins two domains."""
        gpus = np.asarray(self.cluster.gpus, np.int64)[self.places]
        _, links = self.cluster.routes(gpus[sources], gpus[targets])
        if not len(links):
            return 0, False
        crossed = distinct(links)
        is_outside = any(self.cluster.links[link].link_class == SCALE_OUT for link in crossed.tolist())
        return int(self.cluster.link_bytes_per_s[crossed].min()), is_outside


def _predicted(answer: CollectiveTime) -> ChannelUse:
    """Return the library kernel's resources; in-network reduction reads the payload and writes the result once."""
    accesses = contention_numbers().accesses
    touched = accesses.in_network if answer.algorithm in IN_NETWORK else accesses.collective * answer.bus_factor
    return ChannelUse(answer.channels, touched * answer.size_bytes * PS_PER_S / answer.time_ps, answer.time_ps)


def under_pressure(
    job: Job, kernels: CommunicationKernels, *other_kernels: CommunicationKernels, of_rank: Int64 | None = None
) -> Job:
    """Return the job with the pressure of every collective and sent message on the compute stream of its rank.

    other_kernels: on further GPU models, if ranks run on several; of_rank: int64[ranks], index of each rank's kernels.
    If groups of one axis differ (some within a node, some across), the largest pressure among them applies to all.
    Receiving kernels do not count: the programs do not record when they start to wait.
    """
    grid = RankGrid(job.axes)
    program_of = np.asarray(job.program_of, np.int64)
    programs = []
    for number, program in enumerate(job.programs):
        ranks = np.flatnonzero(program_of == number)
        if len(ranks):
            rank_kernels = kernels if of_rank is None else (kernels, *other_kernels)[int(of_rank[ranks[0]])]
            program = _PressureWriter(rank_kernels, grid, ranks).program(program)
        programs.append(program)
    return replace(job, programs=tuple(programs))


class _PressureWriter:
    """Pressures of one program; each kind of step is computed once."""

    def __init__(self, kernels: CommunicationKernels, grid: RankGrid, ranks: Int64) -> None:
        self.kernels = kernels
        self.grid = grid
        self.ranks = ranks
        self._uses: dict[tuple[object, ...], list[ChannelUse]] = {}
        self._pressures: dict[tuple[tuple[object, ...], int, str], int] = {}
        self._groups: dict[str, Int64] = {}
        self._known: dict[tuple[object, ...], int] = {}  # of collectives that precede the same operator: most of them
        self._passes: dict[tuple[object, ...], WrittenPass] = {}

    def program(self, program: RankProgram) -> RankProgram:
        """Return the program with the pressure of its collectives and messages."""
        parts: list[Part] = []
        following = None
        for part in reversed(parts_of(program.steps)):
            if isinstance(part, PassCopy):
                steps = part.source.steps
                parts.append(replace(part, source=self._pass(part.source, following)))
            else:
                steps = part
                parts.append(tuple(self._steps(part, following)))
            following = next(filter(_is_operator, steps), following)
        return replace(program, steps=join_parts(reversed(parts)))

    def _pass(self, source: WrittenPass, following: Compute | None) -> WrittenPass:
        """Return a pass with the pressure of its steps; copies with equal pressures share it.

        Only the steps behind the last operator depend on the operator that follows.
        """
        steps = source.steps
        end = len(steps)
        while end and not _is_operator(steps[end - 1]):
            end -= 1
        behind = tuple(self._steps(steps[end:], following))
        key = id(source), behind
        if key not in self._passes:
            self._passes[key] = replace(source, steps=(*self._steps(steps[:end], None), *behind))
        return self._passes[key]

    def _steps(self, written: Sequence[Step], following: Compute | None) -> list[Step]:
        """Return steps with their pressure. following: the first operator behind them."""
        steps, known = list(written), self._known
        for number in range(len(steps) - 1, -1, -1):
            step = steps[number]
            if isinstance(step, Compute):
                following = step if step.stream == COMPUTE_STREAM else following
            elif isinstance(step, Collective):
                operator = None if following is None else (following.label.operator, following.duration_ps)
                key = step.axis, step.kind, step.size_bytes, step.queue, operator
                ppm = known.get(key)
                if ppm is None:
                    product_ps = 0 if following is None else self.kernels.product_ps(following)
                    ppm = known[key] = self._once(key[:3], product_ps, self._collective, step, step.queue)
                if ppm != step.pressure_ppm:
                    steps[number] = Collective(*step[:-1], ppm)  # ``_replace`` takes twice as long
            elif isinstance(step, Send):
                steps[number] = step._replace(pressure_ppm=self._once((step.peer,), 0, self._message, step))
        return steps

    def _once(
        self, key: tuple[object, ...], product_ps: int, find: Callable[[AnyStep], list[ChannelUse]], step: AnyStep,
        queue: str = "",
    ) -> int:  # fmt: skip
        """Return the pressure of a step; product_ps: of the next operator to start, see :func:`pressure_ppm`."""
        ppm = self._pressures.get((key, product_ps, queue))
        if ppm is None:
            if key not in self._uses:
                self._uses[key] = find(step)
            ppm = self._pressures[key, product_ps, queue] = self.kernels.ppm(self._uses[key], product_ps, queue)
        return ppm

    def _collective(self, step: Collective) -> list[ChannelUse]:
        if step.axis not in self._groups:
            firsts = distinct(self.grid.firsts(self.ranks, step.axis))
            self._groups[step.axis] = firsts[:, None] + self.grid.offsets(step.axis)[None, :]
        groups = self._groups[step.axis]
        if groups.shape[1] < 2 or not step.size_bytes:
            return []
        return self.kernels.of_groups(step.kind, step.size_bytes, groups)

    def _message(self, step: Send) -> list[ChannelUse]:
        offsets, axis = self.grid.offsets(step.peer.axis), step.peer.axis
        peers = self.ranks + offsets[step.peer.position] - offsets[self.grid.coordinates(self.ranks, axis)]
        return [self.kernels.of_message(self.ranks, peers)]


def _is_operator(step: Step) -> TypeGuard[Compute]:
    """Return whether a step runs on the compute stream."""
    return isinstance(step, Compute) and step.stream == COMPUTE_STREAM


def kernels_of(
    gpu: GpuSpec | None, workload: Workload, cluster: Cluster, places: Int64, costs: StepCosts | None
) -> CommunicationKernels:
    """Return the communication kernels of a job on ``gpu``. Raises InputError if trine has no data sheet of the GPU."""
    if gpu is None:
        raise InputError(
            "contention depends on the GPU's SMs and memory bandwidth, and no data "
            "sheet of the GPU is known: add --gpu NAME or --trace-gpu NAME",
            field="overlap",
        )
    return CommunicationKernels(
        gpu=gpu, cluster=cluster, places=places, costs=costs, bound=bound_of(workload, gpu),
        persistent=persistent_operators(workload, gpu),
    )  # fmt: skip
