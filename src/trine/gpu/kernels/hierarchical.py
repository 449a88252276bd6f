"""Collectives across nodes: loads and stores inside a node, NIC puts along the rank's own rail between nodes.

A rank is (node, local). Traffic between nodes goes only from (node, local) to (other node, local), by dma operations.
So every byte leaves its node once per destination node, and no message changes rails. Reductions add up inside the
node before they send. Slices are sent in pieces: the NICs carry one piece while the node works on the next.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from trine.gpu.builder import Operand
from trine.gpu.kernels.builder import CollectiveBuilder, Region, SignalTable, Workgroup
from trine.gpu.kernels.options import KernelOptions
from trine.gpu.kernels.signals import Signal
from trine.gpu.program import DMA, WRITE, GpuProgram


def all_gather(options: KernelOptions) -> GpuProgram:
    """Build an all-gather: each rank sends its input along its rail and in its node, then forwards rail arrivals."""
    builder, ranks = _NodeBuilder("all_gather/hierarchical", options), options.num_ranks
    source, result, lines = builder.ends(1, ranks)
    barrier, rail, done = _NodeBarrier(builder, "none"), _Rail(builder), builder.node_signal()
    for group in barrier.around(builder.workgroups(lines)):
        for node in builder.other_nodes:
            rail.put(group, node, group.read(source), group.write(result, builder.place(node)))
        targets = [group.write(result, d) for d in builder.neighbours(group)]
        group.copy(group.read(source), group.write(result), *targets, label="put")
        for node in builder.other_nodes:
            rail.wait(group, node)
            _forward(builder, group, result, node)
        done.meet(group, last=True)
    return builder.finished(builder.grid)


def reduce_scatter(options: KernelOptions) -> GpuProgram:
    """Build a reduce-scatter: each rank reduces its rail's chunks in the node, puts the sums, and adds the arrivals."""
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
    """Build an all-reduce: reduce-scatter, then all-gather, of each piece; reductions overlap with earlier puts."""
    builder, ranks = _NodeBuilder("all_reduce/hierarchical", options), options.num_ranks
    source, result, lines = builder.ends(ranks, ranks)
    # No barrier at the end: the signals that follow the sums already show that all reads are done.
    barrier, reduction = _NodeBarrier(builder, "start"), _Reduction(builder, source, lines)
    rail, done = _Rail(builder), builder.node_signal()
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
                for node in builder.other_nodes:
                    rail.put(piece, node, piece.read(result), piece.write(result, builder.place(node)))
            if turn > 1:
                for node in builder.other_nodes:
                    rail.wait(pieces[turn - 2], node)
                    _forward(builder, pieces[turn - 2], result, node)
        done.meet(group, last=True)
    return builder.finished(builder.grid)


