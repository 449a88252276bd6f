"""Tiles of a fused kernel's result, their assignment to workgroups, and the waits between workgroups.

A block of lines in a matrix needs several operands: an operand has a first line, a step and an amount.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from trine.common.arrays import Int64
from trine.errors import InputError
from trine.gpu.kernels.fused.options import EMBEDDING, GEMV, FusedOptions
from trine.gpu.kernels.options import JOINT

#: Limits for all ranks together: a program below 0.4 GB (measured: 38 bytes per operand), and 1 GB of flags.
MAX_OPERANDS, MAX_FLAGS = 1 << 23, 1 << 28


@dataclass(frozen=True, kw_only=True, slots=True)
class TileGrid:
    """The result of rank 0: ``chunks`` chunks of ``height`` x ``width`` lines, in tiles of at most ``tall`` x ``wide``.

    A GEMV's result is one line wide: each line holds many rows. chunk_tiles: tiles per chunk. crews: groups of
    workgroups that exchange flags: crew f has the tiles f, f + crews, ... of every chunk. workgroups: one per crew,
    which then does all chunks, or one per tile.
    """

    chunks: int
    height: int
    width: int
    tall: int
    wide: int
    crews: int
    workgroups: int

    @property
    def tiles_across(self) -> int:
        return -(-self.width // self.wide)

    @property
    def tiles_down(self) -> int:
        return -(-self.height // self.tall)

    @property
    def chunk_tiles(self) -> int:
        return self.tiles_across * self.tiles_down

    @property
    def chunk_lines(self) -> int:
        return self.height * self.width

    @property
    def tile_lines(self) -> int:
        """Lines of the largest tile."""
        return min(self.tall, self.height) * min(self.wide, self.width)

    @property
    def one_each(self) -> bool:
        """True if each tile has a separate workgroup."""
        return self.workgroups == self.chunks * self.chunk_tiles

    def workgroup(self, crew: Int64, chunk: Int64) -> Int64:
        """Return the workgroup that computes a crew's tiles of a chunk.

        Workgroups for other ranks' chunks come first, so a workgroup only ever waits for lower-numbered ones.
        """
        if not self.one_each:
            return crew
        return (chunk - 1) % self.chunks * self.chunk_tiles + crew


def make_grid(options: FusedOptions) -> TileGrid:
    """Return the tiles of a kernel. Raise InputError for a number of workgroups that does not fit the tiles."""
    compute, tile = options.kind.compute, options.tile
    height, width = options.chunk_rows, options.lines(options.cols)
    tall, wide = tile[0], width
    if compute == GEMV:
        height, width, tall, wide = options.lines(height), 1, options.lines(tall), 1
    elif compute != EMBEDDING:
        wide = options.lines(tile[1])
    tiles = -(-height // tall) * -(-width // wide)
    requested = options.workgroups
    if requested is not None and requested > tiles and requested != options.chunks * tiles:
        total = f" or {options.chunks * tiles} (one a tile)" if options.chunks > 1 else ""
        raise InputError(
            f"the tiles of each chunk go to 1 to {tiles} workgroups{total}, got {requested}", field="workgroups"
        )
    workgroups = options.chunks * tiles if requested is None else requested
    return TileGrid(
        chunks=options.chunks, height=height, width=width, tall=tall, wide=wide, crews=min(workgroups, tiles),
        workgroups=workgroups,
    )  # fmt: skip


def too_large(options: FusedOptions) -> InputError:
    """Return the error for a program with too many operands."""
    hint = "" if options.only_rank is not None else ", or only one rank (only_rank)"
    return InputError(
        f"{options.name} of {options.rows} x {options.cols} on {options.num_ranks} ranks has more than {MAX_OPERANDS} "
        f"operands: take larger tiles{hint}"
    )


def refuse_large(options: FusedOptions, grid: TileGrid) -> None:
    """Raise InputError for a program that is certainly too large, before any of its arrays is created."""
    ranks = 1 if options.only_rank is not None else options.num_ranks
    tiles = grid.chunks * grid.chunk_tiles
    depth = {GEMV: options.cols, EMBEDDING: 1}.get(options.kind.compute, options.inner)
    lookups = options.rows * options.inner if options.kind.compute == EMBEDDING else 0
    operands = 2 * tiles * -(-depth // options.tile[-1]) + tiles * options.num_ranks // grid.chunks + lookups
    if operands * ranks > MAX_OPERANDS:
        raise too_large(options)
    if not options.fused:
        flags = 0
    else:
        flags = 2 * grid.crews * (1 if options.waits == JOINT else options.num_ranks)
    if flags * options.num_ranks > MAX_FLAGS:
        raise InputError(
            f"{options.name}: {grid.crews} workgroups on each of {options.num_ranks} ranks have more than {MAX_FLAGS} "
            "flags: take fewer workgroups, or waits='joint'"
        )


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Tiles:
    """Tiles of rank 0 as columns, int64[n]: chunk (of rank + chunk), number in the chunk, crew, workgroup, turn in the
    workgroup, first line down and across, and number of lines down and across."""

    chunk: Int64
    number: Int64
    crew: Int64
    workgroup: Int64
    turn: Int64
    down: Int64
    across: Int64
    tall: Int64
    wide: Int64

    def where(self, mask: npt.NDArray[np.bool_]) -> Tiles:
        """Return the chosen tiles."""
        return Tiles(**{name: getattr(self, name)[mask] for name in self.__slots__})


def make_tiles(grid: TileGrid) -> Tiles:
    """Return all tiles of rank 0. In a workgroup, tiles of other ranks' chunks come first, the rank's own last."""
    chunk, number = (a.ravel() for a in np.mgrid[0 : grid.chunks, 0 : grid.chunk_tiles].astype(np.int64))
    crew = number % grid.crews
    per_chunk = -(-grid.chunk_tiles // grid.crews)
    down = number // grid.tiles_across * grid.tall
    across = number % grid.tiles_across * grid.wide
    return Tiles(
        chunk=chunk, number=number, crew=crew, workgroup=grid.workgroup(crew, chunk),
        turn=(chunk - 1) % grid.chunks * per_chunk + number // grid.crews, down=down, across=across,
        tall=np.minimum(grid.tall, grid.height - down), wide=np.minimum(grid.wide, grid.width - across),
    )  # fmt: skip


class StripShape(NamedTuple):
    """A block shape of ``tall`` x ``wide`` lines; ``blocks``: the numbers of the blocks that have it.

    amount: lines per strip; strips: number of strips. A strip is a column (down) or a row of the block, or the whole
    block if its rows are contiguous.
    """

    blocks: Int64
    tall: int
    wide: int
    amount: int
    strips: int
    down: bool

    def offsets(self, pitch_bytes: int, line_bytes: int) -> Int64:
        """Return int64[strips]: the offset of each strip of a block, in a matrix with rows ``pitch_bytes`` apart."""
        return np.arange(self.strips, dtype=np.int64) * (line_bytes if self.down else pitch_bytes)

    def step(self, pitch_bytes: int, line_bytes: int) -> int:
        """Return the bytes from a line of a strip to the next."""
        return pitch_bytes if self.down else line_bytes


def strip_shapes(tall: Int64, wide: Int64, row_lines: int) -> Iterator[StripShape]:
    """Yield blocks by shape; ``row_lines``: lines per row of the matrix (0: rows are never contiguous).

    Strips have the maximum length: an operation's wavefronts share its lines, and operands cost memory.
    """
    pairs, shape_index = np.unique(np.stack([tall, wide]), axis=1, return_inverse=True)
    for i, (rows, columns) in enumerate(pairs.T.tolist()):
        blocks = np.flatnonzero(shape_index.ravel() == i)
        if columns == row_lines:
            yield StripShape(blocks, rows, columns, rows * columns, 1, False)
        elif rows >= columns:
            yield StripShape(blocks, rows, columns, rows, columns, True)
        else:
            yield StripShape(blocks, rows, columns, columns, rows, False)
