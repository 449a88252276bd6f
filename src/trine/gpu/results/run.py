"""Result of a simulation inside GPUs: the program, its records, and the use of CUs, requests and operations.

Utilisation is busy time / time of the run. A CU is *occupied* while it has a workgroup.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple, Protocol

import numpy as np

from trine.cluster.cluster import Cluster
from trine.common.arrays import Int64, members, row_of
from trine.common.evidence import Evidence
from trine.common.units import PS_PER_S
from trine.errors import InputError
from trine.gpu.model import GpuModel
from trine.gpu.program import DATA_OPS, DMA, OP_NAMES, GpuProgram, has_multimem
from trine.gpu.records import COUNTERS, STATE_NAMES, GpuCounters, GpuRecords
from trine.results.columns import column
from trine.results.intervals import lengths, merge, sum_by_group

_NOT_MODELLED = "caches other than the L2, address translation, back-pressure, memory refresh and banks, clock changes"
_NO_L2 = (
    "caches (this GPU model has no L2), address translation, back-pressure, memory refresh and banks, clock changes"
)
_DMA = "memory-channel and NoC traffic of copy engines and NICs"


MILLION = 1_000_000


@dataclass(frozen=True, kw_only=True, slots=True)
class GpuUse(GpuCounters[int]):
    """Activity of one simulated GPU.

    rank: the rank it was simulated as. stands_for: number of ranks it represents. start_ps, end_ps: start of its first
    and end of its last workgroup; -1 if no workgroup ran. state_ps: wavefront time in each of STATE_NAMES.
    occupied_cus: number of CUs that had a workgroup. occupied_ps: their occupied time, summed.
    """

    rank: int
    stands_for: int = field(metadata=column("ranks_alike"))
    start_ps: int = field(metadata=column(none=-1))
    end_ps: int = field(metadata=column(none=-1))
    state_ps: tuple[int, ...]
    workgroups: int
    occupied_cus: int = field(metadata=column("cus_used"))
    occupied_ps: int

    @property
    def flag_reads(self) -> int:
        """Acquires plus loads of lines with a flag inside; every retry counts (docs/design/replay.md, counted)."""
        return self.acquires + self.flagged_loads

    @property
    def non_flag_reads(self) -> int:
        """All other loads."""
        return self.loads - self.flagged_loads

    @property
    def mean_load_latency_ps(self) -> float | None:
        return self.load_latency_ps / self.loads if self.loads else None

    @property
    def requests(self) -> int:
        return self.loads + self.stores + self.acquires + self.releases

    @property
    def mean_loads_under_way(self) -> float | None:
        """Mean loads in flight while workgroups ran (Little's law: load rate x mean latency). None if none ran."""
        duration = self.end_ps - self.start_ps
        return self.load_latency_ps / duration if duration > 0 else None

    @property
    def l2_hit_rate(self) -> float | None:
        accesses = self.l2_hits + self.l2_misses
        return self.l2_hits / accesses if accesses else None


@dataclass(frozen=True, kw_only=True, slots=True)
class OperationUse:
    """Operations of one kind and label. amount: lines, bytes (dma), cycles (compute), counts (semaphores).

    time_ps: sum of their durations, each from the first wavefront that starts it to the last that finishes it.
    """

    kind: str
    label: str = field(metadata=column(none=""))
    count: int
    amount: int
    time_ps: int
    longest_ps: int

    @property
    def mean_ps(self) -> float:
        return self.time_ps / self.count


class HowFolded(Protocol):
    """Folding of ranks: the number of simulated GPUs and the ranks each represents, or why it was not done."""

    @property
    def classes(self) -> int: ...
    @property
    def group_size(self) -> int: ...
    @property
    def why_unfolded(self) -> str | None: ...


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class KernelRun:
    """Result of simulating a program inside GPUs.

    program: covers all ranks, also those not simulated. group: the device of each rank in the cluster. bus_factor:
    busbw / algbw as in nccl-tests, None if the program is not a collective. fold: None if unknown. finished: False if
    the run was stopped. wall_s: wall-clock time of the simulation, None if not measured. notes: messages for the user,
    in addition to the program's.

    Raises
    ------
    InputError: The records belong to another program, cluster or model.
    """

    program: GpuProgram
    model: GpuModel
    cluster: Cluster
    group: Sequence[int]
    records: GpuRecords
    bus_factor: float | None = None
    fold: HowFolded | None = None
    finished: bool = True
    wall_s: float | None = None
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if len(self.group) != self.program.num_ranks:
            raise InputError(f"needs a device a rank: {self.program.num_ranks}, got {len(self.group)}", field="group")
        cus = self.records.state_ps.shape[1]
        if cus != self.model.num_cus:
            raise InputError(f"the records are of GPUs of {cus} CUs, {self.model.name!r} has {self.model.num_cus}")
        shown(self.program, self.records)

    # Time

    @property
    def time_ps(self) -> int:
        """Time from the start of the run to its end, or to the moment it was stopped."""
        return self.records.end_ps

    @property
    def time_s(self) -> float:
        return self.time_ps / PS_PER_S

    @property
    def algbw_bytes_per_s(self) -> float | None:
        """Payload / time; None if the program has no payload or the run was stopped."""
        if not self.program.payload_bytes or not self.time_ps or not self.finished:
            return None
        return self.program.payload_bytes * PS_PER_S / self.time_ps

    @property
    def busbw_bytes_per_s(self) -> float | None:
        """algbw times the bus factor of nccl-tests; None if either is missing."""
        algbw = self.algbw_bytes_per_s
        return None if algbw is None or self.bus_factor is None else algbw * self.bus_factor

    # Derived results

    @cached_property
    def shown(self) -> Shown:
        """The parts of the program that the records cover."""
        return shown(self.program, self.records)

    @property
    def kernel_ps(self) -> int:
        """Time from the first workgroup's start to the last one's end, of which texts give shares; else of the run."""
        start, end = self.window_ps
        return end - start or self.time_ps

    @cached_property
    def window_ps(self) -> tuple[int, int]:
        """Start of the first workgroup and end of the last; (0, 0) if no workgroup ran."""
        records = self.records
        began = records.workgroup_start_ps >= 0
        if not began.any():
            return 0, 0
        end = ends(records.workgroup_start_ps, records.workgroup_end_ps, records.end_ps)
        return int(records.workgroup_start_ps[began].min()), int(end[began].max())

    @cached_property
    def gpus(self) -> tuple[GpuUse, ...]:
        """Activity of each simulated GPU."""
        records, gpus = self.records, len(self.records.ranks)
        began = np.flatnonzero(records.workgroup_start_ps >= 0)
        gpu = self.shown.workgroup_gpu[began]
        first, last = np.full(gpus, np.iinfo(np.int64).max), np.full(gpus, -1, np.int64)
        np.minimum.at(first, gpu, records.workgroup_start_ps[began])
        np.maximum.at(last, gpu, ends(records.workgroup_start_ps, records.workgroup_end_ps, records.end_ps)[began])
        stands_for = np.bincount(records.gpu_of[records.gpu_of >= 0], minlength=gpus)  # -1: left out
        busy, workgroups = occupied(self), np.bincount(gpu, minlength=gpus)
        uses = []
        for g in range(gpus):
            start_ps = int(first[g]) if last[g] >= 0 else -1
            counts = {name: int(getattr(records, name)[g]) for name in COUNTERS}
            uses.append(
                GpuUse(
                    rank=int(records.ranks[g]),
                    stands_for=int(stands_for[g]),
                    start_ps=start_ps,
                    end_ps=int(last[g]),
                    state_ps=tuple(records.state_ps[g].sum(axis=0).tolist()),
                    workgroups=int(workgroups[g]),
                    occupied_cus=int(np.count_nonzero(busy[g])),
                    occupied_ps=int(busy[g].sum()),
                    **counts,
                )
            )
        return tuple(uses)

    @cached_property
    def operations(self) -> tuple[OperationUse, ...]:
        """Operations by kind and label, longest total time first."""
        records, program, ops = self.records, self.program, self.shown.op
        began = np.flatnonzero(records.op_start_ps >= 0)
        start = records.op_start_ps[began]
        duration = ends(records.op_start_ps, records.op_end_ps, records.end_ps)[began] - start
        kind = program.op_kind[ops[began]].astype(np.int64)
        key = kind * (len(program.labels) + 1) + program.op_label[ops[began]] + 1
        unique_keys, group = np.unique(key, return_inverse=True)
        count, longest = np.bincount(group, minlength=len(unique_keys)), np.zeros(len(unique_keys), np.int64)
        np.maximum.at(longest, group, duration)
        amount = sum_by_group(group, program.op_amount[ops[began]], len(unique_keys))
        time = sum_by_group(group, duration, len(unique_keys))
        uses = [
            OperationUse(
                kind=OP_NAMES[int(code) // (len(program.labels) + 1)],
                label=(*program.labels, "")[int(code) % (len(program.labels) + 1) - 1], count=int(count[i]),
                amount=int(amount[i]), time_ps=int(time[i]), longest_ps=int(longest[i]),
            )
            for i, code in enumerate(unique_keys)
        ]  # fmt: skip
        return tuple(sorted(uses, key=lambda use: (-use.time_ps, use.kind, use.label)))

    def rank(self, rank: int) -> GpuUse:
        """Return the activity of a rank's GPU; in a folded run, of the identical rank that represents it.

        Raises InputError if the program has no such rank or the rank was replayed.
        """
        return self.gpus[self.gpu_of(rank)]

    def gpu_of(self, rank: int) -> int:
        """Return the number of the simulated GPU that represents a rank.

        Raises InputError for an unknown rank, and for a replayed one, of which only messages were modelled.
        """
        if isinstance(rank, bool) or not isinstance(rank, int) or not 0 <= rank < self.program.num_gpus:
            raise InputError(f"there is no rank {rank!r}, ranks are 0 to {self.program.num_gpus - 1}", field="rank")
        gpu = int(self.records.gpu_of[rank])
        if gpu < 0:
            ranks = ", ".join(str(each) for each in self.records.ranks.tolist())
            reason = "was replayed, not simulated" if self.num_replayed else "is not shown"
            raise InputError(f"rank {rank} {reason}; rank {ranks} {'was' if self.num_replayed else 'is'}", field="rank")
        return gpu

    @property
    def num_replayed(self) -> int:
        """Number of replayed ranks: only their messages to other ranks are modelled (docs/design/replay.md)."""
        return 0 if has_multimem(self.program) else self._num_left_out

    @property
    def left_out(self) -> str:
        """Number of peers not shown, as text, and whether they were replayed or simulated; "" if all are shown."""
        count = self._num_left_out
        treatment = "replayed" if self.num_replayed else "simulated too"
        if count:
            return f"{count:,} {'peer' if count == 1 else 'peers'} {treatment}"
        return ""

    @property
    def simulated_gpus(self) -> str:
        """Numbers of simulated GPUs and of all GPUs, as text."""
        ranks, num_shown = self.program.num_gpus, len(self.gpus)
        gpus = f"{ranks:,} {'GPU' if ranks == 1 else 'GPUs'}"
        if self._num_left_out > self.num_replayed:
            return f"{gpus}, showing {num_shown:,}"
        return f"{num_shown:,} of {gpus}"

    @property
    def _num_left_out(self) -> int:
        return int(np.count_nonzero(self.records.gpu_of < 0))

    @property
    def evidence(self) -> tuple[Evidence, ...]:
        """Evidence and sources of the GPU model's and the cluster's numbers."""
        model, cluster = self.model, self.cluster
        rows = [
            Evidence(f"GPU {model.name}: {name}", _evidence_of(model, name), model.sources.get(name, ""))
            for name in sorted({*model.evidence, *model.sources})
        ]
        sources = "; ".join(f"{name}: {words}" for name, words in cluster.sources.items())
        return (*rows, Evidence(f"cluster {cluster.name}", cluster.evidence, sources))

    @property
    def _of_hosts(self) -> str:
        return "hosts other than their memory" if self.program.num_hosts else "the host"

    @property
    def not_modelled(self) -> tuple[str, ...]:
        """Effects that the run does not model."""
        missing = [_NO_L2 if self.model.l2 is None else _NOT_MODELLED, self._of_hosts]
        if np.any(self.program.op_kind == DMA) or self.records.packets.any():
            missing.append(_DMA)
        if self.model.notes:
            missing.append(f"{self.model.name}: {self.model.notes}")
        return tuple(missing)


def _evidence_of(model: GpuModel, name: str) -> str:
    """Return the evidence of a field, else of its group (``cus`` of ``cus.count``), else "assumed"."""
    return model.evidence.get(name) or (_evidence_of(model, name.rpartition(".")[0]) if name else "assumed")


class Shown(NamedTuple):
    """Workgroups and operations of the simulated GPUs, in the order of the records.

    workgroup, op: int64, numbers in the program of all ranks. workgroup_kernel, workgroup_gpu: kernel and simulated GPU
    of each workgroup. op_row: the row in ``workgroup`` of each operation.
    """

    workgroup: Int64
    workgroup_kernel: Int64
    workgroup_gpu: Int64
    op: Int64
    op_row: Int64


def shown(program: GpuProgram, records: GpuRecords) -> Shown:
    """Find the workgroups and operations of simulated ranks, in the program's order.

    Raises
    ------
    InputError: The records belong to another program.
    """
    number = np.full(program.num_ranks, -1, np.int64)
    number[records.ranks] = np.arange(len(records.ranks))
    kernels = np.flatnonzero(number[program.kernel_rank] >= 0)
    workgroup, kernel_ptr = members(program.kernel_ptr, kernels)
    op, op_ptr = members(program.workgroup_ptr, workgroup)
    for noun, count, expected in (
        ("ranks", len(records.gpu_of), program.num_gpus),
        ("workgroups", len(records.workgroup_start_ps), len(workgroup)),
        ("operations", len(records.op_start_ps), len(op)),
    ):
        if count != expected:
            raise InputError(f"these are not the records of program {program.name!r}: {count} {noun}, not {expected}")
    kernel = kernels[row_of(kernel_ptr)]
    return Shown(workgroup, kernel, number[program.kernel_rank[kernel]], op, row_of(op_ptr))


def peers(program: GpuProgram, ops: Int64, issuer: Int64) -> Int64:
    """Return the first remote rank that each operation reaches, or the rank that runs it: int64[ops].

    issuer: int64[ops], the rank that runs each operation.
    """
    operand, ptr = members(program.operand_ptr, ops)
    row = row_of(ptr)
    rank = program.operand_rank[operand].astype(np.int64)
    remote = np.flatnonzero(rank != issuer[row])[::-1]
    peer_of_op = issuer.copy()
    peer_of_op[row[remote]] = rank[remote]  # last write wins: the first operand stays
    return peer_of_op


def ends(start_ps: Int64, end_ps: Int64, now_ps: int) -> Int64:
    """Return end times; an item still running when the run was stopped ends at ``now_ps``."""
    return np.where((start_ps >= 0) & (end_ps < 0), now_ps, end_ps)


def occupied(result: KernelRun) -> Int64:
    """Return how long each CU had a workgroup: int64[gpus, cus], ps."""
    records, cus = result.records, result.model.num_cus
    began = np.flatnonzero(records.workgroup_start_ps >= 0)
    end = ends(records.workgroup_start_ps, records.workgroup_end_ps, records.end_ps)[began]
    cu = result.shown.workgroup_gpu[began] * cus + records.workgroup_cu[began]
    count = len(records.ranks) * cus
    return lengths(merge(cu, records.workgroup_start_ps[began], end), count).reshape(-1, cus)


def workgroups_of_cus(result: KernelRun) -> Int64:
    """Return how many workgroups each CU ran: int64[gpus, cus]."""
    records, cus = result.records, result.model.num_cus
    began = records.workgroup_start_ps >= 0
    cu = result.shown.workgroup_gpu[began] * cus + records.workgroup_cu[began]
    return np.bincount(cu, minlength=len(records.ranks) * cus).reshape(-1, cus)


def state_times(result: KernelRun) -> dict[str, int]:
    """Return the summed wavefront time of the simulated GPUs by state, in ps."""
    return dict(zip(STATE_NAMES, result.records.state_ps.sum(axis=(0, 1)).tolist(), strict=True))


def parts_of(times: list[int], whole: int = MILLION) -> list[int]:
    """Return integers proportional to ``times`` that sum to ``whole`` exactly; all 0 if all times are 0.

    The remainder after rounding down goes to the largest fractional parts; ties go to the first.
    """
    total = sum(times)
    if not total:
        return [0] * len(times)
    parts = [time * whole // total for time in times]
    order = sorted(range(len(times)), key=lambda i: (-(times[i] * whole % total), i))
    for i in order[: whole - sum(parts)]:
        parts[i] += 1
    return parts


def percentages(times: list[int]) -> list[str]:
    """Return shares as text with one decimal that sum to 100.0 exactly."""
    return [f"{part / 10:.1f} %" for part in parts_of(times, 1000)]


def places(result: KernelRun, states: Collection[str] = STATE_NAMES) -> float:
    """Return the requests an occupied CU can have in flight: the lower of the limits of CU and wavefronts in states."""
    occupied_ps = sum(gpu.occupied_ps for gpu in result.gpus)
    times = state_times(result)
    if occupied_ps:
        wavefronts = sum(times[state] for state in states) / occupied_ps
    else:
        wavefronts = 0.0
    return min(float(result.model.max_outstanding), wavefronts * unroll(result))


def unroll(result: KernelRun) -> int:
    """Return the largest number of in-flight requests per wavefront that any data operation allows."""
    program, ops = result.program, result.shown.op
    data = np.isin(program.op_kind[ops], DATA_OPS)
    stated = program.op_unroll[ops[data]]
    return int(np.where(stated > 0, stated, result.model.unroll).max(initial=0)) or result.model.unroll
