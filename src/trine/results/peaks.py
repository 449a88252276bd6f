"""Peak memory from columns of changes: the allocator replays few of them, and its compiled twin many."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from trine.common.arrays import Int64
from trine.results.allocator import ROUNDING, LateBlocks, ReplayedPeak, peak_of

Ints: TypeAlias = npt.NDArray[np.integer]

#: From this many changes on, a compiled replay is faster, with numba's import.
MANY = 4000


def peak_of_columns(
    columns: tuple[Ints, Ints, Ints], resident: Sequence[int], rounding: int = ROUNDING,
    late: LateBlocks | None = None, times: Int64 | None = None,
) -> ReplayedPeak:  # fmt: skip
    """Return the result of :func:`peak_of` for columns of bytes, category and block: integers[changes] each."""
    size, category, block = columns
    if len(size) < MANY:
        rows = zip(*(column.tolist() for column in columns), strict=True)
        return peak_of(rows, resident, rounding, late, () if times is None else times.tolist())
    from trine.results._replay import allocations, changes_of, replayed

    step, num_blocks = changes_of(size, block, times)
    first = []
    for i, num_bytes in enumerate(resident):
        first.append(num_bytes - late.size_bytes * (late.category == i) if late else num_bytes)
    parts = [allocations([size for size in first if size > 0], num_blocks), step]
    if late is not None and late.size_bytes and late.count:
        block_size, ends = -(-late.size_bytes // late.count), int(step.time.max())
        parts += [allocations([block_size] * late.count, num_blocks + len(first), ends), step]
    allocated, reserved, index = replayed(parts, rounding)
    held = np.array(resident, np.int64)
    np.add.at(held, category[: index + 1], size[: index + 1])
    return ReplayedPeak(allocated, reserved if (block >= 0).all() else allocated, tuple(held.tolist()), index)
