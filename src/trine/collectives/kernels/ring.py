"""Rings that put: each rank writes to the next one only, what it has just been given or its sum with the own part.

Each workgroup is a ring of its own, one slice of a chunk a step. Scratch has a slot for each step, so that nobody waits
for room.
"""

from __future__ import annotations

from trine.collectives.kernels.draft import Draft, Operand, Region, Workgroup
from trine.collectives.kernels.meet import Handover, Meeting
from trine.collectives.kernels.options import KernelOptions
from trine.gpu.program import GpuProgram

NEXT = (1,)


def all_gather(options: KernelOptions) -> GpuProgram:
    """Each rank writes its input into the output of the next; then what it has got, ranks - 2 times."""
    draft, ranks = Draft("all_gather/ring", options), options.num_ranks
    lines = options.lines(ranks)
    source, result = draft.data("input", 1, lines), draft.data("output", ranks, lines)
    gather = _Gather(draft, result, lines)
    meeting = Meeting(draft, NEXT, usual="none")
    for group in draft.workgroups(lines):
        meeting.start(group)
        group.copy(group.read(source), gather.target(group, 0), label="put")
        group.copy(group.read(source), group.write(result), label="copy")
        gather.go_on(group)
        meeting.end(group)
    return draft.program()


def reduce_scatter(options: KernelOptions) -> GpuProgram:
    """The sum of chunk c begins at rank c + 1 and grows rank by rank until it comes to rank c."""
    draft, ranks = Draft("reduce_scatter/ring", options), options.num_ranks
    lines = options.lines(ranks)
    source, result = draft.data("input", ranks, lines), draft.data("output", 1, lines)
    reduce = _Reduce(draft, source, lines)
    meeting = Meeting(draft, NEXT, usual="none")
    for group in draft.workgroups(lines):
        meeting.start(group)
        reduce.run(group, group.write(result))
        meeting.end(group)
    return draft.program()


def all_reduce(options: KernelOptions) -> GpuProgram:
    """Reduce-scatter, whose last sums go into the own output and the next one's at once, then all-gather."""
    draft, ranks = Draft("all_reduce/ring", options), options.num_ranks
    lines = options.lines(ranks)
    source, result = draft.data("input", ranks, lines), draft.data("output", ranks, lines)
    reduce, gather = _Reduce(draft, source, lines), _Gather(draft, result, lines)
    meeting = Meeting(draft, NEXT, usual="none")
    for group in draft.workgroups(lines):
        meeting.start(group)
        reduce.run(group, group.write(result), gather.target(group, 0))
        gather.go_on(group)
        meeting.end(group)
    return draft.program()


class _Reduce:
    """The steps of a reduce-scatter: in step s a rank sends its sum of chunk rank - 1 - s to slot s of the next."""

    def __init__(self, draft: Draft, source: Region, lines: int) -> None:
        self.steps = draft.options.num_ranks - 1
        self.source = source
        self.slots = draft.slots("scratch", self.steps, lines)
        self.handover = Handover(draft, NEXT)

    def run(self, group: Workgroup, *targets: Operand) -> None:
        """``targets``: where the sum of the own chunk goes."""
        group.copy(group.read(self.source, chunk=-1), group.write(self.slots, 1, 0), label="put")
        for step in range(1, self.steps + 1):
            self.handover.send(group)
            self.handover.receive(group)
            parts = (group.read(self.source, chunk=-1 - step), group.read(self.slots, chunk=step - 1))
            last = step == self.steps
            group.reduce(parts, *(targets if last else (group.write(self.slots, 1, step),)), label="reduce")


class _Gather:
    """The steps of an all-gather: in step s a rank sends chunk rank - s to the next; the first is the caller's."""

    def __init__(self, draft: Draft, result: Region, lines: int) -> None:
        self.steps = draft.options.num_ranks - 1
        self.result = result
        self.packets = draft.slots("packets", self.steps, lines) if draft.options.flagged else None
        self.handover = Handover(draft, NEXT)

    def target(self, group: Workgroup, step: int) -> Operand:
        """Where the chunk of a step goes: into the next one's output, or its packets."""
        if self.packets is None:
            return group.write(self.result, 1, -step)
        return group.write(self.packets, 1, step)

    def go_on(self, group: Workgroup) -> None:
        """Pass on what came in the step before."""
        for step in range(1, self.steps + 1):
            last = step == self.steps
            self.handover.send(group)
            self.handover.receive(group, last=last)
            further = () if last else (self.target(group, step),)
            if self.packets is not None:
                came = group.read(self.packets, chunk=step - 1)
                group.copy(came, group.write(self.result, chunk=-step), *further, label="unpack" if last else "pass on")
            elif further:
                group.copy(group.read(self.result, chunk=-step), *further, label="pass on")
