"""Runs of all GPUs that are recorded for replay, and conversion of records to writes."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from trine.common.units import format_time
from trine.errors import InputError
from trine.gpu.peers import LOAD, PUT, RELEASE, STORE, Arrivals
from trine.gpu.replay.arrivals import provenance_of
from trine.gpu.replay.case import ReplayCase, make_case
from trine.gpu.replay.options import EidolonOptions
from trine.gpu.replay.transfers import FLAG_BYTES, TransferColumns, writes_from_transfers
from trine.gpu.replay.writes import WriteTable
from trine.gpu.replayed import check_replayable_program
from trine.gpu.run import GpuRun, GpuRunOptions, run_gpus


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class RecordedRun:
    """A run of all GPUs. arrivals: at the recorded rank."""

    work: ReplayCase
    run: GpuRun
    arrivals: Arrivals

    def summary(self) -> str:
        """Return the run in two lines."""
        run, arrivals = self.run, self.arrivals
        kinds = [int(np.count_nonzero(arrivals.kind == kind)) for kind in range(PUT + 1)]
        fold = run.fold
        fold_text = f"folded to {fold.classes}" if fold.why_unfolded is None else "each simulated"
        representative = "" if arrivals.target == self.work.target else f", as which rank {self.work.target} does"
        return "\n".join(
            (
                f"{run.program.name}: {run.program.num_ranks} GPUs of {run.model.name} ({fold_text}), "
                f"{format_time(run.end_ps)}",
                f"came to rank {arrivals.target}{representative}: {kinds[LOAD]:,} loads, {kinds[STORE]:,} stores, "
                f"{kinds[RELEASE] + kinds[PUT]:,} releases, {len(arrivals.answer_ps):,} answers",
            )
        )


def record_run(options: EidolonOptions, *, fold: str = "auto") -> RecordedRun:
    """Simulate all GPUs of the kernel, and record the traffic to one of them: ``options.target``, or rank 0.

    In a folded run, the recorded rank is the target's representative: ``arrivals.target``.

    Raises InputError, SpecError, PlanError: as :func:`trine.gpu.replay.run.run_eidolon`; options about peers' writes,
    which are simulated here. KeyboardInterrupt: after Ctrl-C.
    """
    if options.source != "wakeup" or options.wakeup is not None or options.wakeup_from is not None:
        raise InputError("a record simulates the peers: give no times of their writes")
    work = make_case(replace(options, symmetric=True))
    check_replayable_program(work.program)
    run_options = GpuRunOptions(fold=fold, engine=options.engine, record=work.target)
    run = run_gpus(work.program, work.cluster, work.group, work.model, tasks=work.tasks, options=run_options)
    arrivals = run.whole().arrivals
    assert arrivals is not None
    origin = provenance_of(work.program, arrivals.target, work.model, work.cluster)
    return RecordedRun(work=work, run=run, arrivals=replace(arrivals, origin=origin))


def fused_writes(transfers: TransferColumns, options: EidolonOptions, target: int, at: str = "end") -> WriteTable:
    """Return the flags and data of a fused kernel's peers, at the times an operator-level run delivers them.

    transfers: of that run. Its ranks are the kernel's, rotated by ``target``, because the kernel's target is rank 0.

    Raises InputError, SpecError: wrong options; a peer of the kernel that sends nothing in that run.
    """
    work = make_case(options)
    rotated = transfers._replace(peer=(transfers.peer - target) % (work.peers + 1))
    if int(transfers.peer.max()) > work.peers or target > work.peers:
        raise InputError(f"the run has more ranks than the kernel's {work.peers + 1}: --peers N")
    return writes_from_transfers(rotated, work.flags(), work.data(), at=at)


def request_writes(arrivals: Arrivals) -> tuple[WriteTable, tuple[str, ...]]:
    """Return a record's stores and releases as writes, at their arrival times, and notes on the losses.

    A line of data is a write of its first 8 bytes, which is one line to the memory.
    """
    writes = arrivals.kind != LOAD
    table = WriteTable()
    table.register_writes(
        peer=arrivals.rank[writes], address=arrivals.address[writes], size_bytes=FLAG_BYTES,
        value=np.where(arrivals.semaphore >= 0, arrivals.amount, 0)[writes], time_ps=arrivals.time_ps[writes],
    )  # fmt: skip
    notes = ["as writes they begin at the memory, at the times of the port: --arrivals replays the record to the ps"]
    if loads := int(np.count_nonzero(~writes)):
        notes.append(f"{loads:,} loads by peers ignored")
    return table, tuple(notes)
