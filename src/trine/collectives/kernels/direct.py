"""Collectives between all pairs of ranks: data put to its peers, or got from them; all-reduce in one step or two."""

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


def all_reduce_oneshot(options: KernelOptions) -> GpuProgram:
    """Each rank writes all of its input into scratch of all; when all parts are there, each adds them up by itself."""
    builder, ranks = CollectiveBuilder("all_reduce/oneshot", options), options.num_ranks
    lines = options.lines()
    source, result = builder.data("input", 1, lines), builder.data("output", 1, lines)
    slots = builder.slots("scratch", ranks - 1, lines)
    barrier = RankBarrier(builder, options.distances, usual="none")
    signal = Signal(builder, options.distances)
    for group in builder.workgroups(lines):
        order = group.rotated(options.distances)
        barrier.start(group)
        for d in order:
            group.copy(group.read(source), group.write(slots, d, d - 1), label="put")
        signal.send(group)
        signal.receive(group)
        sources = [group.read(source), *(group.read(slots, chunk=d - 1) for d in order)]
        group.reduce(sources, group.write(result), label="reduce")
        barrier.end(group)
    return builder.finished()


def all_reduce_oneshot_get(options: KernelOptions) -> GpuProgram:
    """When all are ready, each rank reads the inputs of all and adds each line up as soon as it has arrived."""
    builder = CollectiveBuilder("all_reduce/oneshot-get", options)
    lines = options.lines()
    source, result = builder.data("input", 1, lines), builder.data("output", 1, lines)
    barrier = RankBarrier(builder, options.distances, usual="both")
    for group in builder.workgroups(lines):
        barrier.start(group)
        sources = [group.read(source), *(group.read(source, d) for d in group.rotated(options.distances))]
        group.reduce(sources, group.write(result), label="reduce")
        barrier.end(group)
    return builder.finished()


def all_reduce_twoshot(options: KernelOptions) -> GpuProgram:
    """When all are ready, each rank reads its chunk from all and writes the sum to all, line by line; then signals."""
    builder, ranks = CollectiveBuilder("all_reduce/twoshot", options), options.num_ranks
    lines = options.lines(ranks)
    source, result = builder.data("input", ranks, lines), builder.data("output", ranks, lines)
    # At the end nobody reads any more: the signals behind the sums say so.
    barrier = RankBarrier(builder, options.distances, usual="start")
    signal = Signal(builder, options.distances)
    for group in builder.workgroups(lines):
        order = group.rotated(options.distances)
        barrier.start(group)
        sources = [group.read(source), *(group.read(source, d) for d in order)]
        targets = [group.write(result), *(group.write(result, d) for d in order)]
        group.reduce(sources, *targets, label="reduce")
        signal.send(group)
        signal.receive(group, last=True)
        barrier.end(group)
    return builder.finished()


def all_reduce_twoshot_put(options: KernelOptions) -> GpuProgram:
    """Each rank writes its part of each chunk into scratch of the chunk's rank, which writes the sum to all."""
    builder, ranks = CollectiveBuilder("all_reduce/twoshot-put", options), options.num_ranks
    lines = options.lines(ranks)
    source, result = builder.data("input", ranks, lines), builder.data("output", ranks, lines)
    slots = builder.slots("scratch", ranks - 1, lines)
    sums = builder.slots("sums", ranks - 1, lines) if options.flagged else None
    barrier = RankBarrier(builder, options.distances, usual="none")
    first, second = Signal(builder, options.distances), Signal(builder, options.distances)
    for group in builder.workgroups(lines):
        order = group.rotated(options.distances)
        barrier.start(group)
        for d in order:
            group.copy(group.read(source, chunk=d), group.write(slots, d, d - 1), label="put")
        first.send(group)
        first.receive(group)
        sources = [group.read(source), *(group.read(slots, chunk=d - 1) for d in order)]
        others = [group.write(result, d) if sums is None else group.write(sums, d, d - 1) for d in order]
        group.reduce(sources, group.write(result), *others, label="reduce")
        second.send(group)
        second.receive(group, last=True)
        if sums is not None:
            for d in order:
                group.copy(group.read(sums, chunk=d - 1), group.write(result, chunk=-d), label="unpack")
        barrier.end(group)
    return builder.finished()


def all_reduce_twoshot_get(options: KernelOptions) -> GpuProgram:
    """When all are ready, each rank reads its chunk from all and adds it up; when all have, it gets all sums."""
    builder, ranks = CollectiveBuilder("all_reduce/twoshot-get", options), options.num_ranks
    lines = options.lines(ranks)
    source, result = builder.data("input", ranks, lines), builder.data("output", ranks, lines)
    barrier = RankBarrier(builder, options.distances, usual="both")
    signal = Signal(builder, options.distances)
    for group in builder.workgroups(lines):
        order = group.rotated(options.distances)
        barrier.start(group)
        sources = [group.read(source), *(group.read(source, d) for d in order)]
        group.reduce(sources, group.write(result), label="reduce")
        signal.send(group)
        signal.receive(group)
        for d in order:
            group.copy(group.read(result, d, d), group.write(result, chunk=d), label="get")
        barrier.end(group)
    return builder.finished()
