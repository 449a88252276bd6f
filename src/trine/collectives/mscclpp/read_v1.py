"""MSCCL++ plans of the first generation (April 2024 to v0.7.0, July 2025): docs/formats/mscclpp.md."""

from __future__ import annotations

from dataclasses import dataclass

from trine.collectives.mscclpp import plan as ir
from trine.collectives.mscclpp.plan import (
    Connection,
    KernelGpu,
    KernelOp,
    KernelOperand,
    KernelPlan,
    MulticastGroup,
    ThreadBlock,
)
from trine.collectives.mscclpp.reading import (
    BUFFER_LETTERS,
    COLLECTIVES,
    MAX_BYTES,
    MAX_CHUNKS,
    MAX_RANKS,
    PlanFields,
    chunks_of_size,
    group_number,
    make_connections,
    pick,
    rank_group,
)

#: v0.5 and v0.6 say sm, proxy and nvls for what is memory, port and switch today
KINDS = {"memory": ir.MEMORY, "port": ir.PORT, "nvls": ir.SWITCH, "sm": ir.MEMORY, "proxy": ir.PORT}
NO_CHANNEL = "none"


@dataclass(frozen=True, kw_only=True, slots=True)
class MoveFormV1:
    """Where an operation finds its data, in this order.

    Sources: ``i`` remote data through i_cids, ``s`` the local src, ``S`` local srcs, ``p`` local packets srcs,
    ``P`` the local src as packets. Targets: ``d`` the local dst, ``D`` local dsts, ``o`` remote data through o_cids,
    ``k`` remote packets through o_cids, ``q`` the local dst as packets.
    """

    action: str
    sources: str
    targets: str


MOVES = {
    "put": MoveFormV1(action=ir.PAIRS, sources="S", targets="o"),
    "pws": MoveFormV1(action=ir.PAIRS, sources="S", targets="o"),
    "pwsf": MoveFormV1(action=ir.PAIRS, sources="S", targets="o"),
    "get": MoveFormV1(action=ir.PAIRS, sources="i", targets="D"),
    "copy": MoveFormV1(action=ir.PAIRS, sources="s", targets="d"),
    "re": MoveFormV1(action=ir.REDUCE, sources="sS", targets="d"),
    "rs": MoveFormV1(action=ir.REDUCE, sources="sS", targets="do"),
    "rrc": MoveFormV1(action=ir.REDUCE, sources="si", targets="d"),
    "rrcs": MoveFormV1(action=ir.REDUCE, sources="si", targets="do"),
    "ppkt": MoveFormV1(action=ir.PAIRS, sources="S", targets="k"),
    "rspkt": MoveFormV1(action=ir.REDUCE, sources="sp", targets="dk"),
    "rpkt": MoveFormV1(action=ir.REDUCE, sources="sp", targets="d"),
    "cpkt": MoveFormV1(action=ir.PAIRS, sources="P", targets="d"),
    "tpkt": MoveFormV1(action=ir.PAIRS, sources="s", targets="q"),
}
NAMES = (*MOVES, "glres", "signal", "wait", "flush", "nop", "barrier")


def read_v1(data: object, file: str) -> KernelPlan:
    """Read the plain data of a file.

    Raises
    ------
    SpecError: anything unknown, missing, out of range or not consistent; names file, GPU, thread block and operation.
    """
    top = PlanFields(data, file, "")
    gpus = top.mappings("gpus")
    if not 1 <= len(gpus) <= MAX_RANKS:
        raise top.fail(f"must be 1 to {MAX_RANKS} GPUs, got {len(gpus)}", "gpus")
    collective = COLLECTIVES[top.text("collective", COLLECTIVES)]
    protocol, in_place = top.text("protocol", ("Simple", "LL")), top.boolean("inplace")
    groups: list[MulticastGroup] = []
    read = tuple(_Gpu(gpu, rank, len(gpus), groups).read() for rank, gpu in enumerate(gpus))
    plan = KernelPlan(
        name=top.text("name"),
        collective=collective,
        format="mscclpp-1",
        protocol=protocol,
        in_place=in_place,
        gpus=read,
        groups=tuple(groups),
        threads_per_block=top.integer("num_threads_per_block", 1, 1024, 1024),
        double_scratch=top.boolean("use_double_scratch_buffer", False),
        alignment=16,
        min_bytes=top.integer("min_message_size", 0, MAX_BYTES, 0),
        max_bytes=top.integer("max_message_size", 0, MAX_BYTES, MAX_BYTES),
        chunks_of_size=chunks_of_size(collective, read),
        file=file,
    )
    top.done()
    return plan


