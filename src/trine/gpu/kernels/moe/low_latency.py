"""Low-latency dispatch and combine for decoding: the GPU sends each token directly to each of its experts.

The kernels follow DeepEP's at the time of its published measurements (github.com/deepseek-ai/DeepEP, commit de8cfca
of 2025-06-05, csrc/kernels/internode_ll.cu; facts, no code). Each (token, expert) pair is one message. It goes over
NVLink within the node, and elsewhere as an RDMA put that the GPU posts (IBGDA). A counter or flag per expert and rank
follows the messages. Groups of warps on all SMs each serve one expert of any rank: they send results (combine) or a
count (dispatch), pass a grid barrier, and wait for the peer's data.

Dispatch: one SM per token casts it into a send buffer and sends it to all its experts. The receiver unpacks arrivals
into rows per expert. Combine: each expert's result for a token goes to a reserved slot on the token's owner. The owner
reduces the weighted top_k rows, one SM per token.

Messages are packed without gaps, so most begin inside a line, and each 512-byte warp access touches a partial line at
both ends (:func:`part_lines`). The tail of a copy, after its unrolled part, runs one access at a time.

Differences from DeepEP: local reads and writes are whole lines. All warps share the lines of a message, so the
messages of one token are serialised. Expert rows are ordered by source rank; DeepEP orders them by arrival.
"""

from __future__ import annotations

from trine.gpu.builder import Operand
from trine.gpu.kernels.moe.builder import LINES_PER_ACCESS, MoeBuilder, Place, moe_of
from trine.gpu.kernels.moe.options import low_latency_sms
from trine.gpu.kernels.options import KernelOptions
from trine.gpu.program import LOAD, READ, GpuProgram

#: Maximum warps of a block.
MAX_WARPS = 32
#: Message header: the token's number, 16 bytes.
HEADER_BYTES = 16
#: Lines in flight per warp, for dispatched messages and for rows to and from experts. Then rows in flight per block
#: in the reduction (assumed: the source has a separate branch for each row).
SEND_LINES, ROW_LINES, ADDED_ROWS = 8 * LINES_PER_ACCESS, 7 * LINES_PER_ACCESS, 1
#: Bytes of a warp's access; of a sector, the smallest write of GPU memory and NVLink without byte enables; and of an
#: NVLink flit: a header, byte enables, an acknowledgement (P. Foley, J. Danskin, Ultra-Performance Pascal GPU and
#: NVLink Interconnect, IEEE Micro 37(2), 2017, cited from memory, for NVLink 1; NVLink 4's format is not public).
ACCESS_BYTES, SECTOR_BYTES, FLIT_BYTES = 512, 32, 16
#: Bytes of an expert's number in the routing table. One warp per SM counts all of them, 8 numbers per lane at a time.
INDEX_BYTES = 8


