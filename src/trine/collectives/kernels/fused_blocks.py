"""Blocks of lines in matrices as operands: one has a first line, a step and an amount, so a block needs several."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from trine.arrays import Int64


class Shape(NamedTuple):
    """A block of ``tall`` x ``wide`` lines, of which those numbered ``chosen`` have this shape.

    amount: lines of one strip of it; strips: how many there are; strips are columns (down) or rows of the block, or
    all of it where its rows follow each other.
    """

    chosen: Int64
    tall: int
    wide: int
    amount: int
    strips: int
    down: bool

    def offsets(self, pitch_bytes: int, line_bytes: int) -> Int64:
        """int64[strips]: where each strip of a block begins, in a matrix with rows ``pitch_bytes`` apart."""
        return np.arange(self.strips, dtype=np.int64) * (line_bytes if self.down else pitch_bytes)

    def step(self, pitch_bytes: int, line_bytes: int) -> int:
        """From a line of a strip to the next."""
        return pitch_bytes if self.down else line_bytes


def shapes(tall: Int64, wide: Int64, whole: int) -> Iterator[Shape]:
    """Blocks by shape; ``whole``: lines of a row of the matrix (0: rows never follow each other).

    Strips are as long as they can be: an operation's wavefronts share its lines, and operands cost memory.
    """
    pairs, which = np.unique(np.stack([tall, wide]), axis=1, return_inverse=True)
    for i, (rows, columns) in enumerate(pairs.T.tolist()):
        chosen = np.flatnonzero(which.ravel() == i)
        if columns == whole:
            yield Shape(chosen, rows, columns, rows * columns, 1, False)
        elif rows >= columns:
            yield Shape(chosen, rows, columns, rows, columns, True)
        else:
            yield Shape(chosen, rows, columns, columns, rows, False)
