"""One program as encoded nodes, with holes for the parts that differ between its ranks: peers and process groups.

Nodes are encoded by hand because message objects are several times slower; tests decode them with protobuf and the
vendored schema. Field numbers: ``presets/chakra/et_def.proto``.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import cache, partial
from typing import NamedTuple

from trine.common.units import PS_PER_US
from trine.errors import PlanError
from trine.formats.chakra import schema, template
from trine.graph.grid import RankGrid
from trine.graph.program import LAUNCH_STREAM, Collective, Compute, HostCopy, Job, Label, Phase, Recv, Send, Step
from trine.results.packets import integer, message, text, varint

_NODE_ID, _NODE_NAME, _NODE_TYPE, _DATA_DEPS, _DURATION, _INPUTS, _NODE_ATTRIBUTE = 1, 2, 3, 5, 7, 8, 10
_VERSION, _FILE_ATTRIBUTE = 1, 2
_NAME, _INT32, _INT64, _UINT64, _SINT32_LIST, _BOOL, _STRING, _STRING_LIST = 1, 7, 9, 13, 16, 27, 29, 30


def framed(content: bytes) -> bytes:
    """Return a message prefixed with its length, the format of files."""
    return varint(len(content)) + content


def file_head(version: str, attributes: Sequence[bytes]) -> bytes:
    """Return the message ``GlobalMetadata``."""
    return text(_VERSION, version) + b"".join(message(_FILE_ATTRIBUTE, attribute) for attribute in attributes)


def node(number: int, name: str, kind: int, deps: Sequence[int], attributes: Sequence[bytes], micros: int = 0) -> bytes:
    """Return the message ``Node``; further attributes may be appended with :func:`node_attribute`."""
    parts = [integer(_NODE_ID, number), text(_NODE_NAME, name), integer(_NODE_TYPE, kind)]
    if deps:
        parts.append(message(_DATA_DEPS, b"".join(map(varint, deps))))
    if micros:
        parts.append(integer(_DURATION, micros))
    return b"".join((*parts, *map(node_attribute, attributes)))


def node_inputs(values: str) -> bytes:
    """Return the inputs of a node, to append to it."""
    return message(_INPUTS, text(1, values))


def node_attribute(attribute: bytes) -> bytes:
    """Return an attribute as a field of a node."""
    return message(_NODE_ATTRIBUTE, attribute)


def _number_attribute(field: int, name: str, value: int) -> bytes:
    """Return an attribute of the type that has this field of the schema."""
    return _name(name) + integer(field, value)


int32, int64, uint64, boolean = (partial(_number_attribute, field) for field in (_INT32, _INT64, _UINT64, _BOOL))


def string(name: str, value: str) -> bytes:
    """Return an attribute of type string."""
    return _name(name) + text(_STRING, value)


def strings(name: str, values: Sequence[str]) -> bytes:
    """Return an attribute of type list of strings."""
    return _name(name) + message(_STRING_LIST, b"".join(text(1, value) for value in values))


def small_numbers(name: str, values: Sequence[int]) -> bytes:
    """Return an attribute of type list of sint32, which keeps -1 short."""
    zigzag = (varint(value << 1 ^ value >> 63) for value in values)
    return _name(name) + message(_SINT32_LIST, message(1, b"".join(zigzag)))


@cache
def _name(name: str) -> bytes:
    return text(_NAME, name)


#: trine's name -> number of the enum CollectiveCommType; reduce_scatter has the plain number, not the block form's.
NUMBERS = {kind: number for number, kind in sorted(schema.COLLECTIVES.items(), reverse=True)}
_NO_LABEL = Label()
#: Id of a program's first step; 0 is the metadata node's.
FIRST_ID = 1


class Hole(NamedTuple):
    """A node that differs from rank to rank: its first bytes, and the step with the peer or group to fill in."""

    head: bytes
    step: Send | Recv | Collective


class EncodedProgram(NamedTuple):
    """Finished nodes with their lengths, and holes between them."""

    parts: tuple[bytes | Hole, ...]
    num_nodes: int


class Encoder:
    """Encoder of one job's programs."""

    def __init__(self, job: Job, grid: RankGrid) -> None:
        self._job, self._grid = job, grid
        self._tags: dict[tuple[int | str, ...], int] = {}

    def template(self, steps: Sequence[Step]) -> EncodedProgram:
        """Encode all steps of a program, in order, with ascending ids."""
        parts: list[bytes | Hole] = []
        finished: list[bytes] = []
        before = _order(steps)
        micros = _micros(steps)
        #: for each step the ids to wait for: its own, or the dependencies of an omitted step
        ends: list[tuple[int, ...]] = []
        num_nodes = 0
        for number, step in enumerate(steps):
            waits = (*step.after, *before[number])
            deps = tuple(dict.fromkeys(one for other in waits for one in ends[other]))
            if isinstance(step, Collective) and self._grid.size(step.axis) == 1:
                ends.append(deps)
                continue
            ends.append((number + FIRST_ID,))
            num_nodes += 1
            kind, attributes = self._attributes(step)
            if step.label != _NO_LABEL:
                attributes.append(template.small_numbers("label", step.label))
            head = template.node(number + FIRST_ID, self._name(step), kind, deps, attributes, micros[number])
            if self._differs(step):
                parts += [b"".join(finished), Hole(head, step)]  # type: ignore[arg-type]
                finished = []
            else:
                finished.append(template.framed(head))
        return EncodedProgram((*parts, b"".join(finished)), num_nodes)

    def _differs(self, step: Step) -> bool:
        if isinstance(step, Collective):
            return self._grid.size(step.axis) < self._grid.num_ranks
        return isinstance(step, Send | Recv)

    def _attributes(self, step: Step) -> tuple[int, list[bytes]]:
        """Return the node type and the attributes that all ranks share."""
        if isinstance(step, Compute):
            on_cpu = step.stream == LAUNCH_STREAM
            return schema.COMP, [
                template.boolean("is_cpu_op", on_cpu),
                template.int64("duration_ps", step.duration_ps),
                *([] if on_cpu else [template.string("stream_name", step.stream)]),
            ]
        if isinstance(step, HostCopy):
            kind = schema.MEM_STORE if step.to_host else schema.MEM_LOAD
            return kind, [template.boolean("is_cpu_op", False), template.uint64("tensor_size", step.size_bytes)]
        if isinstance(step, Send):
            size = template.int64("comm_size", step.size_bytes)
            return schema.COMM_SEND, [template.boolean("is_cpu_op", False), size, self._tag(step.tag)]
        if isinstance(step, Recv):
            return schema.COMM_RECV, [template.boolean("is_cpu_op", False), self._tag(step.tag)]
        return schema.COMM_COLL, self._collective(step)

    def _tag(self, tag: tuple[int | str, ...]) -> bytes:
        return template.int32("comm_tag", self._tags.setdefault(tag, len(self._tags)))

    def _collective(self, step: Collective) -> list[bytes]:
        num_ranks = self._grid.size(step.axis)
        size = step.size_bytes
        if step.kind in ("all_gather", "gather"):  # there, comm_size is one rank's contribution
            size = -(-size // num_ranks)
        attributes = [
            template.boolean("is_cpu_op", False),
            template.int64("comm_type", NUMBERS[step.kind]),
            template.int64("comm_size", size),
            template.int64("payload_bytes", step.size_bytes),
        ]
        if num_ranks == self._grid.num_ranks:
            attributes.append(template.string("pg_name", "0"))
        if step.root >= 0:
            attributes.append(template.int32("root", step.root))
        if step.algorithm is not None:
            attributes.append(template.string("algorithm", step.algorithm))
        if step.queue:
            attributes.append(template.string("queue", step.queue))
        return attributes

    def _name(self, step: Step) -> str:
        if step.label.operator >= 0:
            return self._job.operator_names[step.label.operator]
        if isinstance(step, Collective):
            return step.kind
        if isinstance(step, HostCopy):
            return "copy of inputs" if step.label.phase == Phase.INPUT else "offload"
        return {Send: "send", Recv: "receive"}.get(type(step), "compute")


def _order(steps: Sequence[Step]) -> list[list[int]]:
    """Return, for each step, its predecessor in its stream or collective queue, if any."""
    last: dict[tuple[type, str], int] = {}
    before: list[list[int]] = []
    for number, step in enumerate(steps):
        key: tuple[type, str] | None = None
        if isinstance(step, Compute):
            key = (Compute, step.stream)
        elif isinstance(step, Collective):
            key = (Collective, step.queue or step.axis)
        before.append([last[key]] if key in last else [])
        if key is not None:
            last[key] = number
    return before


def _micros(steps: Sequence[Step]) -> list[int]:
    """Return durations in whole us; each rounding remainder carries over to the next step of the stream."""
    exact: dict[str, int] = defaultdict(int)
    written_us: dict[str, int] = defaultdict(int)
    durations = []
    for step in steps:
        micros = 0
        if isinstance(step, Compute):
            exact[step.stream] += step.duration_ps
            micros = (exact[step.stream] + PS_PER_US // 2) // PS_PER_US - written_us[step.stream]
            written_us[step.stream] += micros
        durations.append(micros)
    return durations


class Sizes:
    """Bytes of each message, from the senders' programs, because receives lack them."""

    def __init__(self, job: Job, grid: RankGrid) -> None:
        self._program_of, self._grid = job.program_of, grid
        self._sent: list[Mapping[tuple[int | str, ...], list[Send]]] = []
        for program in job.programs:
            sends: dict[tuple[int | str, ...], list[Send]] = defaultdict(list)
            for step in program.steps:
                if isinstance(step, Send):
                    sends[step.tag].append(step)
            self._sent.append(sends)

    def of(self, source: int, target: int, receive: Recv) -> int:
        """Return the bytes that ``target`` gets from ``source``. Raises PlanError if the message is never sent."""
        for send in self._sent[self._program_of[source]].get(receive.tag, ()):
            if self._grid.resolve(source, send.peer) == target:
                return send.size_bytes
        raise PlanError(f"rank {target} waits for message {receive.tag}, which rank {source} never sends")
