"""Common parts of the plan readers: strict fields, names of collectives, the check of a whole plan."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from typing import Any, ClassVar, NamedTuple

from trine.common.schema import show
from trine.errors import SpecError, nearest
from trine.gpu.plans import plan as ir

MAX_RANKS = 4096
MAX_CHUNKS = 2**20
MAX_OPERATIONS = 2_000_000
MAX_BYTES = 2**64 - 1
MAX_TEXT = 1000


class PlanFields:
    """One mapping of a file. Read the known keys, then :meth:`done` refuses the rest.

    Parameters
    ----------
    data: the mapping's content.
    file: path of the file. where: path inside it, such as ``gpus[0].threadblocks[1].ops[3]``.

    Every method raises SpecError with the file, the place, the value and valid alternatives.
    """

    def __init__(self, data: object, file: str, where: str) -> None:
        self.file, self.where = file, where
        if not isinstance(data, Mapping):
            raise SpecError(f"must be a mapping, got {show(data)}", file=file, field=where or None)
        self._data = data
        self._known: set[str] = set()

    def has(self, name: str) -> bool:
        return name in self._data

    def fail(self, message: str, name: str | None = None) -> SpecError:
        """Return an error at this place, or at one of its keys."""
        field = ".".join(part for part in (self.where, name) if part)
        return SpecError(message, file=self.file, field=field or None)

    def get(self, name: str, default: object = ...) -> object:
        self._known.add(name)
        if name not in self._data:
            if default is ...:
                raise self.fail("is missing", name)
            return default
        return self._data[name]

    def integer(self, name: str, low: int, high: int, default: int | None = None) -> int:
        value = self.get(name) if default is None else self.get(name, default)
        return self._integer(value, name, low, high)

    def _integer(self, value: object, name: str, low: int, high: int) -> int:
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.fail(f"must be a whole number, got {show(value)}", name)
        if not low <= value <= high:
            raise self.fail(f"must be from {low} to {high}, got {value}", name)
        return value

    def integers(self, name: str, low: int, high: int) -> tuple[int, ...]:
        return tuple(self._integer(v, f"{name}[{i}]", low, high) for i, v in enumerate(self._list(name)))

    def boolean(self, name: str, default: bool | None = None) -> bool:
        value = self.get(name) if default is None else self.get(name, default)
        if not isinstance(value, bool):
            raise self.fail(f"must be true or false, got {show(value)}", name)
        return value

    def text(self, name: str, known: Collection[str] | None = None, default: str | None = None) -> str:
        value = self.get(name) if default is None else self.get(name, default)
        if not isinstance(value, str):
            raise self.fail(f"must be text, got {show(value)}", name)
        if len(value) > MAX_TEXT:
            raise self.fail(f"must be at most {MAX_TEXT} characters, got {len(value)}", name)
        if known is not None and value not in known:
            raise self.fail(f"unknown {show(value)}{nearest(value[:80], known)}", name)
        return value

    def mapping(self, name: str) -> PlanFields:
        return PlanFields(self.get(name), self.file, f"{self.where}.{name}".lstrip("."))

    def mappings(self, name: str, default: list[object] | None = None) -> list[PlanFields]:
        where = f"{self.where}.{name}".lstrip(".")
        items = self._list(name, default)
        if len(items) > MAX_OPERATIONS:
            raise self.fail(f"must have at most {MAX_OPERATIONS} entries, got {len(items)}", name)
        return [PlanFields(item, self.file, f"{where}[{i}]") for i, item in enumerate(items)]

    def _list(self, name: str, default: list[object] | None = None) -> list[object]:
        value = self.get(name) if default is None else self.get(name, default)
        if not isinstance(value, list):
            raise self.fail(f"must be a list, got {show(value)}", name)
        return value

    def done(self, others: Collection[str] = ()) -> None:
        """Refuse unread keys; ``others`` are valid here too, for the error's list of names."""
        for key in self._data:
            if key not in self._known:
                known = sorted(self._known | set(others))
                raise self.fail(f"unknown key {show(key)}{nearest(str(key)[:80], known)}")


def pick(here: PlanFields, items: tuple[int, ...], index: int, what: str, name: str) -> int:
    """Return ``items[index]``, or raise an error with the number of items."""
    if not 0 <= index < len(items):
        raise here.fail(f"there is no {what} {index} here, there are {len(items)}", name)
    return items[index]


