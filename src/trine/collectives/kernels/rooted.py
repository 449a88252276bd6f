"""Collectives with a root, rank 0 of the group: broadcast, reduce, gather and scatter; in a node and across nodes.

Ranks do different things, so each has a kernel of its own, and runs do not fold. Across nodes chunk l of a payload is
that of local l: it leaves and enters nodes by the NIC of rail l, so that all NICs of the root's node work.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

from trine.collectives.kernels.builder import CollectiveBuilder, Region, SignalTable, Workgroup
from trine.collectives.kernels.options import KernelOptions
from trine.gpu.builder import Operand
from trine.gpu.program import DMA, WRITE, GpuProgram

#: Bytes of a piece, and pieces of a workgroup's slice at most: a chain of ranks is full but for its length in pieces.
PIECE_BYTES, MAX_PIECES = 16 << 10, 64


def broadcast_put(options: KernelOptions) -> GpuProgram:
    """The root writes its input to the outputs of all, and signals."""
    builder = _RootedBuilder("broadcast/put", options)
    lines = options.lines()
    source, result = builder.data("input", 1, lines), builder.data("output", 1, lines)
    there = builder.signals(1)
    for rank in builder.ranks():
        for group in builder.workgroups(lines):
            if rank == 0:
                others = group.rotated(options.distances)
                group.copy(group.read(source), *(group.write(result, d) for d in (0, *others)), label="put")
                builder.signal(group, there, others)
            else:
                builder.expect(group, there, last=True)
    return builder.finished()


def broadcast_get(options: KernelOptions) -> GpuProgram:
    """When the root is ready, each rank reads its input; the root does not leave before all have."""
    builder, ranks = _RootedBuilder("broadcast/get", options), options.num_ranks
    lines = options.lines()
    source, result = builder.data("input", 1, lines), builder.data("output", 1, lines)
    ready, done = builder.signals(1), builder.signals(1)
    for rank in builder.ranks():
        for group in builder.workgroups(lines):
            if rank == 0:
                group.signal(ready, [(d, 0) for d in group.rotated(options.distances)], "ready")
            else:
                builder.expect(group, ready)
            group.copy(group.read(source, -rank), group.write(result), label="get")
            if rank:
                builder.signal(group, done, [-rank])
            else:
                builder.expect(group, done, ranks - 1, last=True)
    return builder.finished()


def broadcast_ring(options: KernelOptions) -> GpuProgram:
    """Each rank passes on to the next, piece by piece."""
    builder, ranks = _RootedBuilder("broadcast/ring", options), options.num_ranks
    lines = options.lines()
    source, result = builder.data("input", 1, lines), builder.data("output", 1, lines)
    there = builder.signals(1)
    for rank in builder.ranks():
        for group in builder.workgroups(lines):
            for piece in builder.pieces(group):
                if rank == 0:
                    piece.copy(piece.read(source), piece.write(result, 1), piece.write(result), label="put")
                    builder.signal(piece, there, [1])
                    continue
                builder.expect(piece, there, last=rank == ranks - 1)
                if rank < ranks - 1:
                    piece.copy(piece.read(result), piece.write(result, 1), label="pass on")
                    builder.signal(piece, there, [1])
    return builder.finished()


def reduce_get(options: KernelOptions) -> GpuProgram:
    """When all are ready, the root reads the inputs of all and adds each line up; nobody leaves before it has."""
    builder = _RootedBuilder("reduce/get", options)
    lines = options.lines()
    source, result = builder.data("input", 1, lines), builder.data("output", 1, lines)
    ready, done = builder.signals(1), builder.signals(1)
    for rank in builder.ranks():
        for group in builder.workgroups(lines):
            if rank == 0:
                others = group.rotated(options.distances)
                builder.expect(group, ready, len(others))
                group.reduce([group.read(source, d) for d in (0, *others)], group.write(result), label="reduce")
                builder.signal(group, done, others)
            else:
                group.signal(ready, [(-rank, 0)], "ready")
                builder.expect(group, done, last=True)
    return builder.finished()


def reduce_ring(options: KernelOptions) -> GpuProgram:
    """The sum begins at the last rank, and each adds its input and writes it on to the one before, piece by piece."""
    builder, ranks = _RootedBuilder("reduce/ring", options), options.num_ranks
    lines = options.lines()
    source, result = builder.data("input", 1, lines), builder.data("output", 1, lines)
    sums = builder.scratch("scratch", 1, lines)
    there = builder.signals(1)
    for rank in builder.ranks():
        for group in builder.workgroups(lines):
            for piece in builder.pieces(group):
                parts = [piece.read(source)]
                if rank < ranks - 1:
                    builder.expect(piece, there)
                    parts.append(piece.read(sums))
                target = piece.write(sums, -1) if rank else piece.write(result)
                piece.reduce(parts, target, label="reduce")
                if rank:
                    builder.signal(piece, there, [-1])
    return builder.finished()


def gather_put(options: KernelOptions) -> GpuProgram:
    """Each rank writes its input into its place in the root's output, and signals."""
    builder, ranks = _RootedBuilder("gather/put", options), options.num_ranks
    lines = options.lines(ranks)
    source, result = builder.data("input", 1, lines), builder.data("output", ranks, lines)
    there = builder.signals(1)
    for rank in builder.ranks():
        for group in builder.workgroups(lines):
            group.copy(group.read(source), group.write(result, -rank, rank), label="put")
            if rank:
                builder.signal(group, there, [-rank])
            else:
                builder.expect(group, there, ranks - 1, last=True)
    return builder.finished()


