"""Collectives between all pairs of ranks, by puts to peers or gets from them; all-reduce in one step or two."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from trine.gpu.kernels.builder import CollectiveBuilder, Workgroup
from trine.gpu.kernels.options import KernelOptions
from trine.gpu.kernels.sync import Peers, RankBarrier, Signal
from trine.gpu.program import GpuProgram


def all_gather_put(options: KernelOptions) -> GpuProgram:
    """Build an all-gather: each rank writes its input to all outputs, signals, and waits for all signals."""
    return put("all_gather/put", options, own_chunks=1)


def all_to_all_put(options: KernelOptions) -> GpuProgram:
    """Build an all-to-all: each rank writes a chunk of its input to each output, signals, and waits for all signals."""
    return put("all_to_all/put", options, own_chunks=options.num_ranks)


def all_gather_get(options: KernelOptions) -> GpuProgram:
    """Build an all-gather: when all are ready, each rank reads all inputs; all ranks wait until all have read."""
    return get("all_gather/get", options, own_chunks=1)


def all_to_all_get(options: KernelOptions) -> GpuProgram:
    """Build an all-to-all: when all are ready, each rank reads its chunk of each input; all wait for all reads."""
    return get("all_to_all/get", options, own_chunks=options.num_ranks)


class PeerWork(NamedTuple):
    """The work of one workgroup: slices of peers' chunks with the peers' distances, and at most one local slice.

    peers: the peers that it signals and waits for; without peers it does neither.
    """

    remote: tuple[tuple[Workgroup, int], ...]
    local: tuple[Workgroup, ...]
    peers: Peers

    @property
    def group(self) -> Workgroup:
        return self.remote[0][0]


class Division(NamedTuple):
    """The division of peers among workgroups: the distances with signals, and the work of each workgroup."""

    distances: Callable[[KernelOptions], range]
    works: Callable[[CollectiveBuilder, int], Iterator[PeerWork]]


def _serve_all(builder: CollectiveBuilder, lines: int) -> Iterator[PeerWork]:
    """Yield workgroups that each serve all peers with their slice."""
    for group in builder.workgroups(lines):
        order = group.rotated(builder.options.distances)
        yield PeerWork(tuple((group, d) for d in order), (group,), [(d, d - 1) for d in order])


ALL_PEERS = Division(lambda options: options.distances, _serve_all)


def put(name: str, options: KernelOptions, own_chunks: int, division: Division = ALL_PEERS) -> GpuProgram:
    """Build a program that writes chunks of the input to the peers' outputs, or as packets that they unpack."""
    builder, ranks = CollectiveBuilder(name, options), options.num_ranks
    source, result, lines = builder.ends(own_chunks, ranks)
    slots = builder.slots("packets", ranks - 1, lines) if options.flagged else None
    distances = division.distances(options)
    barrier, signal = RankBarrier(builder, distances, default="none"), Signal(builder, distances)
    for work in division.works(builder, lines):
        if work.remote:
            barrier.start(work.group, work.peers)
        for group, d in work.remote:
            target = group.write(result, d) if slots is None else group.write(slots, d, d - 1)
            group.copy(group.read(source, chunk=d if own_chunks > 1 else 0), target, label="put")
        for group in work.local:
            group.copy(group.read(source), group.write(result), label="copy")
        if work.remote:
            signal.send(work.group, work.peers)
            signal.receive(work.group, work.peers, last=True)
        if slots is not None:
            for group, d in work.remote:
                group.copy(group.read(slots, chunk=d - 1), group.write(result, chunk=-d), label="unpack")
        if work.remote:
            barrier.end(work.group, work.peers)
    return builder.finished()


def get(name: str, options: KernelOptions, own_chunks: int, division: Division = ALL_PEERS) -> GpuProgram:
    """Build a program that reads chunks of the peers' inputs into the output."""
    builder = CollectiveBuilder(name, options)
    source, result, lines = builder.ends(own_chunks, options.num_ranks)
    barrier = RankBarrier(builder, division.distances(options), default="both")
    for work in division.works(builder, lines):
        if work.remote:
            barrier.start(work.group, work.peers)
        for group, d in work.remote:
            group.copy(group.read(source, d), group.write(result, chunk=d), label="get")
        for group in work.local:
            group.copy(group.read(source), group.write(result), label="copy")
        if work.remote:
            barrier.end(work.group, work.peers)
    return builder.finished()


def reduce_scatter_put(options: KernelOptions) -> GpuProgram:
    """Build a reduce-scatter: each rank writes its part of each chunk to the chunk's rank, which adds all parts up.

    Parts go through scratch, so every byte passes memory twice, and the sum begins after the last part's signal.
    """
    return _put_and_reduce("reduce_scatter/put", options, chunks=options.num_ranks)


def all_reduce_oneshot(options: KernelOptions) -> GpuProgram:
    """Build an all-reduce: each rank writes its input to the scratch of all; then each adds up all parts itself."""
    return _put_and_reduce("all_reduce/oneshot", options, chunks=1)