BUFFER_LETTERS = {"i": ir.INPUT, "o": ir.OUTPUT, "s": ir.SCRATCH}

#: name of a collective in the file -> trine's name
COLLECTIVES = {
    "allreduce": "all_reduce",
    "allgather": "all_gather",
    "reducescatter": "reduce_scatter",
    "reduce_scatter": "reduce_scatter",
    "alltoall": "all_to_all",
    "sendrecv": "send_recv",
    "broadcast": "broadcast",
    "reduce": "reduce",
    "gather": "gather",
    "scatter": "scatter",
    "custom": "custom",
    "test": "custom",
}


def rank_group(item: PlanFields, rank: int, num_ranks: int, buffer: str) -> ir.MulticastGroup:
    """Read one entry of the rank groups of a GPU's switch channel."""
    ranks = item.integers("ranks", 0, num_ranks - 1)
    if item.integer("size", 1, num_ranks) != len(ranks) or len(set(ranks)) != len(ranks):
        raise item.fail("size must be the number of ranks, and no rank may come twice")
    if rank not in ranks:
        raise item.fail(f"GPU {rank} is not in its own group", "ranks")
    item.done()
    return ir.MulticastGroup(ranks=tuple(sorted(ranks)), buffer=buffer)


def group_number(group: ir.MulticastGroup, groups: list[ir.MulticastGroup], own: list[int]) -> int:
    """Return the number of a GPU's group in the plan's ``groups``, adding a new one; ``own``: the GPU's earlier groups.

    The n-th group of a GPU with these ranks is the n-th one of every other member.
    """
    ordinal = sum(groups[number] == group for number in own)
    known = [number for number, other in enumerate(groups) if other == group]
    if ordinal == len(known):
        groups.append(group)
        return len(groups) - 1
    return known[ordinal]


class PlanWords(NamedTuple):
    """Keys of the common fields in one generation of MSCCL++ plans. kinds: channel kinds by their names in the file.

    kind, peers, groups: keys of a channel. chunks: keys of a GPU, of its input, output and scratch.
    """

    kinds: Mapping[str, str]
    kind: str
    peers: str
    groups: str
    chunks: tuple[str, str, str]


class GpuReader(ABC):
    """Reader of one GPU of an MSCCL++ plan: its connections and multicast groups, then its thread blocks.

    groups, notes: multicast groups and notes of the plan; each GPU appends its own.
    """

    words: ClassVar[PlanWords]
    format: ClassVar[str]
    block: ClassVar[type[BlockReader]]

    def __init__(
        self, gpu: PlanFields, rank: int, num_ranks: int, groups: list[ir.MulticastGroup], notes: dict[str, None]
    ) -> None:
        self.gpu, self.rank, self.num_ranks, self.groups, self.notes = gpu, rank, num_ranks, groups, notes
        if gpu.integer("id", 0, num_ranks - 1) != rank:
            raise gpu.fail(f"GPUs must come in the order of their ids, this is number {rank}", "id")
        self.own_groups: list[int] = []
        self.connections = self._connections()

    @abstractmethod
    def more(self) -> dict[str, Any]:
        """Return the fields of a KernelGpu that only this generation has."""

    @classmethod
    @abstractmethod
    def of_plan(cls, top: PlanFields) -> dict[str, Any]:
        """Return the fields of a KernelPlan that only this generation has."""

    def ends_of(self, channel: PlanFields) -> tuple[str | None, str | None]:
        """Return the two buffers bound to a channel, one for each end."""
        return None, None

    def switch_buffer(self, channel: PlanFields) -> str:
        """Return the buffer of a switch channel."""
        return BUFFER_LETTERS[channel.text("buff", BUFFER_LETTERS)]

    def read(self) -> ir.KernelGpu:
        """Return the GPU. Raises SpecError for unknown keys and values out of range."""
        more = self.more()
        sizes = [self.gpu.integer(name, 0, MAX_CHUNKS) for name in self.words.chunks]
        blocks = tuple(self.block(self, item, n).read() for n, item in enumerate(self.gpu.mappings("threadblocks")))
        result = ir.KernelGpu(
            rank=self.rank, input_chunks=sizes[0], output_chunks=sizes[1], scratch_chunks=sizes[2],
            blocks=blocks, connections=self.connections, groups=tuple(self.own_groups), **more,
        )  # fmt: skip
        self.gpu.done()
        return result

    def _connections(self) -> tuple[ir.Connection, ...]:
        """Return memory connections, then port connections, numbered alike at both ends; collect the groups."""
        words = self.words
        found: dict[str, list[ir.Connection]] = {ir.MEMORY: [], ir.PORT: []}
        seen: Counter[tuple[str, int]] = Counter()
        for channel in self.gpu.mappings("channels"):
            kind = words.kinds[channel.text(words.kind, words.kinds)]
            if kind == ir.SWITCH:
                buffer = self.switch_buffer(channel)
                for item in channel.mappings(self.words.groups):
                    group = rank_group(item, self.rank, self.num_ranks, buffer)
                    self.own_groups.append(group_number(group, self.groups, self.own_groups))
            else:
                local, remote = self.ends_of(channel)
                peers = channel.integers(words.peers, 0, self.num_ranks - 1)
                if self.rank in peers:
                    raise channel.fail(f"GPU {self.rank} is connected to itself", words.peers)
                for peer in peers:
                    pair = seen[kind, peer]
                    found[kind].append(
                        ir.Connection(kind=kind, peer=peer, pair=pair, local_buffer=local, remote_buffer=remote)
                    )
                    seen[kind, peer] += 1
            channel.done()
        return (*found[ir.MEMORY], *found[ir.PORT])