def gather_get(options: KernelOptions) -> GpuProgram:
    """When all are ready, the root reads the inputs of all; nobody leaves before it has."""
    builder, ranks = _RootedBuilder("gather/get", options), options.num_ranks
    lines = options.lines(ranks)
    source, result = builder.data("input", 1, lines), builder.data("output", ranks, lines)
    ready, done = builder.signals(1), builder.signals(1)
    for rank in builder.ranks():
        for group in builder.workgroups(lines):
            if rank:
                group.signal(ready, [(-rank, 0)], "ready")
                builder.expect(group, done, last=True)
                continue
            others = group.rotated(options.distances)
            builder.expect(group, ready, len(others))
            for d in (*others, 0):
                group.copy(group.read(source, d), group.write(result, 0, d), label="get")
            builder.signal(group, done, others)
    return builder.finished()


def scatter_put(options: KernelOptions) -> GpuProgram:
    """The root writes each chunk of its input to its rank, and signals."""
    builder, ranks = _RootedBuilder("scatter/put", options), options.num_ranks
    lines = options.lines(ranks)
    source, result = builder.data("input", ranks, lines), builder.data("output", 1, lines)
    there = builder.signals(1)
    for rank in builder.ranks():
        for group in builder.workgroups(lines):
            if rank:
                builder.expect(group, there, last=True)
                continue
            others = group.rotated(options.distances)
            for d in (*others, 0):
                group.copy(group.read(source, 0, d), group.write(result, d), label="put")
            builder.signal(group, there, others)
    return builder.finished()


def scatter_get(options: KernelOptions) -> GpuProgram:
    """When the root is ready, each rank reads its chunk from it; the root does not leave before all have."""
    builder, ranks = _RootedBuilder("scatter/get", options), options.num_ranks
    lines = options.lines(ranks)
    source, result = builder.data("input", ranks, lines), builder.data("output", 1, lines)
    ready, done = builder.signals(1), builder.signals(1)
    for rank in builder.ranks():
        for group in builder.workgroups(lines):
            if rank == 0:
                group.signal(ready, [(d, 0) for d in group.rotated(options.distances)], "ready")
            else:
                builder.expect(group, ready)
            group.copy(group.read(source, -rank, rank), group.write(result), label="get")
            if rank:
                builder.signal(group, done, [-rank])
            else:
                builder.expect(group, done, ranks - 1, last=True)
    return builder.finished()


def broadcast_nodes(options: KernelOptions) -> GpuProgram:
    """The root writes chunk l to local l, which puts it to its rail; in each node it is written to all."""
    builder = _RootedBuilder("broadcast/hierarchical", options)
    num_locals = builder.num_locals
    lines = options.lines(num_locals)
    source, result = builder.data("input", num_locals, lines), builder.data("output", num_locals, lines)
    there, rail, done = builder.signals(1), builder.signals(1), builder.signals(1)
    for rank in builder.ranks():
        node, own = divmod(rank, num_locals)
        for group in builder.workgroups(lines):
            mates = [d for d in builder.mates(group) if node or own + d != 0]
            for piece in builder.pieces(group):
                origin = result
                if rank == 0:
                    origin = source
                    for d in builder.mates(piece):
                        piece.copy(
                            piece.read(source, 0, d), piece.write(result, d, d), piece.write(result, 0, d), label="put"
                        )
                        builder.signal(piece, there, [d])
                else:
                    builder.expect(piece, there if node == 0 else rail, last=not mates)
                if node == 0:
                    for other in builder.others:
                        builder.put(piece, other, piece.read(origin, 0, own), piece.write(result, 0, own), rail)
                targets = [piece.write(result, d, own) for d in mates]
                if rank == 0:
                    targets.append(piece.write(result, 0, own))
                if targets:
                    piece.copy(piece.read(origin, 0, own), *targets, label="pass on")
            builder.signal(group, done, mates)
            if rank and num_locals > 1:
                builder.expect(group, done, num_locals - 1, last=True)
    return builder.finished()


