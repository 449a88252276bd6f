"""How many lines fused kernels must read, and how many wavefronts wait: closed forms of sizes and tiles."""

from __future__ import annotations

from trine.collectives.kernels.fused.options import (
    ALL_REDUCE,
    ALL_TO_ALL,
    EMBEDDING,
    GEMV,
    INDEX_BYTES,
    REDUCE_SCATTER,
    FusedOptions,
)
from trine.collectives.kernels.fused.tiles import TileGrid, make_grid


def expected_reads(options: FusedOptions) -> dict[str, int]:
    """Buffer -> lines that each rank reads, all from its own memory. R x C tiles of the result, L lines in all:

    A GEMV reads all rows of its matrix once and the vector for every tile; a GEMM all rows of A for every column of
    tiles and all of B for every row of tiles; a table's lookups a row each, and 8 B of index each. Adding up reads L
    lines of partial results of each rank (in one step), or as many in all (in two steps, and a reduce-scatter). Unfused
    the result is read from memory, and in one step once for each peer and once more.
    """
    grid = make_grid(options)
    return {**_computed(options, grid), **(_fused_reads if options.fused else _collective_reads)(options, grid)}


def waiting_wavefronts(options: FusedOptions) -> int:
    """Wavefronts of a rank that wait for peers' flags, all at once where all workgroups have room on the GPU.

    The first wavefront of one workgroup of each crew: it acquires one flag after the other, while the others of its
    workgroup wait for it at a barrier. So with ``spin`` a rank has at most this many polls on their way.

    Raises ValueError for an unfused one, as :func:`expected_flags`.
    """
    if not options.fused:
        raise ValueError("the collective of an unfused kernel has separate workgroups")
    return make_grid(options).crews


def _computed(options: FusedOptions, grid: TileGrid) -> dict[str, int]:
    """What computing reads."""
    tiles_down, compute = grid.chunks * grid.tiles_down, options.kind.compute
    if compute == EMBEDDING:
        whole, rest = divmod(grid.height, grid.tall)
        sizes = [grid.tall] * whole + ([rest] if rest else [])
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
    """Each part that is sent is read for each peer, and the own one once."""
    # Lines of partial results, or of results, to others: a chunk to each (with one chunk: all of it)
    assert options.kind.op in (ALL_REDUCE, REDUCE_SCATTER, ALL_TO_ALL)
    sent = (options.num_ranks - 1) * grid.chunk_lines
    scratch = {} if options.kind.op == ALL_TO_ALL else {"scratch": (options.num_ranks - 1) * grid.chunk_lines}
    return {"result": sent + grid.chunk_lines, **scratch}
