"""Collectives between all pairs of ranks, by puts to peers or gets from them; all-reduce in one step or two.

Collectives with reduction and multicast in the switches (NVLS): as in NCCL's NVLS and MSCCL++'s plans, a rank loads its
chunk of the sum through the switch (multimem.ld_reduce), and stores its chunk to all ranks through it (multimem.st).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from trine.gpu.kernels.builder import CollectiveBuilder, Workgroup
from trine.gpu.kernels.nccl_nvls import nccl_nvls
from trine.gpu.kernels.options import KernelOptions
from trine.gpu.kernels.signals import Peers, RankBarrier, Signal
from trine.gpu.program import GpuProgram


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
        remote_groups = tuple((group, d) for d in order)
        peers = [(d, d - 1) for d in order]
        yield PeerWork(remote_groups, (group,), peers)


ALL_PEERS = Division(lambda options: options.distances, _serve_all)


def put(options: KernelOptions, algorithm: str = "put", division: Division = ALL_PEERS) -> GpuProgram:
    """Build an all-gather or all-to-all: each rank writes its input, or a chunk of it, to each output.

    Ranks signal, and wait for the signals of their peers. Lines with flags travel as packets, which the peers unpack.
    """
    builder, ranks = CollectiveBuilder(f"{options.op}/{algorithm}", options), options.num_ranks
    has_chunks = options.op == "all_to_all"
    source, result, lines = builder.ends(ranks if has_chunks else 1, ranks)
    slots = builder.slots("packets", ranks - 1, lines) if options.flagged else None
    distances = division.distances(options)
    barrier, signal = RankBarrier(builder, distances, default="none"), Signal(builder, distances)
    for work in division.works(builder, lines):
        if work.remote:
            barrier.start(work.group, work.peers)
        for group, d in work.remote:
            target = group.write(result, d) if slots is None else group.write(slots, d, d - 1)
            group.copy(group.read(source, chunk=d if has_chunks else 0), target, label="put")
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


def get(options: KernelOptions, algorithm: str = "get", division: Division = ALL_PEERS) -> GpuProgram:
    """Build an all-gather or all-to-all: when all are ready, each rank reads all inputs, or its chunk of each.

    All ranks wait until all have read.
    """
    builder, ranks = CollectiveBuilder(f"{options.op}/{algorithm}", options), options.num_ranks
    source, result, lines = builder.ends(ranks if options.op == "all_to_all" else 1, ranks)
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


def put_and_reduce(options: KernelOptions) -> GpuProgram:
    """Build a reduce-scatter or an all-reduce in one step: each rank writes its parts to those who add them up.

    The parts of a chunk go to the chunk's rank, or, in an all-reduce, all parts to all ranks. They go through scratch,
    so every byte passes memory twice, and the sum begins after the last part's signal.
    """
    builder = _one_step("put", "oneshot", options)
    has_chunks = _has_chunks(options)
    source, result, lines = builder.ends(options.num_ranks if has_chunks else 1, 1)
    slots = builder.slots("scratch", options.num_ranks - 1, lines)
    barrier, signal = RankBarrier(builder, options.distances, default="none"), Signal(builder, options.distances)
    for group in barrier.around(builder.workgroups(lines)):
        order = group.rotated(options.distances)
        for d in order:
            group.copy(group.read(source, chunk=d if has_chunks else 0), group.write(slots, d, d - 1), label="put")
        signal.meet(group)
        sources = [group.read(source), *(group.read(slots, chunk=d - 1) for d in order)]
        group.reduce(sources, group.write(result), label="reduce")
    return builder.finished()


def get_and_reduce(options: KernelOptions) -> GpuProgram:
    """Build a reduce-scatter or an all-reduce in one step: when all are ready, each rank reads from all.

    It reads its chunk, or, in an all-reduce, the whole inputs, and adds up lines on arrival.
    """
    builder = _one_step("get", "oneshot-get", options)
    source, result, lines = builder.ends(options.num_ranks if _has_chunks(options) else 1, 1)
    barrier = RankBarrier(builder, options.distances, default="both")
    for group in barrier.around(builder.workgroups(lines)):
        sources = [group.read(source, d) for d in (0, *group.rotated(options.distances))]
        group.reduce(sources, group.write(result), label="reduce")
    return builder.finished()


def _has_chunks(options: KernelOptions) -> bool:
    """Return whether the input of a reduction in one step has a chunk per rank."""
    return options.op == "reduce_scatter"


def _one_step(scatter: str, all_reduce: str, options: KernelOptions) -> CollectiveBuilder:
    """Return a builder named after the algorithm of the collective."""
    algorithm = scatter if _has_chunks(options) else all_reduce
    return CollectiveBuilder(f"{options.op}/{algorithm}", options)


def all_reduce_twoshot(options: KernelOptions) -> GpuProgram:
    """Build an all-reduce: when all are ready, each rank reads its chunk from all, writes the sum to all, signals."""
    builder, ranks = CollectiveBuilder("all_reduce/twoshot", options), options.num_ranks
    source, result, lines = builder.ends(ranks, ranks)
    # No barrier at the end: the signals that follow the sums already show that all reads are done.
    barrier, signal = RankBarrier(builder, options.distances, default="start"), Signal(builder, options.distances)
    for group in barrier.around(builder.workgroups(lines)):
        order = (0, *group.rotated(options.distances))
        sources = [group.read(source, d) for d in order]
        targets = [group.write(result, d) for d in order]
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
        peer_targets = []
        for d in order:
            peer_targets.append(group.write(result, d) if sums is None else group.write(sums, d, d - 1))
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


def nvls(options: KernelOptions) -> GpuProgram:
    """Build an all-reduce, reduce-scatter or all-gather with reductions and multicasts in the switches.

    Ranks that read through the switch meet at the start. At the end they wait for the signals of all multicast data. A
    reduce-scatter multicasts nothing, so its ranks wait for all reads.
    """
    if options.bookkeeping:
        return nccl_nvls(options)
    builder = CollectiveBuilder(f"{options.op}/nvls", options)
    source, result, lines = builder.collective_ends()
    # No barrier at the end of an all-reduce: the signals that follow the sums already show that all reads are done.
    sync, label = {
        "all_reduce": ("start", "reduce and multicast"), "reduce_scatter": ("both", "reduce"),
        "all_gather": ("none", "multicast"),
    }[options.op]  # fmt: skip
    barrier = RankBarrier(builder, options.distances, default=sync)
    signal = Signal(builder, options.distances if options.gathers else ())
    for group in barrier.around(builder.workgroups(lines)):
        data = group.read_sum(source) if options.reduces else group.read(source)
        targets = group.write_all(result) if options.gathers else [group.write(result)]
        group.copy(data, *targets, label=label)
        signal.meet(group, last=True)
    return builder.finished()
