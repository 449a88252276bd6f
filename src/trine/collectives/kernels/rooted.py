"""Collectives with a root, rank 0 of the group: broadcast, reduce, gather and scatter; in a node and across nodes.

Ranks do different things, so each has a kernel of its own, and runs do not fold. Across nodes chunk l of a payload is
that of local l: it leaves and enters nodes by the NIC of rail l, so that all NICs of the root's node work.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from trine.collectives.kernels.builder import CollectiveBuilder, Region, SignalTable, Workgroup
from trine.collectives.kernels.options import KernelOptions
from trine.gpu.builder import Operand
from trine.gpu.program import WRITE, GpuProgram

#: Moves the slice of a workgroup from or to the ranks so far away.
Move = Callable[..., None]


def broadcast_put(options: KernelOptions) -> GpuProgram:
    """The root writes its input to the outputs of all, and signals."""
    builder, lines = PerRankBuilder("broadcast/put", options), options.lines()
    source, result = builder.data("input", 1, lines), builder.data("output", 1, lines)

    def put(group: Workgroup, *others: int) -> None:
        group.copy(group.read(source), *(group.write(result, d) for d in (0, *others)), label="put")

    return builder.root_writes(lines, put)


def broadcast_get(options: KernelOptions) -> GpuProgram:
    """When the root is ready, each rank reads its input; the root does not leave before all have."""
    builder, lines = PerRankBuilder("broadcast/get", options), options.lines()
    source, result = builder.data("input", 1, lines), builder.data("output", 1, lines)

    def get(group: Workgroup, root: int) -> None:
        group.copy(group.read(source, root), group.write(result), label="get")

    return builder.root_is_read(lines, get)


def broadcast_ring(options: KernelOptions) -> GpuProgram:
    """Each rank passes on to the next, piece by piece."""
    builder, lines, last = PerRankBuilder("broadcast/ring", options), options.lines(), options.num_ranks - 1
    source, result = builder.data("input", 1, lines), builder.data("output", 1, lines)
    there = builder.signals(1)
    for rank, group in builder.kernels(lines):
        for piece in group.pieces():
            if rank == 0:
                piece.copy(piece.read(source), piece.write(result, 1), piece.write(result), label="put")
                builder.signal(piece, there, [1])
                continue
            builder.expect(piece, there, last=rank == last)
            if rank < last:
                piece.copy(piece.read(result), piece.write(result, 1), label="pass on")
                builder.signal(piece, there, [1])
    return builder.finished()


def reduce_get(options: KernelOptions) -> GpuProgram:
    """When all are ready, the root reads the inputs of all and adds each line up; nobody leaves before it has."""
    builder, lines = PerRankBuilder("reduce/get", options), options.lines()
    source, result = builder.data("input", 1, lines), builder.data("output", 1, lines)

    def get(group: Workgroup, *others: int) -> None:
        group.reduce([group.read(source, d) for d in (0, *others)], group.write(result), label="reduce")

    return builder.root_reads(lines, get)


def reduce_ring(options: KernelOptions) -> GpuProgram:
    """The sum begins at the last rank, and each adds its input and writes it on to the one before, piece by piece."""
    builder, lines = PerRankBuilder("reduce/ring", options), options.lines()
    source, result = builder.data("input", 1, lines), builder.data("output", 1, lines)
    sums = builder.scratch("scratch", 1, lines)
    there = builder.signals(1)
    for rank, group in builder.kernels(lines):
        for piece in group.pieces():
            parts = [piece.read(source)]
            if rank < options.num_ranks - 1:
                builder.expect(piece, there)
                parts.append(piece.read(sums))
            target = piece.write(sums, -1) if rank else piece.write(result)
            piece.reduce(parts, target, label="reduce")
            if rank:
                builder.signal(piece, there, [-1])
    return builder.finished()


def gather_put(options: KernelOptions) -> GpuProgram:
    """Each rank writes its input into its place in the root's output, and signals."""
    builder, lines = PerRankBuilder("gather/put", options), options.lines(options.num_ranks)
    source, result = builder.data("input", 1, lines), builder.data("output", options.num_ranks, lines)
    there = builder.signals(1)
    for rank, group in builder.kernels(lines):
        group.copy(group.read(source), group.write(result, -rank, rank), label="put")
        builder.tell_root(group, there)
    return builder.finished()


