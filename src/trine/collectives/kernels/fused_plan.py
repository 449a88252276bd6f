"""What the parts of a fused kernel share: its tiles, where results go, and the order of a workgroup's operations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from trine.arrays import Int64
from trine.collectives.kernels.fused_blocks import shapes
from trine.collectives.kernels.fused_options import FusedOptions
from trine.collectives.kernels.fused_tiles import Grid, Tiles
from trine.collectives.kernels.fused_writer import Column, Part, Writer
from trine.gpu.program import BARRIER, WAITCNT

#: Operations of one step of a tile at most.
_PER_STEP = 8
#: Behind all that a workgroup does before it waits for peers.
RECEIVE = 1 << 58


class Target(NamedTuple):
    """Where tiles are put: memory of rank + ``distance``, at ``base`` + ((rank + chunk) modulo ranks) * stride.

    slot_bytes: 0: they lie in a matrix as wide as the result; else each is packed, in room of so many bytes, and those
    that go, or come, over distance d are the d-th of as many as a chunk has tiles.
    """

    base: int
    distance: Column
    chunk: Column = 0
    stride: int = 0
    slot_bytes: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """steps: how often a workgroup loads and computes for one tile."""

    options: FusedOptions
    grid: Grid
    tiles: Tiles
    writer: Writer
    steps: int

    def order(self, turn: Int64, step: Column, part: int) -> Int64:
        """Where in its workgroup an operation on a tile stands; steps ``steps`` on: putting it, signalling."""
        return (turn * (self.steps + 2) + step) * _PER_STEP + part

    @property
    def result_pitch(self) -> int:
        """Bytes from one row of lines of the result to the next."""
        return self.grid.width * self.options.line_bytes

    def stride(self, size_bytes: int) -> int:
        """From a rank's chunk to the next rank's; without chunks addresses are the same on all ranks."""
        return size_bytes if self.grid.chunks > 1 else 0

    def load(self, kind: int, order: Int64, block: Block, role: int, label: str) -> None:
        """A data operation of each workgroup on a block of its own memory."""
        line = self.options.line_bytes
        for shape in shapes(block.tall, block.wide, block.pitch // line):
            chosen = shape.chosen
            address = block.address[chosen][:, None] + shape.offsets(block.pitch, line)
            chunk = np.broadcast_to(block.chunk, len(block.address))[chosen]
            part = Part(role, 0, address, chunk, block.stride, shape.step(block.pitch, line))
            self.writer.add(kind, block.workgroup[chosen], order[chosen], shape.amount, (part,), label)

    def finish(self, workgroup: Int64, order: Int64, label: str) -> None:
        """Until what all wavefronts have read and written so far is done."""
        self.writer.add(WAITCNT, workgroup, order, 0, (), label)
        self.writer.add(BARRIER, workgroup, order + 1, 0, (), label)


class Block(NamedTuple):
    """n blocks of lines in the own memory, in matrices with rows ``pitch`` bytes apart: int64[n]."""

    workgroup: Int64
    address: Int64
    tall: Int64
    wide: Int64
    pitch: int
    chunk: Column = 0
    stride: int = 0