class BlockReader(ABC):
    """Reader of a thread block of an MSCCL++ plan; its operations index the block's channels."""

    def __init__(self, gpu: Any, block: PlanFields, number: int) -> None:
        self.gpu, self.block, self.number = gpu, block, number
        if block.integer("id", 0, MAX_CHUNKS) != number:
            raise block.fail(f"thread blocks must come in the order of their ids, this is number {number}", "id")

    @abstractmethod
    def operation(self, op: PlanFields) -> ir.KernelOp:
        """Return one operation."""

    @abstractmethod
    def listed(self) -> Iterator[tuple[str, int]]:
        """Yield the kind and the number of each connection and group of the block."""

    def read(self) -> ir.ThreadBlock:
        """Return the thread block."""
        operations = tuple(self.operation(op) for op in self.block.mappings("ops"))
        self.block.done()
        listed = list(self.listed())
        return ir.ThreadBlock(
            id=self.number,
            operations=operations,
            connections=tuple(number for kind, number in listed if kind != ir.SWITCH),
            groups=tuple(number for kind, number in listed if kind == ir.SWITCH),
        )


def read_plan(data: object, file: str, reader: type[GpuReader]) -> ir.KernelPlan:
    """Read the plain data of an MSCCL++ file; ``reader``: for the file's generation.

    Raises SpecError: anything unknown, missing, out of range or inconsistent; names file, GPU, thread block and
    operation.
    """
    top = PlanFields(data, file, "")
    gpus = top.mappings("gpus")
    if not 1 <= len(gpus) <= MAX_RANKS:
        raise top.fail(f"must be 1 to {MAX_RANKS} GPUs, got {len(gpus)}", "gpus")
    collective = COLLECTIVES[top.text("collective", COLLECTIVES)]
    protocol, in_place = top.text("protocol", ("Simple", "LL")), top.boolean("inplace")
    groups: list[ir.MulticastGroup] = []
    notes: dict[str, None] = {}
    read = tuple(reader(gpu, rank, len(gpus), groups, notes).read() for rank, gpu in enumerate(gpus))
    plan = ir.KernelPlan(
        name=top.text("name"),
        collective=collective,
        format=reader.format,
        protocol=protocol,
        in_place=in_place,
        gpus=read,
        groups=tuple(groups),
        threads_per_block=top.integer("num_threads_per_block", 1, 1024, 1024),
        double_scratch=top.boolean("use_double_scratch_buffer", False),
        min_bytes=top.integer("min_message_size", 0, MAX_BYTES, 0),
        max_bytes=top.integer("max_message_size", 0, MAX_BYTES, MAX_BYTES),
        chunks_of_size=chunks_of_size(collective, read),
        notes=tuple(notes),
        file=file,
        **reader.of_plan(top),
    )
    top.done()
    return plan


