"""MSCCL algorithms in XML (Azure/msccl-tools @7e7d6bf): docs/formats/mscclpp.md."""

from __future__ import annotations

from dataclasses import dataclass, field
from xml.parsers import expat

from trine.common.units import whole_number
from trine.errors import SpecError, nearest
from trine.gpu.plans import plan as ir
from trine.gpu.plans.plan import Connection, KernelGpu, KernelOp, KernelOperand, KernelPlan, ThreadBlock
from trine.gpu.plans.reading import (
    BUFFER_LETTERS,
    COLLECTIVES,
    MAX_BYTES,
    MAX_CHUNKS,
    MAX_OPERATIONS,
    MAX_RANKS,
    chunks_of_size,
)

CHILDREN = {"": "algo", "algo": "gpu", "gpu": "tb", "tb": "step", "step": ""}
ATTRIBUTES = {
    "algo": (
        *("name", "proto", "nchannels", "nchunksperloop", "ngpus"),
        *("coll", "inplace", "outofplace", "minBytes", "maxBytes"),
    ),
    "gpu": ("id", "i_chunks", "o_chunks", "s_chunks"),
    "tb": ("id", "send", "recv", "chan"),
    "step": ("s", "type", "srcbuf", "srcoff", "dstbuf", "dstoff", "cnt", "depid", "deps", "hasdep"),
}
OPTIONAL = {"minBytes": "0", "maxBytes": "0", "outofplace": "1", "inplace": "1", "nchannels": "1"}
#: sources and targets: f FIFO, s the src range, d the dst range
STEPS = {
    "s": (ir.PAIRS, "s", "f"),
    "r": (ir.PAIRS, "f", "d"),
    "rcs": (ir.REDUCE, "f", "df"),
    "rrc": (ir.REDUCE, "fs", "d"),
    "rrs": (ir.REDUCE, "fs", "f"),
    "rrcs": (ir.REDUCE, "fs", "df"),
    "cpy": (ir.PAIRS, "s", "d"),
    "re": (ir.REDUCE, "sd", "d"),
    "nop": (ir.SYNC, "", ""),
}


@dataclass(slots=True)
class _Element:
    """One element of the file: its attributes, its line, what it holds."""

    tag: str
    attributes: dict[str, str]
    line: int
    children: list[_Element] = field(default_factory=list)


def read_xml(text: str, file: str) -> KernelPlan:
    """Read the text of a file. Document types and entities are refused.

    Raises SpecError: anything unknown, missing, out of range or not consistent; names file, line and attribute.
    """
    return _XmlReader(_parse(text, file), file).plan()


def _parse(text: str, file: str) -> _Element:
    parser = expat.ParserCreate()
    root = _Element("", {}, 0)
    stack, count = [root], 0

    def refuse(*_: object) -> int:
        raise SpecError("document types and entities are refused", file=f"{file}:{parser.CurrentLineNumber}")

    def start(tag: str, attributes: dict[str, str]) -> None:
        nonlocal count
        count += 1
        wanted = CHILDREN[stack[-1].tag]
        line = parser.CurrentLineNumber
        if tag != wanted:
            place = f"inside <{stack[-1].tag}>" if stack[-1].tag else "at the top"
            hint = nearest(tag[:80], [wanted]) if wanted else ""
            raise SpecError(f"unknown element <{tag[:80]}> {place}{hint}", file=f"{file}:{line}")
        if count > MAX_OPERATIONS:
            raise SpecError(f"more than {MAX_OPERATIONS} elements", file=f"{file}:{line}")
        _check_attributes(tag, attributes, f"{file}:{line}")
        element = _Element(tag, attributes, line)
        stack[-1].children.append(element)
        stack.append(element)

    def data(content: str) -> None:
        if content.strip():
            where = f"{file}:{parser.CurrentLineNumber}"
            raise SpecError(f"text between elements: {content.strip()[:40]!r}", file=where)

    parser.StartDoctypeDeclHandler = refuse
    parser.EntityDeclHandler = refuse
    parser.ExternalEntityRefHandler = refuse
    parser.StartElementHandler = start
    parser.EndElementHandler = lambda _: stack.pop()
    parser.CharacterDataHandler = data
    try:
        parser.Parse(text, True)
    except expat.ExpatError as error:
        raise SpecError(f"not valid XML: {expat.errors.messages[error.code]}", file=f"{file}:{error.lineno}") from None
    return root.children[0]


def _check_attributes(tag: str, attributes: dict[str, str], where: str) -> None:
    for name in attributes:
        if name not in ATTRIBUTES[tag]:
            raise SpecError(
                f"<{tag}>: unknown attribute {name[:80]!r}{nearest(name[:80], ATTRIBUTES[tag])}", file=where
            )
    for name in ATTRIBUTES[tag]:
        if name not in attributes and name not in OPTIONAL:
            raise SpecError(f"<{tag}>: attribute {name!r} is missing", file=where)


