"""Why nothing can happen any more inside the GPUs: which wavefronts wait, where, for what."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from trine.errors import DeadlockError

SHOWN = 8


class StuckWavefront(NamedTuple):
    """A wavefront that waits for ever.

    kernel: its name; workgroup: number in the kernel; operation: number in the workgroup, ``operation_name`` one of
    OP_NAMES (empty: all its operations are over), ``label`` that of the operation or empty; waits_for: in words.
    """

    rank: int
    kernel: str
    workgroup: int
    wavefront: int
    operation: int
    operation_name: str
    label: str
    waits_for: str


def for_semaphore(number: int, rank: int, value: int, needs: int) -> str:
    return f"semaphore {number} of rank {rank}, which has {value} and needs {needs}"


def for_barrier(there: int, wavefronts: int) -> str:
    return f"the barrier, where {there} of {wavefronts} wavefronts are"


def for_lines(unfinished: int, flagged: Sequence[str]) -> str:
    """``unfinished`` lines and requests, of which some wait for the flags ``flagged`` (:func:`for_semaphore`)."""
    what = f"{unfinished} unfinished {'request' if unfinished == 1 else 'requests'}"
    if not flagged:
        return what
    return f"{what}, {len(flagged)} of them flagged; the first waits for the flag {flagged[0]}"


def for_place(limit: int, whose: str) -> str:
    return f"a place: all {limit} of {whose} are taken"


def gpu_deadlock(
    stuck: Sequence[StuckWavefront],
    num_stuck: int,
    waiting_kernels: Sequence[str],
    num_tasks: int,
    ranks_each: int,
) -> DeadlockError:
    """Name those that wait.

    stuck: the first :data:`SHOWN` of ``num_stuck`` wavefronts, in the order of ranks and places. waiting_kernels: in
    words, kernels with workgroups that found no room on a CU. num_tasks: that have not ended. ranks_each: ranks that
    each simulated GPU stands for.
    """
    lines = [_line(one) for one in stuck[:SHOWN]]
    if num_stuck > len(lines):
        lines.append(f"... ({num_stuck - len(lines)} more wavefronts) ...")
    lines += waiting_kernels[:SHOWN]
    if not lines:
        return DeadlockError(f"{num_tasks} tasks never ended, and no kernel runs: they wait for each other")
    if ranks_each > 1:
        lines.append(f"(folded: each rank named stands for {ranks_each} ranks)")
    shown = "\n  ".join(lines)
    return DeadlockError(
        f"nothing can happen any more: {num_tasks} tasks have not ended, {num_stuck} wavefronts wait:\n  {shown}"
    )


def for_room(rank: int, kernel: str, workgroups: int) -> str:
    return f"rank {rank}, kernel {kernel!r}: {workgroups} workgroups wait for room on a CU"


def _line(one: StuckWavefront) -> str:
    where = f"rank {one.rank}, kernel {one.kernel!r}, workgroup {one.workgroup}, wavefront {one.wavefront}"
    if not one.operation_name:
        return f"{where}: its operations are over; waits for {one.waits_for}"
    label = f" ({one.label})" if one.label else ""
    return f"{where}: operation {one.operation}, {one.operation_name}{label}: waits for {one.waits_for}"
