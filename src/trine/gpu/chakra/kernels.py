"""The kernels of a job as one program, with separate memory and semaphores for every collective and message."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from trine.cluster import Cluster
from trine.cluster.parts import SCALE_UP
from trine.collectives.options import AUTO
from trine.common.arguments import option
from trine.errors import InputError, PlanError, nearest
from trine.gpu.builder import ALIGN_BYTES, Operand, ProgramBuilder
from trine.gpu.chakra.compute import ComputeShape
from trine.gpu.join import PlacedProgram, join_programs
from trine.gpu.kernels.build import DETAILED, ROOTED, build_kernel, known_kernels, known_ops
from trine.gpu.kernels.nics import through_nics
from trine.gpu.kernels.options import SIMPLE, WAVEFRONTS, WORKGROUPS
from trine.gpu.model import GpuModel
from trine.gpu.program import ACQUIRE, BARRIER, COPY, DMA, READ, RELEASE, WAITCNT, WRITE, GpuProgram
from trine.graph.program import Collective

#: Packets of smaller dmas do not spread over all paths to a peer.
DMA_BYTES = 1 << 16


@dataclass(frozen=True, kw_only=True, slots=True)
class KernelChoices:
    """Shapes and algorithms of a job's kernels.

    workgroups: per kernel of a collective or message; None: WORKGROUPS, or fewer for groups that NICs join, to keep
    each dma at DMA_BYTES or more; wavefronts: per such workgroup. protocol: of collectives.
    algorithms: collective -> one of :func:`known_kernels`; by default the traces' algorithm if a kernel has this name,
    else ``auto``. compute_workgroups, compute_wavefronts: of compute nodes; None: one workgroup for each compute unit.
    compute_traffic: whether compute nodes move their tensors.

    Raises InputError: a number below 1, a collective or an algorithm that has no kernel.
    """

    workgroups: int | None = option(None, "Set the workgroups of communication kernels [32].")
    wavefronts: int = option(WAVEFRONTS, "Set the wavefronts of each of these workgroups.")
    protocol: str = option(SIMPLE, "Choose the protocol of collectives.")
    algorithms: Mapping[str, str] = field(default_factory=dict)
    compute_workgroups: int | None = option(None, "Set the workgroups of compute nodes' kernels [one per CU].")
    compute_wavefronts: int = option(8, "Set the wavefronts of each of these workgroups.")
    compute_traffic: bool = option(True, "Leave out the memory traffic of compute nodes.")

    def __post_init__(self) -> None:
        for name in ("workgroups", "wavefronts", "compute_workgroups", "compute_wavefronts"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InputError(f"must be at least 1, got {value}", field=name)
        for op, algorithm in self.algorithms.items():
            algorithms = known_kernels(op)
            if not algorithms or op in (*ROOTED, *DETAILED):
                ops = [each for each in known_ops() if each not in (*ROOTED, *DETAILED)]
                raise InputError(f"no kernel for {op!r}{nearest(op, ops)}", field="algorithms")
            if algorithm not in (*algorithms, AUTO):
                raise InputError(
                    f"{op} has no kernel {algorithm!r}{nearest(algorithm, (*algorithms, AUTO))}", field="algorithms"
                )

    def groups(self, dma_bytes: int | None = None) -> int:
        """Return the workgroups of a communication kernel; ``dma_bytes``: their total for a copy engine."""
        if self.workgroups is not None:
            return self.workgroups
        return WORKGROUPS if dma_bytes is None else max(1, min(WORKGROUPS, dma_bytes // DMA_BYTES))

    def shape(self, model: GpuModel) -> ComputeShape:
        """Return the shape of compute kernels."""
        groups = model.num_cus if self.compute_workgroups is None else self.compute_workgroups
        return ComputeShape(workgroups=groups, wavefronts=self.compute_wavefronts)


#: Algorithms of ``auto`` for groups that NICs join; loads do not cross NICs.
_APART = {"all_gather": "ring", "reduce_scatter": "ring", "all_reduce": "ring", "all_to_all": "put"}


class JobKernels:
    """Collector of a job's programs; kernels are numbered in the order of addition."""

    def __init__(self, cluster: Cluster, num_ranks: int, model: GpuModel, choices: KernelChoices) -> None:
        self._cluster, self._num_ranks, self._model, self._choices = cluster, num_ranks, model, choices
        self._parts: list[PlacedProgram] = []
        self._num_kernels = 0
        self._address = 0
        self._semaphores = [0] * num_ranks
        self._collectives: dict[tuple[str, int, int, str, frozenset[tuple[int, int]]], GpuProgram] = {}
        self._messages: dict[tuple[int, bool], GpuProgram] = {}
        self._crosses: dict[tuple[int, int], bool] = {}
        #: notes to the user, each once
        self.notes: dict[str, None] = {}

    def __len__(self) -> int:
        return self._num_kernels

    def add(self, program: GpuProgram, ranks: Sequence[int], name: str) -> int:
        """Put a program on some ranks, in unused memory; return the number of its first kernel."""
        first, size = self._num_kernels, memory_end(program)
        if program.semaphores.shape[1]:
            shift = max(self._semaphores[rank] for rank in ranks)
        else:
            shift = 0
        part = PlacedProgram(
            program=replace(program, buffers=()), ranks=tuple(ranks), address_shift=self._address,
            semaphore_shift=shift, name=name,
        )  # fmt: skip
        if program.semaphores.shape[1]:
            for rank in ranks:
                self._semaphores[rank] = part.semaphores_end
        period = address_period(self._model)
        self._address += -(-size // period) * period
        self._parts.append(part)
        self._num_kernels += program.num_kernels
        return first

    def collective(self, step: Collective, ranks: tuple[int, ...]) -> tuple[int, str]:
        """Add the kernels of a collective, one per rank of ``ranks``; return the first's number, and the algorithm.

        Raises
        ------
        PlanError: a kind without kernels, or no bytes. InputError: loads or flags for a group that NICs join.
        """
        _check(step)
        size = len(ranks)
        crossing_pairs = frozenset(
            (i, j) for i in range(size) for j in range(size) if i != j and self.crosses(ranks[i], ranks[j])
        )
        key = step.kind, size, step.size_bytes, self._algorithm(step, bool(crossing_pairs)), crossing_pairs
        if key not in self._collectives:
            self._collectives[key] = self._build(*key)
        program = self._collectives[key]
        return self.add(program, ranks, step.kind), program.name.partition("/")[2]

    def _build(
        self, kind: str, num_ranks: int, size_bytes: int, algorithm: str, crossing_pairs: frozenset[tuple[int, int]]
    ) -> GpuProgram:
        program = build_kernel(
            kind, num_ranks, size_bytes, algorithm=algorithm,
            workgroups=self._choices.groups(size_bytes // num_ranks if crossing_pairs else None),
            wavefronts=self._choices.wavefronts, protocol=self._choices.protocol, line_bytes=self._model.line_bytes,
        )  # fmt: skip
        if crossing_pairs:
            return through_nics(program, lambda i, j: (i, j) in crossing_pairs)
        return program

    def _algorithm(self, step: Collective, is_apart: bool) -> str:
        algorithm = self._choices.algorithms.get(step.kind, step.algorithm)
        if algorithm not in (None, AUTO, *known_kernels(step.kind)):
            self.notes[f"the traces run {step.kind} by {algorithm!r}, which is no kernel: trine uses auto"] = None
            algorithm = AUTO
        if algorithm in (None, AUTO):
            return _APART[step.kind] if is_apart else AUTO
        return str(algorithm)

    def message(self, source: int, target: int, size_bytes: int) -> int:
        """Add the kernels of a message; return the number of the sender's kernel, which the receiver's follows."""
        through_nic = self.crosses(source, target)
        if (size_bytes, through_nic) not in self._messages:
            self._messages[size_bytes, through_nic] = message_program(
                size_bytes, workgroups=self._choices.groups(), wavefronts=self._choices.wavefronts,
                line_bytes=self._model.line_bytes, through_nic=through_nic,
            )  # fmt: skip
        return self.add(self._messages[size_bytes, through_nic], (source, target), "message")

    def crosses(self, source: int, target: int) -> bool:
        """Return whether messages between two ranks leave the scale-up domain."""
        if (source, target) not in self._crosses:
            gpus = self._cluster.gpus
            paths = self._cluster.paths(gpus[source], gpus[target])
            links = [link for route, _ in paths for link in route]
            self._crosses[source, target] = any(self._cluster.links[link].link_class != SCALE_UP for link in links)
        return self._crosses[source, target]

    def program(self, name: str) -> GpuProgram:
        """Return the joined program. Raises InputError if it is empty or too large."""
        return join_programs(self._parts, self._num_ranks, name)


def _check(step: Collective) -> None:
    ops = [op for op in known_ops() if op not in (*ROOTED, *DETAILED)]
    if step.kind not in ops:
        raise PlanError(
            f"{step.kind} has no kernel at the load-store level, which knows {', '.join(ops)}: run these "
            "traces with --fidelity operator"
        )
    if step.size_bytes < 1:
        raise PlanError(f"a {step.kind} of 0 bytes has nothing to load or store: --fidelity operator")


def memory_end(program: GpuProgram) -> int:
    """Return the end of the memory that a program touches; its lines do not begin below address 0."""
    if program.buffers:
        return max(buffer.base + buffer.size_bytes for buffer in program.buffers) + program.line_bytes
    op = program.operand_op
    lines = np.maximum(program.op_amount[op] - 1, 0) * program.operand_step
    span = np.where(program.op_kind[op] == DMA, program.op_amount[op], lines)
    return int((program.operand_address + span).max(initial=0)) + program.line_bytes


def address_period(model: GpuModel) -> int:
    """Return the distance at which programs use the same channels and ports (unless they are hashed)."""
    memory, ports = model.memory, model.ports
    return math.lcm(ALIGN_BYTES, memory.interleave_bytes * memory.num_channels, ports.interleave_bytes * ports.count)


SENDER, RECEIVER = 0, 1
#: Kernels of a message.
SEND_KERNEL, RECEIVE_KERNEL = 0, 1
_NAME, _PUT, _SIGNAL, _WAIT = "send_recv", "put", "signal", "wait"


def message_program(
    size_bytes: int, *, workgroups: int, wavefronts: int, line_bytes: int, through_nic: bool
) -> GpuProgram:
    """Return two kernels: rank 0 writes into rank 1's memory and then signals; rank 1 waits for the signal.

    through_nic: the copy engine moves the bytes, and its last packet signals; else each workgroup stores
    a part of the lines.
    """
    builder = ProgramBuilder(_NAME, 2, line_bytes=line_bytes)
    lines = -(-size_bytes // line_bytes)
    signal_address = lines * line_bytes  # the line behind the data
    groups = 1
    if through_nic:
        _by_nic(builder, size_bytes, signal_address)
    else:
        groups = max(1, min(workgroups, lines))
        for group in range(groups):
            first, end = lines * group // groups, lines * (group + 1) // groups
            _by_stores(builder, first * line_bytes, end - first, line_bytes, signal_address)
    builder.end_kernel(SENDER, 1 if through_nic else wavefronts, "send")
    operand = Operand(READ, RECEIVER, signal_address, semaphore=builder.semaphores(1))
    builder.add(ACQUIRE, groups, [operand], _WAIT)
    builder.end_workgroup()
    builder.end_kernel(RECEIVER, 1, "receive")
    return builder.program()


def _by_nic(builder: ProgramBuilder, size_bytes: int, signal_address: int) -> None:
    """Add a workgroup that hands all bytes to the copy engine; with 0 bytes, its packet only signals."""
    target = Operand(WRITE, RECEIVER, 0 if size_bytes else signal_address, semaphore=0)
    sources = [Operand(READ, SENDER, 0)] if size_bytes else []
    builder.add(DMA, size_bytes, [*sources, target], _PUT)
    builder.add(WAITCNT, 0, (), _PUT)
    builder.end_workgroup()


def _by_stores(builder: ProgramBuilder, address: int, lines: int, line_bytes: int, signal_address: int) -> None:
    """Add a workgroup that stores its lines and signals after their arrival."""
    if lines:
        ends = [Operand(READ, SENDER, address, line_bytes), Operand(WRITE, RECEIVER, address, line_bytes)]
        builder.add(COPY, lines, ends, _PUT)
        builder.add(WAITCNT, 0, (), _SIGNAL)
        builder.add(BARRIER, 0, (), _SIGNAL)
    builder.add(RELEASE, 1, [Operand(WRITE, RECEIVER, signal_address, semaphore=0)], _SIGNAL)
    builder.end_workgroup()
