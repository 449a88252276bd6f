"""Kernels of the one simulated GPU, and the data and flags that its peers send to it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from trine.cluster.cluster import Cluster
from trine.cluster.load import load_cluster
from trine.common.inputs import read_text
from trine.errors import InputError
from trine.gpu.kernels.fused.build import FusedProgram, build_fused, fused_tasks
from trine.gpu.kernels.fused.expected import expected_reads
from trine.gpu.kernels.fused.peers import PeerData, PeerFlags, flags_of, peer_writes_of
from trine.gpu.kernels.options import JOINT
from trine.gpu.model import GpuModel
from trine.gpu.model.files import gpu_model_of, load_gpu_model
from trine.gpu.model.options import MWAIT, SPIN, ModelOptions
from trine.gpu.peers import Arrivals
from trine.gpu.program import ACQUIRE, GpuProgram
from trine.gpu.replay.arrivals import load_arrivals
from trine.gpu.replay.options import EidolonOptions
from trine.gpu.system import KernelTasks

PEERS = 3
#: A wait method besides the options' ones: the memory answers when the semaphore is released.
ANSWERED = "answered"
#: Default rows, cols and inner of fused kernels; they read 66,000 to 560,000 lines of 64 B.
USUAL_SIZES = {"gemv": (1024, 1024, 1), "gemm": (1024, 1024, 256), "embedding": (1024, 256, 16)}
#: Tile of a GEMV. It spans whole rows, so that all workgroups end together.
GEMV_TILE = (64, 1024)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class ReplayCase:
    """Program, target rank and machine of one replay.

    built: None if trine did not build the program. tasks: kernel order; None: all at once. sync: the requested value.
    record: the replayed arrivals. warnings: assumptions about peers. devices: by rank; None: the cluster's first GPUs.
    """

    program: GpuProgram
    target: int
    cluster: Cluster
    model: GpuModel
    sync: str | None
    built: FusedProgram | None = None
    tasks: KernelTasks | None = None
    record: Arrivals | None = None
    warnings: tuple[str, ...] = ()
    devices: tuple[int, ...] | None = None

    @property
    def group(self) -> tuple[int, ...]:
        """Device of each rank."""
        return tuple(self.cluster.gpus[: self.program.num_ranks]) if self.devices is None else self.devices

    @property
    def way(self) -> str:
        """Wait method of wavefronts: ``spin``, ``sleep``, ``mwait``, or ``answered`` if the memory answers."""
        if self.model.poll_ps is None:
            return ANSWERED
        return MWAIT if self.model.monitor is not None else self.sync or SPIN

    @property
    def peers(self) -> int:
        return self.program.num_ranks - 1

    @property
    def non_flag_reads(self) -> int | None:
        """Number of reads that the data flow requires; None if trine did not build the program."""
        return None if self.built is None else sum(expected_reads(self.built.options).values())

    @property
    def waiting_workgroups(self) -> npt.NDArray[np.int64]:
        """Workgroups of the target that acquire a semaphore, each with its first wavefront."""
        program = self.program
        waits = (program.op_kind == ACQUIRE) & (program.op_rank == self.target)
        return np.unique(program.op_workgroup[waits])

    def flags(self) -> PeerFlags:
        """Return the flags that the peers write to the target."""
        return flags_of(self.program, self.target)

    def data(self) -> PeerData | None:
        """Return the lines that the peers write to the target, or None if trine did not build the program."""
        return None if self.built is None else peer_writes_of(self.built, self.target)


def make_case(options: EidolonOptions) -> ReplayCase:
    """Build or read the program and load the machine.

    Raises InputError, SpecError or PlanError for invalid options and files.
    """
    record = _record(options)
    program = options.kernel if isinstance(options.kernel, GpuProgram) else None
    text = "" if program is not None or options.is_fused_name else read_text(os.fspath(str(options.kernel)))
    ranks = _ranks(options, program, text, record)
    cluster = _cluster(options.cluster, ranks)
    model = _model(options, cluster, ranks)
    machine: dict[str, Any] = {"cluster": cluster, "model": model, "sync": options.sync, "record": record}
    if options.is_fused_name:
        target = 0 if record is None else record.target
        return _fused(options, ranks, target, machine)
    if program is None:
        from trine.gpu.text import parse_program, says_ranks

        program = parse_program(text, str(options.kernel), num_ranks=None if says_ranks(text) else ranks)
    target = _target(options, program, record)
    return ReplayCase(program=program, target=target, warnings=_program_warnings(options, program, target), **machine)


def _cluster(name: str, ranks: int) -> Cluster:
    """Load the cluster; the error for too few GPUs names --peers."""
    try:
        return load_cluster(name, gpus=ranks)
    except InputError as error:
        num_gpus = len(load_cluster(name).gpus)
        if ranks > num_gpus:
            raise InputError(f"--peers {ranks - 1}: cluster {name!r} has {num_gpus} GPUs ({error})") from None
        raise


def _fused(options: EidolonOptions, ranks: int, target: int, machine: dict[str, Any]) -> ReplayCase:
    rows, cols, inner = USUAL_SIZES[str(options.kernel).partition("-")[0]]
    defaults: dict[str, Any] = {"rows": rows, "cols": cols, "inner": inner, "waits": JOINT}
    line = machine["model"].line_bytes
    if options.kernel == "gemv-allreduce" and not GEMV_TILE[1] * (options.dtype_bytes or 4) % line:
        defaults["tile"] = GEMV_TILE
    # other ranks are built only if all ranks are simulated
    only_rank = None if options.symmetric else target
    sizes = {**defaults, **options.sizes}
    built = build_fused(str(options.kernel), ranks, only_rank=only_rank, fused=options.fused, line_bytes=line, **sizes)
    tasks = None if options.fused else fused_tasks(built)
    return ReplayCase(
        program=built.program, target=target, built=built, tasks=tasks, **machine
    )  # fmt: skip


def _program_warnings(options: EidolonOptions, program: GpuProgram, target: int) -> tuple[str, ...]:
    """Return the warnings for a program that trine did not build: its assumptions about the peers."""
    if options.source not in ("wakeup", "distribution"):
        return ()
    notes = ["peers' flags are replayed, their data is not: give it with --writes, --symmetric or --arrivals"]
    if (program.kernel_rank == target).all():
        notes.append(f"the program has kernels of rank {target} alone: trine assumes the same, rotated, for its peers")
    return tuple(notes)


def _record(options: EidolonOptions) -> Arrivals | None:
    if options.arrivals is None or isinstance(options.arrivals, Arrivals):
        return options.arrivals
    return load_arrivals(options.arrivals)


def _ranks(options: EidolonOptions, program: GpuProgram | None, text: str, record: Arrivals | None) -> int:
    """Return the number of ranks, target included. Raises InputError if the inputs disagree."""
    counts: dict[str, int] = {}
    if options.peers is not None:
        counts["--peers"] = options.peers + 1
    if record is not None:
        counts["the record"] = record.num_ranks
    if program is not None:
        counts["the program"] = program.num_ranks
    elif text:
        from trine.gpu.text import parse_program, says_ranks

        if says_ranks(text):
            counts[str(options.kernel)] = parse_program(text, str(options.kernel)).num_ranks
        elif not counts:
            raise InputError("says not how many ranks it is for: --peers N, or a line 'ranks N'", file=options.kernel)
    if len(set(counts.values())) > 1:
        raise InputError(" and ".join(f"{source} says {count - 1} peers" for source, count in counts.items()))
    ranks = next(iter(counts.values()), PEERS + 1)
    if ranks < 2:
        raise InputError("a program of one rank has no peers to replay: trine kernel run")
    return ranks


def _model(options: EidolonOptions, cluster: Cluster, ranks: int) -> GpuModel:
    model = (
        gpu_model_of(cluster, cluster.gpus[:ranks]) if options.gpu_model is None else load_gpu_model(options.gpu_model)
    )
    return ModelOptions(
        sync=options.sync, issue_seed=options.issue_seed, poll=options.poll, sleep=options.sleep,
        monitor_capacity=options.monitor_capacity, wakeup=options.monitor_wakeup,
    ).of(model)  # fmt: skip


def _target(options: EidolonOptions, program: GpuProgram, record: Arrivals | None) -> int:
    if record is not None:
        if options.target not in (None, record.target):
            raise InputError(f"--target {options.target}: the record is of rank {record.target}")
        return record.target
    target = 0 if options.target is None else options.target
    if not 0 <= target < program.num_ranks:
        raise InputError(f"--target {target}: the ranks of {program.name!r} are 0 to {program.num_ranks - 1}")
    return target
