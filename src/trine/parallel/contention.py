"""How much the kernels of collectives and messages slow down what their GPU computes meanwhile.

A kernel keeps one SM (or CU) a channel from the moment at which its rank enters until it has ended there, because it
spins while it waits, and it reads and writes GPU memory. Operators that arithmetic bounds lose the SMs' share of their
speed, those that memory bounds the bandwidth's, and products of persistent kernels more: the blocks that find no SM
come in a second wave. See docs/background/contention.md.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from trine.arrays import Int64
from trine.cluster.cluster import Cluster
from trine.cluster.parts import SCALE_OUT
from trine.cluster.presets import GpuSpec
from trine.collectives.nccl.costs import IN_NETWORK
from trine.collectives.nccl.steps import StepCosts
from trine.collectives.options import CollectiveTime
from trine.compute.cost import Sizing
from trine.compute.kinds import family_of, kind_of
from trine.compute.roofline import dtype_of, peak
from trine.compute.tables.machine import POWER_LIMITED, generation_of
from trine.errors import InputError
from trine.graph.grid import RankGrid
from trine.graph.program import COMPUTE_STREAM, Collective, Compute, Job, RankProgram, Send, Step
from trine.graph.workload import OPTIMIZER, Operator, Workload
from trine.schema import Field, Spec
from trine.spec import read_spec
from trine.units import PS_PER_S, transfer_ps


class ByReach(Spec):
    """A number within a domain (``scale-up``), and one between domains."""

    scale_up: int = Field(alias="scale-up", ge=1)
    scale_out: int = Field(alias="scale-out", ge=1)


class Accesses(Spec):
    """Bytes read and written in memory for each byte sent; where switches add up, for each byte of the payload."""

    collective: int = Field(ge=1)
    in_network: int = Field(alias="in-network", ge=1)
    message: int = Field(ge=1)


class ContentionFile(Spec):
    """The file; ``sources`` has one entry a field."""

    channels: ByReach
    message_channels: ByReach
    accesses: Accesses
    waves_from: float = Field(alias="waves-from", gt=0, lt=1)
    most: float = Field(gt=0, lt=1)
    evidence: Literal["measured", "interpolated", "modelled", "assumed"]
    sources: dict[str, str]


PPM = 10**6
#: Families of operators that matrix libraries run.
_PRODUCTS = ("linear", "matmul")
_FILE = Path(__file__).parent.parent / "presets" / "contention.yaml"


class ChannelUse(NamedTuple):
    """What a communication kernel takes of its GPU: SMs, bytes read and written in its memory a second, for a time."""

    channels: int
    memory_bytes_per_s: float
    time_ps: int = 0


class Bound(NamedTuple):
    """Parts of the recorded time of forward and backward operators.

    memory: of those that take longer for their bytes than for their FLOPs at the GPU's peaks (Williams et al.,
    Roofline, CACM 2009). waves: of products among the others, where their kernels launch as many blocks as the GPU has
    SMs, and each block works on one tile after the other.
    """

    memory: float = 0.0
    waves: float = 0.0


@cache
def contention_numbers() -> ContentionFile:
    """The numbers of presets/contention.yaml, with their sources."""
    return read_spec(_FILE, ContentionFile)


def pressure_ppm(gpu: GpuSpec, use: ChannelUse, bound: Bound, product_ps: int = 0) -> int:
    """Millionths of its speed that compute on ``gpu`` loses while a kernel runs; at most ``most`` of the preset file.

    The part of compute time that memory bounds loses the share of the memory bandwidth that the kernel takes, products
    of persistent kernels half of their speed, the rest the share of the SMs. product_ps: of a product of a persistent
    kernel that starts beside this one. Its blocks without an SM start when this one has ended or the others have: it
    takes longer by the shorter of the two times, and is alone with this one until it has ended. Kernels with a smaller
    share of the SMs than ``waves_from`` take that share of products too.
    """
    sms = min(use.channels / gpu.num_compute_units, 1.0)
    makes_waves = sms >= contention_numbers().waves_from
    if makes_waves and 2 * product_ps > use.time_ps > 0:
        lost = min(product_ps / use.time_ps, 1.0)
    else:
        memory = min(use.memory_bytes_per_s / gpu.memory_bytes_per_s, 1.0)
        waves = bound.waves if makes_waves else 0.0
        lost = bound.memory * memory + waves / 2 + (1 - bound.memory - waves) * sms
    return round(min(lost, contention_numbers().most) * PPM)


def is_persistent(gpu: GpuSpec, op: Operator) -> bool:
    """Whether the operator is a product whose kernel launches as many blocks as ``gpu`` has SMs."""
    return generation_of(gpu.name) in POWER_LIMITED and family_of(kind_of(op)) in _PRODUCTS


def bound_of(workload: Workload, gpu: GpuSpec) -> Bound:
    """What bounds the operators of ``workload`` on ``gpu``."""
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


@dataclass(frozen=True, kw_only=True, slots=True)
class CommunicationKernels:
    """The communication kernels of a job on a machine.

    places: int64[ranks], where each rank is among ``cluster.gpus``. costs: the library's; None: the links are of no
    known kind. persistent: of each operator, whether :func:`is_persistent`.
    """

    gpu: GpuSpec
    cluster: Cluster
    places: Int64
    costs: StepCosts | None
    bound: Bound
    persistent: tuple[bool, ...] = ()

    def of_groups(self, kind: str, size_bytes: int, groups: Int64) -> list[ChannelUse]:
        """What a collective takes on each kind of group: int64[groups, ranks]."""
        numbers = contention_numbers()
        answers = () if self.costs is None else self.costs.predicted(kind, size_bytes, self.places[groups])
        if answers:
            return [_predicted(answer) for answer in answers if answer.time_ps]
        rate, is_outside = self._route(groups[0], np.roll(groups[0], -1))
        channels = numbers.channels.scale_out if is_outside else numbers.channels.scale_up
        time_ps = transfer_ps(size_bytes, rate) if rate else 0
        return [ChannelUse(channels, numbers.accesses.collective * float(rate), time_ps)]

    def of_message(self, ranks: Int64, peers: Int64) -> ChannelUse:
        """What sending a message takes; of the routes from ``ranks`` to ``peers`` that of the first counts."""
        numbers = contention_numbers()
        rate, is_outside = self._route(ranks[:1], peers[:1])
        channels = numbers.message_channels.scale_out if is_outside else numbers.message_channels.scale_up
        return ChannelUse(channels, numbers.accesses.message * float(rate))

    def ppm(self, uses: Sequence[ChannelUse], product_ps: int) -> int:
        """The largest pressure of several kinds of groups; product_ps: as :func:`pressure_ppm` has it."""
        return max((pressure_ppm(self.gpu, use, self.bound, product_ps) for use in uses), default=0)

    def product_ps(self, step: Compute) -> int:
        """Duration of a step where it is a product of a persistent kernel, else 0."""
        at = step.label.operator
        return step.duration_ps if 0 <= at < len(self.persistent) and self.persistent[at] else 0

    def describe(self) -> str:
        """What the answers rest on, in a sentence."""
        whose = "collective" if self.costs is None else self.costs.library.upper()
        waves = f", {self.bound.waves:.0%} GEMMs with one block per SM" if self.bound.waves else ""
        return (
            f"{whose} kernels take SMs and memory bandwidth of the {self.gpu.name} ({self.gpu.num_compute_units} SMs); "
            f"{self.bound.memory:.0%} of the compute time is memory bound"
            f"{waves} (trine help contention)"
        )

    def _route(self, sources: Int64, targets: Int64) -> tuple[int, bool]:
        """Rate of the slowest link from ``sources`` to ``targets``, and whether any leads between domains."""
        gpus = np.asarray(self.cluster.gpus, np.int64)[self.places]
        _, links = self.cluster.routes(gpus[sources], gpus[targets])
        if not len(links):
            return 0, False
        used = np.unique(links)
        outside = any(self.cluster.links[link].link_class == SCALE_OUT for link in used.tolist())
        return int(self.cluster.link_bytes_per_s[used].min()), outside


def _predicted(answer: CollectiveTime) -> ChannelUse:
    """What the library's kernel takes: where switches add up, a payload is read once and its result written once."""
    accesses = contention_numbers().accesses
    touched = accesses.in_network if answer.algorithm in IN_NETWORK else accesses.collective * answer.bus_factor
    return ChannelUse(answer.channels, touched * answer.size_bytes * PS_PER_S / answer.time_ps, answer.time_ps)