#: source buffer, destination buffer and kind: by these a thread block finds its channels
Key = tuple[str, str, str]


class _Gpu:
    """One GPU: its connections by key, and its thread blocks."""

    def __init__(self, gpu: PlanFields, rank: int, num_ranks: int, groups: list[MulticastGroup]) -> None:
        self.gpu, self.rank, self.num_ranks, self.groups = gpu, rank, num_ranks, groups
        if gpu.integer("id", 0, num_ranks - 1) != rank:
            raise gpu.fail(f"GPUs must come in the order of their ids, this is number {rank}", "id")
        self.own_groups: list[int] = []
        self.connections = self._connections()

    def read(self) -> KernelGpu:
        gpu = self.gpu
        result = KernelGpu(
            rank=self.rank,
            input_chunks=gpu.integer("inputChunks", 0, MAX_CHUNKS),
            output_chunks=gpu.integer("outputChunks", 0, MAX_CHUNKS),
            scratch_chunks=gpu.integer("scratchChunks", 0, MAX_CHUNKS),
            chunk_groups=gpu.integer("chunkGroups", 1, MAX_CHUNKS, 1),
            blocks=tuple(_BlockV1(self, item, n).read() for n, item in enumerate(gpu.mappings("threadblocks"))),
            connections=self.connections,
            groups=tuple(self.own_groups),
        )
        gpu.done()
        return result

    def _connections(self) -> tuple[Connection, ...]:
        ends: dict[str, list[tuple[int, str | None, str | None]]] = {ir.MEMORY: [], ir.PORT: []}
        for channel in self.gpu.mappings("channels"):
            kind = KINDS[channel.text("type", KINDS)]
            if kind == ir.SWITCH:
                self._switch(channel)
            else:
                source = BUFFER_LETTERS[channel.text("srcbuff", BUFFER_LETTERS)]
                target = BUFFER_LETTERS[channel.text("dstbuff", BUFFER_LETTERS)]
                peers = channel.integers("connectedTo", 0, self.num_ranks - 1)
                if self.rank in peers:
                    raise channel.fail(f"GPU {self.rank} is connected to itself", "connectedTo")
                ends[kind] += [(peer, source, target) for peer in peers]
            channel.done()
        return (*make_connections(ir.MEMORY, ends[ir.MEMORY]), *make_connections(ir.PORT, ends[ir.PORT]))

    def _switch(self, channel: PlanFields) -> None:
        buffer = BUFFER_LETTERS[channel.text("buff", BUFFER_LETTERS)]
        for item in channel.mappings("rankGroups"):
            group = rank_group(item, self.rank, self.num_ranks, buffer)
            self.own_groups.append(group_number(group, self.groups, self.own_groups))


