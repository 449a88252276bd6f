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

from collections.abc import Callable

from trine.errors import InputError
from trine.gpu.kernels.moe import normal
from trine.gpu.kernels.moe.builder import FlagTable, MoeBuilder, moe_of
from trine.gpu.kernels.moe.normal import EXPERT_BYTES, NUMBER_BYTES, WEIGHT_BYTES
from trine.gpu.kernels.moe.options import NORMAL_SMS, TOP_NODES
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

Job = Callable[[], None]


class _Nodes(MoeBuilder):
    def __init__(self, name: str, options: KernelOptions, sizes: tuple[int, int], chunks: tuple[int, int]) -> None:
        top = moe_of(options).top_nodes
        if options.num_nodes > MOST_NODES or options.num_ranks // options.num_nodes > MOST_MATES:
            raise InputError(
                f"{name} is for at most {MOST_NODES} nodes of {MOST_MATES}, and these are {options.num_nodes} of "
                f"{options.num_ranks // options.num_nodes}: take 'low-latency'",
                field="algorithm",
            )
        super().__init__(name, options, min(options.num_nodes, TOP_NODES) if top is None else top)
        moe = self.moe
        self.channels, self.chunk = (moe.sms or NORMAL_SMS) // 2, chunks[options.num_nodes > 2]
        self.token_bytes, more_bytes = sizes
        self.lines, self.each = self.lines_of(self.token_bytes + more_bytes), -(-moe.tokens // self.channels)
        self.by_rank = [routes.by_rank() for routes in self.routes]
        nodes, mates = self.grid
        self._crossing: dict[tuple[int, int, int], list[int]] = {}
        self._output_rows: dict[int, dict[tuple[int, int], int]] = {}
        self.counts = self.rows("counts", nodes + mates, 1)
        self.rail_told, self.told, self.go = self.flags("rail", 1), self.flags("told", 1), self.flags("go", 1)
        self.sent_rows = self.rows("send buffers", self.channels * nodes * self.each, self.lines)
        self.came_rows = self.rows("receive buffers", self.channels * nodes * self.each, self.lines)
        self.queues = self.rows("queues", self.channels * nodes * mates * self.each, self.lines)
        self.tails = self.flags("rail tails", self.channels * nodes)
        self.near_tails = self.flags("tails", self.channels * nodes * mates)

    # Routing. ``to``: distance in nodes; ``mate``: distance to a rank within the node.

    def crossing(self, rank: int, channel: int, to: int) -> list[int]:
        """Return the tokens of a rank's channel that go to a node."""
        key = rank if len(self.routes) > 1 else 0, channel, to
        if key not in self._crossing:
            mates, routes = self.grid.locals, self.routes_of(rank)
            tokens = range(channel * self.each, min((channel + 1) * self.each, self.moe.tokens))
            self._crossing[key] = [t for t in tokens if any(place[0] // mates == to for place in routes.tokens[t])]
        return self._crossing[key]

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

    def slot(self, channel: int, to: int, number: int) -> int:
        return (channel * self.grid.nodes + to) * self.each + number

    def near_slot(self, channel: int, to: int, mate: int, number: int) -> int:
        return ((channel * self.grid.nodes + to) * self.grid.locals + mate) * self.each + number

    def stream_slot(self, channel: int, mate: int) -> int:
        """Return the first slot of a node rank's queue, which holds the tokens of all nodes in sequence."""
        return (channel * self.grid.locals + mate) * self.grid.nodes * self.each

    def chunks_of(self, count: int, chunk: int) -> list[range]:
        return [range(first, min(first + chunk, count)) for first in range(0, count, chunk)]

    # Steps of warps.

    def done(self, label: str) -> None:
        """Wait for all outstanding operations of the warp."""
        self.add(WAITCNT, 0, (), label)

    def look(self, label: str) -> None:
        """Load a token's origin, stored beside it: it decides whether the token is copied, and its destination."""
        self.add(DELAY, LOAD_CYCLES, (), label)

    def warp_copy(self, source: tuple[int, int], target: tuple[int, int], label: str) -> None:
        """Copy a row by a warp's loads and stores: groups of five accesses in sequence, then single ones."""
        whole = self.lines // COPY_LINES * COPY_LINES
        if whole:
            self.copy(whole, source, target, label, COPY_LINES)
            self.add(DELAY, LOAD_CYCLES, (), label)
        if self.lines > whole:
            more = whole * self.line_bytes
            rest = (source[0], source[1] + more), (target[0], target[1] + more)
            self.copy(self.lines - whole, *rest, label, ACCESS_LINES)
            self.add(DELAY, LOAD_CYCLES, (), label)

    def pass_on(self, tails: FlagTable, rank: int, tail: int, targets: tuple[FlagTable, range], chunks: int) -> Job:
        """Return the job of a warp that polls a tail and notifies the waiting warps."""
        flags, numbers = targets

        def job() -> None:
            for _ in range(chunks):
                self.acquire(tails, rank, tail, 1, "tail")
                self.release(flags, [(rank, number) for number in numbers], "tail")

        return job

    def put_chunk(self, rank: int, owner: int, place: tuple[int, int, range]) -> None:
        """Put the rows of a chunk from the send buffers to the rank on the same rail, followed by the tail."""
        channel, to, numbers = place
        away = self.grid.distance(rank, owner)
        if self.crosses(away):
            row = self.slot(channel, to, numbers.start)
            self.put(len(numbers) * self.lines, self.sent_rows.at(rank, row), self.came_rows.at(owner, row), "put")
        self.notify(self.tails, (owner, channel * self.grid.nodes + to), away, "put")

    def write_kernel(self, rank: int, jobs: list[list[Job]]) -> None:
        """Write the jobs of each SM, one warp per job, after the exchange of counts."""
        started = 0
        for row in range(max(map(len, jobs))):
            for of_sm in jobs:
                if row < len(of_sm):
                    self.acquire(self.go, rank, 0, 1, "notify")
                    of_sm[row]()
                    started += 1
                self.end_workgroup()
        self._tell(rank, started)
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

    def all_ranks(self) -> GpuProgram:
        """Return the program. As in DeepEP's RDMA bandwidth, its size counts tokens to all nodes including the own."""
        crossing = sum(
            len(self.crossing(rank, channel, to))
            for rank in self.written
            for channel in range(self.channels)
            for to in range(self.grid.nodes)
        )
        note = f"{2 * self.channels} SMs; puts of {self.chunk}; {self.moe.words}"
        return self.finished(crossing // len(self.written) * self.token_bytes, note)


def dispatch(options: KernelOptions) -> GpuProgram:
    """Build the dispatch of tokens to the ranks of their experts; one node uses ``normal.dispatch``."""
    if options.num_nodes == 1:
        return normal.dispatch(options)
    moe = moe_of(options)
    more_bytes = NUMBER_BYTES + moe.top_k * (EXPERT_BYTES + WEIGHT_BYTES)
    builder = _NodesDispatch("moe_dispatch/normal", options, (moe.token_bytes, more_bytes), PUT_TOKENS)
    return _written(builder)


class _NodesDispatch(_Nodes):
    def __init__(self, name: str, options: KernelOptions, sizes: tuple[int, int], chunks: tuple[int, int]) -> None:
        super().__init__(name, options, sizes, chunks)
        nodes, mates = self.grid
        self.x = self.rows("input", self.moe.tokens, self.lines)
        self.output = self.rows("output", self.num_ranks * self.moe.tokens, self.lines)
        self.ready = self.flags("ready", self.channels * nodes * SENDERS)
        self.there = self.flags("there", self.channels * nodes * mates)

    def senders(self, rank: int, channel: int) -> list[Job]:
        """Return the jobs of the sending SM: warps that copy tokens, one that puts them, and receivers of the node."""
        nodes, mates = self.grid
        lists = [self.crossing(rank, channel, to) for to in range(nodes)]
        first = channel * self.each

        def ready(to: int, warp: int) -> int:
            return (channel * nodes + to) * SENDERS + warp

        def send(warp: int) -> None:
            for token in range(first + warp, min(first + self.each, self.moe.tokens), SENDERS):
                chosen = [to for to in range(nodes) if token in lists[to]]
                for to in chosen:
                    buffer = self.sent_rows if to else self.came_rows
                    target = buffer.at(rank, self.slot(channel, to, lists[to].index(token)))
                    self.copy(self.lines, self.x.at(rank, token), target, "copy", SEND_LINES)
                self.done("copy")
                self.release(self.ready, [(rank, ready(to, warp)) for to in chosen], "copy")

        def coordinate() -> None:
            chunks = [self.chunks_of(len(tokens), self.chunk) for tokens in lists]
            for number in range(max(map(len, chunks))):
                for turn in range(nodes):
                    to = (turn + channel) % nodes
                    if number >= len(chunks[to]):
                        continue
                    chunk = chunks[to][number]
                    of = [(lists[to][i] - first) % SENDERS for i in chunk]
                    for warp in sorted(set(of)):
                        self.acquire(self.ready, rank, ready(to, warp), of.count(warp), "ready")
                    self.put_chunk(rank, self.rail(rank, to), (channel, to, chunk))

        return [
            *(lambda warp=warp: send(warp) for warp in range(SENDERS)),
            coordinate,
            *(lambda mate=mate: self.receive(rank, channel, mate) for mate in range(mates)),
        ]

    def forwarded(self, rank: int, channel: int, mate: int) -> list[tuple[int, range, list[int]]]:
        """Return the chunks that a rank forwards to one rank of its node, nodes in turns: (node, chunk, its tokens)."""
        nodes = self.grid.nodes
        lists = [self.crossing(self.rail(rank, to, -1), channel, to) for to in range(nodes)]
        chunks = [self.chunks_of(len(tokens), self.chunk) for tokens in lists]
        found = []
        for number in range(max(map(len, chunks), default=0)):
            for to in range(nodes):
                if number < len(chunks[to]):
                    owner = self.rail(rank, to, -1)
                    chosen = [i for i in chunks[to][number] if mate in self.of_mates(owner, lists[to][i], to)]
                    found.append((to, chunks[to][number], chosen))
        return found

    def forwarders(self, rank: int, channel: int) -> list[Job]:
        """Return the jobs of the forwarding SM: a warp per rank of the node, and one per node that polls its tail."""
        nodes, mates = self.grid

        def forward(mate: int) -> None:
            target, sent = self.grid.at(rank, mate), 0
            for to, of_chunk, numbers in self.forwarded(rank, channel, mate):
                self.acquire(self.there, rank, (channel * nodes + to) * mates + mate, 1, "wait")
                for number in of_chunk:
                    self.look("forward")
                    if number not in numbers:
                        continue
                    source = self.came_rows.at(rank, self.slot(channel, to, number))
                    place = self.queues.at(target, self.stream_slot(channel, mate) + sent)
                    self.warp_copy(source, place, "forward")
                    sent += 1
                if numbers:
                    self.done("tail")
                    self.fence("tail")
                    self.release(self.near_tails, [(target, channel * nodes * mates + mate)], "tail")

        watchers = []
        for to in range(nodes):
            numbers = range((channel * nodes + to) * mates, (channel * nodes + to + 1) * mates)
            count = len(self.chunks_of(len(self.crossing(self.rail(rank, to, -1), channel, to)), self.chunk))
            watchers.append(self.pass_on(self.tails, rank, channel * nodes + to, (self.there, numbers), count))
        return [*(lambda mate=mate: forward(mate) for mate in range(mates)), *watchers]

    def receive(self, rank: int, channel: int, mate: int) -> None:
        """Receive from the rank of the node that has this rank at distance ``mate``."""
        nodes, mates = self.grid
        source, came = self.grid.at(rank, mate, -1), 0
        for to, _, numbers in self.forwarded(source, channel, mate):
            if not numbers:
                continue
            owner = self.rail(source, to, -1)
            tokens = self.crossing(owner, channel, to)
            self.acquire(self.near_tails, rank, channel * nodes * mates + mate, 1, "wait")
            for number in numbers:
                row = self.output_row(rank, owner, tokens[number])
                place = self.queues.at(rank, self.stream_slot(channel, mate) + came)
                self.look("receive")
                self.warp_copy(place, self.output.at(rank, row), "receive")
                came += 1
            self.done("receive")


def combine(options: KernelOptions) -> GpuProgram:
    """Build the combine, which returns the experts' results and adds them up; one node uses ``normal.combine``."""
    if options.num_nodes == 1:
        return normal.combine(options)
    moe = moe_of(options)
    sizes = moe.combined_bytes, NUMBER_BYTES + moe.top_k * WEIGHT_BYTES
    builder = _NodesCombine("moe_combine/normal", options, sizes, BACK_TOKENS)
    return _written(builder)


class _NodesCombine(_Nodes):
    def __init__(self, name: str, options: KernelOptions, sizes: tuple[int, int], chunks: tuple[int, int]) -> None:
        super().__init__(name, options, sizes, chunks)
        nodes, mates = self.grid
        self.near_chunk = BACK_CHUNK[nodes > 2]
        self.warps = max(1, FORWARDERS // nodes)
        self.x = self.rows("input", self.num_ranks * self.moe.tokens, self.lines)
        self.output = self.rows("output", self.moe.tokens, self.lines)
        self.near = self.flags("near", self.channels * nodes * mates * self.warps)
        self.added = self.flags("added", self.channels * nodes * self.warps)
        self.there = self.flags("there", self.channels * nodes * RECEIVERS)

    def rows_of(self, rank: int, channel: int, to: int, mate: int) -> list[int]:
        """Return the numbers of the tokens that ``rank`` forwarded from the node ``to`` nodes back to ``mate``."""
        owner = self.rail(rank, to, -1)
        tokens = self.crossing(owner, channel, to)
        return [i for i, token in enumerate(tokens) if mate in self.of_mates(owner, token, to)]

    def senders(self, rank: int, channel: int) -> list[Job]:
        """Return the jobs of the sending SM: a warp per rank of the node, receivers from nodes, and tail pollers."""
        nodes, mates = self.grid

        def send(mate: int) -> None:
            """Return rows to the rank of the node that has this rank at distance ``mate``, nodes in turns."""
            forwarder = self.grid.at(rank, mate, -1)
            lists = [self.rows_of(forwarder, channel, to, mate) for to in range(nodes)]
            chunks = [self.chunks_of(len(numbers), self.near_chunk) for numbers in lists]
            for number in range(max(map(len, chunks))):
                for to in range(nodes):
                    if number >= len(chunks[to]):
                        continue
                    owner = self.rail(forwarder, to, -1)
                    tokens = self.crossing(owner, channel, to)
                    for i in chunks[to][number]:
                        source = self.x.at(rank, self.output_row(rank, owner, tokens[lists[to][i]]))
                        place = self.queues.at(forwarder, self.near_slot(channel, to, mate, i))
                        self.warp_copy(source, place, "send")
                    self.done("tail")
                    self.fence("tail")
                    flag = ((channel * nodes + to) * mates + mate) * self.warps
                    self.release(self.near, [(forwarder, flag + warp) for warp in range(self.warps)], "tail")

        lookouts = []
        for to in range(nodes):
            numbers = range((channel * nodes + to) * RECEIVERS, (channel * nodes + to + 1) * RECEIVERS)
            count = len(self.chunks_of(len(self.crossing(rank, channel, to)), self.chunk))
            lookouts.append(self.pass_on(self.tails, rank, channel * nodes + to, (self.there, numbers), count))
        return [
            *(lambda mate=mate: send(mate) for mate in range(mates)),
            *(lambda warp=warp: self.receive(rank, channel, warp) for warp in range(RECEIVERS)),
            *lookouts,
        ]

    def receive(self, rank: int, channel: int, warp: int) -> None:
        """Add up the nodes' rows for every RECEIVERS-th token of the channel."""
        nodes = self.grid.nodes
        lists = [self.crossing(rank, channel, to) for to in range(nodes)]
        seen = _Seen(self, self.there, rank, lambda to: (channel * nodes + to) * RECEIVERS + warp)
        first = channel * self.each
        for token in range(first + warp, min(first + self.each, self.moe.tokens), RECEIVERS):
            places = [(to, lists[to].index(token)) for to in range(nodes) if token in lists[to]]
            for to, number in places:
                seen.chunk(to, number // self.chunk + 1)
            rows = [self.came_rows.at(rank, self.slot(channel, to, number)) for to, number in places]
            self.reduce(self.lines, rows, self.output.at(rank, token), "add up", ADD_LINES * len(rows))
        for to in range(nodes):
            seen.chunk(to, len(self.chunks_of(len(lists[to]), self.chunk)))

    def forwarders(self, rank: int, channel: int) -> list[Job]:
        """Return the jobs of the forwarding SM: per node, warps that add up this node's rows, and one that puts."""
        nodes = self.grid.nodes
        jobs: list[Job] = []
        for to in range(nodes):
            jobs += [lambda to=to, w=w: self.forward(rank, channel, to, w) for w in range(self.warps)]  # type: ignore[misc]
            jobs.append(lambda to=to: self.put_back(rank, channel, to))  # type: ignore[misc]
        return jobs

    def forward(self, rank: int, channel: int, to: int, warp: int) -> None:
        """Add up this warp's share of the tokens that came from the node ``to`` nodes back."""
        nodes, mates = self.grid
        owner = self.rail(rank, to, -1)
        lists = [self.rows_of(rank, channel, to, mate) for mate in range(mates)]
        flag = (channel * nodes + to) * mates
        seen = _Seen(self, self.near, rank, lambda mate: (flag + mate) * self.warps + warp)
        buffer = self.sent_rows if to else self.came_rows
        count = len(self.crossing(owner, channel, to))
        for number in range(warp, count, self.warps):
            places = [(mate, lists[mate].index(number)) for mate in range(mates) if number in lists[mate]]
            for mate, i in places:
                seen.chunk(mate, i // self.near_chunk + 1)
            rows = [self.queues.at(rank, self.near_slot(channel, to, mate, i)) for mate, i in places]
            target = buffer.at(rank, self.slot(channel, to, number))
            self.reduce(self.lines, rows, target, "forward", ADD_LINES * len(rows))
            self.done("forward")
            self.release(self.added, [(rank, (channel * nodes + to) * self.warps + warp)], "forward")
        for mate in range(mates):
            seen.chunk(mate, len(self.chunks_of(len(lists[mate]), self.near_chunk)))

    def put_back(self, rank: int, channel: int, to: int) -> None:
        owner = self.rail(rank, to, -1)
        for chunk in self.chunks_of(len(self.crossing(owner, channel, to)), self.chunk):
            of = [number % self.warps for number in chunk]
            for warp in sorted(set(of)):
                flag = (channel * self.grid.nodes + to) * self.warps + warp
                self.acquire(self.added, rank, flag, of.count(warp), "added")
            self.put_chunk(rank, owner, (channel, to, chunk))


class _Seen:
    """The number of chunks that a warp has seen from each source."""

    def __init__(self, builder: MoeBuilder, flags: FlagTable, rank: int, flag: Callable[[int], int]) -> None:
        self._builder, self._flags, self._rank, self._flag = builder, flags, rank, flag
        self._seen: dict[int, int] = {}

    def chunk(self, which: int, count: int) -> None:
        """Wait until ``count`` chunks of a source have arrived."""
        more = count - self._seen.get(which, 0)
        if more > 0:
            self._builder.acquire(self._flags, self._rank, self._flag(which), more, "wait")
            self._seen[which] = count


def _written(builder: _NodesDispatch | _NodesCombine) -> GpuProgram:
    """Write the kernels of all ranks: one forwarding and one sending SM per channel."""
    for rank in builder.written:
        jobs: list[list[Job]] = []
        for channel in range(builder.channels):
            jobs += [builder.forwarders(rank, channel), builder.senders(rank, channel)]
        builder.write_kernel(rank, jobs)
    return builder.all_ranks()