def reduce_scatter_get(options: KernelOptions) -> GpuProgram:
    """Build a reduce-scatter: when all are ready, each rank reads its chunk from all and adds up lines on arrival."""
    return _get_and_reduce("reduce_scatter/get", options, chunks=options.num_ranks)


def all_reduce_oneshot_get(options: KernelOptions) -> GpuProgram:
    """Build an all-reduce: when all are ready, each rank reads all inputs and adds up lines on arrival."""
    return _get_and_reduce("all_reduce/oneshot-get", options, chunks=1)


def _put_and_reduce(name: str, options: KernelOptions, chunks: int) -> GpuProgram:
    builder = CollectiveBuilder(name, options)
    source, result, lines = builder.ends(chunks, 1)
    slots = builder.slots("scratch", options.num_ranks - 1, lines)
    barrier, signal = RankBarrier(builder, options.distances, default="none"), Signal(builder, options.distances)
    for group in barrier.around(builder.workgroups(lines)):
        order = group.rotated(options.distances)
        for d in order:
            group.copy(group.read(source, chunk=d if chunks > 1 else 0), group.write(slots, d, d - 1), label="put")
        signal.meet(group)
        sources = [group.read(source), *(group.read(slots, chunk=d - 1) for d in order)]
        group.reduce(sources, group.write(result), label="reduce")
    return builder.finished()


def _get_and_reduce(name: str, options: KernelOptions, chunks: int) -> GpuProgram:
    builder = CollectiveBuilder(name, options)
    source, result, lines = builder.ends(chunks, 1)
    barrier = RankBarrier(builder, options.distances, default="both")
    for group in barrier.around(builder.workgroups(lines)):
        sources = [group.read(source, d) for d in (0, *group.rotated(options.distances))]
        group.reduce(sources, group.write(result), label="reduce")
    return builder.finished()


def all_reduce_twoshot(options: KernelOptions) -> GpuProgram:
    """Build an all-reduce: when all are ready, each rank reads its chunk from all, writes the sum to all, signals."""
    builder, ranks = CollectiveBuilder("all_reduce/twoshot", options), options.num_ranks
    source, result, lines = builder.ends(ranks, ranks)
    # No barrier at the end: the signals that follow the sums already show that all reads are done.
    barrier, signal = RankBarrier(builder, options.distances, default="start"), Signal(builder, options.distances)
    for group in barrier.around(builder.workgroups(lines)):
        order = (0, *group.rotated(options.distances))
        sources, targets = [group.read(source, d) for d in order], [group.write(result, d) for d in order]
        group.reduce(sources, *targets, label="reduce")
        signal.meet(group, last=True)
    return builder.finished()


def all_reduce_twoshot_put(options: KernelOptions) -> GpuProgram:
    """Build an all-reduce: each rank writes its part of each chunk to the chunk's rank, which writes the sum to all."""
    builder, ranks = CollectiveBuilder("all_reduce/twoshot-put", options), options.num_ranks
    source, result, lines = builder.ends(ranks, ranks)
    slots = builder.slots("scratch", ranks - 1, lines)
    sums = builder.slots("sums", ranks - 1, lines) if options.flagged else None
    barrier = RankBarrier(builder, options.distances, default="none")
    first, second = Signal(builder, options.distances), Signal(builder, options.distances)
    for group in barrier.around(builder.workgroups(lines)):
        order = group.rotated(options.distances)
        for d in order:
            group.copy(group.read(source, chunk=d), group.write(slots, d, d - 1), label="put")
        first.meet(group)
        sources = [group.read(source), *(group.read(slots, chunk=d - 1) for d in order)]
        peer_targets = [group.write(result, d) if sums is None else group.write(sums, d, d - 1) for d in order]
        group.reduce(sources, group.write(result), *peer_targets, label="reduce")
        second.meet(group, last=True)
        if sums is not None:
            for d in order:
                group.copy(group.read(sums, chunk=d - 1), group.write(result, chunk=-d), label="unpack")
    return builder.finished()


def all_reduce_twoshot_get(options: KernelOptions) -> GpuProgram:
    """Build an all-reduce: when all are ready, each rank reads and adds up its chunk from all, then gets all sums."""
    builder, ranks = CollectiveBuilder("all_reduce/twoshot-get", options), options.num_ranks
    source, result, lines = builder.ends(ranks, ranks)
    barrier, signal = RankBarrier(builder, options.distances, default="both"), Signal(builder, options.distances)
    for group in barrier.around(builder.workgroups(lines)):
        order = group.rotated(options.distances)
        group.reduce([group.read(source, d) for d in (0, *order)], group.write(result), label="reduce")
        signal.meet(group)
        for d in order:
            group.copy(group.read(result, d, d), group.write(result, chunk=d), label="get")
    return builder.finished()
