"""Closed forms for the lines that fused kernels must read and for their waiting wavefronts, by sizes and tiles."""

from __future__ import annotations

from trine.gpu.kernels.fused.options import (
    ALL_REDUCE,
    ALL_TO_ALL,
    EMBEDDING,
    GEMV,
    INDEX_BYTES,
    REDUCE_SCATTER,
    FusedOptions,
)
from trine.gpu.kernels.fused.tiles import TileGrid, make_grid


def expected_reads(options: FusedOptions) -> dict[str, int]:
    """Return buffer -> lines that each rank reads, all from local memory. The result has R x C tiles and L lines:

    A GEMV reads all rows of its matrix once, and the vector for every tile. A GEMM reads all rows of A for every column
    of tiles and all of B for every row of tiles. Each lookup of a table reads a row and an 8 B index. The reduction
    reads L lines of partial results per rank (in one step), or L in total (in two steps, and in a reduce-scatter).
    Unfused kernels read the result from memory; in one step, once for each peer and once more.
    """
    grid = make_grid(options)
    return {**_computed(options, grid), **(_fused_reads if options.fused else _collective_reads)(options, grid)}


def waiting_wavefronts(options: FusedOptions) -> int:
    """Return the wavefronts of a rank that wait for peers' flags, all at once if all workgroups fit on the GPU.

    This is the first wavefront of one workgroup per crew. It acquires one flag after the other, while the rest of its
    workgroup waits at a barrier. So with ``spin`` a rank has at most this many polls in flight.

    Raises ValueError for an unfused kernel, as :func:`expected_flags`.
    """
    if not options.fused:
        raise ValueError("the collective of an unfused kernel has separate workgroups")
    return make_grid(options).crews


def _computed(options: FusedOptions, grid: TileGrid) -> dict[str, int]:
    """Return the lines that the computation reads, by buffer."""
    tiles_down, compute = grid.chunks * grid.tiles_down, options.kind.compute
    if compute == EMBEDDING:
        full_tiles, remainder = divmod(grid.height, grid.tall)
        sizes = [grid.tall] * full_tiles + ([remainder] if remainder else [])
        indices = sum(-(-size * options.inner * INDEX_BYTES // options.line_bytes) for size in sizes)
        return {"table": options.rows * options.inner * grid.width, "indices": grid.chunks * indices}
    if compute == GEMV:
        across = options.lines(options.cols)
        return {"matrix": options.rows * across, "vector": tiles_down * across}
    a, b = options.lines(options.inner), options.lines(options.cols)
    return {"a": options.rows * a * grid.tiles_across, "b": options.inner * b * tiles_down}


def _fused_reads(options: FusedOptions, grid: TileGrid) -> dict[str, int]:
    return {} if options.kind.op == ALL_TO_ALL else {"partials": options.num_ranks * grid.chunk_lines}


def _collective_reads(options: FusedOptions, grid: TileGrid) -> dict[str, int]:
    """Return the lines that an unfused collective reads: each sent part once per peer, and the rank's own part once."""
    # Lines of partial results, or of results, to others: a chunk to each (with one chunk: all of it)
    assert options.kind.op in (ALL_REDUCE, REDUCE_SCATTER, ALL_TO_ALL)
    sent_lines = (options.num_ranks - 1) * grid.chunk_lines
    scratch = {} if options.kind.op == ALL_TO_ALL else {"scratch": (options.num_ranks - 1) * grid.chunk_lines}
    return {"result": sent_lines + grid.chunk_lines, **scratch}
