"""All-gather, reduce-scatter and all-to-all between all pairs of ranks: data put to its peers, or got from them."""

from __future__ import annotations

from trine.collectives.kernels.builder import CollectiveBuilder
from trine.collectives.kernels.options import KernelOptions
from trine.collectives.kernels.sync import RankBarrier, Signal
from trine.gpu.program import GpuProgram


def all_gather_put(options: KernelOptions) -> GpuProgram:
    """Each rank writes its input into the outputs of all, signals, and waits for the signals of all."""
    return _put("all_gather/put", options, own_chunks=1)


def all_to_all_put(options: KernelOptions) -> GpuProgram:
    """Each rank writes a chunk of its input into the output of each, signals, and waits for the signals of all."""
    return _put("all_to_all/put", options, own_chunks=options.num_ranks)


def all_gather_get(options: KernelOptions) -> GpuProgram:
    """When all are ready, each rank reads the inputs of all; nobody leaves before all have read."""
    return _get("all_gather/get", options, own_chunks=1)


def all_to_all_get(options: KernelOptions) -> GpuProgram:
    """When all are ready, each rank reads its chunk of the input of each; nobody leaves before all have read."""
    return _get("all_to_all/get", options, own_chunks=options.num_ranks)


def _put(name: str, options: KernelOptions, own_chunks: int) -> GpuProgram:
    builder, ranks = CollectiveBuilder(name, options), options.num_ranks
    lines = options.lines(ranks)
    source, result = builder.data("input", own_chunks, lines), builder.data("output", ranks, lines)
    slots = builder.slots("packets", ranks - 1, lines) if options.flagged else None
    barrier = RankBarrier(builder, options.distances, usual="none")
    signal = Signal(builder, options.distances)
    for group in builder.workgroups(lines):
        order = group.rotated(options.distances)
        barrier.start(group)
        for d in order:
            target = group.write(result, d) if slots is None else group.write(slots, d, d - 1)
            group.copy(group.read(source, chunk=d if own_chunks > 1 else 0), target, label="put")
        group.copy(group.read(source), group.write(result), label="copy")
        signal.send(group)
        signal.receive(group, last=True)
        if slots is not None:
            for d in order:
                group.copy(group.read(slots, chunk=d - 1), group.write(result, chunk=-d), label="unpack")
        barrier.end(group)
    return builder.finished()


def _get(name: str, options: KernelOptions, own_chunks: int) -> GpuProgram:
    builder, ranks = CollectiveBuilder(name, options), options.num_ranks
    lines = options.lines(ranks)
    source, result = builder.data("input", own_chunks, lines), builder.data("output", ranks, lines)
    barrier = RankBarrier(builder, options.distances, usual="both")
    for group in builder.workgroups(lines):
        barrier.start(group)
        for d in group.rotated(options.distances):
            group.copy(group.read(source, d), group.write(result, chunk=d), label="get")
        group.copy(group.read(source), group.write(result), label="copy")
        barrier.end(group)
    return builder.finished()


def reduce_scatter_put(options: KernelOptions) -> GpuProgram:
    """Each rank writes its part of each chunk into scratch of the chunk's rank; when all are there it adds them up.

    So every byte goes through memory twice, and the sum begins when the last part has been signalled.
    """
    builder, ranks = CollectiveBuilder("reduce_scatter/put", options), options.num_ranks
    lines = options.lines(ranks)
    source, result = builder.data("input", ranks, lines), builder.data("output", 1, lines)
    slots = builder.slots("scratch", ranks - 1, lines)
    barrier = RankBarrier(builder, options.distances, usual="none")
    signal = Signal(builder, options.distances)
    for group in builder.workgroups(lines):
        order = group.rotated(options.distances)
        barrier.start(group)
        for d in order:
            group.copy(group.read(source, chunk=d), group.write(slots, d, d - 1), label="put")
        signal.send(group)
        signal.receive(group)
        sources = [group.read(source), *(group.read(slots, chunk=d - 1) for d in order)]
        group.reduce(sources, group.write(result), label="reduce")
        barrier.end(group)
    return builder.finished()


def reduce_scatter_get(options: KernelOptions) -> GpuProgram:
    """When all are ready, each rank reads its chunk from all and adds each line up as soon as it has arrived."""
    builder, ranks = CollectiveBuilder("reduce_scatter/get", options), options.num_ranks
    lines = options.lines(ranks)
    source, result = builder.data("input", ranks, lines), builder.data("output", 1, lines)
    barrier = RankBarrier(builder, options.distances, usual="both")
    for group in builder.workgroups(lines):
        barrier.start(group)
        sources = [group.read(source), *(group.read(source, d) for d in group.rotated(options.distances))]
        group.reduce(sources, group.write(result), label="reduce")
        barrier.end(group)
    return builder.finished()
