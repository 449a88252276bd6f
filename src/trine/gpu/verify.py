"""Folded and unfolded: is everything that happened the same, to the picosecond?"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from trine.errors import SimulationError
from trine.gpu.program import GpuProgram
from trine.gpu.records import OF_GPU, GpuOutcome
from trine.gpu.system import GpuSystem

Ints = npt.NDArray[np.int64] | npt.NDArray[np.int32]


def same_outcome(folded: GpuSystem, small: GpuOutcome, whole: GpuSystem, large: GpuOutcome) -> None:
    """Compare every rank with the GPU that stands for it.

    Raises
    ------
    SimulationError: the first difference.
    """
    for what, a, b in (*_by_rank(folded, small, whole, large), *_by_lane(folded, small, large)):
        if a.shape != b.shape:
            raise SimulationError(f"folded and unfolded differ in {what}: {a.shape} and {b.shape}")
        bad = np.argwhere(a != b)
        if len(bad):
            at = tuple(bad[0].tolist())
            raise SimulationError(
                f"folded and unfolded differ in {what}, first at {at}: {a[at]} and {b[at]} "
                f"({len(bad)} of {a.size} differ); please report this"
            )


def _by_rank(
    folded: GpuSystem, small: GpuOutcome, whole: GpuSystem, large: GpuOutcome
) -> Iterator[tuple[str, Ints, Ints]]:
    """Columns with a row a rank, of both."""
    gpu = folded.gpu_of.astype(np.int64)
    owners, few_owners = _owners(whole.program), _owners(folded.program)
    columns = (
        ("task", "ready", small.records.ready_ps, large.records.ready_ps),
        ("task", "start", small.records.start_ps, large.records.start_ps),
        ("task", "end", small.records.end_ps, large.records.end_ps),
        ("workgroup", "start", small.gpu.workgroup_start_ps, large.gpu.workgroup_start_ps),
        ("workgroup", "end", small.gpu.workgroup_end_ps, large.gpu.workgroup_end_ps),
        ("workgroup", "CU", small.gpu.workgroup_cu, large.gpu.workgroup_cu),
        ("operation", "start", small.gpu.op_start_ps, large.gpu.op_start_ps),
        ("operation", "end", small.gpu.op_end_ps, large.gpu.op_end_ps),
    )
    for kind, what, a, b in columns:
        rows = b[np.argsort(owners[kind], kind="stable")].reshape(whole.num_ranks, -1)
        few = a[np.argsort(few_owners[kind], kind="stable")].reshape(folded.num_gpus, -1)
        yield f"the {what} of {kind}s (rank, number)", few[gpu], rows
    for name in OF_GPU:
        yield name, getattr(small.gpu, name)[gpu], getattr(large.gpu, name)


def _owners(program: GpuProgram) -> dict[str, npt.NDArray[np.int32]]:
    """The rank of each of them."""
    return {
        "task": program.kernel_rank,
        "workgroup": program.kernel_rank[program.workgroup_kernel],
        "operation": program.op_rank,
    }


def _by_lane(folded: GpuSystem, small: GpuOutcome, large: GpuOutcome) -> Iterator[tuple[str, Ints, Ints]]:
    """Of every lane of the unfolded run that carried anything, and of the one that stands for it."""
    number = {
        pair: i for i, pair in enumerate(zip(small.gpu.lane_link.tolist(), small.gpu.lane_number.tolist(), strict=True))
    }
    image = folded.link_image[large.gpu.lane_link].tolist()
    used = np.flatnonzero(large.gpu.lane_data + large.gpu.lane_control)
    lanes = large.gpu.lane_number.tolist()
    missing = [i for i in used.tolist() if (image[i], lanes[i]) not in number]
    if missing:
        raise SimulationError(f"the folded run lacks a lane of link {int(large.gpu.lane_link[missing[0]])}")
    spare = set(np.flatnonzero(small.gpu.lane_data + small.gpu.lane_control).tolist())
    spare -= {number[image[i], lanes[i]] for i in used.tolist()}
    if spare:
        raise SimulationError(f"only the folded run uses a lane of link {int(small.gpu.lane_link[min(spare)])}")
    stands = np.array([number[image[i], lanes[i]] for i in used.tolist()], np.int64)
    for name in ("lane_data", "lane_control", "lane_busy_ps"):
        yield name, getattr(small.gpu, name)[stands], getattr(large.gpu, name)[used]
