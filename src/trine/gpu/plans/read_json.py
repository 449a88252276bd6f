"""Reader of MSCCL++ plans of both generations: docs/formats/mscclpp.md."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from trine.common.key_reader import BOOLEAN, TEXT, KeyReader, named, tuple_of, whole
from trine.gpu.plans import plan as ir
from trine.gpu.plans.reading import (
    COLLECTIVES,
    COUNT,
    INDEX,
    MAX_BYTES,
    MAX_RANKS,
    buffer_of_letter,
    chunks_of_size,
    pick,
)
from trine.gpu.plans.vocabulary import PACKET, SIGNALS, Move, OperandKind, PlanVocabulary, Side

REDUCE_OPS = ("sum", "min", "max")
#: Puts that signal behind their data; the second one then waits until the data has left.
SIGNALLING_PUTS = ("pws", "pwsf")

#: Kind of a thread block's channels, with the local and the remote buffer of those that are identified by them.
ChannelKey = tuple[str, str | None, str | None]


def read_plan(data: object, file: str, vocabulary: PlanVocabulary) -> ir.KernelPlan:
    """Read the plain data of an MSCCL++ file in the vocabulary of its generation.

    Raises SpecError: anything unknown, missing, out of range or inconsistent; names file, GPU, thread block and
    operation.
    """
    top = KeyReader(data, file, "")
    gpus = top.mappings("gpus")
    if not 1 <= len(gpus) <= MAX_RANKS:
        raise top.fail(f"must be 1 to {MAX_RANKS} GPUs, got {len(gpus)}", "gpus")
    collective = COLLECTIVES[top.read("collective", named(COLLECTIVES))]
    protocol, in_place = top.read("protocol", named(("Simple", "LL"))), top.read("inplace", BOOLEAN)
    groups: list[ir.MulticastGroup] = []
    notes: dict[str, None] = {}
    kernels = tuple(_GpuReader(gpu, rank, len(gpus), vocabulary, groups, notes).read() for rank, gpu in enumerate(gpus))
    name = top.read("name", TEXT)
    threads_per_block = top.read("num_threads_per_block", whole(1, 1024), 1024)
    double_scratch = top.read("use_double_scratch_buffer", BOOLEAN, False)
    min_bytes = top.read("min_message_size", whole(0, MAX_BYTES), 0)
    max_bytes = top.read("max_message_size", whole(0, MAX_BYTES), MAX_BYTES)
    reuse = False if vocabulary.by_buffers else top.read("reuse_resources", BOOLEAN, False)
    alignment = 16 if vocabulary.by_buffers else top.read("buffer_alignment", whole(1, 2**20), 16)
    plan = ir.KernelPlan(
        name=name, collective=collective, format=vocabulary.format, protocol=protocol, in_place=in_place, gpus=kernels,
        groups=tuple(groups), threads_per_block=threads_per_block, double_scratch=double_scratch, min_bytes=min_bytes,
        max_bytes=max_bytes, chunks_of_size=chunks_of_size(collective, kernels), notes=tuple(notes), file=file,
        reuse_scratch=reuse, alignment=alignment,
    )  # fmt: skip
    top.done()
    return plan


class _GpuReader:
    """Reader of one GPU: its connections and multicast groups, then its thread blocks.

    groups, notes: multicast groups and notes of the plan; each GPU appends its own.
    """

    def __init__(
        self,
        gpu: KeyReader,
        rank: int,
        num_ranks: int,
        vocabulary: PlanVocabulary,
        groups: list[ir.MulticastGroup],
        notes: dict[str, None],
    ) -> None:
        self.gpu, self.rank, self.num_ranks, self.vocabulary = gpu, rank, num_ranks, vocabulary
        self.groups, self.notes = groups, notes
        if gpu.read("id", whole(0, num_ranks - 1)) != rank:
            raise gpu.fail(f"GPUs must come in the order of their ids, this is number {rank}", "id")
        self.own_groups: list[int] = []
        self.connections = self._connections()
        self.remote: tuple[ir.RemoteBuffer, ...] = ()
        self.semaphores: tuple[int, ...] = ()

    def read(self) -> ir.KernelGpu:
        """Return the GPU. Raises SpecError for unknown keys and values out of range."""
        gpu, chunk_groups = self.gpu, 1
        if self.vocabulary.by_buffers:
            chunk_groups = gpu.read("chunkGroups", COUNT, 1)
        else:
            self.remote = tuple(self._remote_buffer(item) for item in gpu.mappings("remote_buffers", []))
            self.semaphores = tuple(self._semaphore(item) for item in gpu.mappings("semaphores", []))
        inputs, outputs, scratch = (gpu.read(name, INDEX) for name in self.vocabulary.chunks)
        result = ir.KernelGpu(
            rank=self.rank, input_chunks=inputs, output_chunks=outputs, scratch_chunks=scratch,
            blocks=tuple(_BlockReader(self, item, n).read() for n, item in enumerate(gpu.mappings("threadblocks"))),
            connections=self.connections, groups=tuple(self.own_groups), semaphores=self.semaphores,
            chunk_groups=chunk_groups,
        )  # fmt: skip
        gpu.done()
        return result

    def _connections(self) -> tuple[ir.Connection, ...]:
        """Return memory connections, then port connections, numbered alike at both ends; collect the groups."""
        vocabulary = self.vocabulary
        by_kind: dict[str, list[ir.Connection]] = {ir.MEMORY: [], ir.PORT: []}
        counts: Counter[tuple[str, int]] = Counter()
        for channel in self.gpu.mappings("channels"):
            kind = vocabulary.kinds[channel.read(vocabulary.kind, named(vocabulary.kinds))]
            if kind == ir.SWITCH:
                buffer = self._switch_buffer(channel)
                for item in channel.mappings(vocabulary.groups):
                    self._join_group(item, buffer)
            else:
                local = channel.read("srcbuff", buffer_of_letter) if vocabulary.by_buffers else None
                remote = channel.read("dstbuff", buffer_of_letter) if vocabulary.by_buffers else None
                peers = channel.read(vocabulary.peers, tuple_of(whole(0, self.num_ranks - 1)))
                if self.rank in peers:
                    raise channel.fail(f"GPU {self.rank} is connected to itself", vocabulary.peers)
                for peer in peers:
                    pair = counts[kind, peer]
                    by_kind[kind].append(
                        ir.Connection(kind=kind, peer=peer, pair=pair, local_buffer=local, remote_buffer=remote)
                    )
                    counts[kind, peer] += 1
            channel.done()
        return (*by_kind[ir.MEMORY], *by_kind[ir.PORT])

    def _switch_buffer(self, channel: KeyReader) -> str:
        if self.vocabulary.by_buffers:
            return channel.read("buff", buffer_of_letter)
        if not channel.has("buff"):
            return channel.read("buffer_type", buffer_of_letter)
        # Plans written between PR #579 and v0.8.0; today's MSCCL++ refuses them.
        self.notes["switch channels say 'buff', which MSCCL++ from v0.8.0 on calls 'buffer_type'"] = None
        return channel.read("buff", buffer_of_letter)

    def _join_group(self, item: KeyReader, buffer: str) -> None:
        """Read one rank group of a switch channel, and add its number in the plan to the GPU's groups.

        The n-th group of a GPU with these ranks is the n-th one of every other member.
        """
        ranks = item.read("ranks", tuple_of(whole(0, self.num_ranks - 1)))
        if item.read("size", whole(1, self.num_ranks)) != len(ranks) or len(set(ranks)) != len(ranks):
            raise item.fail("size must be the number of ranks, and no rank may come twice")
        if self.rank not in ranks:
            raise item.fail(f"GPU {self.rank} is not in its own group", "ranks")
        item.done()
        group = ir.MulticastGroup(ranks=tuple(sorted(ranks)), buffer=buffer)
        ordinal = sum(self.groups[number] == group for number in self.own_groups)
        numbers = [number for number, existing in enumerate(self.groups) if existing == group]
        if ordinal == len(numbers):
            numbers.append(len(self.groups))
            self.groups.append(group)
        self.own_groups.append(numbers[ordinal])

    def _remote_buffer(self, item: KeyReader) -> ir.RemoteBuffer:
        peer = item.read("rank", whole(0, self.num_ranks - 1))
        if peer == self.rank:
            raise item.fail(f"a remote buffer of GPU {self.rank} must be another's", "rank")
        place = item.read("type", buffer_of_letter)
        access = item.read("access_channel_types", tuple_of(named((ir.MEMORY, ir.PORT))))
        if not access:
            raise item.fail("must have at least one channel type", "access_channel_types")
        item.done()
        return ir.RemoteBuffer(rank=peer, buffer=place, access=access)

    def _semaphore(self, item: KeyReader) -> int:
        value = item.read("init_value", whole(0, 2**20))
        item.done()
        return value


class _BlockReader:
    """Reader of a thread block; its operations index the block's channels and remote buffers."""

    def __init__(self, gpu: _GpuReader, block: KeyReader, number: int) -> None:
        self.gpu, self.vocabulary, self.block, self.number = gpu, gpu.vocabulary, block, number
        if block.read("id", INDEX) != number:
            raise block.fail(f"thread blocks must come in the order of their ids, this is number {number}", "id")
        self.channels: dict[ChannelKey, list[int]] = {}
        self.buffers: dict[str, list[int]] = {ir.MEMORY: [], ir.PORT: []}
        if not self.vocabulary.by_buffers:
            self.channels = {(kind, None, None): [] for kind in self.vocabulary.kinds}
        self._read_channels()
        if not self.vocabulary.by_buffers:
            self._read_buffers()

    def read(self) -> ir.ThreadBlock:
        """Return the thread block."""
        operations = tuple(self._operation(op) for op in self.block.mappings("ops"))
        self.block.done()
        listed = [(key[0], number) for key, numbers in self.channels.items() for number in numbers]
        connections_in_order = tuple(number for kind, number in listed if kind != ir.SWITCH)
        group_numbers = tuple(number for kind, number in listed if kind == ir.SWITCH)
        return ir.ThreadBlock(
            id=self.number,
            operations=operations,
            connections=connections_in_order,
            groups=group_numbers,
        )

    def _read_channels(self) -> None:
        for item in self.block.mappings("channels"):
            key = self._key(item, item)
            numbers = self._channel_numbers(key)
            if not self.vocabulary.by_buffers and key[0] == ir.SWITCH and item.has("buff"):
                item.read("buff", buffer_of_letter)
            for index in item.read(self.vocabulary.listed, tuple_of(INDEX)):
                number = pick(item, numbers, index, f"{key[0]} channel", self.vocabulary.listed)
                self.channels.setdefault(key, []).append(number)
            item.done()

    def _key(self, ends: KeyReader, item: KeyReader) -> ChannelKey:
        local = ends.read("src", buffer_of_letter) if self.vocabulary.by_buffers else None
        remote = ends.read("dst", buffer_of_letter) if self.vocabulary.by_buffers else None
        return (
            self.vocabulary.kinds[item.read(self.vocabulary.listed_kind, named(self.vocabulary.kinds))],
            local,
            remote,
        )

    def _channel_numbers(self, key: ChannelKey) -> tuple[int, ...]:
        """Return the GPU's channels of this key, in order."""
        kind, local, remote = key
        if kind == ir.SWITCH:
            groups = self.gpu.groups
            return tuple(n for n in self.gpu.own_groups if local is None or groups[n].buffer == local == remote)
        ends = enumerate(self.gpu.connections)
        return tuple(number for number, c in ends if (c.kind, c.local_buffer, c.remote_buffer) == key)

    def _read_buffers(self) -> None:
        for item in self.block.mappings("remote_buffer_refs", []):
            kind = item.read("access_channel_type", named((ir.MEMORY, ir.PORT)))
            for index in item.read("remote_buffer_ids", tuple_of(INDEX)):
                number = pick(item, tuple(range(len(self.gpu.remote))), index, "remote buffer", "remote_buffer_ids")
                if kind not in self.gpu.remote[number].access:
                    raise item.fail(f"remote buffer {index} is not accessed by {kind} channels", "remote_buffer_ids")
                self.buffers[kind].append(number)
            item.done()

    def _operation(self, op: KeyReader, in_pipeline: bool = False) -> ir.KernelOp:
        """Return one operation; ``in_pipeline``: it is in a pipeline."""
        name = op.read("name", named((*self.vocabulary.moves, *self.vocabulary.controls)))
        if name in self.vocabulary.moves:
            result = self._move(op, name, self.vocabulary.moves[name])
        elif name in SIGNALS:
            action, relaxed = SIGNALS[name]
            result = ir.KernelOp(action=action, name=name, relaxed=relaxed, connections=self._signalled(op, action))
        else:
            result = self._control(op, name, in_pipeline)
        op.done()
        return result

    def _control(self, op: KeyReader, name: str, in_pipeline: bool) -> ir.KernelOp:
        if name == "nop":
            return ir.KernelOp(action=ir.SYNC, name=name, dependencies=self._dependencies(op))
        if name == "barrier":
            number, count = (
                op.read("barrier_id", INDEX),
                op.read(self.vocabulary.barrier_blocks, COUNT),
            )
            return ir.KernelOp(action=ir.BARRIER, name=name, barrier=number, num_blocks=count)
        if name == "pipeline":
            return self._pipeline(op, in_pipeline)
        numbers = op.read("semaphore_ids", tuple_of(INDEX))
        for number in numbers:
            pick(op, tuple(range(len(self.gpu.semaphores))), number, "semaphore", "semaphore_ids")
        return ir.KernelOp(action=ir.ACQUIRE if name == "sem_acquire" else ir.RELEASE, name=name, semaphores=numbers)

    def _dependencies(self, op: KeyReader) -> tuple[tuple[int, int], ...]:
        result = []
        for item in op.mappings("deps", []) if self.vocabulary.by_buffers else ():
            result.append((item.read("tb", INDEX), item.read("step", INDEX)))
            item.done()
        return tuple(result)

    def _pipeline(self, op: KeyReader, in_pipeline: bool) -> ir.KernelOp:
        if in_pipeline:
            raise op.fail("a pipeline inside a pipeline")
        context = op.mapping("iter_context")
        unit, chunks = context.read("unit_size", whole(1, 2**40)), context.read("num_chunks", COUNT)
        context.done()
        body = tuple(self._operation(item, in_pipeline=True) for item in op.mappings("ops"))
        return ir.KernelOp(action=ir.PIPELINE, name="pipeline", unit_bytes=unit, num_chunks=chunks, operations=body)

    # Channels of operations.

    def _signalled(self, op: KeyReader, action: str) -> tuple[int, ...]:
        """Return the connections that a signal, wait or flush names."""
        if not self.vocabulary.by_buffers:
            return self._named_connections(op, (ir.PORT,) if action == ir.FLUSH else (ir.MEMORY, ir.PORT))
        op.read("cnt", COUNT, 1)  # counts and offsets are ignored
        direction = "i" if action == ir.WAIT else "o"
        return tuple(number for number, _ in self._through(op, direction))

    def _named_connections(self, op: KeyReader, kinds: tuple[str, ...]) -> tuple[int, ...]:
        """Return the connections of channel_ids."""
        kind = op.read("channel_type", named(kinds))
        ids = op.read("channel_ids", tuple_of(INDEX))
        if not ids:
            raise op.fail("names no channel", "channel_ids")
        return tuple(self._pick(op, kind, index, "channel_ids") for index in ids)

    def _pick(self, item: KeyReader, kind: str, index: int, name: str) -> int:
        return pick(item, tuple(self.channels[kind, None, None]), index, f"{kind} channel", name)

    def _through(self, op: KeyReader, side: str) -> list[tuple[int, int]]:
        """Return (connection, chunk at the other end) of each entry of i_cids or o_cids."""
        key = self._key(op.mapping(f"{side}_buff"), op)
        channels = tuple(self.channels.get(key, ()))
        result = []
        for item in op.mappings(f"{side}_cids"):
            index, chunk = item.read("id", INDEX), item.read("off", INDEX)
            description = f"{key[0]} channel from {key[1]} to {key[2]}"
            result.append((pick(item, channels, index, description, "id"), chunk))
            item.done()
        if not result:
            raise op.fail("names no channel", f"{side}_cids")
        return result

    # Moves.

    def _move(self, op: KeyReader, name: str, move: Move) -> ir.KernelOp:
        by_buffers = self.vocabulary.by_buffers
        count = op.read("cnt", COUNT) if by_buffers else 0
        kind = op.read(self.vocabulary.listed_kind, named(move.channels)) if move.channels else ""
        via = self.vocabulary.kinds.get(kind)
        if name in SIGNALLING_PUTS and via != ir.PORT:
            raise op.fail(f"{name} goes through ports, not {kind!r}", self.vocabulary.listed_kind)
        sides = move.sources, move.targets
        if via == ir.PORT and name == "ppkt":  # a port sends packets that already lie in memory
            sides = Side((PACKET,) * len(move.sources.required), PACKET), move.targets
        sources, targets = (
            self._by_channel(op, end, side, count) if by_buffers else self._by_buffer(op, end, side, via)
            for end, side in zip(("src", "dst"), sides, strict=True)
        )
        self._check_sizes(op, move, sources, targets)
        if by_buffers:
            through = targets if via == ir.PORT else ()
            connections = tuple(target.connection for target in through if target.connection is not None)
            (part, num_parts), reduce_op = (0, 1), "sum"
        else:
            connections, (part, num_parts) = self._move_channels(op, via, targets), self._part(op)
            reduce_op = op.read("reduce_op", named(REDUCE_OPS), "sum") if move.adds else ""
        return ir.KernelOp(
            action=move.action, name=name, sources=sources, targets=targets, connections=connections,
            signals=name in SIGNALLING_PUTS, flushes=name == "pwsf", part=part, num_parts=num_parts,
            reduce_op=reduce_op if move.adds else None,
        )  # fmt: skip

    def _check_sizes(
        self, op: KeyReader, move: Move, sources: tuple[ir.KernelOperand, ...], targets: tuple[ir.KernelOperand, ...]
    ) -> None:
        if move.action == ir.PAIRS and len(sources) != len(targets):
            raise op.fail(f"{len(sources)} sources for {len(targets)} targets")
        if len({operand.count for operand in (*sources, *targets)}) > 1 and move.action == ir.REDUCE:
            raise op.fail("its buffers differ in size")
        if any(source.count != target.count for source, target in zip(sources, targets, strict=False)):
            raise op.fail("a source and its target differ in size")

    def _move_channels(self, op: KeyReader, via: str | None, targets: tuple[ir.KernelOperand, ...]) -> tuple[int, ...]:
        """Return the port connection of each target; other channels follow from the buffers."""
        if via == ir.PORT:
            connections = self._named_connections(op, (ir.PORT,))
            if len(connections) != len(targets):
                raise op.fail(f"{len(connections)} channels for {len(targets)} targets", "channel_ids")
            for number, target in zip(connections, targets, strict=True):
                if self.gpu.connections[number].peer != target.rank:
                    raise op.fail(f"a channel to rank {self.gpu.connections[number].peer}, a buffer of {target.rank}")
            return connections
        if op.has("channel_ids"):  # plans repeat the channel here
            if via is None:
                raise op.fail("only operations on channels name channels", "channel_ids")
            for index in op.read("channel_ids", tuple_of(INDEX)):
                self._pick(op, via, index, "channel_ids")
        return ()

    def _part(self, op: KeyReader) -> tuple[int, int]:
        if not op.has("tbg_info"):
            return 0, 1
        info = op.mapping("tbg_info")
        size = info.read("tbg_size", whole(1, 4096))
        part = info.read("tb_id", whole(0, size - 1))
        info.done()
        return part, size

    # Operands by channel: ``src`` and ``dst`` with lists beside them; by buffer: the lists ``src_buff``, ``dst_buff``.

    def _by_channel(self, op: KeyReader, end: str, side: Side, count: int) -> tuple[ir.KernelOperand, ...]:
        result, letter = [], "i" if end == "src" else "o"
        for kind in side.required:
            if op.read(end, whole(0, self.gpu.num_ranks - 1), self.gpu.rank) != self.gpu.rank:
                raise op.fail(f"must be {self.gpu.rank}, the GPU that runs it", end)
            buffer = _checked(op, kind, op.read(f"{end}buff", buffer_of_letter))
            group = None if kind.place == ir.LOCAL else self._group(op, f"{letter}_cids", buffer)
            result.append(self._operand(kind, buffer, op.read(f"{end}off", INDEX), count, group))
        if side.repeated is not None and side.repeated.place == ir.LOCAL:
            for item in op.mappings(f"{end}s"):
                buffer = _checked(item, side.repeated, item.read("buff", buffer_of_letter))
                result.append(self._operand(side.repeated, buffer, item.read("off", INDEX), count))
                item.done()
        elif side.repeated is not None:
            for number, chunk in self._through(op, letter):
                peer = self.gpu.connections[number]
                buffer = _checked(op, side.repeated, str(peer.remote_buffer))
                remote = self._operand(side.repeated, buffer, chunk, count)
                result.append(replace(remote, rank=peer.peer, via=peer.kind, connection=number))
        return tuple(result)

    def _group(self, op: KeyReader, name: str, buffer: str) -> int:
        items = op.mappings(name)
        if len(items) != 1:
            raise op.fail("must name one channel", name)
        channels = tuple(self.channels.get((ir.SWITCH, buffer, buffer), ()))
        index = items[0].read("id", INDEX)
        group = pick(items[0], channels, index, f"nvls channel on the {buffer}", "id")
        items[0].done()
        return group

    def _by_buffer(self, op: KeyReader, end: str, side: Side, via: str | None) -> tuple[ir.KernelOperand, ...]:
        items = op.mappings(f"{end}_buff")
        num_repeated = len(items) - len(side.required)
        if num_repeated < 0 or (num_repeated and side.repeated is None):
            raise op.fail(f"has {len(items)} buffers, which does not fit this operation", f"{end}_buff")
        kinds = side.required if side.repeated is None else (*side.required, *(side.repeated,) * num_repeated)
        return tuple(self._listed(item, kind, via) for item, kind in zip(items, kinds, strict=True))

    def _listed(self, item: KeyReader, kind: OperandKind, via: str | None) -> ir.KernelOperand:
        """Return the operand that one entry of a list describes."""
        index, count = item.read("index", INDEX), item.read("size", COUNT)
        if kind.place == ir.SWITCH:
            group = self._pick(item, ir.SWITCH, item.read("switch_channel_id", INDEX), "switch_channel_id")
            result = self._operand(kind, self.gpu.groups[group].buffer, index, count, group)
        elif kind.place == ir.LOCAL:
            result, rank = self._operand(kind, item.read("type", buffer_of_letter), index, count), self.gpu.rank
            if item.has("rank") and (rank_in_file := item.read("rank", whole(0, self.gpu.num_ranks - 1))) != rank:
                raise item.fail(f"a local buffer of GPU {rank} names rank {rank_in_file}", "rank")
        else:
            assert via is not None
            numbers, index_of_buffer = tuple(self.buffers[via]), item.read("buffer_id", INDEX)
            remote = self.gpu.remote[pick(item, numbers, index_of_buffer, f"{via} buffer", "buffer_id")]
            result = replace(self._operand(kind, remote.buffer, index, count), rank=remote.rank, via=via)
        _checked(item, kind, result.buffer)
        item.done()
        return result

    def _operand(
        self, kind: OperandKind, buffer: str, index: int, count: int, group: int | None = None
    ) -> ir.KernelOperand:
        """Return an operand in this GPU's memory, or in the memories of a multicast group."""
        rank, via = (self.gpu.rank, ir.LOCAL) if group is None else (-1, ir.SWITCH)
        return ir.KernelOperand(
            rank=rank, buffer=buffer, index=index, count=count, via=via, packet=kind.packet, polls=kind.polls,
            group=group,
        )  # fmt: skip


def _checked(item: KeyReader, kind: OperandKind, buffer: str) -> str:
    """Return the buffer. Raises SpecError for packets outside scratch."""
    if kind.packet and buffer != ir.SCRATCH:
        raise item.fail(f"packets lie in scratch, not in the {buffer}")
    return buffer
