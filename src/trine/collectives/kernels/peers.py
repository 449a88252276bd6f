"""All-gather and all-to-all in which each workgroup serves one peer; with fewer workgroups than peers, several.

Workgroup g serves the peer at distance g % (ranks - 1) + 1, so that several of them share a peer's lines. It signals
its peer alone, and waits for its peer alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from trine.collectives.kernels.builder import CollectiveBuilder, Workgroup
from trine.collectives.kernels.options import KernelOptions
from trine.collectives.kernels.sync import RankBarrier, Signal
from trine.gpu.program import GpuProgram


def all_gather_put(options: KernelOptions) -> GpuProgram:
    """Each workgroup writes its slice of the input into the output of its peer, and signals it."""
    return _put("all_gather/peer-put", options, own_chunks=1)


def all_to_all_put(options: KernelOptions) -> GpuProgram:
    """The same, each pair of ranks with a chunk of its own."""
    return _put("all_to_all/peer-put", options, own_chunks=options.num_ranks)


def all_gather_get(options: KernelOptions) -> GpuProgram:
    """When its peer is ready, each workgroup reads its slice of the peer's input, and tells it when it has."""
    return _get("all_gather/peer-get", options, own_chunks=1)


def all_to_all_get(options: KernelOptions) -> GpuProgram:
    """The same, each pair of ranks with a chunk of its own."""
    return _get("all_to_all/peer-get", options, own_chunks=options.num_ranks)


def _put(name: str, options: KernelOptions, own_chunks: int) -> GpuProgram:
    builder, ranks = CollectiveBuilder(name, options), options.num_ranks
    lines = options.lines(ranks)
    source, result = builder.data("input", own_chunks, lines), builder.data("output", ranks, lines)
    slots = builder.slots("packets", ranks - 1, lines) if options.flagged else None
    barrier, signal = RankBarrier(builder, _served(options), usual="none"), Signal(builder, _served(options))
    for work in _works(builder, lines):
        if work.remote:
            barrier.start(work.group, work.peers)
        for group, d in work.remote:
            target = group.write(result, d) if slots is None else group.write(slots, d, d - 1)
            group.copy(group.read(source, chunk=d if own_chunks > 1 else 0), target, label="put")
        for group in work.own:
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


def _get(name: str, options: KernelOptions, own_chunks: int) -> GpuProgram:
    builder, ranks = CollectiveBuilder(name, options), options.num_ranks
    lines = options.lines(ranks)
    source, result = builder.data("input", own_chunks, lines), builder.data("output", ranks, lines)
    barrier = RankBarrier(builder, _served(options), usual="both")
    for work in _works(builder, lines):
        if work.remote:
            barrier.start(work.group, work.peers)
        for group, d in work.remote:
            group.copy(group.read(source, d), group.write(result, chunk=d), label="get")
        for group in work.own:
            group.copy(group.read(source), group.write(result), label="copy")
        if work.remote:
            barrier.end(work.group, work.peers)
    return builder.finished()


class _PeerWork(NamedTuple):
    """What one workgroup does: slices of peers' chunks, each with the peer's distance, and at most one of the own."""

    remote: tuple[tuple[Workgroup, int], ...]
    own: tuple[Workgroup, ...]

    @property
    def group(self) -> Workgroup:
        return self.remote[0][0]

    @property
    def peers(self) -> list[tuple[int, int]]:
        return [(d, which) for which, (_, d) in enumerate(self.remote)]


def _served(options: KernelOptions) -> range:
    """As many distances as a workgroup has peers at most."""
    return range(1, 1 - (options.num_ranks - 1) // -options.workgroups)


def _works(builder: CollectiveBuilder, lines: int) -> Iterator[_PeerWork]:
    """The workgroups, with what each does; one that has nothing gets no operations."""
    count, peers = builder.options.workgroups, builder.options.num_ranks - 1
    for number in range(count):
        distances: Sequence[int] = range(number + 1, peers + 1, count)
        share, shares = 0, 1
        if count >= peers:
            distances = (number % peers + 1,)
            share, shares = number // peers, (count - number % peers + peers - 1) // peers
        first, some = slice_of(lines, share, shares)
        own_first, own = slice_of(lines, number, count)
        yield _PeerWork(
            remote=tuple((Workgroup(builder, number, first, some), d) for d in distances if some),
            own=(Workgroup(builder, number, own_first, own),) if own else (),
        )
        builder.end_workgroup()


def slice_of(lines: int, number: int, of: int) -> tuple[int, int]:
    """(first, lines) of one of ``of`` slices; the first ones have a line more where they do not divide."""
    each, more = divmod(lines, of)
    return number * each + min(number, more), each + (number < more)
