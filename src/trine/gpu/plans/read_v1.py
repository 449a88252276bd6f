"""Reader of first-generation MSCCL++ plans (April 2024 to v0.7.0, July 2025): docs/formats/mscclpp.md."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from trine.gpu.plans import plan as ir
from trine.gpu.plans.reading import (
    BUFFER_LETTERS,
    MAX_CHUNKS,
    BlockReader,
    GpuReader,
    PlanFields,
    PlanWords,
    pick,
    read_plan,
)

#: v0.5 and v0.6 use sm, proxy and nvls for today's memory, port and switch
KINDS = {"memory": ir.MEMORY, "port": ir.PORT, "nvls": ir.SWITCH, "sm": ir.MEMORY, "proxy": ir.PORT}
NO_CHANNEL = "none"


@dataclass(frozen=True, kw_only=True, slots=True)
class MoveFormV1:
    """Operands of an operation, in the order of these letters.

    Sources: ``i`` remote data through i_cids, ``s`` the local src, ``S`` local srcs, ``p`` local packets srcs, ``P``
    the local src as packets. Targets: ``d`` the local dst, ``D`` local dsts, ``o`` remote data through o_cids, ``k``
    remote packets through o_cids, ``q`` the local dst as packets.
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


def read_v1(data: object, file: str) -> ir.KernelPlan:
    """Read the plain data of a file. Raises SpecError as :func:`trine.gpu.plans.reading.read_plan`."""
    return read_plan(data, file, _GpuV1)


#: source buffer, destination buffer and kind, which identify the channels of a thread block
Key = tuple[str, str, str]


