"""Collectives across nodes: loads and stores inside a node, puts by the NIC of the own rail between nodes.

A rank is (node, local). What crosses goes from (node, local) to (other node, local) alone, by dma operations; so
every byte leaves its node once for each other node, and no message changes rails. Reductions add up inside the node
before they send. Slices are sent in pieces, so that the NICs carry one while the node works on the next.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from trine.collectives.kernels.builder import CollectiveBuilder, Region, SignalTable, Workgroup
from trine.collectives.kernels.options import KernelOptions
from trine.collectives.kernels.sync import Signal
from trine.gpu.builder import Operand
from trine.gpu.program import DMA, WRITE, GpuProgram


def all_gather(options: KernelOptions) -> GpuProgram:
    """Each rank puts its input to its rail and writes it to its node; what its rail brings it passes on in the node."""
    builder, ranks = _NodeBuilder("all_gather/hierarchical", options), options.num_ranks
    source, result, lines = builder.ends(1, ranks)
    barrier, rail, done = _NodeBarrier(builder, "none"), _Rail(builder), _NodeSignal(builder)
    for group in barrier.around(builder.workgroups(lines)):
        for node in builder.others:
            rail.put(group, node, group.read(source), group.write(result, builder.place(node)))
        targets = [group.write(result, d) for d in builder.neighbours(group)]
        group.copy(group.read(source), group.write(result), *targets, label="put")
        for node in builder.others:
            rail.wait(group, node)
            _pass_on(builder, group, result, node)
        done.meet(group, last=True)
    return builder.finished(builder.grid)


def reduce_scatter(options: KernelOptions) -> GpuProgram:
    """Each rank adds up in its node what its rail needs, puts it there, and adds its own sum to those that come."""
    builder, ranks = _NodeBuilder("reduce_scatter/hierarchical", options), options.num_ranks
    source, result, lines = builder.ends(ranks, 1)
    barrier, reduction = _NodeBarrier(builder, "both"), _Reduction(builder, source, lines)
    for group in barrier.around(builder.workgroups(lines)):
        pieces = group.pieces()
        for piece in pieces:
            reduction.send(piece)
        for piece in pieces:
            reduction.receive(piece, piece.write(result))
    return builder.finished(builder.grid)


def all_reduce(options: KernelOptions) -> GpuProgram:
    """Reduce-scatter, then all-gather, of each piece: a piece is added up while the one before is on its way."""
    builder, ranks = _NodeBuilder("all_reduce/hierarchical", options), options.num_ranks
    source, result, lines = builder.ends(ranks, ranks)
    # At the end nobody reads any more: the signals behind the sums say so.
    barrier, reduction = _NodeBarrier(builder, "start"), _Reduction(builder, source, lines)
    rail, done = _Rail(builder), _NodeSignal(builder)
    for group in barrier.around(builder.workgroups(lines)):
        pieces = group.pieces()
        for turn in range(len(pieces) + 2):
            if turn < len(pieces):
                reduction.send(pieces[turn])
            if 0 < turn <= len(pieces):
                piece = pieces[turn - 1]
                targets = [piece.write(result, d) for d in builder.neighbours(piece)]
                reduction.receive(piece, piece.write(result), *targets)
                piece.settle()
                for node in builder.others:
                    rail.put(piece, node, piece.read(result), piece.write(result, builder.place(node)))
            if turn > 1:
                for node in builder.others:
                    rail.wait(pieces[turn - 2], node)
                    _pass_on(builder, pieces[turn - 2], result, node)
        done.meet(group, last=True)
    return builder.finished(builder.grid)


def all_to_all(options: KernelOptions) -> GpuProgram:
    """What is for another node is first written to the rank of the target's rail, which puts it there (NCCL: PXN)."""
    builder, ranks = _NodeBuilder("all_to_all/hierarchical", options), options.num_ranks
    source, result, lines = builder.ends(ranks, ranks)
    _, num_locals = builder.grid
    slots = builder.scratch("scratch", max(1, (ranks - num_locals) * (num_locals > 1)), lines)
    barrier, rail, done = _NodeBarrier(builder, "none"), _Rail(builder), _NodeSignal(builder)
    staged = [_NodeSignal(builder) for _ in range(builder.num_pieces(-(-lines // options.workgroups)))]

    def slot(node: int, local: int) -> int:
        return (node - 1) * num_locals + local

    for group in barrier.around(builder.workgroups(lines)):
        pieces = group.pieces() if builder.others else []
        for turn in range(len(pieces) + 1):
            if turn < len(pieces):
                piece = pieces[turn]
                for node in builder.others:
                    for d in builder.neighbours(piece):
                        chunk = builder.place(node, d)
                        piece.copy(piece.read(source, chunk=chunk), piece.write(slots, d, slot(node, d)), label="stage")
                staged[turn].send(piece)
            if turn > 0:
                piece = pieces[turn - 1]
                staged[turn - 1].wait(piece, last=True)  # who waits also puts
                for node in builder.others:
                    target = builder.place(node)
                    for d in builder.neighbours(piece):
                        came = piece.write(result, target, builder.place(0, -d))
                        rail.put(piece, node, piece.read(slots, chunk=slot(node, d)), came, last=False)
                    rail.put(piece, node, piece.read(source, chunk=target), piece.write(result, target))
        for d in builder.neighbours(group):
            group.copy(group.read(source, chunk=d), group.write(result, d), label="put")
        group.copy(group.read(source), group.write(result), label="copy")
        done.meet(group, last=True)
        for node in builder.others:
            for _ in pieces:
                rail.wait(group, node, last=True)
    return builder.finished(builder.grid)


class _NodeBuilder(CollectiveBuilder):
    """Distances and chunks are places in the grid of nodes and ranks of a node."""

    def __init__(self, name: str, options: KernelOptions) -> None:
        super().__init__(name, options)
        self.grid = options.num_nodes, options.num_ranks // options.num_nodes
        #: nodes further on
        self.others = range(1, options.num_nodes)

    def place(self, node: int, local: int = 0) -> int:
        """So many nodes and ranks of a node further on, as a distance or chunk."""
        nodes, num_locals = self.grid
        return node % nodes * num_locals + local % num_locals

    def neighbours(self, group: Workgroup) -> list[int]:
        """The distances of the other ranks of the node, each workgroup beginning with another."""
        others = range(1, self.grid[1])
        return group.rotated(others) if others else []


class _Rail:
    """Puts to the ranks of the own rail, each with a signal; one semaphore for each node that they come from.

    Puts to one rank arrive in order, so the n-th signal of a node stands for its n-th put.
    """

    def __init__(self, builder: _NodeBuilder) -> None:
        self._builder = builder
        self._arrived: SignalTable | None = builder.signals(len(builder.others)) if builder.others else None

    def put(self, group: Workgroup, node: int, source: Operand, target: Operand, *, last: bool = True) -> None:
        """A slice, by the NIC; ``last``: with the signal."""
        group.put(source, target, self._signal(group, node).semaphore if last else -1)

    def notify(self, group: Workgroup, node: int) -> None:
        """The signal alone."""
        group.add(DMA, 0, (self._signal(group, node),), "rail signal")

    def wait(self, group: Workgroup, node: int, *, last: bool = False) -> None:
        """The next put of the rank that is as many nodes back is there; ``last``: nothing of this workgroup uses it."""
        assert self._arrived is not None
        group.wait(self._arrived, node - 1, 1, "rail wait")
        group.seen("rail wait")
        if not last:
            group.barrier("rail wait")

    def _signal(self, group: Workgroup, node: int) -> Operand:
        assert self._arrived is not None
        return self._arrived.operand(WRITE, self._builder.place(node), group.number, node - 1)


class _NodeSignal:
    """From each rank of a node to all others of it; nothing in a node of one."""

    def __init__(self, builder: _NodeBuilder) -> None:
        others = range(1, builder.grid[1])
        self._signal = Signal(builder, others) if others else None

    def send(self, group: Workgroup, *, first: bool = False) -> None:
        """What has been written so far is there; ``first``: nothing has been."""
        if self._signal is not None:
            self._signal.send(group, first=first)

    def wait(self, group: Workgroup, *, last: bool = False) -> None:
        """What the others have written is there; ``last``: nothing of this workgroup uses it."""
        if self._signal is not None:
            self._signal.receive(group, last=last)

    def meet(self, group: Workgroup, *, last: bool = False) -> None:
        self.send(group)
        self.wait(group, last=last)


class _NodeBarrier:
    """Start and end: ranks of a node meet where they read from each other; all ranks, where that was asked for."""

    def __init__(self, builder: _NodeBuilder, usual: str) -> None:
        asked = builder.options.syncs(usual)
        is_wide = builder.options.sync != "auto"
        self._builder = builder
        self._meetings = [
            (_NodeSignal(builder), _Rail(builder) if is_wide else None) if wanted else None for wanted in asked
        ]

    def around(self, groups: Iterable[Workgroup]) -> Iterator[Workgroup]:
        """Nobody comes to the memory of others before they are there, or leaves before they have what they need of its.

        What is added to a workgroup meanwhile stands between.
        """
        for group in groups:
            self._meet(group, 0)
            yield group
            self._meet(group, 1)

    def _meet(self, group: Workgroup, which: int) -> None:
        meeting = self._meetings[which]
        if meeting is None:
            return
        node, rail = meeting
        node.send(group, first=which == 0)
        node.wait(group, last=which == 1 and rail is None)
        for other in self._builder.others if rail is not None else ():
            rail.notify(group, other)  # type: ignore[union-attr]
        for other in self._builder.others if rail is not None else ():
            rail.wait(group, other)  # type: ignore[union-attr]


class _Reduction:
    """Sums of a node for its rails, and of all nodes for oneself."""

    def __init__(self, builder: _NodeBuilder, source: Region, lines: int) -> None:
        self._builder, self._source = builder, source
        count = max(1, len(builder.others))
        self._sums = builder.scratch("sums", count, lines)
        self._slots = builder.scratch("scratch", count, lines)
        self._rail = _Rail(builder)

    def send(self, piece: Workgroup) -> None:
        """The node's sum of what each other node needs of this rail, to there."""
        builder = self._builder
        for node in builder.others:
            self._add(piece, builder.place(node), piece.write(self._sums, chunk=node - 1))
            piece.settle()
            target = piece.write(self._slots, builder.place(node), node - 1)
            self._rail.put(piece, node, piece.read(self._sums, chunk=node - 1), target)

    def receive(self, piece: Workgroup, *targets: Operand) -> None:
        """The own chunk of the whole node and the sums of all others, as they are there."""
        builder = self._builder
        for node in builder.others:
            self._rail.wait(piece, node)
        came = [piece.read(self._slots, chunk=node - 1) for node in builder.others]
        self._add(piece, 0, *targets, more=came)

    def _add(self, piece: Workgroup, chunk: int, *targets: Operand, more: list[Operand] | None = None) -> None:
        own = [piece.read(self._source, d, chunk) for d in (0, *self._builder.neighbours(piece))]
        piece.reduce([*own, *(more or [])], *targets, label="reduce")


def _pass_on(builder: _NodeBuilder, group: Workgroup, result: Region, node: int) -> None:
    """What came from the rank so many nodes back, to the others of the own node."""
    came = builder.place(-node)
    targets = [group.write(result, d, came) for d in builder.neighbours(group)]
    if targets:
        group.copy(group.read(result, chunk=came), *targets, label="pass on")
