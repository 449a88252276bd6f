"""Rings. Each workgroup forms a separate ring and moves one slice of a chunk per step.

Rings that put: each rank writes only to the next one, either the data it just received or its sum with its own chunk.
Scratch has a slot for each step, so that no rank waits for free space. Rings that get: each rank reads only from the
previous one, once that rank has signalled that its chunk is ready.
"""

from __future__ import annotations

from trine.gpu.builder import Operand
from trine.gpu.kernels.builder import CollectiveBuilder, Region, Workgroup
from trine.gpu.kernels.options import KernelOptions
from trine.gpu.kernels.signals import RankBarrier, Signal
from trine.gpu.program import GpuProgram

NEXT, PREVIOUS = (1,), (-1,)


def put(options: KernelOptions) -> GpuProgram:
    """Build an all-gather, a reduce-scatter or an all-reduce, which is both: ranks write to the next rank.

    A gather writes the input, or the last sum, and forwards arrivals ranks - 2 times. In a reduction the sum of chunk c
    starts at rank c + 1 and grows rank by rank up to rank c.
    """
    builder = CollectiveBuilder(f"{options.op}/ring", options)
    source, result, lines = builder.collective_ends()
    reduction = _Reduction(builder, source, lines) if options.reduces else None
    gather = _Gather(builder, result, lines) if options.gathers else None
    barrier = RankBarrier(builder, NEXT, default="none")
    for group in barrier.around(builder.workgroups(lines)):
        to_next = [] if gather is None else [gather.target(group, 0)]
        if reduction is not None:
            reduction.run(group, group.write(result), *to_next)
        else:
            group.copy(group.read(source), *to_next, label="put")
            group.copy(group.read(source), group.write(result), label="copy")
        if gather is not None:
            gather.forward(group)
    return builder.finished()


def get(options: KernelOptions) -> GpuProgram:
    """Build an all-gather, a reduce-scatter or an all-reduce, which is both: ranks read from the previous rank.

    A gather reads that rank's input or sum, then its arrivals. In a reduction each rank adds its part to the sum that
    it reads; chunk c ends at rank c.
    """
    builder = CollectiveBuilder(f"{options.op}/ring-get", options)
    source, result, lines = builder.collective_ends()
    steps = options.num_ranks - 1
    sums = builder.scratch("scratch", max(1, steps - 1), lines) if options.reduces else None
    barrier, signal = RankBarrier(builder, PREVIOUS, default="both"), Signal(builder, NEXT)
    for group in barrier.around(builder.workgroups(lines)):
        if sums is not None:
            _get_sums(group, source, sums, result, signal, steps)
        else:
            group.copy(group.read(source, -1), group.write(result, chunk=-1), label="get")
            group.copy(group.read(source), group.write(result), label="copy")
        if options.gathers:
            _get_chunks(group, result, signal, first=0 if options.reduces else 1, steps=steps)
    return builder.finished()


class _Reduction:
    """The steps of a reduce-scatter: in step s a rank sends its sum of chunk rank - 1 - s to slot s of the next."""

    def __init__(self, builder: CollectiveBuilder, source: Region, lines: int) -> None:
        self.steps = builder.options.num_ranks - 1
        self.source = source
        self.slots = builder.slots("scratch", self.steps, lines)
        self.signal = Signal(builder, NEXT)

    def run(self, group: Workgroup, *targets: Operand) -> None:
        """Add all steps; the sum of the rank's own chunk goes to ``targets``."""
        group.copy(group.read(self.source, chunk=-1), group.write(self.slots, 1, 0), label="put")
        for step in range(1, self.steps + 1):
            self.signal.meet(group)
            sources = (group.read(self.source, chunk=-1 - step), group.read(self.slots, chunk=step - 1))
            last = step == self.steps
            group.reduce(sources, *(targets if last else (group.write(self.slots, 1, step),)), label="reduce")


class _Gather:
    """The steps of an all-gather: in step s a rank sends chunk rank - s to the next; the first is the caller's."""

    def __init__(self, builder: CollectiveBuilder, result: Region, lines: int) -> None:
        self.steps = builder.options.num_ranks - 1
        self.result = result
        self.packets = builder.slots("packets", self.steps, lines) if builder.options.flagged else None
        self.signal = Signal(builder, NEXT)

    def target(self, group: Workgroup, step: int) -> Operand:
        """Return the destination of a step's chunk: the next rank's output, or its packet buffer."""
        if self.packets is None:
            return group.write(self.result, 1, -step)
        return group.write(self.packets, 1, step)

    def forward(self, group: Workgroup) -> None:
        """Forward the chunk that arrived in the previous step, for every step."""
        for step in range(1, self.steps + 1):
            last = step == self.steps
            self.signal.meet(group, last=last)
            targets = () if last else (self.target(group, step),)
            if self.packets is not None:
                data = group.read(self.packets, chunk=step - 1)
                group.copy(data, group.write(self.result, chunk=-step), *targets, label="unpack" if last else "pass on")
            elif targets:
                group.copy(group.read(self.result, chunk=-step), *targets, label="pass on")


def _get_sums(group: Workgroup, source: Region, sums: Region, result: Region, signal: Signal, steps: int) -> None:
    """Add the steps of a reduction by reads: in step s a rank adds to the previous rank's sum of chunk rank - 2 - s."""
    for step in range(steps):
        chunk = -2 - step
        if step:
            signal.meet(group)
        partial_sum = group.read(sums, -1, step - 1) if step else group.read(source, -1, chunk)
        target = group.write(result) if step == steps - 1 else group.write(sums, chunk=step)
        group.reduce((group.read(source, chunk=chunk), partial_sum), target, label="reduce")


def _get_chunks(group: Workgroup, result: Region, signal: Signal, first: int, steps: int) -> None:
    """Add the steps of a gather by reads: in step s a rank reads chunk rank - 1 - s from the previous rank."""
    for step in range(first, steps):
        signal.meet(group)
        group.copy(group.read(result, -1, -1 - step), group.write(result, chunk=-1 - step), label="get")