def all_to_all(options: KernelOptions) -> GpuProgram:
    """Build an all-to-all: data for another node goes to the rank on the target's rail, which puts it (NCCL: PXN)."""
    builder, ranks = _NodeBuilder("all_to_all/hierarchical", options), options.num_ranks
    source, result, lines = builder.ends(ranks, ranks)
    _, num_locals = builder.grid
    slots = builder.scratch("scratch", max(1, (ranks - num_locals) * (num_locals > 1)), lines)
    barrier, rail, done = _NodeBarrier(builder, "none"), _Rail(builder), builder.node_signal()
    staged = [builder.node_signal() for _ in range(builder.num_pieces(-(-lines // options.workgroups)))]

    def slot(node: int, local: int) -> int:
        return (node - 1) * num_locals + local

    for group in barrier.around(builder.workgroups(lines)):
        pieces = group.pieces() if builder.other_nodes else []
        for turn in range(len(pieces) + 1):
            if turn < len(pieces):
                piece = pieces[turn]
                for node in builder.other_nodes:
                    for d in builder.neighbours(piece):
                        chunk = builder.place(node, d)
                        piece.copy(piece.read(source, chunk=chunk), piece.write(slots, d, slot(node, d)), label="stage")
                staged[turn].send(piece)
            if turn > 0:
                piece = pieces[turn - 1]
                staged[turn - 1].receive(piece, last=True)  # the waiting wavefront also issues the puts
                for node in builder.other_nodes:
                    target = builder.place(node)
                    for d in builder.neighbours(piece):
                        arrival = piece.write(result, target, builder.place(0, -d))
                        rail.put(piece, node, piece.read(slots, chunk=slot(node, d)), arrival, last=False)
                    rail.put(piece, node, piece.read(source, chunk=target), piece.write(result, target))
        for d in builder.neighbours(group):
            group.copy(group.read(source, chunk=d), group.write(result, d), label="put")
        group.copy(group.read(source), group.write(result), label="copy")
        done.meet(group, last=True)
        for node in builder.other_nodes:
            for _ in pieces:
                rail.wait(group, node, last=True)
    return builder.finished(builder.grid)


class _NodeBuilder(CollectiveBuilder):
    """A builder whose distances and chunks are positions in the grid (nodes, ranks per node)."""

    def __init__(self, name: str, options: KernelOptions) -> None:
        super().__init__(name, options)
        self.grid = options.num_nodes, options.num_ranks // options.num_nodes
        #: node distances to the other nodes
        self.other_nodes = range(1, options.num_nodes)

    def place(self, node: int, local: int = 0) -> int:
        """Return the distance or chunk that lies ``node`` nodes and ``local`` ranks further on."""
        nodes, num_locals = self.grid
        return node % nodes * num_locals + local % num_locals

    def neighbours(self, group: Workgroup) -> list[int]:
        """Return the distances of the other ranks of the node; each workgroup starts with a different one."""
        distances = range(1, self.grid[1])
        return group.rotated(distances) if distances else []

    def node_signal(self) -> Signal:
        """Add a signal from each rank of a node to all others of the node."""
        return Signal(self, range(1, self.grid[1]))


class _Rail:
    """Puts to the ranks of the same rail, each with a signal; one semaphore per source node.

    Puts to one rank arrive in order, so the n-th signal of a node stands for its n-th put.
    """

    def __init__(self, builder: _NodeBuilder) -> None:
        self._builder = builder
        self._arrived: SignalTable | None = builder.signals(len(builder.other_nodes)) if builder.other_nodes else None

    def put(self, group: Workgroup, node: int, source: Operand, target: Operand, *, last: bool = True) -> None:
        """Put a slice by the NIC; ``last``: with the signal."""
        group.put(source, target, self._signal(group, node).semaphore if last else -1)

    def notify(self, group: Workgroup, node: int) -> None:
        """Send the signal alone."""
        group.add(DMA, 0, (self._signal(group, node),), "rail signal")

    def wait(self, group: Workgroup, node: int, *, last: bool = False) -> None:
        """Wait for the next put of the rank ``node`` nodes back; ``last``: this workgroup does not use the data."""
        assert self._arrived is not None
        group.wait(self._arrived, node - 1, 1, "rail wait")
        group.delay_after_wait("rail wait")
        if not last:
            group.barrier("rail wait")

    def _signal(self, group: Workgroup, node: int) -> Operand:
        assert self._arrived is not None
        return self._arrived.operand(WRITE, self._builder.place(node), group.number, node - 1)


class _NodeBarrier:
    """Barriers at start and end: among the ranks of a node if they read from each other; among all ranks on request."""

    def __init__(self, builder: _NodeBuilder, default: str) -> None:
        syncs = builder.options.syncs(default)
        is_wide = builder.options.sync != "auto"
        self._builder = builder
        self._meetings = []
        for is_synced in syncs:
            self._meetings.append((builder.node_signal(), _Rail(builder) if is_wide else None) if is_synced else None)

    def around(self, groups: Iterable[Workgroup]) -> Iterator[Workgroup]:
        """Yield the workgroups; operations that the caller adds to one lie between its two barriers.

        No rank accesses another rank's memory before that rank has started, or ends while others still need its data.
        """
        for group in groups:
            self._meet(group, 0)
            yield group
            self._meet(group, 1)

    def _meet(self, group: Workgroup, side: int) -> None:
        meeting = self._meetings[side]
        if meeting is None:
            return
        node, rail = meeting
        node.send(group, first=side == 0)
        node.receive(group, last=side == 1 and rail is None)
        for peer_node in self._builder.other_nodes if rail is not None else ():
            rail.notify(group, peer_node)  # type: ignore[union-attr]
        for peer_node in self._builder.other_nodes if rail is not None else ():
            rail.wait(group, peer_node)  # type: ignore[union-attr]


class _Reduction:
    """A reduction in two steps: sums within the node for each rail, then the sum over all nodes for this rank."""

    def __init__(self, builder: _NodeBuilder, source: Region, lines: int) -> None:
        self._builder, self._source = builder, source
        count = max(1, len(builder.other_nodes))
        self._sums = builder.scratch("sums", count, lines)
        self._slots = builder.scratch("scratch", count, lines)
        self._rail = _Rail(builder)

    def send(self, piece: Workgroup) -> None:
        """Reduce the chunk of each other node's rank on this rail inside the node, and put the sum there."""
        builder = self._builder
        for node in builder.other_nodes:
            self._add(piece, builder.place(node), piece.write(self._sums, chunk=node - 1))
            piece.settle()
            target = piece.write(self._slots, builder.place(node), node - 1)
            self._rail.put(piece, node, piece.read(self._sums, chunk=node - 1), target)

    def receive(self, piece: Workgroup, *targets: Operand) -> None:
        """Wait for the sums of all other nodes, and add them to the node's sum of this rank's chunk."""
        builder = self._builder
        for node in builder.other_nodes:
            self._rail.wait(piece, node)
        arrivals = [piece.read(self._slots, chunk=node - 1) for node in builder.other_nodes]
        self._add(piece, 0, *targets, sums=arrivals)

    def _add(self, piece: Workgroup, chunk: int, *targets: Operand, sums: list[Operand] | None = None) -> None:
        inputs = [piece.read(self._source, d, chunk) for d in (0, *self._builder.neighbours(piece))]
        piece.reduce([*inputs, *(sums or [])], *targets, label="reduce")


def _forward(builder: _NodeBuilder, group: Workgroup, result: Region, node: int) -> None:
    """Copy the chunk that arrived from the rank ``node`` nodes back to the other ranks of the node."""
    chunk = builder.place(-node)
    targets = [group.write(result, d, chunk) for d in builder.neighbours(group)]
    if targets:
        group.copy(group.read(result, chunk=chunk), *targets, label="pass on")