class _BlockV1(BlockReader):
    """One thread block, with its channels by key."""

    gpu: _GpuV1

    def __init__(self, gpu: _GpuV1, block: PlanFields, number: int) -> None:
        super().__init__(gpu, block, number)
        self.channels: dict[Key, list[int]] = {}
        for item in block.mappings("channels"):
            key = self._key(item, "ctype", item)
            known = self._known(key)
            ids = item.integers("cids", 0, MAX_CHUNKS)
            self.channels.setdefault(key, []).extend(pick(item, known, i, f"{key[2]} channel", "cids") for i in ids)
            item.done()

    def listed(self) -> Iterator[tuple[str, int]]:
        for key, numbers in self.channels.items():
            yield from ((key[2], number) for number in numbers)

    def _key(self, ends: PlanFields, kind: str, kind_from: PlanFields) -> Key:
        source = BUFFER_LETTERS[ends.text("src", BUFFER_LETTERS)]
        target = BUFFER_LETTERS[ends.text("dst", BUFFER_LETTERS)]
        return source, target, KINDS[kind_from.text(kind, KINDS)]

    def _known(self, key: Key) -> tuple[int, ...]:
        """Return the GPU's channels of this key, in order."""
        source, target, kind = key
        if kind == ir.SWITCH:
            return tuple(n for n in self.gpu.own_groups if self.gpu.groups[n].buffer == source == target)
        return tuple(
            number
            for number, c in enumerate(self.gpu.connections)
            if (c.local_buffer, c.remote_buffer, c.kind) == (source, target, kind)
        )

    # -- operations ----------------------------------------------------------------------------------------------

    def operation(self, op: PlanFields) -> ir.KernelOp:
        name = op.text("name", NAMES)
        if name == "nop":
            result = ir.KernelOp(action=ir.SYNC, name=name, dependencies=self._dependencies(op))
        elif name == "barrier":
            number, count = op.integer("barrier_id", 0, MAX_CHUNKS), op.integer("nthread_blocks", 1, MAX_CHUNKS)
            result = ir.KernelOp(action=ir.BARRIER, name=name, barrier=number, num_blocks=count)
        elif name in ("signal", "flush"):
            action = ir.SIGNAL if name == "signal" else ir.FLUSH
            result = ir.KernelOp(action=action, name=name, connections=self._ids(op, "o"))
        elif name == "wait":
            result = ir.KernelOp(action=ir.WAIT, name=name, connections=self._ids(op, "i"))
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
        """Return the connections that a signal, wait or flush names; offsets and counts are ignored."""
        op.integer("cnt", 1, MAX_CHUNKS, 1)
        return tuple(number for number, _ in self._through(op, side))

    def _through(self, op: PlanFields, side: str) -> list[tuple[int, int]]:
        """Return (connection, chunk at the other end) of each entry of i_cids or o_cids."""
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

    def _load_reduce_store(self, op: PlanFields) -> ir.KernelOp:
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
            operands.append(
                ir.KernelOperand(rank=-1, buffer=buffer, index=chunk, count=count, via=ir.SWITCH, group=group)
            )
        sources, targets = (operands[0],), (operands[1],)
        return ir.KernelOp(action=ir.REDUCE, name="glres", sources=sources, targets=targets, reduce_op="sum")

    def _move(self, op: PlanFields, name: str, form: MoveFormV1) -> ir.KernelOp:
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
        return ir.KernelOp(
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
    ) -> tuple[tuple[ir.KernelOperand, ...], tuple[int, ...]]:
        result: list[ir.KernelOperand] = []
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

    def _remote(self, op: PlanFields, number: int, chunk: int, count: int, packet: bool) -> ir.KernelOperand:
        connection = self.gpu.connections[number]
        assert connection.remote_buffer is not None
        self._scratch(op, connection.remote_buffer, packet)
        return ir.KernelOperand(
            rank=connection.peer,
            buffer=connection.remote_buffer,
            index=chunk,
            count=count,
            via=connection.kind,
            packet=packet,
            connection=number,
        )

    def _locals(self, op: PlanFields, name: str, count: int, polls: bool, raw: bool) -> list[ir.KernelOperand]:
        result = []
        for item in op.mappings(name):
            buffer = BUFFER_LETTERS[item.text("buff", BUFFER_LETTERS)]
            self._scratch(item, buffer, polls or raw)
            index = item.integer("off", 0, MAX_CHUNKS)
            item.done()
            result.append(
                ir.KernelOperand(
                    rank=self.gpu.rank, buffer=buffer, index=index, count=count, packet=polls or raw, polls=polls
                )
            )
        return result

    def _local(self, op: PlanFields, letter: str, count: int) -> ir.KernelOperand:
        end = "src" if letter in "sP" else "dst"
        packet = letter in "Pq"
        self._own(op, end)
        buffer = BUFFER_LETTERS[op.text(f"{end}buff", BUFFER_LETTERS)]
        self._scratch(op, buffer, packet)
        index = op.integer(f"{end}off", 0, MAX_CHUNKS)
        return ir.KernelOperand(
            rank=self.gpu.rank, buffer=buffer, index=index, count=count, packet=packet, polls=letter == "P"
        )

    def _own(self, op: PlanFields, end: str) -> None:
        if op.integer(end, 0, self.gpu.num_ranks - 1, self.gpu.rank) != self.gpu.rank:
            raise op.fail(f"must be {self.gpu.rank}, the GPU that runs it", end)

    def _scratch(self, op: PlanFields, buffer: str, packet: bool) -> None:
        if packet and buffer != ir.SCRATCH:
            raise op.fail(f"packets lie in scratch, not in the {buffer}")


class _GpuV1(GpuReader):
    """One GPU, with its connections by key and its thread blocks."""

    format = "mscclpp-1"
    block = _BlockV1
    words = PlanWords(KINDS, "type", "connectedTo", "rankGroups", ("inputChunks", "outputChunks", "scratchChunks"))

    @classmethod
    def of_plan(cls, top: PlanFields) -> dict[str, Any]:
        return {"alignment": 16}

    def more(self) -> dict[str, Any]:
        return {"chunk_groups": self.gpu.integer("chunkGroups", 1, MAX_CHUNKS, 1)}

    def ends_of(self, channel: PlanFields) -> tuple[str, str]:
        source = BUFFER_LETTERS[channel.text("srcbuff", BUFFER_LETTERS)]
        return source, BUFFER_LETTERS[channel.text("dstbuff", BUFFER_LETTERS)]
