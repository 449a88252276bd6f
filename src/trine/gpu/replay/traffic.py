"""Traffic that reaches the target from its peers, built from the options: timed writes, or the record of a run."""

from __future__ import annotations

import os
from dataclasses import dataclass

import numpy as np

from trine.common.arrays import Int64
from trine.common.units import format_time
from trine.errors import InputError, SpecError, nearest
from trine.gpu.kernels.fused.peers import PeerData, PeerFlags
from trine.gpu.peers import IDEAL, LOAD, PUT, RELEASE, Arrivals, PeerWrites
from trine.gpu.program import GpuProgram
from trine.gpu.replay.arrivals import check_values, differing, provenance_of
from trine.gpu.replay.case import ReplayCase
from trine.gpu.replay.distributions import draw_writes
from trine.gpu.replay.options import START, EidolonOptions, time_ps
from trine.gpu.replay.resolve import buffer_list, check_flags, outside_buffers, peer_writes
from trine.gpu.replay.transfers import FLAG_BYTES
from trine.gpu.replay.write_files import read_writes
from trine.gpu.replay.writes import WriteTable
from trine.gpu.run import GpuRunOptions, run_gpus


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class PeerTraffic:
    """Traffic that reaches the target. origin: its source, as text; evidence: the kind of evidence for it."""

    outside: PeerWrites | Arrivals
    origin: str
    evidence: str
    warnings: tuple[str, ...] = ()

    @property
    def fabric(self) -> str | None:
        """``ideal`` or ``modelled``; None for a record, which holds traffic that has already left the fabric."""
        return None if isinstance(self.outside, Arrivals) else self.outside.fabric

    @property
    def time_ps(self) -> Int64:
        """Times, int64[n]: of each write; for a record, of each request that writes."""
        outside = self.outside
        return outside.time_ps[outside.kind != LOAD] if isinstance(outside, Arrivals) else outside.time_ps

    @property
    def num_flags(self) -> int:
        return int(np.count_nonzero(self.outside.semaphore >= 0))


def make_traffic(options: EidolonOptions, work: ReplayCase, waiting_ps: int) -> PeerTraffic:
    """Return the traffic that the options describe.

    waiting_ps: when the last workgroup starts to wait, for times that count from then. Raises InputError, SpecError:
    writes that do not fit the program, waits that never end, ranks that are not symmetric.
    """
    source = options.source
    if source == "symmetric":
        return _symmetric(options, work)
    if source == "arrivals":
        assert work.record is not None
        notes = check_record(options, work)
        name = "" if isinstance(options.arrivals, Arrivals) else f" {options.arrivals}"
        origin = f"the record{name} of a run of all GPUs"
        return PeerTraffic(outside=work.record, origin=origin, evidence="modelled", warnings=notes)
    if source == "writes":
        return _from_writes(options, work)
    return _from_distribution(options, work, waiting_ps)


def counts_from_wait(options: EidolonOptions) -> bool:
    """Return whether times of writes count from the start of the target's wait."""
    return options.source in ("wakeup", "distribution") and options.wakeup_from != START


def _symmetric(options: EidolonOptions, work: ReplayCase) -> PeerTraffic:
    """Record traffic from a run of all ranks, folded to one GPU if that gives the same result."""
    run_options = GpuRunOptions(engine=options.engine, record=work.target)
    run = run_gpus(work.program, work.cluster, work.group, work.model, tasks=work.tasks, options=run_options)
    arrivals = run.whole().arrivals
    assert arrivals is not None
    origin = "peers that do as the target does, recorded in a run of all GPUs"
    why = run.fold.why_unfolded
    if why is None:
        origin += f", folded to {run.fold.classes}"
        proxy = arrivals.target
        notes = () if proxy == work.target else (f"rank {work.target} does as rank {proxy} does, which is simulated",)
        return PeerTraffic(outside=arrivals, origin=origin, evidence="modelled", warnings=notes)
    note = f"all {run.program.num_ranks} GPUs were simulated for the record, since they do not fold: {why}"
    return PeerTraffic(outside=arrivals, origin=origin, evidence="modelled", warnings=(note,))


def _from_writes(options: EidolonOptions, work: ReplayCase) -> PeerTraffic:
    assert options.writes is not None
    table = options.writes if isinstance(options.writes, WriteTable) else read_writes(options.writes)
    is_file = table is not options.writes
    try:
        resolved = peer_writes(table, work.program, work.target, options.fabric or IDEAL)
    except InputError as error:
        # an error about all writes together has no file
        if is_file and error.file is None:
            raise InputError(str(error), file=options.writes) from None
        raise
    name = f"writes of {options.writes}" if is_file else "registered writes"
    return PeerTraffic(outside=resolved.writes, origin=name, evidence="assumed", warnings=resolved.warnings)


