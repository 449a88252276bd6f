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
from trine.gpu.kernels.moe.builder import LINES_PER_ACCESS, MoeBuilder, SeenChunks, chunks_of
from trine.gpu.kernels.moe.options import NORMAL_SMS
from trine.gpu.kernels.options import KernelOptions
from trine.gpu.program import GpuProgram

#: Names of the dispatch and the combine.
NAMES = "moe_dispatch/normal", "moe_combine/normal"
#: Warps of an SM (768 threads), and tokens of a chunk by number of ranks (Buffer.get_dispatch_config and
#: get_combine_config; numbers in between use the next larger entry).
WARPS = 24
DISPATCH_CHUNK, COMBINE_CHUNK = {2: 24, 4: 6, 8: 6}, {2: 10, 4: 9, 8: 4}
MAX_RANKS = 8
#: Sent with a dispatched token: its number, and number and weight of each expert; with a combined token: the weights.
NUMBER_BYTES, EXPERT_BYTES, WEIGHT_BYTES = 4, 8, 4
#: Accesses in flight per warp when sending a dispatched or combined token; receiving uses half a token, by the TMA.
DISPATCH_UNROLL, COMBINE_UNROLL = 5 * LINES_PER_ACCESS, 4 * LINES_PER_ACCESS


class ChannelBuilder(MoeBuilder):
    """Base of the normal kernels: each channel of SMs serves ``each`` tokens, which travel in rows with their numbers.

    chunk: tokens of a chunk. combines: whether tokens return to their ranks.
    """

    def __init__(self, name: str, options: KernelOptions, top_nodes: int, chunk: int, combines: bool) -> None:
        super().__init__(name, options, top_nodes)
        moe, self.chunk = self.moe, chunk
        self.channels = (moe.sms or NORMAL_SMS) // 2
        self.channel_tokens = -(-moe.tokens // self.channels)
        self.token_bytes = moe.combined_bytes if combines else moe.token_bytes
        expert_bytes = WEIGHT_BYTES if combines else EXPERT_BYTES + WEIGHT_BYTES
        self.lines = self.lines_of(self.token_bytes + NUMBER_BYTES + moe.top_k * expert_bytes)
        self.by_rank = [routes.by_rank() for routes in self.routes]

    def tokens_of(self, channel: int) -> range:
        """Return the tokens of a channel."""
        return range(channel * self.channel_tokens, min((channel + 1) * self.channel_tokens, self.moe.tokens))


class _Normal(ChannelBuilder):
    """Channels, and the assignment of their workgroups to ranks."""

    def __init__(self, options: KernelOptions, combines: bool) -> None:
        name, ranks = NAMES[combines], options.num_ranks
        if ranks > MAX_RANKS:
            raise InputError(
                f"{name} is for at most {MAX_RANKS} ranks, and these are {ranks}: take 'low-latency'", field="algorithm"
            )
        chunks = COMBINE_CHUNK if combines else DISPATCH_CHUNK
        super().__init__(name, options, 1, chunks[min(size for size in chunks if size >= ranks)], combines)
        self.warps = max(1, WARPS // ranks)
        self.queue = self.rows("queues", self.lines, self.channels, ranks, self.channel_tokens)
        self.counts = self.rows("counts", 1, ranks)
        self.heads = self.rows("heads", 1, self.channels, ranks)
        self.count_flags, self.start_flags = self.flags("told", 1), self.flags("go", 1)
        self.tails = self.flags("tails", self.channels, ranks)

    def sent_tokens(self, rank: int, distance: int, channel: int) -> list[int]:
        """Return the tokens that a channel of ``rank`` sends to the rank at ``distance``."""
        tokens, span = self.by_rank[rank if len(self.routes) > 1 else 0].get(distance, []), self.tokens_of(channel)
        return [token for token in tokens if span.start <= token < span.stop]

    def received_tokens(self, rank: int, distance: int, channel: int) -> list[int]:
        """Return the tokens that ``rank`` receives in a channel from the sender ``distance`` before it."""
        return self.sent_tokens(self.grid.at(rank, distance, -1), distance, channel)

    def first_rows(self, rank: int) -> dict[tuple[int, int], int]:
        """Return the first row of received tokens, by (distance, channel)."""
        rows, row = {}, 0
        for distance in range(self.num_ranks):
            for channel in range(self.channels):
                rows[distance, channel] = row
                row += len(self.received_tokens(rank, distance, channel))
        return rows

    def exchange_counts(self, rank: int, workgroups: int) -> None:
        """Exchange token counts with all other ranks, then release this rank's other workgroups."""
        peers = [self.grid.at(rank, distance) for distance in range(1, self.num_ranks)]
        for distance, peer in enumerate(peers, 1):
            self.store(1, self.counts.at(peer, distance), "notify")
        self.settle("notify")
        self.fence("notify")
        self.release(self.count_flags, [(peer, 0) for peer in peers], "notify")
        self.acquire(self.count_flags, rank, 0, len(peers), "notify")
        self.release(self.start_flags, [(rank, 0)], "notify", workgroups)
        self.end_workgroup()

    def begin(self, rank: int) -> None:
        self.acquire(self.start_flags, rank, 0, 1, "notify")
        self.barrier("notify")

    def look_at_head(self, peer: int, channel: int, distance: int) -> None:
        """Check for room in the queue: a read of the receiver's memory before each chunk."""
        self.load(1, self.heads.at(peer, channel, distance), "head", 0)
        self.settle("head")

    def move_tail(self, peer: int, channel: int, distance: int) -> None:
        """Publish the written tokens to the receiver."""
        self.settle("tail")
        self.fence("tail")
        self.release(self.tails, [(peer, self.tails.at(channel, distance))], "tail")

    def all_ranks(self, rows: int) -> GpuProgram:
        """Finish the program. ``rows``: tokens received by all written ranks, with copies, as in DeepEP's bandwidth."""
        note = f"{2 * self.channels} SMs; chunks of {self.chunk}; {self.moe.words}"
        return self.finished(rows // len(self.written_ranks) * self.token_bytes, note)

    def copies(self) -> int:
        """Return the number of tokens sent by all written ranks, one for each receiver."""
        return sum(len(tokens) for by_rank in self.by_rank for tokens in by_rank.values())


def dispatch(options: KernelOptions) -> GpuProgram:
    """Send tokens to the ranks of their experts."""
    builder = _NormalDispatch(options)
    for rank in builder.written_ranks:
        first_rows = builder.first_rows(rank)
        for distance in range(builder.num_ranks):
            for channel in range(builder.channels):
                builder.send(rank, distance, channel)
                builder.receive(rank, distance, channel, first_rows[distance, channel])
        builder.exchange_counts(rank, 2 * builder.channels * builder.num_ranks)
        builder.end_kernel(rank, builder.warps, builder.name)
    return builder.all_ranks(builder.copies())


class _NormalDispatch(_Normal):
    def __init__(self, options: KernelOptions) -> None:
        super().__init__(options, combines=False)
        self.x = self.rows("input", self.lines, self.moe.tokens)
        self.output = self.rows("output", self.lines, self.num_ranks * self.moe.tokens)

    def send(self, rank: int, distance: int, channel: int) -> None:
        peer, tokens = self.grid.at(rank, distance), self.sent_tokens(rank, distance, channel)
        self.begin(rank)
        for chunk in chunks_of(len(tokens), self.chunk):
            self.look_at_head(peer, channel, distance)
            for number in chunk:
                target = self.queue.at(peer, channel, distance, number)
                self.copy(self.lines, self.x.at(rank, tokens[number]), target, "send", DISPATCH_UNROLL)
            self.move_tail(peer, channel, distance)
        self.end_workgroup()

    def receive(self, rank: int, distance: int, channel: int, row: int) -> None:
        self.begin(rank)
        half_a_token = max(1, self.lines_of(self.token_bytes) // 2)
        for chunk in chunks_of(len(self.received_tokens(rank, distance, channel)), self.chunk):
            self.acquire(self.tails, rank, self.tails.at(channel, distance), 1, "wait")
            self.barrier("wait")
            source = self.queue.at(rank, channel, distance, chunk.start)
            lines = len(chunk) * self.lines
            self.copy(lines, source, self.output.at(rank, row + chunk.start), "receive", half_a_token)
            self.settle("receive")
        self.end_workgroup()


def combine(options: KernelOptions) -> GpuProgram:
    """Send the experts' results back to the ranks of their tokens, and sum them there."""
    builder = _NormalCombine(options)
    for rank in builder.written_ranks:
        first_rows = builder.first_rows(rank)
        for number in range(builder.num_ranks):
            for channel in range(builder.channels):
                builder.send(rank, number, channel, first_rows[number, channel])
                builder.add_up(rank, number, channel)
        for distance in range(builder.num_ranks):
            for channel in range(builder.channels):
                builder.end_workgroup()  # on the SM that sends
                builder.watch(rank, distance, channel)
        builder.exchange_counts(rank, 3 * builder.channels * builder.num_ranks)
        builder.end_kernel(rank, builder.warps, builder.name)
    return builder.all_ranks(builder.copies())


class _NormalCombine(_Normal):
    def __init__(self, options: KernelOptions) -> None:
        super().__init__(options, combines=True)
        self.x = self.rows("input", self.lines, self.num_ranks * self.moe.tokens)
        self.output = self.rows("output", self.lines, self.moe.tokens)
        self.chunk_flags = self.flags("there", self.channels, self.num_ranks, self.num_ranks)

    def send(self, rank: int, distance: int, channel: int, row: int) -> None:
        """Send tokens back to the rank that they came from, ``distance`` before this one."""
        owner = self.grid.at(rank, distance, -1)
        self.begin(rank)
        for chunk in chunks_of(len(self.received_tokens(rank, distance, channel)), self.chunk):
            self.look_at_head(owner, channel, distance)
            for number in chunk:
                target = self.queue.at(owner, channel, distance, number)
                self.copy(self.lines, self.x.at(rank, row + number), target, "send", COMBINE_UNROLL)
            self.move_tail(owner, channel, distance)
        self.end_workgroup()

    def watch(self, rank: int, distance: int, channel: int) -> None:
        """Poll the tail with one warp on behalf of the others."""
        self.begin(rank)
        tail = self.tails.at(channel, distance)
        flags = [(rank, self.chunk_flags.at(channel, distance, group)) for group in range(self.num_ranks)]
        for _ in chunks_of(len(self.sent_tokens(rank, distance, channel)), self.chunk):
            self.acquire(self.tails, rank, tail, 1, "wait")
            self.release(self.chunk_flags, flags, "wait")
        self.end_workgroup()

    def add_up(self, rank: int, group: int, channel: int) -> None:
        """Sum every ``num_ranks``-th token of a channel, once all of its results have arrived."""
        self.begin(rank)
        sent_tokens = {d: self.sent_tokens(rank, d, channel) for d in range(self.num_ranks)}
        positions = {}
        for d, tokens in sent_tokens.items():
            positions[d] = {token: number for number, token in enumerate(tokens)}
        numbers = [self.chunk_flags.at(channel, distance, group) for distance in sent_tokens]
        seen_chunks, routes = SeenChunks(self, self.chunk_flags, rank, numbers), self.routes_of(rank)
        for token in self.tokens_of(channel)[group :: self.num_ranks]:
            distances = routes.distances(token)
            for distance in distances:
                seen_chunks.wait(distance, positions[distance][token] // self.chunk + 1)
            self.barrier("wait")
            rows = [self.queue.at(rank, channel, d, positions[d][token]) for d in distances]
            unroll = LINES_PER_ACCESS * len(rows)
            self.reduce(self.lines, rows, self.output.at(rank, token), "add up", unroll)
        for distance, tokens in sent_tokens.items():
            seen_chunks.wait(distance, len(chunks_of(len(tokens), self.chunk)))
        self.end_workgroup()