def gather_get(options: KernelOptions) -> GpuProgram:
    """When all are ready, the root reads the inputs of all; nobody leaves before it has."""
    builder, lines = PerRankBuilder("gather/get", options), options.lines(options.num_ranks)
    source, result = builder.data("input", 1, lines), builder.data("output", options.num_ranks, lines)

    def get(group: Workgroup, *others: int) -> None:
        for d in (*others, 0):
            group.copy(group.read(source, d), group.write(result, 0, d), label="get")

    return builder.root_reads(lines, get)


def scatter_put(options: KernelOptions) -> GpuProgram:
    """The root writes each chunk of its input to its rank, and signals."""
    builder, lines = PerRankBuilder("scatter/put", options), options.lines(options.num_ranks)
    source, result = builder.data("input", options.num_ranks, lines), builder.data("output", 1, lines)

    def put(group: Workgroup, *others: int) -> None:
        for d in (*others, 0):
            group.copy(group.read(source, 0, d), group.write(result, d), label="put")

    return builder.root_writes(lines, put)


def scatter_get(options: KernelOptions) -> GpuProgram:
    """When the root is ready, each rank reads its chunk from it; the root does not leave before all have."""
    builder, lines = PerRankBuilder("scatter/get", options), options.lines(options.num_ranks)
    source, result = builder.data("input", options.num_ranks, lines), builder.data("output", 1, lines)

    def get(group: Workgroup, root: int) -> None:
        group.copy(group.read(source, root, -root), group.write(result), label="get")

    return builder.root_is_read(lines, get)


def broadcast_nodes(options: KernelOptions) -> GpuProgram:
    """The root writes chunk l to local l, which puts it to its rail; in each node it is written to all."""
    builder = PerRankBuilder("broadcast/hierarchical", options)
    num_locals = builder.num_locals
    lines = options.lines(num_locals)
    source, result = builder.data("input", num_locals, lines), builder.data("output", num_locals, lines)
    there, rail, done = builder.signals(1), builder.signals(1), builder.signals(1)
    for rank, group in builder.kernels(lines):
        node, own = divmod(rank, num_locals)
        mates = [d for d in builder.mates(group) if node or own + d != 0]
        for piece in group.pieces():
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
    builder = PerRankBuilder("reduce/hierarchical", options)
    num_locals, num_others = builder.num_locals, len(builder.others)
    lines = options.lines(num_locals)
    source, result = builder.data("input", num_locals, lines), builder.data("output", num_locals, lines)
    sums, slots = builder.scratch("sums", 1, lines), builder.scratch("scratch", max(1, num_others), lines)
    ready, done = builder.signals(1), builder.signals(1)
    rails, there = builder.signals(max(1, num_others)), builder.signals(1)
    for rank, group in builder.kernels(lines):
        node, own = divmod(rank, num_locals)
        mates = builder.mates(group)
        if mates:
            group.signal(ready, [(d, 0) for d in mates], "ready")
            builder.expect(group, ready, len(mates), last=node == 0 and num_others > 0)
        for piece in group.pieces():
            parts = [piece.read(source, d, own) for d in (0, *builder.mates(piece))]
            if node:
                piece.reduce(parts, piece.write(sums), label="reduce")
                piece.settle()
                target = piece.write(slots, 0, node - 1)
                builder.put(piece, -node, piece.read(sums), target, rails, node - 1)
                continue
            for other in range(num_others):
                builder.expect(piece, rails, which=other, last=other < num_others - 1)
                parts.append(piece.read(slots, 0, other))
            piece.reduce(parts, piece.write(result, -own, own), label="reduce")
        if mates:
            if node == 0:
                group.settle()
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
    builder, ranks = PerRankBuilder("gather/hierarchical", options), options.num_ranks
    num_locals, num_others = builder.num_locals, len(builder.others)
    lines = options.lines(ranks)
    source, result = builder.data("input", 1, lines), builder.data("output", ranks, lines)
    slots = builder.scratch("scratch", max(1, num_others), lines)
    rails, there = builder.signals(max(1, num_others)), builder.signals(1)
    for rank, group in builder.kernels(lines):
        node, own = divmod(rank, num_locals)
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
    builder, ranks = PerRankBuilder("scatter/hierarchical", options), options.num_ranks
    num_locals = builder.num_locals
    lines = options.lines(ranks)
    source, result = builder.data("input", ranks, lines), builder.data("output", 1, lines)
    slots = builder.scratch("scratch", max(1, len(builder.others)), lines)
    there, rail = builder.signals(1), builder.signals(1)
    for rank, group in builder.kernels(lines):
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