def part_lines(message_bytes: int, slot: int, line_bytes: int) -> int:
    """Return the link overhead of an unaligned message in ``slot``, as an equivalent number of lines.

    A message that begins inside a line adds to each access a header and its acknowledgement, a sector, and the byte
    enables of the partial lines at both ends. An aligned message adds 0 lines.
    """
    if slot * message_bytes % line_bytes == 0:
        return 0
    parts_bytes = -(-message_bytes // ACCESS_BYTES) * (SECTOR_BYTES + 4 * FLIT_BYTES)
    return -(-parts_bytes // (line_bytes + 2 * FLIT_BYTES))


class _LowLatency(MoeBuilder):
    """Base of both kernels: one group of warps for each expert of all ranks, numbered by distance and expert."""

    def __init__(self, name: str, options: KernelOptions) -> None:
        top_nodes = moe_of(options).top_nodes
        super().__init__(name, options, options.num_nodes if top_nodes is None else top_nodes)
        self.sms = low_latency_sms(self.moe)
        self.warps = max(2, MAX_WARPS // -(-self.moe.experts // self.sms))
        self.by_expert = [routes.by_expert() for routes in self.routes]
        self.token_lines = self.lines_of(self.moe.combined_bytes)
        self.expert_rows = self.num_ranks * self.moe.tokens
        self.routing = self.rows("routing", self.lines_of(self.moe.tokens * self.moe.top_k * INDEX_BYTES), 1)

    def places(self) -> list[Place]:
        """Return (distance, local expert) of all experts, in the order of their numbers."""
        return [(d, local) for d in range(self.num_ranks) for local in range(self.local_experts)]

    def number(self, place: Place) -> int:
        """Return the number of an expert in the order of :meth:`places`."""
        return place[0] * self.local_experts + place[1]

    def tokens_from(self, rank: int, place: Place) -> list[int]:
        """Return the tokens of ``rank`` for the expert at ``place``."""
        return self.by_expert[rank if len(self.routes) > 1 else 0].get(place, [])

    def tokens_at(self, rank: int, place: Place) -> list[int]:
        """Return the tokens that a local expert of ``rank`` receives from the source at the distance of ``place``."""
        return self.tokens_from(self.grid.at(rank, place[0], -1), place)

    def first_rows(self, rank: int) -> dict[Place, int]:
        """Return the first row of the tokens of :meth:`tokens_at` among the rows of the experts of ``rank``."""
        rows = {}
        for local in range(self.local_experts):
            row = local * self.expert_rows
            for distance in range(self.num_ranks):
                rows[distance, local] = row
                row += len(self.tokens_at(rank, (distance, local)))
        return rows

    def shared(self, lines: int, warps: int) -> int:
        """Return the mean lines in flight per warp of a group in which ``warps`` warps have ``lines`` in flight."""
        return -(-lines * min(warps, self.warps) // self.warps)

    def look_up(self, rank: int, number: int, label: str) -> None:
        """Load two dependent numbers and wait for them: an address, a count, a weight or the result of an atomic."""
        line = self.routing.at(rank, 0, line=number % self.routing.lines)
        self.add(LOAD, 2, (Operand(READ, *line),), label, 1)
        self.settle(label)

    def end(self, rank: int) -> None:
        self.end_kernel(rank, self.warps, self.name)

    def all_ranks(self, size_bytes: int) -> GpuProgram:
        """Return the finished program of all ranks; ``size_bytes`` is the size of a message."""
        note = f"{self.sms} SMs, {self.warps} warps an expert; {self.moe.words}"
        return self.finished(self.moe.tokens * self.moe.top_k * size_bytes, note)


def dispatch(options: KernelOptions) -> GpuProgram:
    """Return the program that sends tokens to the ranks of their experts."""
    builder = _LowLatencyDispatch(options)
    for rank in builder.written_ranks:
        for block in range(min(builder.sms, builder.moe.tokens)):
            builder.send(rank, block)
        first_rows = builder.first_rows(rank)
        for number, place in enumerate(builder.places()):
            builder.receive(rank, number, place, first_rows[place])
        builder.end(rank)
    return builder.all_ranks(builder.message_bytes)


class _LowLatencyDispatch(_LowLatency):
    def __init__(self, options: KernelOptions) -> None:
        super().__init__("moe_dispatch/low-latency", options)
        moe, ranks = self.moe, self.num_ranks
        self.message_bytes = moe.token_bytes + HEADER_BYTES
        self.lines = self.lines_of(self.message_bytes)
        self.x = self.rows("input", self.token_lines, moe.tokens)
        self.output = self.rows("output", self.lines, self.local_experts * self.expert_rows)
        self.messages = self.rows("messages", self.lines, moe.tokens)
        self.received = self.rows("received", self.lines, moe.experts, moe.tokens)
        parts = part_lines(self.message_bytes, 1, self.line_bytes)
        self.parts = self.rows("parts", parts, moe.experts, moe.tokens)
        self.scales = self.rows("scales", moe.scales, self.local_experts * self.expert_rows)
        self.staged = self.flags("staged", moe.tokens)
        self.issued, self.counts = self.flags("issued", moe.experts), self.flags("counts", ranks * self.local_experts)
        self.grid_flags = self.flags("grid", 2)

    def send(self, rank: int, block: int) -> None:
        """Cast the tokens of a block and send them to all their experts.

        If some tokens leave the node, separate warps write those inside it. If the block casts several tokens,
        separate warps also issue the puts. Warps that cast or wait for writes then never wait for a NIC.
        """
        tokens = range(block, self.moe.tokens, self.sms)
        local: dict[int, list[Place]] = {}
        remote: dict[int, list[Place]] = {}
        for token in tokens:
            token_places = self.routes_of(rank).tokens[token]
            local[token] = [place for place in token_places if not self.crosses(place[0])]
            remote[token] = [place for place in token_places if self.crosses(place[0])]
        has_writers, has_putters = any(remote.values()), len(tokens) > 1
        for token in tokens:
            self.cast(rank, token)
            num_helpers = (has_writers and bool(local[token])) + (has_putters and bool(remote[token]))
            if num_helpers:
                self.release(self.staged, [(rank, token)], "staged", num_helpers)
            if remote[token] and not has_putters:
                self.put_all(rank, token, remote[token])
            if local[token] and not has_writers:
                self.write_all(rank, token, local[token])
        self.end_workgroup()
        for enabled, places_of, send in ((has_putters, remote, self.put_all), (has_writers, local, self.write_all)):
            if enabled and any(places_of.values()):
                for token, places in places_of.items():
                    if places:
                        self.acquire(self.staged, rank, token, 1, "staged")
                        self.barrier("staged")
                        send(rank, token, places)
                self.end_workgroup()

    def cast(self, rank: int, token: int) -> None:
        """Cast a token into its message: read the token's lines, write the message's lines."""
        lines = min(self.lines, self.token_lines)
        self.copy(lines, self.x.at(rank, token), self.messages.at(rank, token), "cast", 0)
        if self.token_lines > lines:
            self.load(self.token_lines - lines, self.x.at(rank, token, line=lines), "cast", 0)
        if self.lines > lines:
            self.store(self.lines - lines, self.messages.at(rank, token, line=lines), "cast")
        self.settle("cast")

    def put_all(self, rank: int, token: int, places: list[Place]) -> None:
        """Send a token to experts of other nodes with RDMA puts."""
        self.look_up(rank, token, "slot")
        for place in places:
            target = self.received.at(self.grid.at(rank, place[0]), *self.slot(rank, place, token))
            self.put(self.lines, self.messages.at(rank, token), target, "put")
        self.release(self.issued, [(rank, self.number(place)) for place in places], "issued")

    def write_all(self, rank: int, token: int, places: list[Place]) -> None:
        """Write a token to ranks of the node, a warp each: the unrolled part, then the tail."""
        self.look_up(rank, token, "slot")
        bulk = self.lines // SEND_LINES * SEND_LINES
        for line, lines, in_flight in ((0, bulk, SEND_LINES), (bulk, self.lines - bulk, LINES_PER_ACCESS)):
            for place in places:
                if lines:
                    target = self.received.at(self.grid.at(rank, place[0]), *self.slot(rank, place, token), line=line)
                    source = self.messages.at(rank, token, line=line)
                    self.copy(lines, source, target, "send", self.shared(in_flight, len(places)))
        for place in places:
            self.write_parts(rank, place, *self.slot(rank, place, token))
        self.settle("send")
        self.release(self.issued, [(rank, self.number(place)) for place in places], "issued")

    def write_parts(self, rank: int, place: Place, number: int, slot: int) -> None:
        """Charge the links to another GPU for the partial lines of a message."""
        lines = part_lines(self.message_bytes, slot, self.line_bytes)
        if place[0] and lines:
            self.store(lines, self.parts.at(self.grid.at(rank, place[0]), number, slot), "parts")

    def slot(self, rank: int, place: Place, token: int) -> tuple[int, int]:
        """Return (expert, slot) of a message in the receive buffer, after earlier ones from this rank to the expert."""
        return self.number(place), self.tokens_from(rank, place).index(token)

    def receive(self, rank: int, number: int, place: Place, row: int) -> None:
        """Send the count to expert ``number``, then unpack the messages for the local expert of ``place``."""
        moe, num_sent, num_received = self.moe, len(self.tokens_from(rank, place)), len(self.tokens_at(rank, place))
        self.load(self.routing.lines, self.routing.at(rank, 0), "count", 1)
        self.settle("count")
        if num_sent:
            self.acquire(self.issued, rank, number, num_sent, "issued")
        self.notify(self.counts, (self.grid.at(rank, place[0]), number), place[0], "count")
        self.meet(self.grid_flags, rank, number, moe.experts, "grid")
        self.acquire(self.counts, rank, number, 1, "wait")
        self.look_up(rank, number, "place")
        if num_received:
            source, unroll = self.received.at(rank, number, 0), self.shared(ROW_LINES, num_received)
            self.load(1, source, "number", 0)
            self.settle("number")
            self.copy(num_received * self.lines, source, self.output.at(rank, row), "unpack", unroll)
            if moe.scales:  # stored by element of the row, not by token, so each scale goes to a separate line
                self.store(num_received * moe.scales, self.scales.at(rank, row), "scales")
        self.end_workgroup()


def combine(options: KernelOptions) -> GpuProgram:
    """Return the program that sends the experts' results back to the tokens' owners and reduces them."""
    builder = _LowLatencyCombine(options)
    for rank in builder.written_ranks:
        first_rows = builder.first_rows(rank)
        for number, place in enumerate(builder.places()):
            builder.send(rank, number, place, first_rows[place])
            builder.receive(rank, number)
            builder.end_workgroup()
        builder.end(rank)
    return builder.all_ranks(builder.moe.combined_bytes)


class _LowLatencyCombine(_LowLatency):
    def __init__(self, options: KernelOptions) -> None:
        super().__init__("moe_combine/low-latency", options)
        moe = self.moe
        self.x = self.rows("input", self.token_lines, self.local_experts * self.expert_rows)
        self.output = self.rows("output", self.token_lines, moe.tokens)
        self.messages = self.rows("messages", self.token_lines, self.local_experts * self.expert_rows)
        self.received = self.rows("received", self.token_lines, moe.experts, moe.tokens)
        self.flags_of = self.flags("flags", moe.experts)
        self.grid_flags = self.flags("grid", 2)

    def send(self, rank: int, number: int, place: Place, row: int) -> None:
        """Send a local expert's results to the owner of the tokens, followed by a flag."""
        distance, lines = place[0], self.token_lines
        owner, tokens = self.grid.at(rank, distance, -1), self.tokens_at(rank, place)
        owner_distance = self.grid.distance(rank, owner)
        unroll = self.shared(ROW_LINES, len(tokens))
        self.look_up(rank, number, "layout")
        if tokens:
            self.look_up(rank, number, "source")
        if self.crosses(owner_distance) and tokens:
            self.copy(len(tokens) * lines, self.x.at(rank, row), self.messages.at(rank, row), "copy", unroll)
            self.settle("copy")
        for i, token in enumerate(tokens):
            target = self.received.at(owner, number, token)
            if self.crosses(owner_distance):
                self.put(lines, self.messages.at(rank, row + i), target, "put")
            else:
                self.copy(lines, self.x.at(rank, row + i), target, "send", unroll)
        if tokens and not self.crosses(owner_distance):
            self.settle("send")
        self.look_up(rank, number, "clean")
        self.notify(self.flags_of, (owner, number), owner_distance, "flag")

    def receive(self, rank: int, number: int) -> None:
        """Wait for the results of expert ``number``; the first group of warps of each block then reduces its tokens."""
        moe = self.moe
        self.acquire(self.flags_of, rank, number, 1, "wait")
        self.meet(self.grid_flags, rank, number, moe.experts, "grid")
        unroll = -(-ADDED_ROWS * self.token_lines // self.warps)
        for token in range(number, moe.tokens if number < self.sms else 0, self.sms):
            self.look_up(rank, token, "weights")
            places = self.routes_of(rank).tokens[token]
            rows = [self.received.at(rank, self.number(place), token) for place in places]
            self.reduce(self.token_lines, rows, self.output.at(rank, token), "add up", unroll)
