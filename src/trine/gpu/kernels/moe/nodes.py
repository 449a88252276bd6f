"""Dispatch and combine of many tokens across nodes: by the NIC along the rank's rail, then over NVLink.

The model follows DeepEP's internode kernels at the time of their published bandwidths (github.com/deepseek-ai/DeepEP,
commit 3b1045d of April 2025, csrc/kernels/internode.cu; facts, no code). Their warps copy by loads and stores; later
versions use the TMA. A token crosses once to each node with one of its experts, to the rank on the same rail, which
forwards it inside the node. On the way back that rank adds up its node's results for the token and sends one row. A
channel has two SMs, and each warp has one role, so a workgroup here is a warp. Dispatch: sender warps of one SM copy
tokens into buffers, a coordinator warp puts chunks of them, and receiver warps copy NVLink arrivals to their final
rows; forwarder warps of the other SM copy NIC arrivals to the ranks of the node. Combine: sender warps of one SM write
rows to the rank that forwarded them, and receiver warps add up the nodes' rows; forwarders of the other add and put.

Differences from DeepEP: see also :mod:`trine.gpu.kernels.moe.normal`; the coordinator serves nodes round-robin;
a warp that polls a NIC tail notifies the waiting warps through memory; NIC queues, of 128 tokens, never fill up.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from functools import partial

from trine.errors import InputError
from trine.gpu.kernels.moe import normal
from trine.gpu.kernels.moe.builder import FlagTable, SeenChunks, chunks_of, in_turns, moe_of, strides_of
from trine.gpu.kernels.moe.normal import NAMES, ChannelBuilder
from trine.gpu.kernels.moe.options import TOP_NODES
from trine.gpu.kernels.options import KernelOptions
from trine.gpu.program import DELAY, WAITCNT, GpuProgram

#: Sender warps of dispatch; forwarder (over all nodes) and receiver warps of combine.
SENDERS, FORWARDERS, RECEIVERS = 7, 24, 16
#: Tokens of a dispatch put, of a combine put, and of a combine chunk over NVLink, each for two nodes and for more nodes
#: (Buffer.get_dispatch_config and get_combine_config).
PUT_TOKENS, BACK_TOKENS, BACK_CHUNK = (20, 8), (12, 8), (4, 1)
#: Maximum ranks per node, and maximum nodes whose warps fit on the two SMs of a channel.
MAX_NODE_SIZE, MAX_NODES = 8, 8
SEND_LINES, ADD_LINES = 20, 4
#: Lines of a warp's copy step: five accesses at once, then one by one for the remainder (UNROLLED_WARP_COPY).
COPY_LINES, ACCESS_LINES = 20, 4
#: Cycles of a load that hits the L2 (H100): for a token's origin, which decides whether it is copied, and for the last
#: of five accesses.
LOAD_CYCLES = 262

#: Adds the operations of one warp.
Job = Callable[[], None]


class _Nodes(ChannelBuilder):
    """Base of both kernels. ``node``: a distance in nodes; ``peer``: a distance to a rank within the node."""

    def __init__(self, options: KernelOptions, combines: bool) -> None:
        name, top = NAMES[combines], moe_of(options).top_nodes
        if options.num_nodes > MAX_NODES or options.num_ranks // options.num_nodes > MAX_NODE_SIZE:
            raise InputError(
                f"{name} is for at most {MAX_NODES} nodes of {MAX_NODE_SIZE}, and these are {options.num_nodes} of "
                f"{options.num_ranks // options.num_nodes}: take 'low-latency'",
                field="algorithm",
            )
        chunk = (BACK_TOKENS if combines else PUT_TOKENS)[options.num_nodes > 2]
        top_nodes = min(options.num_nodes, TOP_NODES) if top is None else top
        super().__init__(name, options, top_nodes, chunk, combines)
        nodes, node_size = self.grid
        self._node_tokens: dict[tuple[int, int, int], list[int]] = {}
        self._output_rows: dict[int, dict[tuple[int, int], int]] = {}
        self.counts = self.rows("counts", 1, nodes + node_size)
        self.rail_count_flags, self.count_flags = self.flags("rail", 1), self.flags("told", 1)
        self.start_flags = self.flags("go", 1)
        self.send_rows = self.rows("send buffers", self.lines, self.channels, nodes, self.channel_tokens)
        self.receive_rows = self.rows("receive buffers", self.lines, self.channels, nodes, self.channel_tokens)
        self.queues = self.rows("queues", self.lines, self.channels, nodes, node_size, self.channel_tokens)
        self.tails = self.flags("rail tails", self.channels, nodes)
        self.node_tails = self.flags("tails", self.channels, nodes, node_size)

    @abstractmethod
    def senders(self, rank: int, channel: int) -> list[Job]:
        """Return the jobs of the sending SM."""

    @abstractmethod
    def forwarders(self, rank: int, channel: int) -> list[Job]:
        """Return the jobs of the forwarding SM."""

    # Routing.

    def tokens_to_node(self, rank: int, channel: int, node: int) -> list[int]:
        """Return the tokens of a rank's channel that go to a node."""
        key = rank if len(self.routes) > 1 else 0, channel, node
        if key not in self._node_tokens:
            size, routes, tokens = self.grid.locals, self.routes_of(rank), self.tokens_of(channel)
            sent_tokens = []
            for t in tokens:
                if any(place[0] // size == node for place in routes.tokens[t]):
                    sent_tokens.append(t)
            self._node_tokens[key] = sent_tokens
        return self._node_tokens[key]

    def chunks(self, rank: int, channel: int, node: int) -> list[range]:
        """Return the chunks of the tokens of :meth:`tokens_to_node`."""
        return chunks_of(len(self.tokens_to_node(rank, channel, node)), self.chunk)

    def receivers(self, rank: int, token: int, node: int) -> list[int]:
        """Return the ranks of ``node`` that receive the token, as distances from the rank on the token's rail."""
        node_size = self.grid.locals
        return [d % node_size for d in self.routes_of(rank).distances(token) if d // node_size == node]

    def rail_rank(self, rank: int, node: int, sign: int = 1) -> int:
        return self.grid.at(rank, node * self.grid.locals, sign)

    def output_row(self, rank: int, owner: int, token: int) -> int:
        """Return the output row of a token at ``rank``; rows are ordered by owner distance, then token number."""
        key = rank if len(self.routes) > 1 else 0
        if key not in self._output_rows:
            owners = []
            for d in range(self.num_ranks):
                owners.append((d, self.grid.at(rank, d, -1) if len(self.routes) > 1 else 0))
            order = ((d, token) for d, owner in owners for token in self.by_rank[owner].get(d, []))
            self._output_rows[key] = {place: row for row, place in enumerate(order)}
        return self._output_rows[key][self.grid.distance(owner, rank), token]

    # Steps of warps.

    def drain(self, label: str) -> None:
        """Wait for all outstanding operations of the warp."""
        self.add(WAITCNT, 0, (), label)

    def publish(self, flags: FlagTable, rank: int, numbers: Sequence[int]) -> None:
        """Advance tails of another rank, after the rows that the warp has written there."""
        self.drain("tail")
        self.fence("tail")
        self.release(flags, [(rank, number) for number in numbers], "tail")

    def load_origin(self, label: str) -> None:
        """Load a token's origin, stored beside it: the warp copies only some tokens, each to a row by origin."""
        self.add(DELAY, LOAD_CYCLES, (), label)

    def warp_copy(self, source: tuple[int, int], target: tuple[int, int], label: str) -> None:
        """Copy a row by a warp's loads and stores: groups of five accesses in sequence, then single ones."""
        bulk = self.lines // COPY_LINES * COPY_LINES
        tail_offset = bulk * self.line_bytes
        for lines, offset, unroll in ((bulk, 0, COPY_LINES), (self.lines - bulk, tail_offset, ACCESS_LINES)):
            if lines:
                ends = (source[0], source[1] + offset), (target[0], target[1] + offset)
                self.copy(lines, *ends, label, unroll)
                self.add(DELAY, LOAD_CYCLES, (), label)

    def poll_tail(self, rank: int, tail: int, chunks: int, flags: FlagTable, numbers: Sequence[int]) -> None:
        """Poll a NIC tail for every chunk, and notify the waiting warps."""
        for _ in range(chunks):
            self.acquire(self.tails, rank, tail, 1, "tail")
            self.release(flags, [(rank, number) for number in numbers], "tail")

    def put_chunk(self, rank: int, peer: int, place: tuple[int, int, range]) -> None:
        """Put the rows of a chunk from the send buffers to the rank on the same rail, followed by the tail."""
        channel, node, numbers = place
        distance = self.grid.distance(rank, peer)
        if self.crosses(distance):
            row = channel, node, numbers.start
            self.put(len(numbers) * self.lines, self.send_rows.at(rank, *row), self.receive_rows.at(peer, *row), "put")
        self.notify(self.tails, (peer, self.tails.at(channel, node)), distance, "put")

    def built(self) -> GpuProgram:
        """Return the program. As in DeepEP's RDMA bandwidth, its size counts tokens to all nodes including the own."""
        for rank in self.written_ranks:
            self._write_kernel(rank)
        num_tokens = sum(
            len(self.tokens_to_node(rank, channel, node))
            for rank in self.written_ranks
            for channel in range(self.channels)
            for node in range(self.grid.nodes)
        )
        note = f"{2 * self.channels} SMs; puts of {self.chunk}; {self.moe.words}"
        return self.finished(num_tokens // len(self.written_ranks) * self.token_bytes, note)

    def _write_kernel(self, rank: int) -> None:
        """Write the jobs of each channel's two SMs, one warp per job, after the exchange of counts."""
        jobs = [build(rank, channel) for channel in range(self.channels) for build in (self.forwarders, self.senders)]
        for warp in range(max(map(len, jobs))):
            for sm_jobs in jobs:
                if warp < len(sm_jobs):
                    self.acquire(self.start_flags, rank, 0, 1, "notify")
                    sm_jobs[warp]()
                self.end_workgroup()
        self._exchange_counts(rank, sum(map(len, jobs)))
        self.end_kernel(rank, 1, self.name)

    def _exchange_counts(self, rank: int, warps: int) -> None:
        """Send counts along the rail, then within the node."""
        nodes, node_size = self.grid
        self.store(1, self.counts.at(rank, 0), "notify")
        self.drain("notify")
        for node in range(1, nodes):
            self.put(1, self.counts.at(rank, 0), self.counts.at(self.rail_rank(rank, node), node), "notify")
            self.notify(self.rail_count_flags, (self.rail_rank(rank, node), 0), node * node_size, "notify")
        if nodes > 1:
            self.acquire(self.rail_count_flags, rank, 0, nodes - 1, "notify")
        peer_ranks = [self.grid.at(rank, peer) for peer in range(1, node_size)]
        for peer, peer_rank in enumerate(peer_ranks, 1):
            self.store(1, self.counts.at(peer_rank, nodes + peer), "notify")
        if peer_ranks:
            self.drain("notify")
            self.fence("notify")
            self.release(self.count_flags, [(peer_rank, 0) for peer_rank in peer_ranks], "notify")
            self.acquire(self.count_flags, rank, 0, len(peer_ranks), "notify")
        self.release(self.start_flags, [(rank, 0)], "notify", warps)
        self.end_workgroup()


def dispatch(options: KernelOptions) -> GpuProgram:
    """Build the dispatch of tokens to the ranks of their experts; one node uses ``normal.dispatch``."""
    return normal.dispatch(options) if options.num_nodes == 1 else _NodesDispatch(options).built()


class _NodesDispatch(_Nodes):
    def __init__(self, options: KernelOptions) -> None:
        super().__init__(options, combines=False)
        nodes, node_size = self.grid
        self.x = self.rows("input", self.lines, self.moe.tokens)
        self.output = self.rows("output", self.lines, self.num_ranks * self.moe.tokens)
        self.copy_flags = self.flags("ready", self.channels, nodes, SENDERS)
        self.chunk_flags = self.flags("there", self.channels, nodes, node_size)
        #: A rank of the node has one queue, which holds the tokens of all nodes in sequence.
        self.queues = self.queues._replace(strides=strides_of(self.channels, node_size, nodes * self.channel_tokens))
        self.node_tails = self.node_tails._replace(strides=strides_of(self.channels, nodes * node_size))

    def senders(self, rank: int, channel: int) -> list[Job]:
        """Return the jobs of the sending SM: warps that copy tokens, one that puts them, and receivers of the node."""
        return [
            *(partial(self.send, rank, channel, warp) for warp in range(SENDERS)),
            partial(self.coordinate, rank, channel),
            *(partial(self.receive, rank, channel, peer) for peer in range(self.grid.locals)),
        ]

    def send(self, rank: int, channel: int, warp: int) -> None:
        """Copy every SENDERS-th token of the channel to the buffers of its nodes."""
        lists = [self.tokens_to_node(rank, channel, node) for node in range(self.grid.nodes)]
        for token in self.tokens_of(channel)[warp::SENDERS]:
            nodes = [node for node, tokens in enumerate(lists) if token in tokens]
            for node in nodes:
                buffer = self.send_rows if node else self.receive_rows
                target = buffer.at(rank, channel, node, lists[node].index(token))
                self.copy(self.lines, self.x.at(rank, token), target, "copy", SEND_LINES)
            self.drain("copy")
            self.release(self.copy_flags, [(rank, self.copy_flags.at(channel, node, warp)) for node in nodes], "copy")

    def coordinate(self, rank: int, channel: int) -> None:
        """Put the chunks of all nodes in turns, each when its tokens are copied."""
        nodes = range(self.grid.nodes)
        for node, chunk in in_turns([self.chunks(rank, channel, node) for node in nodes], first=channel):
            tokens, first_token = self.tokens_to_node(rank, channel, node), channel * self.channel_tokens
            flags = [self.copy_flags.at(channel, node, (tokens[i] - first_token) % SENDERS) for i in chunk]
            self.acquire_all(self.copy_flags, rank, flags, "ready")
            self.put_chunk(rank, self.rail_rank(rank, node), (channel, node, chunk))

    def forwarded_chunks(self, rank: int, channel: int, peer: int) -> list[tuple[int, range, list[int]]]:
        """Return the chunks that a rank forwards to one rank of its node, nodes in turns: (node, chunk, its tokens)."""
        owners = [self.rail_rank(rank, node, -1) for node in range(self.grid.nodes)]
        chunks = []
        for node, chunk in in_turns([self.chunks(owner, channel, node) for node, owner in enumerate(owners)]):
            tokens = self.tokens_to_node(owners[node], channel, node)
            chunks.append((node, chunk, [i for i in chunk if peer in self.receivers(owners[node], tokens[i], node)]))
        return chunks

    def forwarders(self, rank: int, channel: int) -> list[Job]:
        """Return the jobs of the forwarding SM: a warp per rank of the node, and one per node that polls its tail."""
        nodes, node_size = self.grid
        jobs: list[Job] = [partial(self.forward, rank, channel, peer) for peer in range(node_size)]
        for node in range(nodes):
            chunks = len(self.chunks(self.rail_rank(rank, node, -1), channel, node))
            numbers = [self.chunk_flags.at(channel, node, peer) for peer in range(node_size)]
            jobs.append(partial(self.poll_tail, rank, self.tails.at(channel, node), chunks, self.chunk_flags, numbers))
        return jobs

    def forward(self, rank: int, channel: int, peer: int) -> None:
        """Copy the tokens that arrive for a rank of the node to its queue."""
        target, num_sent = self.grid.at(rank, peer), 0
        for node, chunk, numbers in self.forwarded_chunks(rank, channel, peer):
            self.acquire(self.chunk_flags, rank, self.chunk_flags.at(channel, node, peer), 1, "wait")
            for number in chunk:
                self.load_origin("forward")
                if number in numbers:
                    source = self.receive_rows.at(rank, channel, node, number)
                    self.warp_copy(source, self.queues.at(target, channel, peer, num_sent), "forward")
                    num_sent += 1
            if numbers:
                self.publish(self.node_tails, target, [self.node_tails.at(channel, peer)])

    def receive(self, rank: int, channel: int, peer: int) -> None:
        """Receive from the rank of the node that has this rank at distance ``peer``."""
        source, num_received = self.grid.at(rank, peer, -1), 0
        for node, _, numbers in self.forwarded_chunks(source, channel, peer):
            if not numbers:
                continue
            owner = self.rail_rank(source, node, -1)
            tokens = self.tokens_to_node(owner, channel, node)
            self.acquire(self.node_tails, rank, self.node_tails.at(channel, peer), 1, "wait")
            for number in numbers:
                target = self.output.at(rank, self.output_row(rank, owner, tokens[number]))
                self.load_origin("receive")
                self.warp_copy(self.queues.at(rank, channel, peer, num_received), target, "receive")
                num_received += 1
            self.drain("receive")


def combine(options: KernelOptions) -> GpuProgram:
    """Build the combine, which returns the experts' results and adds them up; one node uses ``normal.combine``."""
    return normal.combine(options) if options.num_nodes == 1 else _NodesCombine(options).built()


class _NodesCombine(_Nodes):
    def __init__(self, options: KernelOptions) -> None:
        super().__init__(options, combines=True)
        nodes, node_size = self.grid
        self.node_chunk = BACK_CHUNK[nodes > 2]
        self.warps = max(1, FORWARDERS // nodes)
        self.x = self.rows("input", self.lines, self.num_ranks * self.moe.tokens)
        self.output = self.rows("output", self.lines, self.moe.tokens)
        self.row_flags = self.flags("near", self.channels, nodes, node_size, self.warps)
        self.sum_flags = self.flags("added", self.channels, nodes, self.warps)
        self.chunk_flags = self.flags("there", self.channels, nodes, RECEIVERS)

    def forwarded_tokens(self, rank: int, channel: int, node: int, peer: int) -> list[int]:
        """Return the numbers of the tokens that ``rank`` forwarded from the node ``node`` nodes back to ``peer``."""
        owner = self.rail_rank(rank, node, -1)
        tokens = self.tokens_to_node(owner, channel, node)
        return [i for i, token in enumerate(tokens) if peer in self.receivers(owner, token, node)]

    def senders(self, rank: int, channel: int) -> list[Job]:
        """Return the jobs of the sending SM: a warp per rank of the node, receivers from nodes, and tail pollers."""
        nodes, node_size = self.grid
        jobs: list[Job] = [partial(self.send, rank, channel, peer) for peer in range(node_size)]
        jobs += [partial(self.receive, rank, channel, warp) for warp in range(RECEIVERS)]
        for node in range(nodes):
            chunks = len(self.chunks(rank, channel, node))
            numbers = [self.chunk_flags.at(channel, node, warp) for warp in range(RECEIVERS)]
            jobs.append(partial(self.poll_tail, rank, self.tails.at(channel, node), chunks, self.chunk_flags, numbers))
        return jobs

    def send(self, rank: int, channel: int, peer: int) -> None:
        """Return rows to the rank of the node that has this rank at distance ``peer``, nodes in turns."""
        forwarder = self.grid.at(rank, peer, -1)
        lists = [self.forwarded_tokens(forwarder, channel, node, peer) for node in range(self.grid.nodes)]
        for node, chunk in in_turns([chunks_of(len(numbers), self.node_chunk) for numbers in lists]):
            owner = self.rail_rank(forwarder, node, -1)
            tokens = self.tokens_to_node(owner, channel, node)
            for i in chunk:
                source = self.x.at(rank, self.output_row(rank, owner, tokens[lists[node][i]]))
                self.warp_copy(source, self.queues.at(forwarder, channel, node, peer, i), "send")
            numbers = [self.row_flags.at(channel, node, peer, warp) for warp in range(self.warps)]
            self.publish(self.row_flags, forwarder, numbers)

    def receive(self, rank: int, channel: int, warp: int) -> None:
        """Add up the nodes' rows for every RECEIVERS-th token of the channel."""
        lists = [self.tokens_to_node(rank, channel, node) for node in range(self.grid.nodes)]
        numbers = [self.chunk_flags.at(channel, node, warp) for node in range(self.grid.nodes)]
        polls = SeenChunks(self, self.chunk_flags, rank, numbers)
        for token in self.tokens_of(channel)[warp::RECEIVERS]:
            places = [(node, tokens.index(token)) for node, tokens in enumerate(lists) if token in tokens]
            for node, number in places:
                polls.wait(node, number // self.chunk + 1)
            rows = [self.receive_rows.at(rank, channel, node, number) for node, number in places]
            self.reduce(self.lines, rows, self.output.at(rank, token), "add up", ADD_LINES * len(rows))
        for node, tokens in enumerate(lists):
            polls.wait(node, len(chunks_of(len(tokens), self.chunk)))

    def forwarders(self, rank: int, channel: int) -> list[Job]:
        """Return the jobs of the forwarding SM: per node, warps that add up this node's rows, and one that puts."""
        jobs: list[Job] = []
        for node in range(self.grid.nodes):
            jobs += [partial(self.forward, rank, channel, node, warp) for warp in range(self.warps)]
            jobs.append(partial(self.put_back, rank, channel, node))
        return jobs

    def forward(self, rank: int, channel: int, node: int, warp: int) -> None:
        """Add up this warp's share of the tokens that came from the node ``node`` nodes back."""
        peers = range(self.grid.locals)
        lists = [self.forwarded_tokens(rank, channel, node, peer) for peer in peers]
        polls = SeenChunks(self, self.row_flags, rank, [self.row_flags.at(channel, node, peer, warp) for peer in peers])
        buffer = self.send_rows if node else self.receive_rows
        for number in range(warp, len(self.tokens_to_node(self.rail_rank(rank, node, -1), channel, node)), self.warps):
            places = [(peer, numbers.index(number)) for peer, numbers in enumerate(lists) if number in numbers]
            for peer, i in places:
                polls.wait(peer, i // self.node_chunk + 1)
            rows = [self.queues.at(rank, channel, node, peer, i) for peer, i in places]
            self.reduce(self.lines, rows, buffer.at(rank, channel, node, number), "forward", ADD_LINES * len(rows))
            self.drain("forward")
            self.release(self.sum_flags, [(rank, self.sum_flags.at(channel, node, warp))], "forward")
        for peer, numbers in enumerate(lists):
            polls.wait(peer, len(chunks_of(len(numbers), self.node_chunk)))

    def put_back(self, rank: int, channel: int, node: int) -> None:
        """Put the chunks of sums to the node ``node`` nodes back, each when its sums are complete."""
        owner = self.rail_rank(rank, node, -1)
        for chunk in self.chunks(owner, channel, node):
            flags = [self.sum_flags.at(channel, node, number % self.warps) for number in chunk]
            self.acquire_all(self.sum_flags, rank, flags, "added")
            self.put_chunk(rank, owner, (channel, node, chunk))
