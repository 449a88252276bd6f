"""All-gather, reduce-scatter and all-to-all between all pairs of ranks: data put to its peers, or got from them."""

from __future__ import annotations

from trine.collectives.kernels.draft import Draft
from trine.collectives.kernels.meet import Handover, Meeting
from trine.collectives.kernels.options import KernelOptions
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
    draft, ranks = Draft(name, options), options.num_ranks
    lines = options.lines(ranks)
    source, result = draft.data("input", own_chunks, lines), draft.data("output", ranks, lines)
    slots = draft.slots("packets", ranks - 1, lines) if options.flagged else None
    meeting = Meeting(draft, options.distances, usual="none")
    handover = Handover(draft, options.distances)
    for group in draft.workgroups(lines):
        order = group.turned(options.distances)
        meeting.start(group)
        for d in order:
            target = group.write(result, d) if slots is None else group.write(slots, d, d - 1)
            group.copy(group.read(source, chunk=d if own_chunks > 1 else 0), target, label="put")
        group.copy(group.read(source), group.write(result), label="copy")
        handover.send(group)
        handover.receive(group, last=True)
        if slots is not None:
            for d in order:
                group.copy(group.read(slots, chunk=d - 1), group.write(result, chunk=-d), label="unpack")
        meeting.end(group)
    return draft.program()


def _get(name: str, options: KernelOptions, own_chunks: int) -> GpuProgram:
    draft, ranks = Draft(name, options), options.num_ranks
    lines = options.lines(ranks)
    source, result = draft.data("input", own_chunks, lines), draft.data("output", ranks, lines)
    meeting = Meeting(draft, options.distances, usual="both")
    for group in draft.workgroups(lines):
        meeting.start(group)
        for d in group.turned(options.distances):
            group.copy(group.read(source, d), group.write(result, chunk=d), label="get")
        group.copy(group.read(source), group.write(result), label="copy")
        meeting.end(group)
    return draft.program()


def reduce_scatter_put(options: KernelOptions) -> GpuProgram:
    """Each rank writes its part of each chunk into scratch of the chunk's rank; when all are there it adds them up.

    So every byte goes through memory twice, and the sum begins when the last part has been signalled.
    """
    draft, ranks = Draft("reduce_scatter/put", options), options.num_ranks
    lines = options.lines(ranks)
    source, result = draft.data("input", ranks, lines), draft.data("output", 1, lines)
    slots = draft.slots("scratch", ranks - 1, lines)
    meeting = Meeting(draft, options.distances, usual="none")
    handover = Handover(draft, options.distances)
    for group in draft.workgroups(lines):
        order = group.turned(options.distances)
        meeting.start(group)
        for d in order:
            group.copy(group.read(source, chunk=d), group.write(slots, d, d - 1), label="put")
        handover.send(group)
        handover.receive(group)
        parts = [group.read(source), *(group.read(slots, chunk=d - 1) for d in order)]
        group.reduce(parts, group.write(result), label="reduce")
        meeting.end(group)
    return draft.program()


def reduce_scatter_get(options: KernelOptions) -> GpuProgram:
    """When all are ready, each rank reads its chunk from all and adds each line up as soon as it has arrived."""
    draft, ranks = Draft("reduce_scatter/get", options), options.num_ranks
    lines = options.lines(ranks)
    source, result = draft.data("input", ranks, lines), draft.data("output", 1, lines)
    meeting = Meeting(draft, options.distances, usual="both")
    for group in draft.workgroups(lines):
        meeting.start(group)
        parts = [group.read(source), *(group.read(source, d) for d in group.turned(options.distances))]
        group.reduce(parts, group.write(result), label="reduce")
        meeting.end(group)
    return draft.program()
