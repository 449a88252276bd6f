"""Loading of plans in any format: MSCCL++ JSON of either generation, or MSCCL XML."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from xml.parsers import expat

from trine.common.inputs import read_text
from trine.common.schema import show
from trine.common.spec import parse_json
from trine.common.units import whole_number
from trine.errors import SpecError, nearest
from trine.gpu.plans import plan as ir
from trine.gpu.plans.plan import Connection, KernelGpu, KernelOp, KernelOperand, KernelPlan, ThreadBlock
from trine.gpu.plans.read_json import read_plan
from trine.gpu.plans.reading import (
    BUFFER_LETTERS,
    COLLECTIVES,
    MAX_BYTES,
    MAX_CHUNKS,
    MAX_OPERATIONS,
    MAX_RANKS,
    check_plan_shape,
    chunks_of_size,
)
from trine.gpu.plans.vocabulary import STEPS, vocabularies

# MSCCL algorithms in XML (Azure/msccl-tools @7e7d6bf): docs/formats/mscclpp.md.

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


@dataclass(slots=True)
class _Element:
    """One element; ``where``: file and line."""

    tag: str
    attributes: dict[str, str]
    where: str
    children: list[_Element] = field(default_factory=list)

    def fail(self, name: str, message: str) -> SpecError:
        """Return an error at one of the attributes."""
        return SpecError(message, file=self.where, field=f"{self.tag}.{name}")

    def integer(self, name: str, low: int, high: int) -> int:
        text = self.attributes.get(name, OPTIONAL.get(name, ""))
        number = whole_number(text, low, high)
        if number is None:
            raise self.fail(name, f"must be a whole number from {low} to {high}, got {text[:40]!r}")
        return number

    def choice(self, name: str, choices: Collection[str]) -> str:
        value = self.attributes[name]
        if value not in choices:
            raise self.fail(name, f"unknown {value[:80]!r}{nearest(value[:80], choices)}")
        return value


def read_xml(text: str, file: str) -> KernelPlan:
    """Read the text of a file. Document types and entities are refused.

    Raises SpecError: anything unknown, missing, out of range or not consistent; names file, line and attribute.
    """
    return _XmlReader(_parse(text, file), file).plan()


def _parse(text: str, file: str) -> _Element:
    parser = expat.ParserCreate()
    root = _Element("", {}, file)
    stack, count = [root], 0

    def refuse(*_: object) -> int:
        raise SpecError("document types and entities are refused", file=f"{file}:{parser.CurrentLineNumber}")

    def start(tag: str, attributes: dict[str, str]) -> None:
        nonlocal count
        count += 1
        expected, where = CHILDREN[stack[-1].tag], f"{file}:{parser.CurrentLineNumber}"
        if tag != expected:
            place = f"inside <{stack[-1].tag}>" if stack[-1].tag else "at the top"
            hint = nearest(tag[:80], [expected]) if expected else ""
            raise SpecError(f"unknown element <{tag[:80]}> {place}{hint}", file=where)
        if count > MAX_OPERATIONS:
            raise SpecError(f"more than {MAX_OPERATIONS} elements", file=where)
        _check_attributes(tag, attributes, where)
        stack.append(_Element(tag, attributes, where))
        stack[-2].children.append(stack[-1])

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
        self.num_ranks = root.integer("ngpus", 1, MAX_RANKS)
        if len(root.children) != self.num_ranks:
            raise root.fail("ngpus", f"says {self.num_ranks} GPUs, there are {len(root.children)}")

    def plan(self) -> KernelPlan:
        root = self.root
        collective = COLLECTIVES[root.choice("coll", COLLECTIVES)]
        in_place = bool(root.integer("inplace", 0, 1))
        gpus = tuple(self._gpu(gpu, rank) for rank, gpu in enumerate(root.children))
        loop, maximum = root.integer("nchunksperloop", 1, MAX_CHUNKS), root.integer("maxBytes", 0, MAX_BYTES)
        chunks = chunks_of_size(collective, gpus)
        if collective != "custom" and chunks and loop != chunks:
            raise root.fail("nchunksperloop", f"is {loop}, but the buffers have {chunks} chunks")
        return KernelPlan(
            name=root.attributes["name"][:1000], collective=collective, format="msccl",
            protocol=root.choice("proto", ("Simple", "LL", "LL128")), in_place=in_place, gpus=gpus,
            min_bytes=root.integer("minBytes", 0, MAX_BYTES), max_bytes=maximum or None, chunks_of_size=loop,
            file=self.file,
        )  # fmt: skip

    def _gpu(self, gpu: _Element, rank: int) -> KernelGpu:
        if gpu.integer("id", 0, self.num_ranks - 1) != rank:
            raise gpu.fail("id", f"GPUs must come in the order of their ids, this is number {rank}")
        self.rank = rank
        self.connections: dict[tuple[int, int], int] = {}
        blocks = tuple(self._block(block, number) for number, block in enumerate(gpu.children))
        inputs, outputs, scratch = (gpu.integer(name, 0, MAX_CHUNKS) for name in ATTRIBUTES["gpu"][1:])
        return KernelGpu(
            rank=rank, input_chunks=inputs, output_chunks=outputs, scratch_chunks=scratch, blocks=blocks,
            connections=tuple(Connection(kind=ir.FIFO, peer=peer, pair=pair) for peer, pair in self.connections),
        )  # fmt: skip

    def _connection(self, block: _Element, name: str) -> int | None:
        peer = block.integer(name, -1, self.num_ranks - 1)
        if peer == self.rank:
            raise block.fail(name, f"GPU {self.rank} is its own peer")
        if peer < 0:
            return None
        channel = block.integer("chan", 0, self.root.integer("nchannels", 1, 4096) - 1)
        return self.connections.setdefault((peer, channel), len(self.connections))

    def _block(self, block: _Element, number: int) -> ThreadBlock:
        if block.integer("id", 0, MAX_CHUNKS) != number:
            raise block.fail("id", f"thread blocks must come in the order of their ids, this is number {number}")
        ends = {name: self._connection(block, name) for name in ("send", "recv")}
        operations = tuple(self._step(step, n, ends) for n, step in enumerate(block.children))
        connections = dict.fromkeys(number for number in ends.values() if number is not None)
        return ThreadBlock(id=number, operations=operations, connections=tuple(connections))

    def _step(self, step: _Element, number: int, ends: dict[str, int | None]) -> KernelOp:
        if step.integer("s", 0, MAX_OPERATIONS) != number:
            raise step.fail("s", f"steps must come in order, this is number {number}")
        name = step.choice("type", STEPS)
        action, sources, targets = STEPS[name]
        step.integer("hasdep", 0, 1)
        depends_on, step_number = step.integer("depid", -1, MAX_CHUNKS), step.integer("deps", -1, MAX_OPERATIONS)
        if (depends_on < 0) != (step_number < 0):
            raise step.fail("depid", "depid and deps must be given together")
        operands_read = tuple(self._operand(step, where, "recv", ends) for where in sources)
        operands_written = tuple(self._operand(step, where, "send", ends) for where in targets)
        reduce_op = "sum" if len(sources) > 1 else None
        dependencies = () if depends_on < 0 else ((depends_on, step_number),)
        return KernelOp(
            action=action,
            name=name,
            sources=operands_read,
            targets=operands_written,
            reduce_op=reduce_op,
            dependencies=dependencies,
        )

    def _operand(self, step: _Element, where: str, end: str, ends: dict[str, int | None]) -> KernelOperand:
        if where != ir.FIFO:
            side = where
        elif end == "recv":
            side = "src"
        else:
            side = "dst"
        buffer = BUFFER_LETTERS[step.choice(f"{side}buf", BUFFER_LETTERS)]
        index, count = step.integer(f"{side}off", 0, MAX_CHUNKS), step.integer("cnt", 1, MAX_CHUNKS)
        if where != ir.FIFO:
            return KernelOperand(rank=self.rank, buffer=buffer, index=index, count=count)
        number = ends[end]
        if number is None:
            raise step.fail("type", f"{step.attributes['type']!r} in a thread block without {end} peer")
        peer, _ = list(self.connections)[number]
        return KernelOperand(
            rank=peer, buffer=ir.FIFO, index=index, count=count, polls=end == "recv", connection=number
        )


def load_plan(path: str | os.PathLike[str]) -> KernelPlan:
    """Read an execution plan.

    Parameters
    ----------
    path: MSCCL++ JSON (v1: April 2024 to v0.7.0; v2: v0.8.0 on) or MSCCL XML; the content determines the format.

    Raises
    ------
    SpecError: the file is unreadable, of unknown format, or has unknown or inconsistent content; names the file, the
        GPU, thread block and operation, and the nearest valid name.
    """
    file = os.fspath(path)
    text = read_text(path)
    plan = read_xml(text, file) if text.lstrip().startswith("<") else _read_json(text, file)
    check_plan_shape(plan)
    return plan


def _read_json(text: str, file: str) -> KernelPlan:
    data = parse_json(text, file)
    gpus = data.get("gpus") if isinstance(data, Mapping) else None
    if not isinstance(gpus, list) or not gpus:
        raise SpecError(
            f"is not a plan: must be a list with each GPU's program, got {show(gpus)}", file=file, field="gpus"
        )
    first = gpus[0]
    for vocabulary in vocabularies():
        if isinstance(first, Mapping) and vocabulary.chunks[0] in first:
            return read_plan(data, file, vocabulary)
    raise SpecError(
        "is not a plan: gpus[0] has neither 'inputChunks' (MSCCL++ up to v0.7) nor 'input_chunks' (from v0.8 on)",
        file=file,
    )
