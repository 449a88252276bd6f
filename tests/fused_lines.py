"""How many lines fused kernels must write, and how many flags they send: closed forms of sizes and tiles."""

from __future__ import annotations

from trine.gpu.kernels.fused.options import (
    ALL_REDUCE,
    ALL_TO_ALL,
    ONESHOT,
    REDUCE_SCATTER,
    TWOSHOT,
    FusedOptions,
)
from trine.gpu.kernels.fused.tiles import TileGrid, make_grid
from trine.gpu.kernels.options import JOINT


def expected_writes(options: FusedOptions) -> dict[str, int]:
    """Buffer -> lines that each rank writes, into all memories."""
    grid = make_grid(options)
    lines, ranks, op = grid.chunks * grid.chunk_lines, options.num_ranks, options.kind.op
    output = grid.chunk_lines if op == REDUCE_SCATTER else lines
    if not options.fused:
        scratch = {} if op == ALL_TO_ALL else {"scratch": _sent(options, grid)}
        return {"result": lines, **scratch, "output": output}
    if op == ALL_TO_ALL:
        return {"output": output}
    return {"partials": lines * ranks if options.algorithm == ONESHOT else lines, "output": output}


def expected_remote_writes(options: FusedOptions) -> dict[str, int]:
    """Buffer -> lines that each rank writes into the memories of others. The same fused and unfused."""
    grid = make_grid(options)
    sent = _sent(options, grid)
    if options.kind.op == ALL_TO_ALL:
        return {"output": sent}
    partials = {"partials" if options.fused else "scratch": sent}
    return {**partials, "output": sent} if options.algorithm == TWOSHOT else partials


def expected_flags(options: FusedOptions) -> tuple[int, int]:
    """(flags that each fused kernel sends, acquires that it needs for those sent to it).

    Raises ValueError for an unfused one, whose flags are the collective's.
    """
    if not options.fused:
        raise ValueError("the collective of an unfused kernel has its own semaphores")
    phases = 2 if options.algorithm == TWOSHOT else 1
    crews, peers = make_grid(options).crews, options.num_ranks - 1
    return phases * crews * peers, phases * crews * (1 if options.waits == JOINT else peers)


def _sent(options: FusedOptions, grid: TileGrid) -> int:
    """Lines of partial results, or of results, to others: a chunk to each (with one chunk: all of it)."""
    assert options.kind.op in (ALL_REDUCE, REDUCE_SCATTER, ALL_TO_ALL)
    return (options.num_ranks - 1) * grid.chunk_lines
