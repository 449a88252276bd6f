"""All-reduce between all pairs of ranks, in one step or in two."""

from __future__ import annotations

from trine.collectives.kernels.draft import Draft
from trine.collectives.kernels.meet import Handover, Meeting
from trine.collectives.kernels.options import KernelOptions
from trine.gpu.program import GpuProgram


def oneshot(options: KernelOptions) -> GpuProgram:
    """Each rank writes all of its input into scratch of all; when all parts are there, each adds them up by itself."""
    draft, ranks = Draft("all_reduce/oneshot", options), options.num_ranks
    lines = options.lines()
    source, result = draft.data("input", 1, lines), draft.data("output", 1, lines)
    slots = draft.slots("scratch", ranks - 1, lines)
    meeting = Meeting(draft, options.distances, usual="none")
    handover = Handover(draft, options.distances)
    for group in draft.workgroups(lines):
        order = group.turned(options.distances)
        meeting.start(group)
        for d in order:
            group.copy(group.read(source), group.write(slots, d, d - 1), label="put")
        handover.send(group)
        handover.receive(group)
        parts = [group.read(source), *(group.read(slots, chunk=d - 1) for d in order)]
        group.reduce(parts, group.write(result), label="reduce")
        meeting.end(group)
    return draft.program()


def oneshot_get(options: KernelOptions) -> GpuProgram:
    """When all are ready, each rank reads the inputs of all and adds each line up as soon as it has arrived."""
    draft = Draft("all_reduce/oneshot-get", options)
    lines = options.lines()
    source, result = draft.data("input", 1, lines), draft.data("output", 1, lines)
    meeting = Meeting(draft, options.distances, usual="both")
    for group in draft.workgroups(lines):
        meeting.start(group)
        parts = [group.read(source), *(group.read(source, d) for d in group.turned(options.distances))]
        group.reduce(parts, group.write(result), label="reduce")
        meeting.end(group)
    return draft.program()


def twoshot(options: KernelOptions) -> GpuProgram:
    """When all are ready, each rank reads its chunk from all and writes the sum to all, line by line; then signals."""
    draft, ranks = Draft("all_reduce/twoshot", options), options.num_ranks
    lines = options.lines(ranks)
    source, result = draft.data("input", ranks, lines), draft.data("output", ranks, lines)
    # At the end nobody reads any more: the signals behind the sums say so.
    meeting = Meeting(draft, options.distances, usual="start")
    handover = Handover(draft, options.distances)
    for group in draft.workgroups(lines):
        order = group.turned(options.distances)
        meeting.start(group)
        parts = [group.read(source), *(group.read(source, d) for d in order)]
        targets = [group.write(result), *(group.write(result, d) for d in order)]
        group.reduce(parts, *targets, label="reduce")
        handover.send(group)
        handover.receive(group, last=True)
        meeting.end(group)
    return draft.program()


def twoshot_put(options: KernelOptions) -> GpuProgram:
    """Each rank writes its part of each chunk into scratch of the chunk's rank, which writes the sum to all."""
    draft, ranks = Draft("all_reduce/twoshot-put", options), options.num_ranks
    lines = options.lines(ranks)
    source, result = draft.data("input", ranks, lines), draft.data("output", ranks, lines)
    slots = draft.slots("scratch", ranks - 1, lines)
    sums = draft.slots("sums", ranks - 1, lines) if options.flagged else None
    meeting = Meeting(draft, options.distances, usual="none")
    first, second = Handover(draft, options.distances), Handover(draft, options.distances)
    for group in draft.workgroups(lines):
        order = group.turned(options.distances)
        meeting.start(group)
        for d in order:
            group.copy(group.read(source, chunk=d), group.write(slots, d, d - 1), label="put")
        first.send(group)
        first.receive(group)
        parts = [group.read(source), *(group.read(slots, chunk=d - 1) for d in order)]
        others = [group.write(result, d) if sums is None else group.write(sums, d, d - 1) for d in order]
        group.reduce(parts, group.write(result), *others, label="reduce")
        second.send(group)
        second.receive(group, last=True)
        if sums is not None:
            for d in order:
                group.copy(group.read(sums, chunk=d - 1), group.write(result, chunk=-d), label="unpack")
        meeting.end(group)
    return draft.program()


def twoshot_get(options: KernelOptions) -> GpuProgram:
    """When all are ready, each rank reads its chunk from all and adds it up; when all have, it gets all sums."""
    draft, ranks = Draft("all_reduce/twoshot-get", options), options.num_ranks
    lines = options.lines(ranks)
    source, result = draft.data("input", ranks, lines), draft.data("output", ranks, lines)
    meeting = Meeting(draft, options.distances, usual="both")
    handover = Handover(draft, options.distances)
    for group in draft.workgroups(lines):
        order = group.turned(options.distances)
        meeting.start(group)
        parts = [group.read(source), *(group.read(source, d) for d in order)]
        group.reduce(parts, group.write(result), label="reduce")
        handover.send(group)
        handover.receive(group)
        for d in order:
            group.copy(group.read(result, d, d), group.write(result, chunk=d), label="get")
        meeting.end(group)
    return draft.program()
