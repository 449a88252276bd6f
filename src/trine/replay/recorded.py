"""Is a record that of the run that is to be replayed, and does what came there fit the program?"""

from __future__ import annotations

import os

import numpy as np

from trine.errors import InputError, SpecError
from trine.gpu.outside import LOAD, RELEASE, Arrivals
from trine.gpu.program import GpuProgram
from trine.replay.arrivals import check_values
from trine.replay.fitting import buffer_list, check_flags, outside_buffers
from trine.replay.options import EidolonOptions
from trine.replay.origin import differing, origin_of
from trine.replay.workload import Workload


def check_record(options: EidolonOptions, work: Workload) -> tuple[str, ...]:
    """Warnings about what comes and is not waited for.

    Raises
    ------
    InputError: the record is of another program, GPU model or cluster, or does not say of which; requests outside the
        buffers; waits that nothing satisfies.
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


def _check_origin(record: Arrivals, work: Workload, file: str | None) -> None:
    if not record.origin:
        raise InputError(
            "the record does not say of which run it is: record it with 'trine eidolon record' (record_run)", file=file
        )
    others = differing(record.origin, origin_of(work.program, record.target, work.model, work.cluster))
    if others:
        raise InputError(
            f"the record is of another run: it differs in {' and '.join(others)}. Record this one (trine eidolon "
            f"record), or, if peers are to write when they did there: trine eidolon writes-from {file or 'FILE'}, and "
            "give what it writes to --writes",
            file=file,
        )


def _check_addresses(record: Arrivals, program: GpuProgram, file: str | None) -> None:
    """As the program's own: lines begin inside its buffers, if it names any; semaphores may lie behind them."""
    if record.semaphore.max(initial=-1) >= program.semaphores.shape[1]:
        row = int(record.semaphore.argmax())
        count = program.semaphores.shape[1]
        raise SpecError(f"cannot be {record.semaphore[row]} (row {row}): the program has {count}", file=file,
                        field="semaphore")  # fmt: skip
    out = (record.kind != RELEASE) & outside_buffers(program, record.address, 1)
    if program.buffers and out.any():
        row = int(out.argmax())
        problem = f"0x{record.address[row]:x} is outside the buffers of the target{buffer_list(program)} (row {row})"
        raise SpecError(problem, file=file, field="address")
