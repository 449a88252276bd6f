"""Collectives with a root, rank 0 of the group: broadcast, reduce, gather and scatter; in a node and across nodes.

Ranks have different roles, so each has a separate kernel, and runs do not fold. Across nodes, local rank l handles
chunk l of a payload: the chunk uses the NIC of rail l, so that all NICs of the root's node work.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from trine.gpu.builder import Operand
from trine.gpu.kernels.builder import CollectiveBuilder, Region, SignalTable, Workgroup
from trine.gpu.kernels.options import KernelOptions
from trine.gpu.program import WRITE, GpuProgram


def root_put(options: KernelOptions) -> GpuProgram:
    """Build a broadcast or a scatter: the root writes its input, or each rank's chunk of it, to all, and signals."""
    builder, has_chunks = PerRankBuilder(f"{options.op}/put", options), options.op == "scatter"
    source, result, lines = builder.ends(options.num_ranks if has_chunks else 1, 1)
    arrivals = builder.signals(1)
    for rank, group in builder.kernels(lines):
        if rank:
            builder.expect(group, arrivals, last=True)
            continue
        peers = group.rotated(options.distances)
        if has_chunks:
            for d in (*peers, 0):
                group.copy(group.read(source, 0, d), group.write(result, d), label="put")
        else:
            group.copy(group.read(source), *(group.write(result, d) for d in (0, *peers)), label="put")
        builder.signal(group, arrivals, peers)
    return builder.finished()


def root_get(options: KernelOptions) -> GpuProgram:
    """Build a reduce or a gather: when all are ready, the root reads all inputs; all ranks wait until it is done."""
    builder, gathers = PerRankBuilder(f"{options.op}/get", options), options.op == "gather"
    source, result, lines = builder.ends(1, options.num_ranks if gathers else 1)
    ready, done = builder.signals(1), builder.signals(1)
    for rank, group in builder.kernels(lines):
        if rank:
            group.signal(ready, [(-rank, 0)], "ready")
            builder.expect(group, done, last=True)
            continue
        peers = group.rotated(options.distances)
        builder.expect(group, ready, len(peers))
        if gathers:
            for d in (*peers, 0):
                group.copy(group.read(source, d), group.write(result, 0, d), label="get")
        else:
            group.reduce([group.read(source, d) for d in (0, *peers)], group.write(result), label="reduce")
        builder.signal(group, done, peers)
    return builder.finished()


def get_from_root(options: KernelOptions) -> GpuProgram:
    """Build a broadcast or a scatter: when the root is ready, each rank reads its input, or its chunk of it, from it.

    The root waits for all reads.
    """
    builder, has_chunks = PerRankBuilder(f"{options.op}/get", options), options.op == "scatter"
    source, result, lines = builder.ends(options.num_ranks if has_chunks else 1, 1)
    ready, done = builder.signals(1), builder.signals(1)
    for rank, group in builder.kernels(lines):
        if rank:
            builder.expect(group, ready)
        else:
            group.signal(ready, [(d, 0) for d in group.rotated(options.distances)], "ready")
        group.copy(group.read(source, -rank, rank if has_chunks else 0), group.write(result), label="get")
        builder.tell_root(group, done)
    return builder.finished()


def broadcast_ring(options: KernelOptions) -> GpuProgram:
    """Build a broadcast: each rank forwards to the next, piece by piece."""
    builder, last = PerRankBuilder("broadcast/ring", options), options.num_ranks - 1
    source, result, lines = builder.ends(1, 1)
    arrivals = builder.signals(1)
    for rank, group in builder.kernels(lines):
        for piece in group.pieces():
            if rank == 0:
                piece.copy(piece.read(source), piece.write(result, 1), piece.write(result), label="put")
                builder.signal(piece, arrivals, [1])
                continue
            builder.expect(piece, arrivals, last=rank == last)
            if rank < last:
                piece.copy(piece.read(result), piece.write(result, 1), label="pass on")
                builder.signal(piece, arrivals, [1])
    return builder.finished()


def reduce_ring(options: KernelOptions) -> GpuProgram:
    """Build a reduce: from the last rank on, each adds its input and writes the sum to the previous, by pieces."""
    builder = PerRankBuilder("reduce/ring", options)
    source, result, lines = builder.ends(1, 1)
    sums = builder.scratch("scratch", 1, lines)
    arrivals = builder.signals(1)
    for rank, group in builder.kernels(lines):
        for piece in group.pieces():
            parts = [piece.read(source)]
            if rank < options.num_ranks - 1:
                builder.expect(piece, arrivals)
                parts.append(piece.read(sums))
            target = piece.write(sums, -1) if rank else piece.write(result)
            piece.reduce(parts, target, label="reduce")
            if rank:
                builder.signal(piece, arrivals, [-1])
    return builder.finished()


