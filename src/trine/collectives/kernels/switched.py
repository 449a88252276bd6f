"""Collectives in which switches add up and multicast (NVLS): rank r has chunk r of what is added up, or handed out.

As NCCL's NVLS and MSCCL++'s plans do it: a rank loads its chunk of the sum through the switch (multimem.ld_reduce), and
stores its chunk to all through it (multimem.st). Ranks meet by signals, as in the other programs here.
"""

from __future__ import annotations

from trine.collectives.kernels.builder import CollectiveBuilder
from trine.collectives.kernels.nccl_nvls import nccl_nvls
from trine.collectives.kernels.options import KernelOptions
from trine.collectives.kernels.sync import RankBarrier, Signal
from trine.gpu.program import GpuProgram


def all_reduce_nvls(options: KernelOptions) -> GpuProgram:
    """When all are ready, each rank loads its chunk, added up by the switch, and stores the sum to all; signals."""
    if options.bookkeeping:
        return nccl_nvls(options)
    builder, ranks = CollectiveBuilder("all_reduce/nvls", options), options.num_ranks
    source, result, lines = builder.ends(ranks, ranks)
    # At the end nobody reads any more: the signals behind the sums say so.
    barrier = RankBarrier(builder, options.distances, usual="start")
    signal = Signal(builder, options.distances)
    for group in barrier.around(builder.workgroups(lines)):
        group.copy(group.read_sum(source), *group.write_all(result), label="reduce and multicast")
        signal.meet(group, last=True)
    return builder.finished()


def reduce_scatter_nvls(options: KernelOptions) -> GpuProgram:
    """When all are ready, each rank loads its chunk, added up by the switch; nobody leaves before all have."""
    if options.bookkeeping:
        return nccl_nvls(options)
    builder, ranks = CollectiveBuilder("reduce_scatter/nvls", options), options.num_ranks
    source, result, lines = builder.ends(ranks, 1)
    barrier = RankBarrier(builder, options.distances, usual="both")
    for group in barrier.around(builder.workgroups(lines)):
        group.copy(group.read_sum(source), group.write(result), label="reduce")
    return builder.finished()


def all_gather_nvls(options: KernelOptions) -> GpuProgram:
    """Each rank stores its input to the outputs of all, its own included; then signals, and waits for all signals."""
    if options.bookkeeping:
        return nccl_nvls(options)
    builder, ranks = CollectiveBuilder("all_gather/nvls", options), options.num_ranks
    source, result, lines = builder.ends(1, ranks)
    barrier = RankBarrier(builder, options.distances, usual="none")
    signal = Signal(builder, options.distances)
    for group in barrier.around(builder.workgroups(lines)):
        group.copy(group.read(source), *group.write_all(result), label="multicast")
        signal.meet(group, last=True)
    return builder.finished()
