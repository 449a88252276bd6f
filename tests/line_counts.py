"""Count the cache lines that GPU programs move, without running them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from trine.common.arrays import Int64
from trine.gpu.program import DATA_OPS, GpuProgram, is_read


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class LineCounts:
    """Cache lines as int64: rank i reads read[i, j] from rank j's memory and writes written[i, j] there."""

    read: Int64
    written: Int64

    def remote_read(self) -> Int64:
        """Return the lines that each rank reads from others."""
        return np.asarray(self.read.sum(1) - self.read.diagonal())

    def remote_written(self) -> Int64:
        """Return the lines that each rank writes to others."""
        return np.asarray(self.written.sum(1) - self.written.diagonal())


def count_lines(program: GpuProgram) -> LineCounts:
    """Count the lines that a program's data operations, without copy engines, read and write."""
    ranks = program.num_ranks
    op = program.operand_op
    data = np.isin(program.op_kind[op], DATA_OPS)
    reads = is_read(program)
    pair = program.op_rank[op].astype(np.int64) * ranks + program.operand_rank
    lines = program.op_amount[op]

    def total(chosen: npt.NDArray[np.bool_]) -> Int64:
        counts = np.zeros(ranks * ranks, np.int64)
        np.add.at(counts, pair[chosen], lines[chosen])
        return counts.reshape(ranks, ranks)

    return LineCounts(read=total(data & reads), written=total(data & ~reads))
