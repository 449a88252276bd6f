"""Collectives with reduction and multicast in the switches (NVLS): rank r handles chunk r of the data.

As in NCCL's NVLS and MSCCL++'s plans, a rank loads its chunk of the sum through the switch (multimem.ld_reduce), and
stores its chunk to all ranks through it (multimem.st). Ranks meet by signals, as in the other programs here.
"""

from __future__ import annotations

from trine.gpu.kernels.builder import CollectiveBuilder
from trine.gpu.kernels.nccl_nvls import nccl_nvls
from trine.gpu.kernels.options import KernelOptions
from trine.gpu.kernels.sync import RankBarrier, Signal
from trine.gpu.program import GpuProgram


def all_reduce_nvls(options: KernelOptions) -> GpuProgram:
    """Build an all-reduce: after a start barrier each rank loads its chunk's sum and multicasts it, then signals."""
    if options.bookkeeping:
        return nccl_nvls(options)
    builder, ranks = CollectiveBuilder("all_reduce/nvls", options), options.num_ranks
    source, result, lines = builder.ends(ranks, ranks)
    # No barrier at the end: the signals that follow the sums already show that all reads are done.
    barrier = RankBarrier(builder, options.distances, default="start")
    signal = Signal(builder, options.distances)
    for group in barrier.around(builder.workgroups(lines)):
        group.copy(group.read_sum(source), *group.write_all(result), label="reduce and multicast")
        signal.meet(group, last=True)
    return builder.finished()


def reduce_scatter_nvls(options: KernelOptions) -> GpuProgram:
    """Build a reduce-scatter: each rank loads its chunk, reduced by the switch, between barriers at start and end."""
    if options.bookkeeping:
        return nccl_nvls(options)
    builder, ranks = CollectiveBuilder("reduce_scatter/nvls", options), options.num_ranks
    source, result, lines = builder.ends(ranks, 1)
    barrier = RankBarrier(builder, options.distances, default="both")
    for group in barrier.around(builder.workgroups(lines)):
        group.copy(group.read_sum(source), group.write(result), label="reduce")
    return builder.finished()


def all_gather_nvls(options: KernelOptions) -> GpuProgram:
    """Build an all-gather: each rank stores its input to all outputs, including its own; signals; waits for all."""
    if options.bookkeeping:
        return nccl_nvls(options)
    builder, ranks = CollectiveBuilder("all_gather/nvls", options), options.num_ranks
    source, result, lines = builder.ends(1, ranks)
    barrier = RankBarrier(builder, options.distances, default="none")
    signal = Signal(builder, options.distances)
    for group in barrier.around(builder.workgroups(lines)):
        group.copy(group.read(source), *group.write_all(result), label="multicast")
        signal.meet(group, last=True)
    return builder.finished()