def _from_distribution(options: EidolonOptions, work: ReplayCase, waiting_ps: int) -> PeerTraffic:
    flags = work.flags()
    if not len(flags.peer):
        raise InputError(
            f"{work.program.name!r}: peers release no semaphore of rank {work.target}, so a wake-up time cannot "
            "matter: --writes, --symmetric or --arrivals"
        )
    table = _table(options, flags, work.data(), waiting_ps)
    resolved = peer_writes(table, work.program, work.target, options.fabric or IDEAL)
    moment = "the target's last workgroup starts waiting" if counts_from_wait(options) else "the start"
    lands = "arrive" if resolved.writes.fabric == IDEAL else "leave"
    delay = options.delay
    if delay.kind == "constant":
        timing = f"{format_time(delay.first_ps)} after {moment}"
    else:
        timing = f"at times drawn ({options.distribution}, seed {options.seed or 0}) after {moment}"
    delays = {peer: format_time(time_ps("straggler", late)) for peer, late in sorted(options.straggler.items())}
    late = "".join(f"; rank {peer} {time} later" for peer, time in delays.items())
    return PeerTraffic(
        outside=resolved.writes, origin=f"flags {lands} {timing}{late}", evidence="assumed", warnings=resolved.warnings
    )


def _table(options: EidolonOptions, flags: PeerFlags, data: PeerData | None, waiting_ps: int) -> WriteTable:
    """Return writes of flags at drawn times, and of data with its flag (same peer, same workgroup)."""
    writers = np.unique(flags.peer).tolist()
    for peer in options.straggler:
        if peer not in writers:
            raise InputError(f"--straggler: rank {peer} writes nothing{nearest(str(peer), map(str, writers))}")
    base_ps = waiting_ps if counts_from_wait(options) else 0
    offset_ps = {peer: time_ps("straggler", late) for peer, late in options.straggler.items()}
    writes = draw_writes(
        peer=flags.peer, address=flags.address, size_bytes=FLAG_BYTES, value=flags.value, distribution=options.delay,
        seed=options.seed or 0, together=options.together, base_ps=base_ps, offset_ps=offset_ps,
    )  # fmt: skip
    if data is not None and len(data.peer):
        times = _with_flags(flags, writes.columns.time_ps, data)
        writes.register_writes(peer=data.peer, address=data.address, size_bytes=data.size_bytes, time_ps=times)
    return writes


def _with_flags(flags: PeerFlags, flag_ps: Int64, data: PeerData) -> Int64:
    """Return int64[data]: time of the peer's first flag for the same workgroup, else of the peer's first flag."""
    span = int(max(flags.workgroup.max(initial=0), data.workgroup.max(initial=0))) + 2

    def keys(rows: PeerFlags | PeerData) -> Int64:
        return rows.peer.astype(np.int64) * span + rows.workgroup + 1

    order = np.lexsort((flag_ps, keys(flags)))
    flag_keys, first_rows = np.unique(keys(flags)[order], return_index=True)
    place = np.minimum(np.searchsorted(flag_keys, keys(data)), len(flag_keys) - 1)
    exact = flag_keys[place] == keys(data)
    earliest = np.full(int(max(flags.peer.max(), data.peer.max())) + 1, np.iinfo(np.int64).max)
    np.minimum.at(earliest, flags.peer, flag_ps)
    return np.where(exact, flag_ps[order][first_rows[place]], earliest[data.peer])


def check_record(options: EidolonOptions, work: ReplayCase) -> tuple[str, ...]:
    """Return warnings about flags that arrive but are not waited for.

    Raises InputError: the record belongs to another program, GPU model or cluster, or does not name its run; requests
    outside the buffers; waits that no flag satisfies.
    """
    record = work.record
    assert record is not None
    file = None if isinstance(options.arrivals, Arrivals) else os.fspath(str(options.arrivals))
    check_values(record, file)
    _check_origin(record, work, file)
    _check_addresses(record, work.program, file)
    flags = (record.semaphore >= 0) & (record.kind != LOAD)
    try:
        return check_flags(work.program, record.target, record.semaphore[flags].astype(np.int64), record.amount[flags])
    except InputError as error:
        raise InputError(str(error).removeprefix("writes: "), file=file) from None


def _check_origin(record: Arrivals, work: ReplayCase, file: str | None) -> None:
    if not record.origin:
        raise InputError(
            "the record does not name its run: record it with 'trine eidolon record' (record_run)", file=file
        )
    differences = differing(record.origin, provenance_of(work.program, record.target, work.model, work.cluster))
    if differences:
        raise InputError(
            f"the record is of another run: it differs in {' and '.join(differences)}. Record this one (trine eidolon "
            f"record), or, to keep its peers' times: trine eidolon writes-from {file or 'FILE'}, and "
            "give its output to --writes",
            file=file,
        )


def _check_addresses(record: Arrivals, program: GpuProgram, file: str | None) -> None:
    """Require that lines begin inside the program's buffers, if it names any; semaphores may lie outside."""
    if record.semaphore.max(initial=-1) >= program.semaphores.shape[1]:
        row = int(record.semaphore.argmax())
        count = program.semaphores.shape[1]
        raise SpecError(f"cannot be {record.semaphore[row]} (row {row}): the program has {count}", file=file,
                        field="semaphore")  # fmt: skip
    is_outside = ~np.isin(record.kind, (RELEASE, PUT)) & outside_buffers(program, record.address, 1)
    if program.buffers and is_outside.any():
        row = int(is_outside.argmax())
        problem = f"0x{record.address[row]:x} is outside the buffers of the target{buffer_list(program)} (row {row})"
        raise SpecError(problem, file=file, field="address")
