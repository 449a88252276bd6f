"""How much the kernels of collectives and messages slow down what their GPU computes meanwhile.

A kernel keeps one SM (or CU) a channel from the moment at which its rank enters until it has ended there, because it
spins while it waits, and it reads and writes GPU memory. Operators that arithmetic bounds lose the SMs' share of their
speed, those that memory bounds the bandwidth's: docs/background/contention.md.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from trine.arrays import Int64
from trine.cluster.cluster import Cluster
from trine.cluster.parts import SCALE_OUT
from trine.cluster.presets import GpuSpec
from trine.collectives.nccl.costs import IN_NETWORK
from trine.collectives.nccl.steps import StepCosts
from trine.collectives.options import CollectiveTime
from trine.compute.cost import Sizing
from trine.compute.data_sheet import dtype_of, peak
from trine.errors import InputError
from trine.graph.grid import RankGrid
from trine.graph.program import COMPUTE_STREAM, Collective, Compute, Job, RankProgram, Send, Step
from trine.graph.workload import OPTIMIZER, Workload
from trine.units import PS_PER_S

if TYPE_CHECKING:
    from trine.parallel.contention_schema import ContentionFile

PPM = 10**6
_FILE = Path(__file__).parent.parent / "presets" / "contention.yaml"


class ChannelUse(NamedTuple):
    """What a communication kernel takes of its GPU: SMs, and bytes read and written in its memory a second."""

    channels: int
    memory_bytes_per_s: float


@cache
def contention_numbers() -> ContentionFile:
    """The numbers of presets/contention.yaml, with their sources."""
    from trine.parallel.contention_schema import ContentionFile
    from trine.spec import read_spec

    return read_spec(_FILE, ContentionFile)


def pressure_ppm(gpu: GpuSpec, use: ChannelUse, memory_bound: float) -> int:
    """Millionths of its speed that compute on ``gpu`` loses while a kernel runs.

    The part ``memory_bound`` of compute time loses the share of the memory bandwidth that the kernel takes, the rest
    the share of the SMs; at most ``most`` of the preset file.
    """
    sms = use.channels / gpu.num_compute_units
    memory = use.memory_bytes_per_s / gpu.memory_bytes_per_s
    lost = memory_bound * min(memory, 1.0) + (1 - memory_bound) * min(sms, 1.0)
    return round(min(lost, contention_numbers().most) * PPM)


def memory_bound_share(workload: Workload, gpu: GpuSpec) -> float:
    """The part of the recorded time of forward and backward operators that take longer for their bytes than for their
    FLOPs at the peaks of ``gpu`` (Williams et al., Roofline, CACM 2009)."""
    sizing, bound, total = Sizing(workload), 0, 0
    for op in workload.operators:
        if op.phase != OPTIMIZER and op.gpu_time_ps:
            amount = sizing.recorded(op)
            rate = peak(gpu, dtype_of(op, workload.tensors))
            total += op.gpu_time_ps
            bound += op.gpu_time_ps * (amount.bytes * rate > amount.flops * gpu.memory_bytes_per_s)
    return bound / total if total else 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class CommunicationKernels:
    """The communication kernels of a job on a machine.

    places: int64[ranks], where each rank is among ``cluster.gpus``. costs: the library's; None: the links are of no
    known kind. memory_bound: see :func:`pressure_ppm`.
    """

    gpu: GpuSpec
    cluster: Cluster
    places: Int64
    costs: StepCosts | None
    memory_bound: float

    def of_groups(self, kind: str, size_bytes: int, groups: Int64) -> list[ChannelUse]:
        """What a collective takes on each kind of group: int64[groups, ranks]."""
        numbers = contention_numbers()
        answers = () if self.costs is None else self.costs.predicted(kind, size_bytes, self.places[groups])
        if answers:
            return [_predicted(answer) for answer in answers if answer.time_ps]
        rate, is_outside = self._route(groups[0], np.roll(groups[0], -1))
        channels = numbers.channels.scale_out if is_outside else numbers.channels.scale_up
        return [ChannelUse(channels, numbers.accesses.collective * float(rate))]

    def of_message(self, ranks: Int64, peers: Int64) -> ChannelUse:
        """What sending a message takes; of the routes from ``ranks`` to ``peers`` that of the first counts."""
        numbers = contention_numbers()
        rate, is_outside = self._route(ranks[:1], peers[:1])
        channels = numbers.message_channels.scale_out if is_outside else numbers.message_channels.scale_up
        return ChannelUse(channels, numbers.accesses.message * float(rate))

    def ppm(self, uses: Sequence[ChannelUse]) -> int:
        """The largest pressure of several kinds of groups."""
        return max((pressure_ppm(self.gpu, use, self.memory_bound) for use in uses), default=0)

    def describe(self) -> str:
        """What the answers rest on, in a sentence."""
        whose = "assumed channels" if self.costs is None else f"channels and times of {self.costs.library}"
        return (
            f"kernels of collectives keep SMs of the {self.gpu.name} ({self.gpu.num_compute_units}) and read and write "
            f"its memory: {whose}; {self.memory_bound:.0%} of the time of operators is bound by memory "
            "(docs/background/contention.md)"
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
    return ChannelUse(answer.channels, touched * answer.size_bytes * PS_PER_S / answer.time_ps)


def under_pressure(job: Job, kernels: CommunicationKernels) -> Job:
    """The same job, with the pressure of every collective and sent message on the compute stream of its rank.

    Groups of one axis that are made differently (some within a node, some across) press alike: as the worst of them.
    A receiving kernel is not counted: the programs do not say when it starts to wait.
    """
    grid = RankGrid(job.axes)
    program_of = np.asarray(job.program_of, np.int64)
    programs = []
    for number, program in enumerate(job.programs):
        ranks = np.flatnonzero(program_of == number)
        programs.append(_Pressing(kernels, grid, ranks).program(program) if len(ranks) else program)
    return replace(job, programs=tuple(programs))


class _Pressing:
    """The pressures of one program, each kind of step worked out once."""

    def __init__(self, kernels: CommunicationKernels, grid: RankGrid, ranks: Int64) -> None:
        self.kernels = kernels
        self.grid = grid
        self.ranks = ranks
        self._known: dict[tuple[object, ...], int] = {}
        self._groups: dict[str, Int64] = {}

    def program(self, program: RankProgram) -> RankProgram:
        return replace(program, steps=tuple(self._step(step) for step in program.steps))

    def _step(self, step: Step) -> Step:
        if isinstance(step, Collective):
            key: tuple[object, ...] = (step.axis, step.kind, step.size_bytes)
            return replace(step, pressure_ppm=self._once(key, lambda: self._collective(step)))
        if isinstance(step, Send):
            return replace(step, pressure_ppm=self._once((step.peer,), lambda: self._message(step)))
        return step

    def _once(self, key: tuple[object, ...], find: Callable[[], int]) -> int:
        if key not in self._known:
            self._known[key] = find()
        return self._known[key]

    def _collective(self, step: Collective) -> int:
        groups = self._groups_of(step.axis)
        if groups.shape[1] < 2 or not step.size_bytes:
            return 0
        return self.kernels.ppm(self.kernels.of_groups(step.kind, step.size_bytes, groups))

    def _groups_of(self, axis: str) -> Int64:
        if axis not in self._groups:
            firsts = np.unique(self.grid.firsts(self.ranks, axis))
            self._groups[axis] = firsts[:, None] + self.grid.offsets(axis)[None, :]
        return self._groups[axis]

    def _message(self, step: Send) -> int:
        offsets, axis = self.grid.offsets(step.peer.axis), step.peer.axis
        peers = self.ranks + offsets[step.peer.position] - offsets[self.grid.coordinates(self.ranks, axis)]
        return self.kernels.ppm([self.kernels.of_message(self.ranks, peers)])


def kernels_of(
    gpu: GpuSpec | None, workload: Workload, cluster: Cluster, places: Int64, costs: StepCosts | None
) -> CommunicationKernels:
    """The kernels of a job on ``gpu``. Raises InputError where trine has no data sheet of the GPU."""
    if gpu is None:
        raise InputError(
            "how much communication slows compute down depends on the GPU's SMs and memory bandwidth, and no data "
            "sheet of the GPU is known: --gpu NAME or --trace-gpu NAME says which it is",
            field="overlap",
        )
    share = memory_bound_share(workload, gpu)
    return CommunicationKernels(gpu=gpu, cluster=cluster, places=places, costs=costs, memory_bound=share)


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
