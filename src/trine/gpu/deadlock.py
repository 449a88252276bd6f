"""Explain a deadlock inside the GPUs: the waiting wavefronts, their operations, and the awaited resources."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from trine.errors import DeadlockError
from trine.gpu.program import OP_NAMES
from trine.gpu.system import GpuSystem

SHOWN = 8


class StuckWavefront(NamedTuple):
    """A wavefront that waits forever; ``op`` is the end of its workgroup if all its operations are over."""

    workgroup: int
    wavefront: int
    op: int
    waits_for: str


class QueuedKernel(NamedTuple):
    """A kernel with workgroups that found no room on a CU."""

    kernel: int
    num_workgroups: int


def for_semaphore(number: int, rank: int, value: int, needs: int) -> str:
    return f"semaphore {number} of rank {rank}, which has {value} and needs {needs}"


def for_barrier(arrived: int, wavefronts: int) -> str:
    return f"the barrier, where {arrived} of {wavefronts} wavefronts are"


def for_lines(unfinished: int, flagged: Sequence[str]) -> str:
    """Describe ``unfinished`` lines and requests; some wait for the flags ``flagged`` (:func:`for_semaphore`)."""
    unfinished_text = f"{unfinished} unfinished {'request' if unfinished == 1 else 'requests'}"
    if not flagged:
        return unfinished_text
    return f"{unfinished_text}, {len(flagged)} of them flagged; the first waits for the flag {flagged[0]}"


def for_slot(limit: int, holder: str) -> str:
    return f"a request slot: {holder} has all {limit} in use"


def gpu_deadlock(
    system: GpuSystem, stuck: Sequence[StuckWavefront], num_stuck: int, queued: Iterable[QueuedKernel], num_tasks: int
) -> DeadlockError:
    """Return the error, with the names of the waiting wavefronts and kernels.

    stuck: the first :data:`SHOWN` of ``num_stuck`` wavefronts, in the order of ranks and slots. num_tasks: number of
    unfinished tasks.
    """
    lines = [_wavefront(system, one) for one in stuck[:SHOWN]]
    if num_stuck > len(lines):
        lines.append(f"... ({num_stuck - len(lines)} more wavefronts) ...")
    lines += [
        f"{_kernel(system, one.kernel)}: {one.num_workgroups} workgroups wait for room on a CU"
        for one in [*queued][:SHOWN]
    ]
    if not lines:
        return DeadlockError(f"{num_tasks} tasks never ended, and no kernel runs: they wait for each other")
    ranks_each = int((system.gpu_of >= 0).sum()) // system.num_gpus
    if ranks_each > 1:
        lines.append(f"(folded: each rank named stands for {ranks_each} ranks)")
    text = "\n  ".join(lines)
    tasks = "1 task" if num_tasks == 1 else f"{num_tasks} tasks"
    return DeadlockError(f"deadlock: {tasks} cannot finish, {num_stuck} wavefronts wait:\n  {text}")


def _wavefront(system: GpuSystem, stuck: StuckWavefront) -> str:
    program, group = system.program, stuck.workgroup
    kernel = int(program.kernel_ptr.searchsorted(group, side="right")) - 1
    workgroup = group - int(program.kernel_ptr[kernel])
    location = f"{_kernel(system, kernel)}, workgroup {workgroup}, wavefront {stuck.wavefront}"
    if stuck.op == program.workgroup_ptr[group + 1]:
        return f"{location}: its operations are over; waits for {stuck.waits_for}"
    label = int(program.op_label[stuck.op])
    name = OP_NAMES[int(program.op_kind[stuck.op])] + (f" ({program.labels[label]})" if label >= 0 else "")
    return f"{location}: operation {stuck.op - int(program.workgroup_ptr[group])}, {name}: waits for {stuck.waits_for}"


def _kernel(system: GpuSystem, kernel: int) -> str:
    names = system.program.kernel_names
    rank = int(system.ranks[system.program.kernel_rank[kernel]])
    return f"rank {rank}, kernel {(names[kernel] if names else str(kernel))!r}"
