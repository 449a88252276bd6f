"""Dispatch and combine of many tokens in a node, with channels of SMs that send and receive through queues.

The module follows DeepEP's intranode kernels (github.com/deepseek-ai/DeepEP, csrc/kernels/legacy/intranode.cu; facts,
no code). Ranks first exchange token counts. A channel is one sending and one receiving SM, with some warps for each
rank; tokens are distributed over the channels. Each token goes once to every rank with one of its experts, its own rank
included, into a queue in the receiver's memory. After each chunk of tokens the sender moves the queue's tail, and the
receiver waits for it. Dispatch: the receiver copies tokens to their final rows. Combine: each group of warps takes a
token, waits for all of its results, and sums them.

Differences from DeepEP: each chunk adds to a tail semaphore, and to one more semaphore per reducing warp group. Queues
never fill (they hold 256 tokens, and receivers keep up). Warps of a group share the lines of a token; in DeepEP each
warp has its own token. The count exchange, a separate kernel that the measurement includes, starts this kernel.
"""

from __future__ import annotations

from trine.errors import InputError
from trine.gpu.kernels.moe.builder import LINES_PER_ACCESS, MoeBuilder, Routes, moe_of
from trine.gpu.kernels.moe.options import NORMAL_SMS
from trine.gpu.kernels.options import KernelOptions
from trine.gpu.program import GpuProgram

#: Warps of an SM (768 threads), and tokens of a chunk by number of ranks (Buffer.get_dispatch_config and
#: get_combine_config; numbers in between use the next larger entry).
WARPS = 24
DISPATCH_CHUNK, COMBINE_CHUNK = {2: 24, 4: 6, 8: 6}, {2: 10, 4: 9, 8: 4}
MOST_RANKS = 8
#: Sent with a dispatched token: its number, and number and weight of each expert; with a combined token: the weights.
NUMBER_BYTES, EXPERT_BYTES, WEIGHT_BYTES = 4, 8, 4
#: Accesses in flight per warp when sending a dispatched or combined token; receiving uses half a token, by the TMA.
DISPATCH_UNROLL, COMBINE_UNROLL = 5 * LINES_PER_ACCESS, 4 * LINES_PER_ACCESS