def chunks_of_size(collective: str, gpus: tuple[ir.KernelGpu, ...]) -> int:
    """Return the chunks in the message whose size nccl-tests prints: the output of an all-gather, else the input."""
    first = gpus[0]
    if collective in ("all_gather", "gather"):
        return first.output_chunks or len(gpus) * first.input_chunks
    return first.input_chunks or first.output_chunks


def walk(block: ir.ThreadBlock) -> Iterator[tuple[str, ir.KernelOp]]:
    """Yield every operation of a block with its place, including the bodies of pipelines."""
    for number, op in enumerate(block.operations):
        yield f"ops[{number}]", op
        for inner, body in enumerate(op.operations):
            yield f"ops[{number}].ops[{inner}]", body


def check_plan_shape(plan: ir.KernelPlan) -> None:
    """Check properties that involve all GPUs.

    Raises SpecError: ranges beyond a buffer, chunk numbers that differ between ranks, or a barrier that cannot be
    passed.
    """
    shapes = {(gpu.input_chunks, gpu.output_chunks) for gpu in plan.gpus}
    if len(shapes) > 1 and plan.collective not in ("send_recv", "custom", "gather", "scatter", "broadcast", "reduce"):
        raise SpecError(f"ranks disagree on the number of chunks: {sorted(shapes)}", file=plan.file, field="gpus")
    if sum(len(list(walk(block))) for gpu in plan.gpus for block in gpu.blocks) > MAX_OPERATIONS:
        raise SpecError(f"more than {MAX_OPERATIONS} operations", file=plan.file)
    for gpu in plan.gpus:
        _check_groups(plan, gpu)
        blocks = {block.id for block in gpu.blocks}
        for number, block in enumerate(gpu.blocks):
            for place, op in walk(block):
                where = f"gpus[{gpu.rank}].threadblocks[{number}].{place}"
                _check_op(plan, gpu, op, blocks, where)


def _check_groups(plan: ir.KernelPlan, gpu: ir.KernelGpu) -> None:
    for number in gpu.groups:
        for rank in plan.groups[number].ranks:
            if number not in plan.gpus[rank].groups:
                raise SpecError(
                    f"GPU {gpu.rank} is in a multicast group with rank {rank}, which does not list that group",
                    file=plan.file,
                    field=f"gpus[{rank}].channels",
                )


def _check_op(plan: ir.KernelPlan, gpu: ir.KernelGpu, op: ir.KernelOp, blocks: set[int], where: str) -> None:
    for operand in (*op.sources, *op.targets):
        _check_operand(plan, operand, where)
    if op.action == ir.BARRIER and not 1 <= op.num_blocks <= len(blocks):
        raise SpecError(
            f"waits for {op.num_blocks} thread blocks, GPU {gpu.rank} has {len(blocks)}", file=plan.file, field=where
        )
    if any(operand.packet for body in op.operations for operand in (*body.sources, *body.targets)):
        raise SpecError(
            "packets in a pipeline: rounds would read the first round's packets", file=plan.file, field=where
        )
    for block, _ in op.dependencies:
        if block not in blocks:
            raise SpecError(f"there is no thread block {block} on GPU {gpu.rank}", file=plan.file, field=where)


def _check_operand(plan: ir.KernelPlan, operand: ir.KernelOperand, where: str) -> None:
    if operand.buffer == ir.FIFO:
        return
    ranks = plan.groups[operand.group].ranks if operand.group is not None else (operand.rank,)
    for rank in ranks:
        chunks = buffer_chunks(plan, rank, operand.buffer)
        if operand.index + operand.count > chunks:
            raise SpecError(
                f"chunks {operand.index} to {operand.index + operand.count - 1} of the {operand.buffer} of rank "
                f"{rank}, which has {chunks}",
                file=plan.file,
                field=where,
            )


def buffer_chunks(plan: ir.KernelPlan, rank: int, buffer: str) -> int:
    """Return the chunks in one buffer; in place, input and output may lie in the larger of the two."""
    assert buffer in ir.BUFFERS
    gpu = plan.gpus[rank]
    if buffer == ir.SCRATCH:
        return gpu.scratch_chunks
    own, other = gpu.input_chunks, gpu.output_chunks
    if buffer == ir.OUTPUT:
        own, other = other, own
    if not plan.in_place:
        return own
    if plan.collective in ("all_reduce", "all_to_all", "broadcast", "reduce", "send_recv", "custom"):
        return max(own, other)
    return own or plan.chunks_of_size