def reduce_nodes(options: KernelOptions) -> GpuProgram:
    """Local l of each node adds up chunk l of its node; those of a rail are put to the root's node and added there."""
    builder = _RootedBuilder("reduce/hierarchical", options)
    num_locals, num_others = builder.num_locals, len(builder.others)
    lines = options.lines(num_locals)
    source, result = builder.data("input", num_locals, lines), builder.data("output", num_locals, lines)
    sums, slots = builder.scratch("sums", 1, lines), builder.scratch("scratch", max(1, num_others), lines)
    ready, done = builder.signals(1), builder.signals(1)
    rails, there = builder.signals(max(1, num_others)), builder.signals(1)
    for rank in builder.ranks():
        node, own = divmod(rank, num_locals)
        for group in builder.workgroups(lines):
            mates = builder.mates(group)
            if mates:
                group.signal(ready, [(d, 0) for d in mates], "ready")
                builder.expect(group, ready, len(mates), last=node == 0 and num_others > 0)
            for piece in builder.pieces(group):
                parts = [piece.read(source, d, own) for d in (0, *builder.mates(piece))]
                if node:
                    piece.reduce(parts, piece.write(sums), label="reduce")
                    builder.settle(piece)
                    target = piece.write(slots, 0, node - 1)
                    builder.put(piece, -node, piece.read(sums), target, rails, node - 1)
                    continue
                for other in range(num_others):
                    builder.expect(piece, rails, which=other, last=other < num_others - 1)
                    parts.append(piece.read(slots, 0, other))
                piece.reduce(parts, piece.write(result, -own, own), label="reduce")
            if mates:
                if node == 0:
                    builder.settle(group)
                group.signal(done, [(d, 0) for d in mates], "done")
            if node == 0 and own:
                group.signal(there, [(-own, 0)], "signal")
            if mates:
                builder.expect(group, done, len(mates), last=True)
            if rank == 0 and num_locals > 1:
                builder.expect(group, there, num_locals - 1, last=True)
    return builder.finished()


def gather_nodes(options: KernelOptions) -> GpuProgram:
    """Each rank puts its input to its rail in the root's node, which writes it to the root."""
    builder, ranks = _RootedBuilder("gather/hierarchical", options), options.num_ranks
    num_locals, num_others = builder.num_locals, len(builder.others)
    lines = options.lines(ranks)
    source, result = builder.data("input", 1, lines), builder.data("output", ranks, lines)
    slots = builder.scratch("scratch", max(1, num_others), lines)
    rails, there = builder.signals(max(1, num_others)), builder.signals(1)
    for rank in builder.ranks():
        node, own = divmod(rank, num_locals)
        for group in builder.workgroups(lines):
            if node:
                target = group.write(slots, 0, node - 1) if own else group.write(result, 0, rank)
                builder.put(group, -node, group.read(source), target, rails, node - 1)
                continue
            group.copy(group.read(source), group.write(result, -own, own), label="put")
            for other in builder.others:
                builder.expect(group, rails, which=other - 1, last=own == 0)
                if own:
                    target = group.write(result, -own, other * num_locals + own)
                    group.copy(group.read(slots, 0, other - 1), target, label="pass on")
            if own:
                builder.signal(group, there, [-own])
            elif num_locals > 1:
                builder.expect(group, there, num_locals - 1, last=True)
    return builder.finished()


