"""Reader of MSCCL++ plans, generation 2 (v0.8.0, October 2025, to 1f5f065, August 2026): docs/formats/mscclpp.md."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from trine.errors import nearest
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

KINDS = {kind: kind for kind in (ir.MEMORY, ir.PORT, ir.SWITCH)}
REDUCE_OPS = ("sum", "min", "max")


@dataclass(frozen=True, kw_only=True, slots=True)
class MoveFormV2:
    """Form of an operation that moves data: a letter for each operand; the last one of a side may repeat (``+``).

    l: local data. p: local packets, which are polled. q: local packets that are written. r: remote data. k: remote
    packets. m: multicast data. n: multicast packets. w: local packets without polling (ports).
    """

    action: str
    sources: str
    targets: str
    channels: tuple[str, ...] = ()


MOVES = {
    "put": MoveFormV2(action=ir.PAIRS, sources="l+", targets="r+", channels=(ir.MEMORY, ir.PORT)),
    "pws": MoveFormV2(action=ir.PAIRS, sources="l+", targets="r+", channels=(ir.PORT,)),
    "pwsf": MoveFormV2(action=ir.PAIRS, sources="l+", targets="r+", channels=(ir.PORT,)),
    "get": MoveFormV2(action=ir.PAIRS, sources="r+", targets="l+", channels=(ir.MEMORY,)),
    "copy": MoveFormV2(action=ir.PAIRS, sources="l", targets="l"),
    "re": MoveFormV2(action=ir.REDUCE, sources="ll+", targets="l"),
    "res": MoveFormV2(action=ir.REDUCE, sources="ll+", targets="lr+", channels=(ir.MEMORY,)),
    "rre": MoveFormV2(action=ir.REDUCE, sources="lr+", targets="l", channels=(ir.MEMORY,)),
    "rres": MoveFormV2(action=ir.REDUCE, sources="lr+", targets="lr+", channels=(ir.MEMORY,)),
    "ppkt": MoveFormV2(action=ir.PAIRS, sources="l+", targets="k+", channels=(ir.MEMORY, ir.PORT)),
    "rppkt": MoveFormV2(action=ir.REDUCE, sources="p", targets="k+", channels=(ir.MEMORY, ir.PORT)),
    "respkt": MoveFormV2(action=ir.REDUCE, sources="lp+", targets="lk+", channels=(ir.MEMORY,)),
    "repkt": MoveFormV2(action=ir.REDUCE, sources="lp+", targets="l"),
    "recpkt": MoveFormV2(action=ir.REDUCE, sources="lp+", targets="lq"),
    "recspkt": MoveFormV2(action=ir.REDUCE, sources="lp+", targets="lqk+", channels=(ir.MEMORY,)),
    "cpkt": MoveFormV2(action=ir.PAIRS, sources="l", targets="q"),
    "upkt": MoveFormV2(action=ir.PAIRS, sources="p", targets="l"),
    "glres": MoveFormV2(action=ir.REDUCE, sources="m", targets="m", channels=(ir.SWITCH,)),
    "gstore": MoveFormV2(action=ir.REDUCE, sources="l", targets="m", channels=(ir.SWITCH,)),
    "gstorepkt": MoveFormV2(action=ir.REDUCE, sources="l", targets="n", channels=(ir.SWITCH,)),
}
SIGNALS = {
    "signal": (ir.SIGNAL, False),
    "rlxsignal": (ir.SIGNAL, True),
    "wait": (ir.WAIT, False),
    "rlxwait": (ir.WAIT, True),
}
OTHERS = ("nop", "barrier", "flush", "sem_acquire", "sem_release", "pipeline")
NAMES = (*MOVES, *SIGNALS, *OTHERS)


def read_v2(data: object, file: str) -> ir.KernelPlan:
    """Read the plain data of a file. Raises SpecError as :func:`trine.gpu.plans.reading.read_plan`."""
    return read_plan(data, file, _GpuV2)


class _BlockV2(BlockReader):
    """One thread block, with its lists of channels and buffers."""

    gpu: _GpuV2

    def __init__(self, gpu: _GpuV2, block: PlanFields, number: int) -> None:
        super().__init__(gpu, block, number)
        self.channels: dict[str, list[int]] = {ir.MEMORY: [], ir.PORT: [], ir.SWITCH: []}
        self.buffers: dict[str, list[int]] = {ir.MEMORY: [], ir.PORT: []}
        self._read_channels()
        self._read_buffers()

    def listed(self) -> Iterator[tuple[str, int]]:
        for kind, numbers in self.channels.items():
            yield from ((kind, number) for number in numbers)

    def operation(self, op: PlanFields) -> ir.KernelOp:
        return self._operation(op, inside=False)

    def _read_channels(self) -> None:
        all_of = {
            kind: tuple(i for i, connection in enumerate(self.gpu.connections) if connection.kind == kind)
            for kind in (ir.MEMORY, ir.PORT)
        }
        all_of[ir.SWITCH] = tuple(self.gpu.own_groups)
        for item in self.block.mappings("channels"):
            kind = item.text("channel_type", KINDS)
            if kind == ir.SWITCH and item.has("buff"):
                item.text("buff", BUFFER_LETTERS)
            for index in item.integers("channel_ids", 0, MAX_CHUNKS):
                self.channels[kind].append(pick(item, all_of[kind], index, f"{kind} channel", "channel_ids"))
            item.done()

    def _read_buffers(self) -> None:
        for item in self.block.mappings("remote_buffer_refs", []):
            kind = item.text("access_channel_type", (ir.MEMORY, ir.PORT))
            for index in item.integers("remote_buffer_ids", 0, MAX_CHUNKS):
                number = pick(item, tuple(range(len(self.gpu.remote))), index, "remote buffer", "remote_buffer_ids")
                if kind not in self.gpu.remote[number].access:
                    raise item.fail(f"remote buffer {index} is not accessed by {kind} channels", "remote_buffer_ids")
                self.buffers[kind].append(number)
            item.done()

    # -- operations ----------------------------------------------------------------------------------------------

    def _operation(self, op: PlanFields, inside: bool) -> ir.KernelOp:
        name = op.text("name", NAMES)
        if name in MOVES:
            result = self._move(op, name, MOVES[name])
        elif name in SIGNALS:
            action, relaxed = SIGNALS[name]
            result = ir.KernelOp(action=action, name=name, relaxed=relaxed, connections=self._connections(op))
        else:
            result = self._other(op, name, inside)
        op.done()
        return result

    def _other(self, op: PlanFields, name: str, inside: bool) -> ir.KernelOp:
        if name == "nop":
            return ir.KernelOp(action=ir.SYNC, name=name)
        if name == "flush":
            return ir.KernelOp(action=ir.FLUSH, name=name, connections=self._connections(op, (ir.PORT,)))
        if name == "barrier":
            number, count = op.integer("barrier_id", 0, MAX_CHUNKS), op.integer("num_threadblocks", 1, MAX_CHUNKS)
            return ir.KernelOp(action=ir.BARRIER, name=name, barrier=number, num_blocks=count)
        if name == "pipeline":
            return self._pipeline(op, inside)
        numbers = op.integers("semaphore_ids", 0, MAX_CHUNKS)
        for number in numbers:
            pick(op, tuple(range(self.gpu.num_semaphores)), number, "semaphore", "semaphore_ids")
        return ir.KernelOp(action=ir.ACQUIRE if name == "sem_acquire" else ir.RELEASE, name=name, semaphores=numbers)

    def _pipeline(self, op: PlanFields, inside: bool) -> ir.KernelOp:
        if inside:
            raise op.fail("a pipeline inside a pipeline")
        context = op.mapping("iter_context")
        unit, chunks = context.integer("unit_size", 1, 2**40), context.integer("num_chunks", 1, MAX_CHUNKS)
        context.done()
        body = tuple(self._operation(item, inside=True) for item in op.mappings("ops"))
        return ir.KernelOp(action=ir.PIPELINE, name="pipeline", unit_bytes=unit, num_chunks=chunks, operations=body)

    def _connections(self, op: PlanFields, kinds: tuple[str, ...] = (ir.MEMORY, ir.PORT)) -> tuple[int, ...]:
        kind = op.text("channel_type", kinds)
        ids = op.integers("channel_ids", 0, MAX_CHUNKS)
        if not ids:
            raise op.fail("names no channel", "channel_ids")
        return tuple(pick(op, tuple(self.channels[kind]), i, f"{kind} channel", "channel_ids") for i in ids)

    def _move(self, op: PlanFields, name: str, form: MoveFormV2) -> ir.KernelOp:
        via = op.text("channel_type", form.channels) if form.channels else None
        if via == ir.PORT and name == "ppkt":
            form = MoveFormV2(action=ir.PAIRS, sources="w+", targets="k+")
        sources = self._operands(op, "src_buff", form.sources, via)
        targets = self._operands(op, "dst_buff", form.targets, via)
        if form.action == ir.PAIRS and len(sources) != len(targets):
            raise op.fail(f"{len(sources)} sources for {len(targets)} targets")
        if len({operand.count for operand in (*sources, *targets)}) > 1 and form.action == ir.REDUCE:
            raise op.fail("its buffers differ in size")
        for source, target in zip(sources, targets, strict=False):
            if source.count != target.count:
                raise op.fail("a source and its target differ in size")
        connections: tuple[int, ...] = ()
        if via == ir.PORT:
            connections = self._connections(op, (ir.PORT,))
            if len(connections) != len(targets):
                raise op.fail(f"{len(connections)} channels for {len(targets)} targets", "channel_ids")
            for number, target in zip(connections, targets, strict=True):
                if self.gpu.connections[number].peer != target.rank:
                    raise op.fail(f"a channel to rank {self.gpu.connections[number].peer}, a buffer of {target.rank}")
        elif op.has("channel_ids"):  # plans repeat the channel here, which follows from the buffers
            self._check_ids(op, via)
        part, num_parts = self._part(op)
        return ir.KernelOp(
            action=form.action,
            name=name,
            sources=sources,
            targets=targets,
            connections=connections,
            signals=name in ("pws", "pwsf"),
            flushes=name == "pwsf",
            part=part,
            num_parts=num_parts,
            reduce_op=op.text("reduce_op", REDUCE_OPS, "sum") if _adds(form) else None,
        )

    def _check_ids(self, op: PlanFields, via: str | None) -> None:
        if via is None:
            raise op.fail("only operations on channels name channels", "channel_ids")
        for index in op.integers("channel_ids", 0, MAX_CHUNKS):
            pick(op, tuple(self.channels[via]), index, f"{via} channel", "channel_ids")

    def _part(self, op: PlanFields) -> tuple[int, int]:
        if not op.has("tbg_info"):
            return 0, 1
        info = op.mapping("tbg_info")
        size = info.integer("tbg_size", 1, 4096)
        part = info.integer("tb_id", 0, size - 1)
        info.done()
        return part, size

    def _operands(self, op: PlanFields, name: str, form: str, via: str | None) -> tuple[ir.KernelOperand, ...]:
        items = op.mappings(name)
        fixed = form.replace("+", "")
        if len(items) < len(fixed) - (1 if form in ("lqk+", "lr+", "lk+") else 0) or (
            "+" not in form and len(items) > len(fixed)
        ):
            raise op.fail(f"has {len(items)} buffers, which does not fit this operation", name)
        letters = fixed + fixed[-1] * (len(items) - len(fixed))
        return tuple(self._operand(item, letter, via) for item, letter in zip(items, letters, strict=False))

    def _operand(self, item: PlanFields, letter: str, via: str | None) -> ir.KernelOperand:
        index, count = item.integer("index", 0, MAX_CHUNKS), item.integer("size", 1, MAX_CHUNKS)
        packet, polls = letter in "pqknw", letter == "p"
        if letter in "mn":
            number = pick(item, tuple(self.channels[ir.SWITCH]), item.integer("switch_channel_id", 0, MAX_CHUNKS),
                          "switch channel", "switch_channel_id")  # fmt: skip
            buffer, rank, group, path = self.gpu.groups[number].buffer, -1, number, ir.SWITCH
        elif letter in "rk":
            assert via is not None
            remote = self.gpu.remote[
                pick(item, tuple(self.buffers[via]), item.integer("buffer_id", 0, MAX_CHUNKS),
                     f"{via} buffer", "buffer_id")
            ]  # fmt: skip
            buffer, rank, group, path = remote.buffer, remote.rank, None, via
        else:
            buffer, rank, group, path = BUFFER_LETTERS[item.text("type", BUFFER_LETTERS)], self.gpu.rank, None, "local"
            if item.has("rank") and (named := item.integer("rank", 0, self.gpu.num_ranks - 1)) != rank:
                raise item.fail(f"a local buffer of GPU {rank} names rank {named}", "rank")
        if packet and buffer != "scratch":
            raise item.fail(f"packets lie in scratch, not in the {buffer}")
        item.done()
        return ir.KernelOperand(
            rank=rank, buffer=buffer, index=index, count=count, via=path, packet=packet, polls=polls, group=group
        )


class _GpuV2(GpuReader):
    """One GPU, with its access to other GPUs, its semaphores, and its thread blocks."""

    format = "mscclpp-2"
    block = _BlockV2
    words = PlanWords(
        KINDS, "channel_type", "connected_to", "rank_groups", ("input_chunks", "output_chunks", "scratch_chunks")
    )

    @classmethod
    def of_plan(cls, top: PlanFields) -> dict[str, Any]:
        return {
            "reuse_scratch": top.boolean("reuse_resources", False),
            "alignment": top.integer("buffer_alignment", 1, 2**20, 16),
        }

    def more(self) -> dict[str, Any]:
        self.remote = tuple(self._remote_buffer(item, self.rank) for item in self.gpu.mappings("remote_buffers", []))
        semaphores = tuple(self._semaphore(item) for item in self.gpu.mappings("semaphores", []))
        self.num_semaphores = len(semaphores)
        return {"semaphores": semaphores}

    def _semaphore(self, item: PlanFields) -> int:
        value = item.integer("init_value", 0, 2**20)
        item.done()
        return value

    def switch_buffer(self, channel: PlanFields) -> str:
        spelling = "buffer_type"
        if channel.has("buff"):
            # Plans written between PR #579 and v0.8.0; today's MSCCL++ refuses them.
            spelling = "buff"
            self.notes["switch channels say 'buff', which MSCCL++ from v0.8.0 on calls 'buffer_type'"] = None
        return BUFFER_LETTERS[channel.text(spelling, BUFFER_LETTERS)]

    def _remote_buffer(self, item: PlanFields, rank: int) -> ir.RemoteBuffer:
        peer = item.integer("rank", 0, self.num_ranks - 1)
        if peer == rank:
            raise item.fail(f"a remote buffer of GPU {rank} must be another's", "rank")
        buffer = BUFFER_LETTERS[item.text("type", BUFFER_LETTERS)]
        access = item.get("access_channel_types")
        if not isinstance(access, list) or not access:
            raise item.fail("must be a list of channel types", "access_channel_types")
        for kind in access:
            if kind not in (ir.MEMORY, ir.PORT):
                hint = nearest(str(kind)[:80], (ir.MEMORY, ir.PORT))
                raise item.fail(f"unknown channel type {str(kind)[:80]!r}{hint}", "access_channel_types")
        item.done()
        return ir.RemoteBuffer(rank=peer, buffer=buffer, access=tuple(access))


def _adds(form: MoveFormV2) -> bool:
    return form.action == ir.REDUCE and (len(form.sources) > 1 or form.sources == "m")