class PerRankBuilder(CollectiveBuilder):
    """Operands are relative to the rank whose kernel is written; chunks are places in a buffer."""

    #: A chain of ranks is full but for its length in pieces.
    max_pieces = 64

    def __init__(self, name: str, options: KernelOptions) -> None:
        super().__init__(name, options)
        self.rank = 0
        self.num_locals = options.num_ranks // options.num_nodes
        #: nodes beside the root's
        self.others = range(1, options.num_nodes)

    def data(self, name: str, chunks: int, lines: int) -> Region:
        """A buffer for payload of ``chunks`` chunks; ``name``: ``input`` or ``output``."""
        return super().data(name, chunks, lines)._replace(by_rank=False)

    def kernels(self, lines: int | Sequence[int]) -> Iterator[tuple[int, Workgroup]]:
        """Ranks one after the other, with their workgroups; what is added meanwhile is the kernel of each.

        lines: of each rank, or of all.
        """
        for rank in range(self.num_ranks):
            self.rank = rank
            for group in self.workgroups(lines if isinstance(lines, int) else lines[rank]):
                yield rank, group
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

    def root_writes(self, lines: int, put: Move) -> GpuProgram:
        """The root writes to all and signals."""
        there = self.signals(1)
        for rank, group in self.kernels(lines):
            if rank:
                self.expect(group, there, last=True)
                continue
            others = group.rotated(self.options.distances)
            put(group, *others)
            self.signal(group, there, others)
        return self.finished()

    def root_reads(self, lines: int, get: Move) -> GpuProgram:
        """When all are ready, the root reads from them; nobody leaves before it has."""
        ready, done = self.signals(1), self.signals(1)
        for rank, group in self.kernels(lines):
            if rank:
                group.signal(ready, [(-rank, 0)], "ready")
                self.expect(group, done, last=True)
                continue
            others = group.rotated(self.options.distances)
            self.expect(group, ready, len(others))
            get(group, *others)
            self.signal(group, done, others)
        return self.finished()

    def root_is_read(self, lines: int, get: Move) -> GpuProgram:
        """When the root is ready, all read from it; it does not leave before they have."""
        ready, done = self.signals(1), self.signals(1)
        for rank, group in self.kernels(lines):
            if rank:
                self.expect(group, ready)
            else:
                group.signal(ready, [(d, 0) for d in group.rotated(self.options.distances)], "ready")
            get(group, -rank)
            self.tell_root(group, done)
        return self.finished()

    def tell_root(self, group: Workgroup, done: SignalTable) -> None:
        """The root ends when all others have come so far."""
        if self.rank:
            self.signal(group, done, [-self.rank])
        else:
            self.expect(group, done, self.num_ranks - 1, last=True)

    def signal(self, group: Workgroup, signals: SignalTable, distances: Sequence[int]) -> None:
        """What has been read and written so far is over and there."""
        if distances:
            group.settle()
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
        group.put(source, target._replace(rank=node * self.num_locals), there.semaphore)
