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
MOST_MATES, MOST_NODES = 8, 8
SEND_LINES, ADD_LINES = 20, 4
#: Lines of a warp's copy step: five accesses at once, then one by one for the remainder (UNROLLED_WARP_COPY).
COPY_LINES, ACCESS_LINES = 20, 4
#: Cycles of a load that hits the L2 (H100): for a token's origin, which decides whether it is copied, and for the last
#: of five accesses.
LOAD_CYCLES = 262

#: Adds the operations of one warp.
Job = Callable[[], None]


class _Nodes(ChannelBuilder):
    """Base of both kernels. ``to``: a distance in nodes; ``mate``: a distance to a rank within the node."""

    def __init__(self, options: KernelOptions, combines: bool) -> None:
        name, top = NAMES[combines], moe_of(options).top_nodes
        if options.num_nodes > MOST_NODES or options.num_ranks // options.num_nodes > MOST_MATES:
            raise InputError(
                f"{name} is for at most {MOST_NODES} nodes of {MOST_MATES}, and these are {options.num_nodes} of "
                f"{options.num_ranks // options.num_nodes}: take 'low-latency'",
                field="algorithm",
            )
        chunk = (BACK_TOKENS if combines else PUT_TOKENS)[options.num_nodes > 2]
        top_nodes = min(options.num_nodes, TOP_NODES) if top is None else top
        super().__init__(name, options, top_nodes, chunk, combines)
        nodes, mates = self.grid
        self._crossing: dict[tuple[int, int, int], list[int]] = {}
        self._output_rows: dict[int, dict[tuple[int, int], int]] = {}
        self.counts = self.rows("counts", 1, nodes + mates)
        self.rail_told, self.told, self.go = self.flags("rail", 1), self.flags("told", 1), self.flags("go", 1)
        self.sent_rows = self.rows("send buffers", self.lines, self.channels, nodes, self.each)
        self.came_rows = self.rows("receive buffers", self.lines, self.channels, nodes, self.each)
        self.queues = self.rows("queues", self.lines, self.channels, nodes, mates, self.each)
        self.tails = self.flags("rail tails", self.channels, nodes)
        self.near_tails = self.flags("tails", self.channels, nodes, mates)

    @abstractmethod
    def senders(self, rank: int, channel: int) -> list[Job]:
        """Return the jobs of the sending SM."""

    @abstractmethod
    def forwarders(self, rank: int, channel: int) -> list[Job]:
        """Return the jobs of the forwarding SM."""

    # Routing.

    def crossing(self, rank: int, channel: int, to: int) -> list[int]:
        """Return the tokens of a rank's channel that go to a node."""
        key = rank if len(self.routes) > 1 else 0, channel, to
        if key not in self._crossing:
            mates, routes = self.grid.locals, self.routes_of(rank)
            own = self.tokens_of(channel)
            self._crossing[key] = [t for t in own if any(place[0] // mates == to for place in routes.tokens[t])]
        return self._crossing[key]

    def chunks(self, rank: int, channel: int, to: int) -> list[range]:
        """Return the chunks of the tokens of :meth:`crossing`."""
        return chunks_of(len(self.crossing(rank, channel, to)), self.chunk)

    def of_mates(self, rank: int, token: int, to: int) -> list[int]:
        """Return the ranks of node ``to`` that receive the token, as distances from the rank on the token's rail."""
        mates = self.grid.locals
        return [d % mates for d in self.routes_of(rank).distances(token) if d // mates == to]

    def rail(self, rank: int, to: int, sign: int = 1) -> int:
        return self.grid.at(rank, to * self.grid.locals, sign)

    def output_row(self, here: int, owner: int, token: int) -> int:
        """Return the output row of a token at rank ``here``; rows are ordered by owner distance, then token number."""
        key = here if len(self.routes) > 1 else 0
        if key not in self._output_rows:
            owners = [(d, self.grid.at(here, d, -1) if len(self.routes) > 1 else 0) for d in range(self.num_ranks)]
            order = ((d, token) for d, owner in owners for token in self.by_rank[owner].get(d, []))
            self._output_rows[key] = {place: row for row, place in enumerate(order)}
        return self._output_rows[key][self.grid.distance(owner, here), token]

    # Steps of warps.

    def done(self, label: str) -> None:
        """Wait for all outstanding operations of the warp."""
        self.add(WAITCNT, 0, (), label)

    def publish(self, flags: FlagTable, rank: int, numbers: Sequence[int]) -> None:
        """Move tails of another rank, behind the rows that the warp has written there."""
        self.done("tail")
        self.fence("tail")
        self.release(flags, [(rank, number) for number in numbers], "tail")

    def look(self, label: str) -> None:
        """Load a token's origin, stored beside it: it decides whether the token is copied, and its destination."""
        self.add(DELAY, LOAD_CYCLES, (), label)

    def warp_copy(self, source: tuple[int, int], target: tuple[int, int], label: str) -> None:
        """Copy a row by a warp's loads and stores: groups of five accesses in sequence, then single ones."""
        whole = self.lines // COPY_LINES * COPY_LINES
        more = whole * self.line_bytes
        for lines, first, unroll in ((whole, 0, COPY_LINES), (self.lines - whole, more, ACCESS_LINES)):
            if lines:
                ends = (source[0], source[1] + first), (target[0], target[1] + first)
                self.copy(lines, *ends, label, unroll)
                self.add(DELAY, LOAD_CYCLES, (), label)

    def pass_on(self, rank: int, tail: int, chunks: int, flags: FlagTable, numbers: Sequence[int]) -> None:
        """Poll a NIC tail for every chunk, and notify the waiting warps."""
        for _ in range(chunks):
            self.acquire(self.tails, rank, tail, 1, "tail")
            self.release(flags, [(rank, number) for number in numbers], "tail")

    def put_chunk(self, rank: int, owner: int, place: tuple[int, int, range]) -> None:
        """Put the rows of a chunk from the send buffers to the rank on the same rail, followed by the tail."""
        channel, to, numbers = place
        away = self.grid.distance(rank, owner)
        if self.crosses(away):
            row = channel, to, numbers.start
            self.put(len(numbers) * self.lines, self.sent_rows.at(rank, *row), self.came_rows.at(owner, *row), "put")
        self.notify(self.tails, (owner, self.tails.at(channel, to)), away, "put")

    def built(self) -> GpuProgram:
        """Return the program. As in DeepEP's RDMA bandwidth, its size counts tokens to all nodes including the own."""
        for rank in self.written:
            self._write_kernel(rank)
        crossing = sum(
            len(self.crossing(rank, channel, to))
            for rank in self.written
            for channel in range(self.channels)
            for to in range(self.grid.nodes)
        )
        note = f"{2 * self.channels} SMs; puts of {self.chunk}; {self.moe.words}"
        return self.finished(crossing // len(self.written) * self.token_bytes, note)

    def _write_kernel(self, rank: int) -> None:
        """Write the jobs of each channel's two SMs, one warp per job, after the exchange of counts."""
        jobs = [of(rank, channel) for channel in range(self.channels) for of in (self.forwarders, self.senders)]
        for row in range(max(map(len, jobs))):
            for of_sm in jobs:
                if row < len(of_sm):
                    self.acquire(self.go, rank, 0, 1, "notify")
                    of_sm[row]()
                self.end_workgroup()
        self._tell(rank, sum(map(len, jobs)))
        self.end_kernel(rank, 1, self.name)

    def _tell(self, rank: int, warps: int) -> None:
        """Send counts along the rail, then within the node."""
        nodes, mates = self.grid
        self.store(1, self.counts.at(rank, 0), "notify")
        self.done("notify")
        for to in range(1, nodes):
            self.put(1, self.counts.at(rank, 0), self.counts.at(self.rail(rank, to), to), "notify")
            self.notify(self.rail_told, (self.rail(rank, to), 0), to * mates, "notify")
        if nodes > 1:
            self.acquire(self.rail_told, rank, 0, nodes - 1, "notify")
        others = [self.grid.at(rank, mate) for mate in range(1, mates)]
        for mate, other in enumerate(others, 1):
            self.store(1, self.counts.at(other, nodes + mate), "notify")
        if others:
            self.done("notify")
            self.fence("notify")
            self.release(self.told, [(other, 0) for other in others], "notify")
            self.acquire(self.told, rank, 0, len(others), "notify")
        self.release(self.go, [(rank, 0)], "notify", warps)
        self.end_workgroup()


def dispatch(options: KernelOptions) -> GpuProgram:
    """Build the dispatch of tokens to the ranks of their experts; one node uses ``normal.dispatch``."""
    return normal.dispatch(options) if options.num_nodes == 1 else _NodesDispatch(options).built()


class _NodesDispatch(_Nodes):
    def __init__(self, options: KernelOptions) -> None:
        super().__init__(options, combines=False)
        nodes, mates = self.grid
        self.x = self.rows("input", self.lines, self.moe.tokens)
        self.output = self.rows("output", self.lines, self.num_ranks * self.moe.tokens)
        self.ready = self.flags("ready", self.channels, nodes, SENDERS)
        self.there = self.flags("there", self.channels, nodes, mates)
        #: A rank of the node has one queue, which holds the tokens of all nodes in sequence.
        self.queues = self.queues._replace(strides=strides_of(self.channels, mates, nodes * self.each))
        self.near_tails = self.near_tails._replace(strides=strides_of(self.channels, nodes * mates))

    def senders(self, rank: int, channel: int) -> list[Job]:
        """Return the jobs of the sending SM: warps that copy tokens, one that puts them, and receivers of the node."""
        return [
            *(partial(self.send, rank, channel, warp) for warp in range(SENDERS)),
            partial(self.coordinate, rank, channel),
            *(partial(self.receive, rank, channel, mate) for mate in range(self.grid.locals)),
        ]

    def send(self, rank: int, channel: int, warp: int) -> None:
        """Copy every SENDERS-th token of the channel to the buffers of its nodes."""
        lists = [self.crossing(rank, channel, to) for to in range(self.grid.nodes)]
        for token in self.tokens_of(channel)[warp::SENDERS]:
            chosen = [to for to, tokens in enumerate(lists) if token in tokens]
            for to in chosen:
                buffer = self.sent_rows if to else self.came_rows
                target = buffer.at(rank, channel, to, lists[to].index(token))
                self.copy(self.lines, self.x.at(rank, token), target, "copy", SEND_LINES)
            self.done("copy")
            self.release(self.ready, [(rank, self.ready.at(channel, to, warp)) for to in chosen], "copy")

    def coordinate(self, rank: int, channel: int) -> None:
        """Put the chunks of all nodes in turns, each when its tokens are copied."""
        nodes = range(self.grid.nodes)
        for to, chunk in in_turns([self.chunks(rank, channel, to) for to in nodes], first=channel):
            tokens, first = self.crossing(rank, channel, to), channel * self.each
            copied = [self.ready.at(channel, to, (tokens[i] - first) % SENDERS) for i in chunk]
            self.acquire_all(self.ready, rank, copied, "ready")
            self.put_chunk(rank, self.rail(rank, to), (channel, to, chunk))

    def forwarded(self, rank: int, channel: int, mate: int) -> list[tuple[int, range, list[int]]]:
        """Return the chunks that a rank forwards to one rank of its node, nodes in turns: (node, chunk, its tokens)."""
        owners = [self.rail(rank, to, -1) for to in range(self.grid.nodes)]
        found = []
        for to, chunk in in_turns([self.chunks(owner, channel, to) for to, owner in enumerate(owners)]):
            tokens = self.crossing(owners[to], channel, to)
            found.append((to, chunk, [i for i in chunk if mate in self.of_mates(owners[to], tokens[i], to)]))
        return found

    def forwarders(self, rank: int, channel: int) -> list[Job]:
        """Return the jobs of the forwarding SM: a warp per rank of the node, and one per node that polls its tail."""
        nodes, mates = self.grid
        jobs: list[Job] = [partial(self.forward, rank, channel, mate) for mate in range(mates)]
        for to in range(nodes):
            chunks = len(self.chunks(self.rail(rank, to, -1), channel, to))
            numbers = [self.there.at(channel, to, mate) for mate in range(mates)]
            jobs.append(partial(self.pass_on, rank, self.tails.at(channel, to), chunks, self.there, numbers))
        return jobs

    def forward(self, rank: int, channel: int, mate: int) -> None:
        """Copy the tokens that arrive for a rank of the node to its queue."""
        target, sent = self.grid.at(rank, mate), 0
        for to, of_chunk, numbers in self.forwarded(rank, channel, mate):
            self.acquire(self.there, rank, self.there.at(channel, to, mate), 1, "wait")
            for number in of_chunk:
                self.look("forward")
                if number in numbers:
                    source = self.came_rows.at(rank, channel, to, number)
                    self.warp_copy(source, self.queues.at(target, channel, mate, sent), "forward")
                    sent += 1
            if numbers:
                self.publish(self.near_tails, target, [self.near_tails.at(channel, mate)])

    def receive(self, rank: int, channel: int, mate: int) -> None:
        """Receive from the rank of the node that has this rank at distance ``mate``."""
        source, came = self.grid.at(rank, mate, -1), 0
        for to, _, numbers in self.forwarded(source, channel, mate):
            if not numbers:
                continue
            owner = self.rail(source, to, -1)
            tokens = self.crossing(owner, channel, to)
            self.acquire(self.near_tails, rank, self.near_tails.at(channel, mate), 1, "wait")
            for number in numbers:
                target = self.output.at(rank, self.output_row(rank, owner, tokens[number]))
                self.look("receive")
                self.warp_copy(self.queues.at(rank, channel, mate, came), target, "receive")
                came += 1
            self.done("receive")


def combine(options: KernelOptions) -> GpuProgram:
    """Build the combine, which returns the experts' results and adds them up; one node uses ``normal.combine``."""
    return normal.combine(options) if options.num_nodes == 1 else _NodesCombine(options).built()


class _NodesCombine(_Nodes):
    def __init__(self, options: KernelOptions) -> None:
        super().__init__(options, combines=True)
        nodes, mates = self.grid
        self.near_chunk = BACK_CHUNK[nodes > 2]
        self.warps = max(1, FORWARDERS // nodes)
        self.x = self.rows("input", self.lines, self.num_ranks * self.moe.tokens)
        self.output = self.rows("output", self.lines, self.moe.tokens)
        self.near = self.flags("near", self.channels, nodes, mates, self.warps)
        self.added = self.flags("added", self.channels, nodes, self.warps)
        self.there = self.flags("there", self.channels, nodes, RECEIVERS)

    def rows_of(self, rank: int, channel: int, to: int, mate: int) -> list[int]:
        """Return the numbers of the tokens that ``rank`` forwarded from the node ``to`` nodes back to ``mate``."""
        owner = self.rail(rank, to, -1)
        tokens = self.crossing(owner, channel, to)
        return [i for i, token in enumerate(tokens) if mate in self.of_mates(owner, token, to)]

    def senders(self, rank: int, channel: int) -> list[Job]:
        """Return the jobs of the sending SM: a warp per rank of the node, receivers from nodes, and tail pollers."""
        nodes, mates = self.grid
        jobs: list[Job] = [partial(self.send, rank, channel, mate) for mate in range(mates)]
        jobs += [partial(self.receive, rank, channel, warp) for warp in range(RECEIVERS)]
        for to in range(nodes):
            chunks = len(self.chunks(rank, channel, to))
            numbers = [self.there.at(channel, to, warp) for warp in range(RECEIVERS)]
            jobs.append(partial(self.pass_on, rank, self.tails.at(channel, to), chunks, self.there, numbers))
        return jobs

    def send(self, rank: int, channel: int, mate: int) -> None:
        """Return rows to the rank of the node that has this rank at distance ``mate``, nodes in turns."""
        forwarder = self.grid.at(rank, mate, -1)
        lists = [self.rows_of(forwarder, channel, to, mate) for to in range(self.grid.nodes)]
        for to, chunk in in_turns([chunks_of(len(numbers), self.near_chunk) for numbers in lists]):
            owner = self.rail(forwarder, to, -1)
            tokens = self.crossing(owner, channel, to)
            for i in chunk:
                source = self.x.at(rank, self.output_row(rank, owner, tokens[lists[to][i]]))
                self.warp_copy(source, self.queues.at(forwarder, channel, to, mate, i), "send")
            numbers = [self.near.at(channel, to, mate, warp) for warp in range(self.warps)]
            self.publish(self.near, forwarder, numbers)

    def receive(self, rank: int, channel: int, warp: int) -> None:
        """Add up the nodes' rows for every RECEIVERS-th token of the channel."""
        lists = [self.crossing(rank, channel, to) for to in range(self.grid.nodes)]
        numbers = [self.there.at(channel, to, warp) for to in range(self.grid.nodes)]
        seen = SeenChunks(self, self.there, rank, numbers)
        for token in self.tokens_of(channel)[warp::RECEIVERS]:
            places = [(to, tokens.index(token)) for to, tokens in enumerate(lists) if token in tokens]
            for to, number in places:
                seen.wait(to, number // self.chunk + 1)
            rows = [self.came_rows.at(rank, channel, to, number) for to, number in places]
            self.reduce(self.lines, rows, self.output.at(rank, token), "add up", ADD_LINES * len(rows))
        for to, tokens in enumerate(lists):
            seen.wait(to, len(chunks_of(len(tokens), self.chunk)))

    def forwarders(self, rank: int, channel: int) -> list[Job]:
        """Return the jobs of the forwarding SM: per node, warps that add up this node's rows, and one that puts."""
        jobs: list[Job] = []
        for to in range(self.grid.nodes):
            jobs += [partial(self.forward, rank, channel, to, warp) for warp in range(self.warps)]
            jobs.append(partial(self.put_back, rank, channel, to))
        return jobs

    def forward(self, rank: int, channel: int, to: int, warp: int) -> None:
        """Add up this warp's share of the tokens that came from the node ``to`` nodes back."""
        mates = range(self.grid.locals)
        lists = [self.rows_of(rank, channel, to, mate) for mate in mates]
        seen = SeenChunks(self, self.near, rank, [self.near.at(channel, to, mate, warp) for mate in mates])
        buffer = self.sent_rows if to else self.came_rows
        for number in range(warp, len(self.crossing(self.rail(rank, to, -1), channel, to)), self.warps):
            places = [(mate, numbers.index(number)) for mate, numbers in enumerate(lists) if number in numbers]
            for mate, i in places:
                seen.wait(mate, i // self.near_chunk + 1)
            rows = [self.queues.at(rank, channel, to, mate, i) for mate, i in places]
            self.reduce(self.lines, rows, buffer.at(rank, channel, to, number), "forward", ADD_LINES * len(rows))
            self.done("forward")
            self.release(self.added, [(rank, self.added.at(channel, to, warp))], "forward")
        for mate, numbers in enumerate(lists):
            seen.wait(mate, len(chunks_of(len(numbers), self.near_chunk)))

    def put_back(self, rank: int, channel: int, to: int) -> None:
        """Put the chunks of sums back to the node ``to`` nodes back, each when its sums are complete."""
        owner = self.rail(rank, to, -1)
        for chunk in self.chunks(owner, channel, to):
            added = [self.added.at(channel, to, number % self.warps) for number in chunk]
            self.acquire_all(self.added, rank, added, "added")
            self.put_chunk(rank, owner, (channel, to, chunk))
