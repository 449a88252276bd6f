"""All-gather and all-to-all in which each workgroup serves one peer; with fewer workgroups than peers, several.

Workgroup g serves the peer at distance g % (ranks - 1) + 1, so that several of them share a peer's lines. It signals
its peer alone, and waits for its peer alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from trine.collectives.kernels.builder import CollectiveBuilder, Workgroup
from trine.collectives.kernels.direct import Division, PeerWork, get, put
from trine.collectives.kernels.options import KernelOptions
from trine.gpu.program import GpuProgram


def all_gather_put(options: KernelOptions) -> GpuProgram:
    """Each workgroup writes its slice of the input into the output of its peer, and signals it."""
    return put("all_gather/peer-put", options, 1, _ONE_PEER)


def all_to_all_put(options: KernelOptions) -> GpuProgram:
    """The same, each pair of ranks with a chunk of its own."""
    return put("all_to_all/peer-put", options, options.num_ranks, _ONE_PEER)


def all_gather_get(options: KernelOptions) -> GpuProgram:
    """When its peer is ready, each workgroup reads its slice of the peer's input, and tells it when it has."""
    return get("all_gather/peer-get", options, 1, _ONE_PEER)


def all_to_all_get(options: KernelOptions) -> GpuProgram:
    """The same, each pair of ranks with a chunk of its own."""
    return get("all_to_all/peer-get", options, options.num_ranks, _ONE_PEER)


def _served(options: KernelOptions) -> range:
    """As many distances as a workgroup has peers at most."""
    return range(1, 1 - (options.num_ranks - 1) // -options.workgroups)


def _serve_one(builder: CollectiveBuilder, lines: int) -> Iterator[PeerWork]:
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
        yield PeerWork(
            remote=tuple((Workgroup(builder, number, first, some), d) for d in distances if some),
            own=(Workgroup(builder, number, own_first, own),) if own else (),
            peers=[(d, which) for which, d in enumerate(distances)],
        )
        builder.end_workgroup()


_ONE_PEER = Division(_served, _serve_one)


def slice_of(lines: int, number: int, of: int) -> tuple[int, int]:
    """(first, lines) of one of ``of`` slices; the first ones have a line more where they do not divide."""
    each, more = divmod(lines, of)
    return number * each + min(number, more), each + (number < more)