def gather_put(options: KernelOptions) -> GpuProgram:
    """Build a gather: each rank writes its input into its place in the root's output, and signals."""
    builder = PerRankBuilder("gather/put", options)
    source, result, lines = builder.ends(1, options.num_ranks)
    arrivals = builder.signals(1)
    for rank, group in builder.kernels(lines):
        group.copy(group.read(source), group.write(result, -rank, rank), label="put")
        builder.tell_root(group, arrivals)
    return builder.finished()


def broadcast_nodes(options: KernelOptions) -> GpuProgram:
    """Build a broadcast: the root writes chunk l to local rank l, which puts it along its rail and to its node."""
    builder = PerRankBuilder("broadcast/hierarchical", options)
    num_locals = builder.num_locals
    source, result, lines = builder.ends(num_locals, num_locals)
    arrivals, rail, done = builder.signals(1), builder.signals(1), builder.signals(1)
    for rank, group in builder.kernels(lines):
        node, local = divmod(rank, num_locals)
        peers = [d for d in builder.node_peers(group) if node or local + d != 0]
        for piece in group.pieces():
            origin = result
            if rank == 0:
                origin = source
                for d in builder.node_peers(piece):
                    piece.copy(
                        piece.read(source, 0, d), piece.write(result, d, d), piece.write(result, 0, d), label="put"
                    )
                    builder.signal(piece, arrivals, [d])
            else:
                builder.expect(piece, arrivals if node == 0 else rail, last=not peers)
            if node == 0:
                for receiver in builder.other_nodes:
                    builder.put(piece, receiver, piece.read(origin, 0, local), piece.write(result, 0, local), rail)
            targets = [piece.write(result, d, local) for d in peers]
            if rank == 0:
                targets.append(piece.write(result, 0, local))
            if targets:
                piece.copy(piece.read(origin, 0, local), *targets, label="pass on")
        builder.signal(group, done, peers)
        if rank and num_locals > 1:
            builder.expect(group, done, num_locals - 1, last=True)
    return builder.finished()


def reduce_nodes(options: KernelOptions) -> GpuProgram:
    """Build a reduce: local rank l adds up its node's chunk l and puts it to the root's node, which adds the sums."""
    builder = PerRankBuilder("reduce/hierarchical", options)
    num_locals, num_slots = builder.num_locals, len(builder.other_nodes)
    source, result, lines = builder.ends(num_locals, num_locals)
    sums, slots = builder.scratch("sums", 1, lines), builder.scratch("scratch", max(1, num_slots), lines)
    ready, done = builder.signals(1), builder.signals(1)
    rails, arrivals = builder.signals(max(1, num_slots)), builder.signals(1)
    for rank, group in builder.kernels(lines):
        node, local = divmod(rank, num_locals)
        peers = builder.node_peers(group)
        if peers:
            group.signal(ready, [(d, 0) for d in peers], "ready")
            builder.expect(group, ready, len(peers), last=node == 0 and num_slots > 0)
        for piece in group.pieces():
            parts = [piece.read(source, d, local) for d in (0, *builder.node_peers(piece))]
            if node:
                piece.reduce(parts, piece.write(sums), label="reduce")
                piece.settle()
                target = piece.write(slots, 0, node - 1)
                builder.put(piece, -node, piece.read(sums), target, rails, node - 1)
                continue
            for slot in range(num_slots):
                builder.expect(piece, rails, index=slot, last=slot < num_slots - 1)
                parts.append(piece.read(slots, 0, slot))
            piece.reduce(parts, piece.write(result, -local, local), label="reduce")
        if peers:
            if node == 0:
                group.settle()
            group.signal(done, [(d, 0) for d in peers], "done")
        if node == 0 and local:
            group.signal(arrivals, [(-local, 0)], "signal")
        if peers:
            builder.expect(group, done, len(peers), last=True)
        if rank == 0 and num_locals > 1:
            builder.expect(group, arrivals, num_locals - 1, last=True)
    return builder.finished()


def gather_nodes(options: KernelOptions) -> GpuProgram:
    """Build a gather: each rank puts its input to its rail's rank in the root's node, which writes it to the root."""
    builder, ranks = PerRankBuilder("gather/hierarchical", options), options.num_ranks
    num_locals, num_slots = builder.num_locals, len(builder.other_nodes)
    source, result, lines = builder.ends(1, ranks)
    slots = builder.scratch("scratch", max(1, num_slots), lines)
    rails, arrivals = builder.signals(max(1, num_slots)), builder.signals(1)
    for rank, group in builder.kernels(lines):
        node, local = divmod(rank, num_locals)
        if node:
            target = group.write(slots, 0, node - 1) if local else group.write(result, 0, rank)
            builder.put(group, -node, group.read(source), target, rails, node - 1)
            continue
        group.copy(group.read(source), group.write(result, -local, local), label="put")
        for sender in builder.other_nodes:
            builder.expect(group, rails, index=sender - 1, last=local == 0)
            if local:
                target = group.write(result, -local, sender * num_locals + local)
                group.copy(group.read(slots, 0, sender - 1), target, label="pass on")
        if local:
            builder.signal(group, arrivals, [-local])
        elif num_locals > 1:
            builder.expect(group, arrivals, num_locals - 1, last=True)
    return builder.finished()