class _XmlReader:
    """From elements to a plan."""

    def __init__(self, root: _Element, file: str) -> None:
        self.root, self.file = root, file
        self.num_ranks = self.integer(root, "ngpus", 1, MAX_RANKS)
        if len(root.children) != self.num_ranks:
            raise self.fail(root, "ngpus", f"says {self.num_ranks} GPUs, there are {len(root.children)}")

    def fail(self, element: _Element, name: str, message: str) -> SpecError:
        return SpecError(message, file=f"{self.file}:{element.line}", field=f"{element.tag}.{name}")

    def integer(self, element: _Element, name: str, low: int, high: int) -> int:
        text = element.attributes.get(name, OPTIONAL.get(name, ""))
        number = whole_number(text, low, high)
        if number is None:
            raise self.fail(element, name, f"must be a whole number from {low} to {high}, got {text[:40]!r}")
        return number

    def choice(self, element: _Element, name: str, known: tuple[str, ...]) -> str:
        value = element.attributes[name]
        if value not in known:
            raise self.fail(element, name, f"unknown {value[:80]!r}{nearest(value[:80], known)}")
        return value

    def plan(self) -> KernelPlan:
        root = self.root
        collective = COLLECTIVES[self.choice(root, "coll", tuple(COLLECTIVES))]
        in_place = bool(self.integer(root, "inplace", 0, 1))
        gpus = tuple(self._gpu(gpu, rank) for rank, gpu in enumerate(root.children))
        loop, maximum = (
            self.integer(root, "nchunksperloop", 1, MAX_CHUNKS),
            self.integer(root, "maxBytes", 0, MAX_BYTES),
        )
        wanted = chunks_of_size(collective, gpus)
        if collective != "custom" and wanted and loop != wanted:
            raise self.fail(root, "nchunksperloop", f"is {loop}, but the buffers have {wanted} chunks")
        return KernelPlan(
            name=root.attributes["name"][:1000],
            collective=collective,
            format="msccl",
            protocol=self.choice(root, "proto", ("Simple", "LL", "LL128")),
            in_place=in_place,
            gpus=gpus,
            min_bytes=self.integer(root, "minBytes", 0, MAX_BYTES),
            max_bytes=maximum or None,
            chunks_of_size=loop,
            file=self.file,
        )

    def _gpu(self, gpu: _Element, rank: int) -> KernelGpu:
        if self.integer(gpu, "id", 0, self.num_ranks - 1) != rank:
            raise self.fail(gpu, "id", f"GPUs must come in the order of their ids, this is number {rank}")
        self.rank = rank
        self.connections: dict[tuple[int, int], int] = {}
        blocks = tuple(self._block(block, number) for number, block in enumerate(gpu.children))
        ends = [Connection(kind=ir.FIFO, peer=peer, pair=channel) for peer, channel in self.connections]
        return KernelGpu(
            rank=rank,
            input_chunks=self.integer(gpu, "i_chunks", 0, MAX_CHUNKS),
            output_chunks=self.integer(gpu, "o_chunks", 0, MAX_CHUNKS),
            scratch_chunks=self.integer(gpu, "s_chunks", 0, MAX_CHUNKS),
            blocks=blocks,
            connections=tuple(ends),
        )

    def _connection(self, block: _Element, name: str) -> int | None:
        peer = self.integer(block, name, -1, self.num_ranks - 1)
        if peer == self.rank:
            raise self.fail(block, name, f"GPU {self.rank} is its own peer")
        channel = self.integer(block, "chan", 0, self.integer(self.root, "nchannels", 1, 4096) - 1) if peer >= 0 else -1
        return None if peer < 0 else self.connections.setdefault((peer, channel), len(self.connections))

    def _block(self, block: _Element, number: int) -> ThreadBlock:
        if self.integer(block, "id", 0, MAX_CHUNKS) != number:
            raise self.fail(block, "id", f"thread blocks must come in the order of their ids, this is number {number}")
        send, receive = self._connection(block, "send"), self._connection(block, "recv")
        operations = tuple(self._step(step, n, send, receive) for n, step in enumerate(block.children))
        used = dict.fromkeys(number for number in (send, receive) if number is not None)
        return ThreadBlock(id=number, operations=operations, connections=tuple(used))

    def _step(self, step: _Element, number: int, send: int | None, receive: int | None) -> KernelOp:
        if self.integer(step, "s", 0, MAX_OPERATIONS) != number:
            raise self.fail(step, "s", f"steps must come in order, this is number {number}")
        name = self.choice(step, "type", tuple(STEPS))
        action, sources, targets = STEPS[name]
        self.integer(step, "hasdep", 0, 1)
        depends_on, at = self.integer(step, "depid", -1, MAX_CHUNKS), self.integer(step, "deps", -1, MAX_OPERATIONS)
        if (depends_on < 0) != (at < 0):
            raise self.fail(step, "depid", "depid and deps must be given together")
        return KernelOp(
            action=action,
            name=name,
            sources=tuple(self._operand(step, letter, receive, "recv") for letter in sources),
            targets=tuple(self._operand(step, letter, send, "send") for letter in targets),
            reduce_op="sum" if len(sources) > 1 else None,
            dependencies=() if depends_on < 0 else ((depends_on, at),),
        )

    def _operand(self, step: _Element, letter: str, connection: int | None, end: str) -> KernelOperand:
        side = "src" if letter == "s" or (letter == "f" and end == "recv") else "dst"
        buffer = BUFFER_LETTERS[self.choice(step, f"{side}buf", tuple(BUFFER_LETTERS))]
        index, count = self.integer(step, f"{side}off", 0, MAX_CHUNKS), self.integer(step, "cnt", 1, MAX_CHUNKS)
        if letter != "f":
            return KernelOperand(rank=self.rank, buffer=buffer, index=index, count=count)
        if connection is None:
            raise self.fail(step, "type", f"{step.attributes['type']!r} in a thread block without {end} peer")
        peer = next(peer for (peer, _), number in self.connections.items() if number == connection)
        return KernelOperand(rank=peer, buffer=ir.FIFO, index=index, count=count, via=ir.LOCAL, polls=end == "recv",
                       connection=connection)  # fmt: skip
