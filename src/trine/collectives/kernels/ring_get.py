"""Rings that get: each rank reads from the previous one only, once that says that its part is there."""

from __future__ import annotations

from trine.collectives.kernels.draft import Draft, Region, Workgroup
from trine.collectives.kernels.meet import Handover, Meeting
from trine.collectives.kernels.options import KernelOptions
from trine.gpu.program import GpuProgram

NEXT, PREVIOUS = (1,), (-1,)


def all_gather(options: KernelOptions) -> GpuProgram:
    """Each rank reads the input of the previous, then what that has read, ranks - 2 times."""
    draft, ranks = Draft("all_gather/ring-get", options), options.num_ranks
    lines = options.lines(ranks)
    source, result = draft.data("input", 1, lines), draft.data("output", ranks, lines)
    meeting, handover = Meeting(draft, PREVIOUS, usual="both"), Handover(draft, NEXT)
    for group in draft.workgroups(lines):
        meeting.start(group)
        group.copy(group.read(source, -1), group.write(result, chunk=-1), label="get")
        group.copy(group.read(source), group.write(result), label="copy")
        _gather(group, result, handover, first=1, steps=ranks - 1)
        meeting.end(group)
    return draft.program()


def reduce_scatter(options: KernelOptions) -> GpuProgram:
    """Each rank adds its own part to the sum that it reads from the previous; the sum of chunk c ends at rank c."""
    draft, ranks = Draft("reduce_scatter/ring-get", options), options.num_ranks
    lines = options.lines(ranks)
    source, result = draft.data("input", ranks, lines), draft.data("output", 1, lines)
    sums = draft.scratch("scratch", max(1, ranks - 2), lines)
    meeting, handover = Meeting(draft, PREVIOUS, usual="both"), Handover(draft, NEXT)
    for group in draft.workgroups(lines):
        meeting.start(group)
        _reduce(group, source, sums, result, handover, ranks - 1)
        meeting.end(group)
    return draft.program()


def all_reduce(options: KernelOptions) -> GpuProgram:
    """Reduce-scatter, then all-gather."""
    draft, ranks = Draft("all_reduce/ring-get", options), options.num_ranks
    lines = options.lines(ranks)
    source, result = draft.data("input", ranks, lines), draft.data("output", ranks, lines)
    sums = draft.scratch("scratch", max(1, ranks - 2), lines)
    meeting, handover = Meeting(draft, PREVIOUS, usual="both"), Handover(draft, NEXT)
    for group in draft.workgroups(lines):
        meeting.start(group)
        _reduce(group, source, sums, result, handover, ranks - 1)
        _gather(group, result, handover, first=0, steps=ranks - 1)
        meeting.end(group)
    return draft.program()


def _reduce(group: Workgroup, source: Region, sums: Region, result: Region, handover: Handover, steps: int) -> None:
    """In step s a rank adds to the previous one's sum of chunk rank - 2 - s."""
    for step in range(steps):
        chunk = -2 - step
        if step:
            handover.send(group)
            handover.receive(group)
        before = group.read(sums, -1, step - 1) if step else group.read(source, -1, chunk)
        target = group.write(result) if step == steps - 1 else group.write(sums, chunk=step)
        group.reduce((group.read(source, chunk=chunk), before), target, label="reduce")


def _gather(group: Workgroup, result: Region, handover: Handover, first: int, steps: int) -> None:
    """In step s a rank reads chunk rank - 1 - s from the previous."""
    for step in range(first, steps):
        handover.send(group)
        handover.receive(group)
        group.copy(group.read(result, -1, -1 - step), group.write(result, chunk=-1 - step), label="get")