def scatter_nodes(options: KernelOptions) -> GpuProgram:
    """Build a scatter: the root writes other nodes' chunks to the rail ranks of its node, which put them."""
    builder, ranks = PerRankBuilder("scatter/hierarchical", options), options.num_ranks
    num_locals = builder.num_locals
    source, result, lines = builder.ends(ranks, 1)
    slots = builder.scratch("scratch", max(1, len(builder.other_nodes)), lines)
    arrivals, rail = builder.signals(1), builder.signals(1)
    for rank, group in builder.kernels(lines):
        if rank >= num_locals:
            builder.expect(group, rail, last=True)
            continue
        if rank == 0:
            for receiver in builder.other_nodes:
                chunk = receiver * num_locals
                builder.put(group, receiver, group.read(source, 0, chunk), group.write(result), rail)
                for d in builder.node_peers(group):
                    group.copy(group.read(source, 0, chunk + d), group.write(slots, d, receiver - 1), label="stage")
            for d in (*builder.node_peers(group), 0):
                group.copy(group.read(source, 0, d), group.write(result, d), label="put")
            builder.signal(group, arrivals, builder.node_peers(group))
            continue
        builder.expect(group, arrivals, last=True)  # the waiting wavefront also issues the puts
        for receiver in builder.other_nodes:
            builder.put(group, receiver, group.read(slots, 0, receiver - 1), group.write(result), rail)
    return builder.finished()


class PerRankBuilder(CollectiveBuilder):
    """A builder of one kernel per rank. Operands are relative to that rank; chunks are positions in a buffer."""

    #: Maximum number of pieces: a chain is idle only while the first pieces travel along it.
    max_pieces = 64

    def __init__(self, name: str, options: KernelOptions) -> None:
        super().__init__(name, options)
        self.rank = 0
        self.num_locals = options.num_ranks // options.num_nodes
        #: nodes other than the root's
        self.other_nodes = range(1, options.num_nodes)

    def data(self, name: str, chunks: int, lines: int) -> Region:
        """Return a buffer for payload of ``chunks`` chunks; ``name``: ``input`` or ``output``."""
        return super().data(name, chunks, lines)._replace(by_rank=False)

    def kernels(self, lines: int | Sequence[int]) -> Iterator[tuple[int, Workgroup]]:
        """Yield (rank, workgroup); operations that the caller adds meanwhile form the rank's kernel.

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
        """Add one operation of the current rank."""
        absolute = [operand._replace(rank=(operand.rank + self.rank) % self.num_ranks) for operand in operands]
        super().add(kind, amount, absolute, label, unroll)

    def finished(self, grid: Sequence[int] = ()) -> GpuProgram:
        """Return the program of all ranks."""
        return self._built(None)

    def node_peers(self, group: Workgroup) -> list[int]:
        """Return the distances of the other ranks of the node; each workgroup starts with a different one."""
        first = self.rank // self.num_locals * self.num_locals
        peers = [first + local - self.rank for local in range(self.num_locals) if first + local != self.rank]
        return group.rotated(peers) if peers else []

    def tell_root(self, group: Workgroup, done: SignalTable) -> None:
        """Signal the root; the root waits here for the signals of all others."""
        if self.rank:
            self.signal(group, done, [-self.rank])
        else:
            self.expect(group, done, self.num_ranks - 1, last=True)

    def signal(self, group: Workgroup, signals: SignalTable, distances: Sequence[int]) -> None:
        """Signal that all earlier reads and writes are complete and visible."""
        if distances:
            group.settle()
            group.signal(signals, [(d, 0) for d in distances], "signal")

    def expect(
        self, group: Workgroup, signals: SignalTable, count: int = 1, *, index: int = 0, last: bool = False
    ) -> None:
        """Wait for signals; ``last``: this workgroup does not use the data they announce."""
        group.count("wait")
        group.wait(signals, index, count, "wait")
        group.delay_after_wait("wait")
        if not last:
            group.barrier("wait")

    def put(
        self, group: Workgroup, node: int, source: Operand, target: Operand, signals: SignalTable, index: int = 0
    ) -> None:
        """Put to the rank of the same rail ``node`` nodes further on, by the NIC, with a signal."""
        signal = signals.operand(WRITE, 0, group.number, index)
        group.put(source, target._replace(rank=node * self.num_locals), signal.semaphore)