def scatter_nodes(options: KernelOptions) -> GpuProgram:
    """The root writes what is for other nodes to the ranks of their rails in its own, which put it there."""
    builder, ranks = _RootedBuilder("scatter/hierarchical", options), options.num_ranks
    num_locals = builder.num_locals
    lines = options.lines(ranks)
    source, result = builder.data("input", ranks, lines), builder.data("output", 1, lines)
    slots = builder.scratch("scratch", max(1, len(builder.others)), lines)
    there, rail = builder.signals(1), builder.signals(1)
    for rank in builder.ranks():
        for group in builder.workgroups(lines):
            if rank >= num_locals:
                builder.expect(group, rail, last=True)
                continue
            if rank == 0:
                for other in builder.others:
                    chunk = other * num_locals
                    builder.put(group, other, group.read(source, 0, chunk), group.write(result), rail)
                    for d in builder.mates(group):
                        group.copy(group.read(source, 0, chunk + d), group.write(slots, d, other - 1), label="stage")
                for d in (*builder.mates(group), 0):
                    group.copy(group.read(source, 0, d), group.write(result, d), label="put")
                builder.signal(group, there, builder.mates(group))
                continue
            builder.expect(group, there, last=True)  # who waits also puts
            for other in builder.others:
                builder.put(group, other, group.read(slots, 0, other - 1), group.write(result), rail)
    return builder.finished()


class _RootedBuilder(CollectiveBuilder):
    """Operands are relative to the rank whose kernel is written; chunks are places in a buffer."""

    def __init__(self, name: str, options: KernelOptions) -> None:
        super().__init__(name, options)
        self.rank = 0
        self.num_locals = options.num_ranks // options.num_nodes
        #: nodes beside the root's
        self.others = range(1, options.num_nodes)

    def data(self, name: str, chunks: int, lines: int) -> Region:
        """A buffer for payload of ``chunks`` chunks; ``name``: ``input`` or ``output``."""
        return super().data(name, chunks, lines)._replace(by_rank=False)

    def ranks(self) -> Iterator[int]:
        """Ranks one after the other; what is added meanwhile is the kernel of each."""
        for rank in range(self.num_ranks):
            self.rank = rank
            yield rank
            self.end_kernel(rank, self.options.wavefronts, self.name)

    def add(
        self, kind: int, amount: int, operands: Iterable[Operand], label: str | None = None, unroll: int = 0
    ) -> None:
        """One operation of the rank at work."""
        absolute = [operand._replace(rank=(operand.rank + self.rank) % self.num_ranks) for operand in operands]
        super().add(kind, amount, absolute, label, unroll)

    def finished(self, grid: Sequence[int] = ()) -> GpuProgram:
        """The program of all ranks."""
        return self._built(None)

    def mates(self, group: Workgroup) -> list[int]:
        """The distances of the other ranks of the own node, each workgroup beginning with another."""
        first = self.rank // self.num_locals * self.num_locals
        others = [first + local - self.rank for local in range(self.num_locals) if first + local != self.rank]
        return group.rotated(others) if others else []

    def pieces(self, group: Workgroup) -> list[Workgroup]:
        """The slice of a workgroup in pieces."""
        count = max(1, min(MAX_PIECES, group.lines * self.line_bytes // PIECE_BYTES))
        ends = [group.lines * number // count for number in range(count + 1)]
        return [Workgroup(self, group.number, group.first + first, end - first) for first, end in pairwise(ends)]

    def settle(self, group: Workgroup) -> None:
        """What the workgroup has written so far is there for all."""
        group.finish("settle")
        group.fence("settle")

    def signal(self, group: Workgroup, signals: SignalTable, distances: Sequence[int]) -> None:
        """What has been read and written so far is over and there."""
        if distances:
            self.settle(group)
            group.signal(signals, [(d, 0) for d in distances], "signal")

    def expect(
        self, group: Workgroup, signals: SignalTable, count: int = 1, *, which: int = 0, last: bool = False
    ) -> None:
        """``last``: nothing of this workgroup uses what is there then."""
        group.count("wait")
        group.wait(signals, which, count, "wait")
        group.seen("wait")
        if not last:
            group.barrier("wait")

    def put(
        self, group: Workgroup, node: int, source: Operand, target: Operand, signals: SignalTable, which: int = 0
    ) -> None:
        """To the own rail so many nodes further on, by the NIC, with a signal."""
        there = signals.operand(WRITE, 0, group.number, which)
        ends = source._replace(step=0), target._replace(rank=node * self.num_locals, step=0, semaphore=there.semaphore)
        group.add(DMA, group.lines * self.line_bytes, ends, "rail put")