def under_pressure(
    job: Job, kernels: CommunicationKernels, *others: CommunicationKernels, of_rank: Int64 | None = None
) -> Job:
    """The same job, with the pressure of every collective and sent message on the compute stream of its rank.

    others: kernels on further GPU models, where ranks run on several; of_rank: int64[ranks], the index of each rank's.
    Groups of one axis that are made differently (some within a node, some across) press alike: as the worst of them.
    A receiving kernel is not counted: the programs do not say when it starts to wait.
    """
    grid = RankGrid(job.axes)
    program_of = np.asarray(job.program_of, np.int64)
    programs = []
    for number, program in enumerate(job.programs):
        ranks = np.flatnonzero(program_of == number)
        if len(ranks):
            own = kernels if of_rank is None else (kernels, *others)[int(of_rank[ranks[0]])]
            program = _Pressing(own, grid, ranks).program(program)
        programs.append(program)
    return replace(job, programs=tuple(programs))


class _Pressing:
    """The pressures of one program, each kind of step worked out once."""

    def __init__(self, kernels: CommunicationKernels, grid: RankGrid, ranks: Int64) -> None:
        self.kernels = kernels
        self.grid = grid
        self.ranks = ranks
        self._known: dict[tuple[object, ...], list[ChannelUse]] = {}
        self._groups: dict[str, Int64] = {}

    def program(self, program: RankProgram) -> RankProgram:
        steps, beside = list(program.steps), 0
        for number in reversed(range(len(steps))):
            step = steps[number]
            if isinstance(step, Compute) and step.stream == COMPUTE_STREAM:
                beside = self.kernels.product_ps(step)
            else:
                steps[number] = self._step(step, beside)
        return replace(program, steps=tuple(steps))

    def _step(self, step: Step, product_ps: int) -> Step:
        """With its pressure; product_ps: of the operator that starts next, as :func:`pressure_ppm` has it."""
        if isinstance(step, Collective):
            uses = self._once((step.axis, step.kind, step.size_bytes), lambda: self._collective(step))
            return replace(step, pressure_ppm=self.kernels.ppm(uses, product_ps))
        if isinstance(step, Send):
            uses = self._once((step.peer,), lambda: self._message(step))
            return replace(step, pressure_ppm=self.kernels.ppm(uses, 0))
        return step

    def _once(self, key: tuple[object, ...], find: Callable[[], list[ChannelUse]]) -> list[ChannelUse]:
        if key not in self._known:
            self._known[key] = find()
        return self._known[key]

    def _collective(self, step: Collective) -> list[ChannelUse]:
        if step.axis not in self._groups:
            firsts = np.unique(self.grid.firsts(self.ranks, step.axis))
            self._groups[step.axis] = firsts[:, None] + self.grid.offsets(step.axis)[None, :]
        groups = self._groups[step.axis]
        if groups.shape[1] < 2 or not step.size_bytes:
            return []
        return self.kernels.of_groups(step.kind, step.size_bytes, groups)

    def _message(self, step: Send) -> list[ChannelUse]:
        offsets, axis = self.grid.offsets(step.peer.axis), step.peer.axis
        peers = self.ranks + offsets[step.peer.position] - offsets[self.grid.coordinates(self.ranks, axis)]
        return [self.kernels.of_message(self.ranks, peers)]