class _Normal(MoeBuilder):
    """Channels, and the assignment of their workgroups to ranks."""

    def __init__(self, name: str, options: KernelOptions, sizes: tuple[int, int], chunks: dict[int, int]) -> None:
        if options.num_ranks > MOST_RANKS:
            raise InputError(
                f"{name} is for at most {MOST_RANKS} ranks, and these are {options.num_ranks}: take 'low-latency'",
                field="algorithm",
            )
        super().__init__(name, options, 1)
        moe, ranks = self.moe, options.num_ranks
        self.channels = (moe.sms or NORMAL_SMS) // 2
        self.warps = max(1, WARPS // ranks)
        self.chunk = chunks[min(size for size in chunks if size >= ranks)]
        self.token_bytes, more_bytes = sizes
        self.lines = self.lines_of(self.token_bytes + more_bytes)
        self.each = -(-moe.tokens // self.channels)
        self.by_rank = [routes.by_rank() for routes in self.routes]
        self.queue = self.rows("queues", self.channels * ranks * self.each, self.lines)
        self.counts = self.rows("counts", ranks, 1)
        self.heads = self.rows("heads", self.channels * ranks, 1)
        self.told, self.go = self.flags("told", 1), self.flags("go", 1)
        self.tails = self.flags("tails", self.channels * ranks)

    def sent(self, rank: int, distance: int, channel: int) -> list[int]:
        """Return the tokens that a channel of ``rank`` sends to the rank at ``distance``."""
        first = channel * self.each
        tokens = self.by_rank[rank if len(self.routes) > 1 else 0].get(distance, [])
        return [token for token in tokens if first <= token < first + self.each]

    def came(self, rank: int, distance: int, channel: int) -> list[int]:
        """Return the tokens that ``rank`` receives in a channel from the sender ``distance`` before it."""
        return self.sent(self.grid.at(rank, distance, -1), distance, channel)

    def first_rows(self, rank: int) -> dict[tuple[int, int], int]:
        """Return the first row of received tokens, by (distance, channel)."""
        found, row = {}, 0
        for distance in range(self.num_ranks):
            for channel in range(self.channels):
                found[distance, channel] = row
                row += len(self.came(rank, distance, channel))
        return found

    def row(self, channel: int, distance: int, number: int) -> int:
        """Return the row in the receiver's queue."""
        return (channel * self.num_ranks + distance) * self.each + number

    def chunks_of(self, count: int) -> list[range]:
        """Return the chunks of ``count`` tokens."""
        return [range(first, min(first + self.chunk, count)) for first in range(0, count, self.chunk)]

    def tell(self, rank: int, workgroups: int) -> None:
        """Exchange token counts with all other ranks, then release this rank's other workgroups."""
        others = [self.grid.at(rank, distance) for distance in range(1, self.num_ranks)]
        for distance, other in enumerate(others, 1):
            self.store(1, self.counts.at(other, distance), "notify")
        self.settle("notify")
        self.fence("notify")
        self.release(self.told, [(other, 0) for other in others], "notify")
        self.acquire(self.told, rank, 0, len(others), "notify")
        self.release(self.go, [(rank, 0)], "notify", workgroups)
        self.end_workgroup()

    def begin(self, rank: int) -> None:
        self.acquire(self.go, rank, 0, 1, "notify")
        self.barrier("notify")

    def look_at_head(self, peer: int, channel: int, distance: int) -> None:
        """Check for room in the queue: a read of the receiver's memory before each chunk."""
        self.load(1, self.heads.at(peer, channel * self.num_ranks + distance), "head", 0)
        self.settle("head")

    def move_tail(self, peer: int, channel: int, distance: int) -> None:
        """Publish the written tokens to the receiver."""
        self.settle("tail")
        self.fence("tail")
        self.release(self.tails, [(peer, channel * self.num_ranks + distance)], "tail")

    def all_ranks(self, rows: int) -> GpuProgram:
        """Finish the program. ``rows``: tokens received by all written ranks, with copies, as in DeepEP's bandwidth."""
        note = f"{2 * self.channels} SMs; chunks of {self.chunk}; {self.moe.words}"
        return self.finished(rows // len(self.written) * self.token_bytes, note)

    def copies(self) -> int:
        """Return the number of tokens sent by all written ranks, one for each receiver."""
        return sum(len(tokens) for by_rank in self.by_rank for tokens in by_rank.values())


def dispatch(options: KernelOptions) -> GpuProgram:
    """Send tokens to the ranks of their experts."""
    moe = moe_of(options)
    more_bytes = NUMBER_BYTES + moe.top_k * (EXPERT_BYTES + WEIGHT_BYTES)
    builder = _NormalDispatch("moe_dispatch/normal", options, (moe.token_bytes, more_bytes), DISPATCH_CHUNK)
    for rank in builder.written:
        first = builder.first_rows(rank)
        for distance in range(builder.num_ranks):
            for channel in range(builder.channels):
                builder.send(rank, distance, channel)
                builder.receive(rank, distance, channel, first[distance, channel])
        builder.tell(rank, 2 * builder.channels * builder.num_ranks)
        builder.end_kernel(rank, builder.warps, builder.name)
    return builder.all_ranks(builder.copies())


class _NormalDispatch(_Normal):
    def __init__(self, name: str, options: KernelOptions, sizes: tuple[int, int], chunks: dict[int, int]) -> None:
        super().__init__(name, options, sizes, chunks)
        self.x = self.rows("input", self.moe.tokens, self.lines)
        self.output = self.rows("output", self.num_ranks * self.moe.tokens, self.lines)

    def send(self, rank: int, distance: int, channel: int) -> None:
        peer, tokens = self.grid.at(rank, distance), self.sent(rank, distance, channel)
        self.begin(rank)
        for chunk in self.chunks_of(len(tokens)):
            self.look_at_head(peer, channel, distance)
            for number in chunk:
                target = self.queue.at(peer, self.row(channel, distance, number))
                self.copy(self.lines, self.x.at(rank, tokens[number]), target, "send", DISPATCH_UNROLL)
            self.move_tail(peer, channel, distance)
        self.end_workgroup()

    def receive(self, rank: int, distance: int, channel: int, row: int) -> None:
        self.begin(rank)
        half_a_token = max(1, self.lines_of(self.token_bytes) // 2)
        for chunk in self.chunks_of(len(self.came(rank, distance, channel))):
            self.acquire(self.tails, rank, channel * self.num_ranks + distance, 1, "wait")
            self.barrier("wait")
            source = self.queue.at(rank, self.row(channel, distance, chunk.start))
            lines = len(chunk) * self.lines
            self.copy(lines, source, self.output.at(rank, row + chunk.start), "receive", half_a_token)
            self.settle("receive")
        self.end_workgroup()


def combine(options: KernelOptions) -> GpuProgram:
    """Send the experts' results back to the ranks of their tokens, and sum them there."""
    moe = moe_of(options)
    builder = _NormalCombine(
        "moe_combine/normal", options, (moe.combined_bytes, NUMBER_BYTES + moe.top_k * WEIGHT_BYTES), COMBINE_CHUNK
    )
    for rank in builder.written:
        first = builder.first_rows(rank)
        for which in range(builder.num_ranks):
            for channel in range(builder.channels):
                builder.send(rank, which, channel, first[which, channel])
                builder.add_up(rank, which, channel)
        for distance in range(builder.num_ranks):
            for channel in range(builder.channels):
                builder.end_workgroup()  # on the SM that sends
                builder.watch(rank, distance, channel)
        builder.tell(rank, 3 * builder.channels * builder.num_ranks)
        builder.end_kernel(rank, builder.warps, builder.name)
    return builder.all_ranks(builder.copies())


class _NormalCombine(_Normal):
    def __init__(self, name: str, options: KernelOptions, sizes: tuple[int, int], chunks: dict[int, int]) -> None:
        super().__init__(name, options, sizes, chunks)
        self.x = self.rows("input", self.num_ranks * self.moe.tokens, self.lines)
        self.output = self.rows("output", self.moe.tokens, self.lines)
        self.there = self.flags("there", self.channels * self.num_ranks * self.num_ranks)

    def send(self, rank: int, distance: int, channel: int, row: int) -> None:
        """Send tokens back to the rank that they came from, ``distance`` before this one."""
        owner = self.grid.at(rank, distance, -1)
        self.begin(rank)
        for chunk in self.chunks_of(len(self.came(rank, distance, channel))):
            self.look_at_head(owner, channel, distance)
            for number in chunk:
                target = self.queue.at(owner, self.row(channel, distance, number))
                self.copy(self.lines, self.x.at(rank, row + number), target, "send", COMBINE_UNROLL)
            self.move_tail(owner, channel, distance)
        self.end_workgroup()

    def watch(self, rank: int, distance: int, channel: int) -> None:
        """Poll the tail with one warp on behalf of the others."""
        self.begin(rank)
        flag = channel * self.num_ranks + distance
        for _ in self.chunks_of(len(self.sent(rank, distance, channel))):
            self.acquire(self.tails, rank, flag, 1, "wait")
            self.release(self.there, [(rank, flag * self.num_ranks + j) for j in range(self.num_ranks)], "wait")
        self.end_workgroup()

    def add_up(self, rank: int, group: int, channel: int) -> None:
        """Sum every ``num_ranks``-th token of a channel, once all of its results have arrived."""
        self.begin(rank)
        sent = {d: self.sent(rank, d, channel) for d in range(self.num_ranks)}
        place = {d: {token: number for number, token in enumerate(tokens)} for d, tokens in sent.items()}
        seen = dict.fromkeys(sent, 0)

        def see(distance: int, chunks: int) -> None:
            """Wait until ``chunks`` chunks have arrived."""
            if chunks > seen[distance]:
                flag = (channel * self.num_ranks + distance) * self.num_ranks + group
                self.acquire(self.there, rank, flag, chunks - seen[distance], "wait")
                seen[distance] = chunks

        routes: Routes = self.routes_of(rank)
        last = min((channel + 1) * self.each, self.moe.tokens)
        for token in range(channel * self.each + group, last, self.num_ranks):
            distances = routes.distances(token)
            for distance in distances:
                see(distance, place[distance][token] // self.chunk + 1)
            self.barrier("wait")
            rows = [self.queue.at(rank, self.row(channel, d, place[d][token])) for d in distances]
            unroll = LINES_PER_ACCESS * len(rows)
            self.reduce(self.lines, rows, self.output.at(rank, token), "add up", unroll)
        for distance, tokens in sent.items():
            see(distance, len(self.chunks_of(len(tokens))))
        self.end_workgroup()