class _BlockV1:
    """One thread block: its channels by key, and the operations that index them."""

    def __init__(self, gpu: _Gpu, block: PlanFields, number: int) -> None:
        self.gpu, self.block, self.number = gpu, block, number
        if block.integer("id", 0, MAX_CHUNKS) != number:
            raise block.fail(f"thread blocks must come in the order of their ids, this is number {number}", "id")
        self.channels: dict[Key, list[int]] = {}
        for item in block.mappings("channels"):
            key = self._key(item, "ctype", item)
            known = self._known(key)
            ids = item.integers("cids", 0, MAX_CHUNKS)
            self.channels.setdefault(key, []).extend(pick(item, known, i, f"{key[2]} channel", "cids") for i in ids)
            item.done()

    def read(self) -> ThreadBlock:
        operations = tuple(self._operation(op) for op in self.block.mappings("ops"))
        self.block.done()
        listed = [(key[2], number) for key, numbers in self.channels.items() for number in numbers]
        return ThreadBlock(
            id=self.number,
            operations=operations,
            connections=tuple(number for kind, number in listed if kind != ir.SWITCH),
            groups=tuple(number for kind, number in listed if kind == ir.SWITCH),
        )

    def _key(self, ends: PlanFields, kind: str, kind_from: PlanFields) -> Key:
        source = BUFFER_LETTERS[ends.text("src", BUFFER_LETTERS)]
        target = BUFFER_LETTERS[ends.text("dst", BUFFER_LETTERS)]
        return source, target, KINDS[kind_from.text(kind, KINDS)]

    def _known(self, key: Key) -> tuple[int, ...]:
        """The GPU's channels of this key, in order."""
        source, target, kind = key
        if kind == ir.SWITCH:
            return tuple(n for n in self.gpu.own_groups if self.gpu.groups[n].buffer == source == target)
        return tuple(
            number
            for number, c in enumerate(self.gpu.connections)
            if (c.local_buffer, c.remote_buffer, c.kind) == (source, target, kind)
        )

    # -- operations ----------------------------------------------------------------------------------------------

    def _operation(self, op: PlanFields) -> KernelOp:
        name = op.text("name", NAMES)
        if name == "nop":
            result = KernelOp(action=ir.SYNC, name=name, dependencies=self._dependencies(op))
        elif name == "barrier":
            number, count = op.integer("barrier_id", 0, MAX_CHUNKS), op.integer("nthread_blocks", 1, MAX_CHUNKS)
            result = KernelOp(action=ir.BARRIER, name=name, barrier=number, num_blocks=count)
        elif name in ("signal", "flush"):
            action = ir.SIGNAL if name == "signal" else ir.FLUSH
            result = KernelOp(action=action, name=name, connections=self._ids(op, "o"))
        elif name == "wait":
            result = KernelOp(action=ir.WAIT, name=name, connections=self._ids(op, "i"))
        elif name == "glres":
            result = self._load_reduce_store(op)
        else:
            result = self._move(op, name, MOVES[name])
        op.done()
        return result

    def _dependencies(self, op: PlanFields) -> tuple[tuple[int, int], ...]:
        result = []
        for item in op.mappings("deps", []):
            result.append((item.integer("tb", 0, MAX_CHUNKS), item.integer("step", 0, MAX_CHUNKS)))
            item.done()
        return tuple(result)

    def _ids(self, op: PlanFields, side: str) -> tuple[int, ...]:
        """Connections that a signal, wait or flush names; offsets and counts say nothing to it."""
        op.integer("cnt", 1, MAX_CHUNKS, 1)
        return tuple(number for number, _ in self._through(op, side))

    def _through(self, op: PlanFields, side: str) -> list[tuple[int, int]]:
        """(connection, chunk at the other end) of each entry of i_cids or o_cids."""
        key = self._key(op.mapping(f"{side}_buff"), "ctype", op)
        channels = tuple(self.channels.get(key, ()))
        result = []
        for item in op.mappings(f"{side}_cids"):
            index, chunk = item.integer("id", 0, MAX_CHUNKS), item.integer("off", 0, MAX_CHUNKS)
            what = f"{key[2]} channel from {key[0]} to {key[1]}"
            result.append((pick(item, channels, index, what, "id"), chunk))
            item.done()
        if not result:
            raise op.fail("names no channel", f"{side}_cids")
        return result

    def _load_reduce_store(self, op: PlanFields) -> KernelOp:
        count = op.integer("cnt", 1, MAX_CHUNKS)
        op.text("ctype", ("nvls",))
        operands = []
        for side, end in (("i", "src"), ("o", "dst")):
            self._own(op, end)
            buffer = BUFFER_LETTERS[op.text(f"{end}buff", BUFFER_LETTERS)]
            items = op.mappings(f"{side}_cids")
            if len(items) != 1:
                raise op.fail("must name one channel", f"{side}_cids")
            channels = tuple(self.channels.get((buffer, buffer, ir.SWITCH), ()))
            index = items[0].integer("id", 0, MAX_CHUNKS)
            group = pick(items[0], channels, index, f"nvls channel on the {buffer}", "id")
            items[0].done()
            chunk = op.integer(f"{end}off", 0, MAX_CHUNKS)
            operands.append(KernelOperand(rank=-1, buffer=buffer, index=chunk, count=count, via=ir.SWITCH, group=group))
        sources, targets = (operands[0],), (operands[1],)
        return KernelOp(action=ir.REDUCE, name="glres", sources=sources, targets=targets, reduce_op="sum")

    def _move(self, op: PlanFields, name: str, form: MoveFormV1) -> KernelOp:
        count = op.integer("cnt", 1, MAX_CHUNKS)
        kind = op.text("ctype", (*KINDS, NO_CHANNEL))
        via = None if kind == NO_CHANNEL else KINDS[kind]
        if name in ("pws", "pwsf") and via != ir.PORT:
            raise op.fail(f"{name} goes through ports, not {kind!r}", "ctype")
        sources, _ = self._operands(op, form.sources, count, via == ir.PORT and name == "ppkt")
        targets, connections = self._operands(op, form.targets, count, False)
        if form.action == ir.PAIRS and len(sources) != len(targets):
            raise op.fail(f"{len(sources)} sources for {len(targets)} targets")
        adds = form.action == ir.REDUCE
        return KernelOp(
            action=form.action,
            name=name,
            sources=sources,
            targets=targets,
            connections=connections if via == ir.PORT else (),
            signals=name in ("pws", "pwsf"),
            flushes=name == "pwsf",
            reduce_op="sum" if adds else None,
        )

    def _operands(
        self, op: PlanFields, form: str, count: int, raw: bool
    ) -> tuple[tuple[KernelOperand, ...], tuple[int, ...]]:
        result: list[KernelOperand] = []
        connections: list[int] = []
        for letter in form:
            if letter in "iok":
                for number, chunk in self._through(op, "i" if letter == "i" else "o"):
                    connections.append(number)
                    result.append(self._remote(op, number, chunk, count, letter == "k"))
            elif letter in "SpD":
                result += self._locals(op, "dsts" if letter == "D" else "srcs", count, letter == "p", raw)
            else:
                result.append(self._local(op, letter, count))
        return tuple(result), tuple(connections)

    def _remote(self, op: PlanFields, number: int, chunk: int, count: int, packet: bool) -> KernelOperand:
        connection = self.gpu.connections[number]
        assert connection.remote_buffer is not None
        self._scratch(op, connection.remote_buffer, packet)
        return KernelOperand(
            rank=connection.peer,
            buffer=connection.remote_buffer,
            index=chunk,
            count=count,
            via=connection.kind,
            packet=packet,
            connection=number,
        )

    def _locals(self, op: PlanFields, name: str, count: int, polls: bool, raw: bool) -> list[KernelOperand]:
        result = []
        for item in op.mappings(name):
            buffer = BUFFER_LETTERS[item.text("buff", BUFFER_LETTERS)]
            self._scratch(item, buffer, polls or raw)
            index = item.integer("off", 0, MAX_CHUNKS)
            item.done()
            result.append(
                KernelOperand(
                    rank=self.gpu.rank, buffer=buffer, index=index, count=count, packet=polls or raw, polls=polls
                )
            )
        return result

    def _local(self, op: PlanFields, letter: str, count: int) -> KernelOperand:
        end = "src" if letter in "sP" else "dst"
        packet = letter in "Pq"
        self._own(op, end)
        buffer = BUFFER_LETTERS[op.text(f"{end}buff", BUFFER_LETTERS)]
        self._scratch(op, buffer, packet)
        index = op.integer(f"{end}off", 0, MAX_CHUNKS)
        return KernelOperand(
            rank=self.gpu.rank, buffer=buffer, index=index, count=count, packet=packet, polls=letter == "P"
        )

    def _own(self, op: PlanFields, end: str) -> None:
        if op.integer(end, 0, self.gpu.num_ranks - 1, self.gpu.rank) != self.gpu.rank:
            raise op.fail(f"must be {self.gpu.rank}, the GPU that runs it", end)

    def _scratch(self, op: PlanFields, buffer: str, packet: bool) -> None:
        if packet and buffer != ir.SCRATCH:
            raise op.fail(f"packets lie in scratch, not in the {buffer}")