def kernels_of(
    gpu: GpuSpec | None, workload: Workload, cluster: Cluster, places: Int64, costs: StepCosts | None
) -> CommunicationKernels:
    """The kernels of a job on ``gpu``. Raises InputError where trine has no data sheet of the GPU."""
    if gpu is None:
        raise InputError(
            "contention depends on the GPU's SMs and memory bandwidth, and no data "
            "sheet of the GPU is known: add --gpu NAME or --trace-gpu NAME",
            field="overlap",
        )
    return CommunicationKernels(
        gpu=gpu, cluster=cluster, places=places, costs=costs, bound=bound_of(workload, gpu),
        persistent=tuple(is_persistent(gpu, op) for op in workload.operators),
    )  # fmt: skip


def in_sequence(program: RankProgram) -> RankProgram:
    """The same steps; communication and compute of the rank take turns, in the order of the program.

    Every collective, message and host copy waits for the operators before it, and the operators after it wait for it.
    Those between two operators may run at the same time. What other ranks send arrives when it does.
    """
    steps: list[Step] = []
    last_compute: tuple[int, ...] = ()
    since: list[int] = []
    for number, step in enumerate(program.steps):
        if not isinstance(step, Compute):
            steps.append(_after(step, last_compute))
            since.append(number)
        elif step.stream == COMPUTE_STREAM:
            steps.append(_after(step, tuple(since)))
            last_compute = (number,)
            since.clear()
        else:
            steps.append(step)
    return replace(program, steps=tuple(steps))


def _after(step: Step, more: tuple[int, ...]) -> Step:
    return replace(step, after=tuple(dict.fromkeys((*step.after, *more)))) if more else step
