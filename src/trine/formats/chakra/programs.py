"""One trace as a rank program, whose peers are rank numbers and whose collectives name their group.

Nodes are sorted topologically.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from trine.collectives.schedule import ROOTED
from trine.common.units import PS_PER_S, PS_PER_US
from trine.errors import InputError, TraceError
from trine.formats.chakra import messages, schema
from trine.formats.chakra.messages import Attributes, RawNode, TraceFile
from trine.graph.program import (
    COMPUTE_STREAM,
    LAUNCH_STREAM,
    Collective,
    Compute,
    HostCopy,
    Label,
    Peer,
    Recv,
    Send,
    Step,
)


def in_order(file: TraceFile) -> list[RawNode]:
    """Return nodes in topological order; among ready nodes, the smallest id comes first.

    Raises TraceError: a dependency on a missing node, or a cycle; names the nodes.
    """
    by_id = {node.id: node for node in file.nodes}
    waits: dict[int, int] = {}
    followers: dict[int, list[int]] = {}
    for node in file.nodes:
        waits[node.id] = len(node.deps)
        for dep in node.deps:
            if dep not in by_id:
                raise TraceError(f"node {node.id} depends on node {dep}, which is not there", file=file.path)
            followers.setdefault(dep, []).append(node.id)
    ready = [number for number, count in waits.items() if not count]
    heapq.heapify(ready)
    order: list[RawNode] = []
    while ready:
        number = heapq.heappop(ready)
        order.append(by_id[number])
        for follower in followers.get(number, ()):
            waits[follower] -= 1
            if not waits[follower]:
                heapq.heappush(ready, follower)
    if len(order) < len(by_id):
        raise TraceError(f"nodes depend on each other in a circle: {_cycle(by_id, waits)}", file=file.path)
    return order


def _cycle(by_id: Mapping[int, RawNode], waits: Mapping[int, int]) -> str:
    """Return the first cycle among the nodes that still wait."""
    path: dict[int, int] = {}
    number = min(number for number, count in waits.items() if count)
    while number not in path:
        path[number] = len(path)
        number = next(dep for dep in by_id[number].deps if waits[dep])
    circle = [*list(path)[path[number] :], number]
    return " after ".join(map(str, circle[:12])) + (" ..." if len(circle) > 12 else "")


#: Axis of peers with rank numbers as positions.
RANK = "rank"
#: Longest duration of a node: about 106 days, the limit of a run.
MAX_MICROS = 2**63 // 10**6
_MAX_RANK = 2**31 - 1


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeRoofline:
    """Peak and memory bandwidth of every GPU. Compute nodes take the longer of the times for both.

    Raises InputError unless both are positive.
    """

    flop_per_s: int
    memory_bytes_per_s: int

    def __post_init__(self) -> None:
        if min(self.flop_per_s, self.memory_bytes_per_s) < 1:
            raise InputError("peak and memory bandwidth of a roofline must be positive", field="roofline")

    def duration_ps(self, num_ops: int, size_bytes: int) -> int:
        """Return the longer of compute time and memory time, rounded up."""
        return max(-(-num_ops * PS_PER_S // self.flop_per_s), -(-size_bytes * PS_PER_S // self.memory_bytes_per_s))


class Program(NamedTuple):
    """Steps in topological order, the node of each, and notes on assumptions.

    ``groups``: the ranks of each named group -> the first node that names it. ``owners``: ranks that messages name
    as their local end -> the first such node; then only one rank can run the program. ``tensor_bytes``: of each step,
    ``tensor_size`` of compute nodes of the GPU, else 0.
    """

    steps: tuple[Step, ...]
    nodes: tuple[int, ...]
    groups: Mapping[tuple[int, ...], int]
    owners: Mapping[int, int]
    notes: tuple[str, ...]
    tensor_bytes: tuple[int, ...] = ()


@dataclass(slots=True)
class Tables:
    """Tables shared by programs: numbers of operator names, and names of groups by their ranks."""

    num_ranks: int
    roofline: NodeRoofline | None = None
    algorithms: Mapping[str, str] = field(default_factory=dict)
    #: whether the roofline has timed any node
    has_timed: bool = False
    operators: dict[str, int] = field(default_factory=dict)
    axes: dict[tuple[int, ...], str] = field(default_factory=dict)
    #: steps of compute nodes that several traces share; keeping the node keeps its ``id()`` unique
    computes: dict[tuple[int, bool, tuple[int, ...]], tuple[RawNode, Compute]] = field(default_factory=dict)

    def operator(self, name: str) -> int:
        """Return the number of an operator's name."""
        return self.operators.setdefault(name, len(self.operators))

    def axis(self, ranks: tuple[int, ...]) -> str:
        """Return the name of the group of these ranks."""
        return self.axes.setdefault(ranks, f"group {len(self.axes)}")


def make_program(file: TraceFile, known: messages.Groups, tables: Tables, *, own: bool) -> Program:
    """Return the program of one trace.

    known: groups from outside the trace, by name; the trace's metadata nodes add to them.
    own: whether trine wrote it, so that trine's exact attributes count.

    Raises TraceError: names file and node: a dependency on a missing node, a cycle, or a wrong attribute.
    """
    for node in file.nodes:
        if node.type == schema.METADATA:
            known = messages.merged(known, messages.node_groups(node, tables.num_ranks, file.path), file.path)
    program = _StepWriter(file.path, known, tables, own).program(in_order(file))
    return program._replace(notes=(*file.notes, *program.notes)) if file.notes else program


class _PeerMessage(NamedTuple):
    """A message. tag: (tag, bytes, number), unique among the messages to, or from, this peer."""

    peer: int
    size_bytes: int
    tag: tuple[int | str, ...]


class _StepWriter:
    """Converter of one trace's nodes into steps."""

    def __init__(self, path: Path, known_groups: messages.Groups, tables: Tables, is_own: bool) -> None:
        self._path, self._known_groups, self._tables, self._is_own = path, known_groups, tables, is_own
        self._steps: list[Step] = []
        self._nodes: list[int] = []
        self._tensor_bytes: list[int] = []
        self._notes: dict[str, None] = {}
        self._groups: dict[tuple[int, ...], int] = {}
        self._owners: dict[int, int] = {}
        self._counts: Counter[tuple[object, ...]] = Counter()
        #: node -> the steps that end with it: its step, or the predecessors of a node without a step
        self._ends: dict[int, tuple[int, ...]] = {}

    def program(self, nodes: list[RawNode]) -> Program:
        add: dict[int, Callable[[RawNode, Attributes, tuple[int, ...]], Step | None]] = {
            schema.COMP: self._compute,
            schema.MEM_LOAD: self._memory,
            schema.MEM_STORE: self._memory,
            schema.COMM_SEND: self._send,
            schema.COMM_RECV: self._receive,
            schema.COMM_COLL: self._collective,
        }
        for node in nodes:
            after = tuple(dict.fromkeys(step for dep in node.deps for step in self._ends[dep]))
            step = add[node.type](node, node.attributes, after) if node.type in add else None
            if step is None:
                self._ends[node.id] = after
                continue
            self._ends[node.id] = (len(self._steps),)
            self._steps.append(step)
            self._nodes.append(node.id)
            moves = isinstance(step, Compute) and step.stream != LAUNCH_STREAM
            self._tensor_bytes.append(node.attributes.integer("tensor_size", 0) if moves else 0)
        return Program(
            steps=tuple(self._steps), nodes=tuple(self._nodes), groups=self._groups, owners=self._owners,
            notes=tuple(self._notes), tensor_bytes=tuple(self._tensor_bytes),
        )  # fmt: skip

    # -- one node ------------------------------------------------------------------------------------------------

    def _compute(self, node: RawNode, attributes: Attributes, after: tuple[int, ...]) -> Compute:
        key = id(node), self._is_own, after
        if key not in self._tables.computes:
            self._tables.computes[key] = node, self._new_compute(node, attributes, after)
        return self._tables.computes[key][1]

    def _new_compute(self, node: RawNode, attributes: Attributes, after: tuple[int, ...]) -> Compute:
        on_cpu = bool(attributes.integer("is_cpu_op", 0, 1))
        stream = LAUNCH_STREAM if on_cpu else COMPUTE_STREAM
        if self._is_own:
            stream = attributes.text("stream_name", stream)
        return Compute(stream, self._duration_ps(node, attributes, on_cpu), after, self._label(node, attributes))

    def _duration_ps(self, node: RawNode, attributes: Attributes, on_cpu: bool) -> int:
        roofline = self._tables.roofline
        if roofline is not None and not on_cpu:
            size_bytes = attributes.integer("tensor_size", 0)
            if not size_bytes:
                note = "some compute nodes without tensor_size take no time under a roofline, as in ASTRA-sim"
                self._notes[note] = None
                return 0
            self._tables.has_timed = True
            return roofline.duration_ps(attributes.integer("num_ops", 0, 2**63), size_bytes)
        if node.duration_micros > MAX_MICROS:
            self._fail(node, f"takes {node.duration_micros} us, more than a run may take")
        if self._is_own and "duration_ps" in attributes:
            return attributes.integer("duration_ps", most=2**63 - 1)
        if not node.duration_micros:
            self._notes["some compute nodes have no duration: they take no time (ASTRA-sim takes 1 ns)"] = None
        return node.duration_micros * PS_PER_US

    def _memory(self, node: RawNode, attributes: Attributes, after: tuple[int, ...]) -> HostCopy:
        to_host = node.type == schema.MEM_STORE
        return HostCopy(attributes.integer("tensor_size"), after, self._label(node, attributes), to_host)

    def _send(self, node: RawNode, attributes: Attributes, after: tuple[int, ...]) -> Send:
        target, size, tag = self._message(node, attributes, "comm_dst", "comm_src")
        return Send(Peer(RANK, target), size, tag, after, self._label(node, attributes))

    def _receive(self, node: RawNode, attributes: Attributes, after: tuple[int, ...]) -> Recv:
        source, _, tag = self._message(node, attributes, "comm_src", "comm_dst")
        return Recv(Peer(RANK, source), tag, after, self._label(node, attributes))

    def _message(self, node: RawNode, attributes: Attributes, peer: str, own_rank_key: str) -> _PeerMessage:
        """Return the message of a node; ``peer``: the attribute with the other rank."""
        self._on_gpu(node, attributes)
        peer_rank = attributes.integer(peer, most=_MAX_RANK)
        if own_rank_key in attributes:
            self._owners.setdefault(attributes.integer(own_rank_key, most=_MAX_RANK), node.id)
        if peer_rank >= self._tables.num_ranks:
            self._fail(node, f"{peer} is {peer_rank}, the traces have ranks 0 to {self._tables.num_ranks - 1}")
        size, tag = attributes.integer("comm_size"), attributes.integer("comm_tag", 0, 2**32 - 1)
        key = (node.type, peer_rank, tag, size)
        number = self._counts[key]
        self._counts[key] += 1
        return _PeerMessage(peer_rank, size, (tag, size, number))

    def _collective(self, node: RawNode, attributes: Attributes, after: tuple[int, ...]) -> Collective | None:
        self._on_gpu(node, attributes)
        ranks = self._group(node, attributes)
        self._groups.setdefault(ranks, node.id)
        if len(ranks) == 1:
            self._notes["collectives of one rank do nothing"] = None
            return None
        number = attributes.integer("comm_type", most=_MAX_RANK)
        if number not in schema.COLLECTIVES:
            self._fail(node, f"there is no collective of comm_type {number}")
        kind = schema.COLLECTIVES[number]
        axis = self._tables.axis(ranks)
        turn = self._counts[(axis,)]
        self._counts[(axis,)] += 1
        size = self._payload(kind, len(ranks), attributes)
        root = self._root(kind, len(ranks), attributes)
        algorithm = self._tables.algorithms.get(kind)
        if algorithm is None and self._is_own:
            algorithm = attributes.text("algorithm") or None
        queue = attributes.text("queue") if self._is_own else ""
        return Collective(kind, axis, (turn,), size, root, algorithm, after, self._label(node, attributes), queue)

    # -- attributes ----------------------------------------------------------------------------------------------

    def _group(self, node: RawNode, attributes: Attributes) -> tuple[int, ...]:
        if not all(attributes.flags("involved_dim")):
            remedy = "name the ranks by a process group"
            self._fail(node, f"involved_dim leaves out dimensions of ASTRA-sim's network; {remedy}")
        if attributes.integer("comm_priority", 0):
            self._notes["priorities of collectives are not used"] = None
        name = attributes.text("pg_name")
        return messages.resolve(name, self._known_groups, self._tables.num_ranks, node, self._path)

    def _payload(self, kind: str, num_ranks: int, attributes: Attributes) -> int:
        """Return bytes as nccl-tests counts them: for a gather the output; its ``comm_size`` is one rank's part."""
        if self._is_own and "payload_bytes" in attributes:
            return attributes.integer("payload_bytes")
        if kind == "barrier":
            return attributes.integer("comm_size", 0)
        return attributes.integer("comm_size") * (num_ranks if kind in ("all_gather", "gather") else 1)

    def _root(self, kind: str, num_ranks: int, attributes: Attributes) -> int:
        if kind not in ROOTED:
            return -1
        if not self._is_own:
            self._notes["traces do not name the root: trine takes the first rank of the group"] = None
            return 0
        return attributes.integer("root", 0, num_ranks - 1)

    def _on_gpu(self, node: RawNode, attributes: Attributes) -> None:
        if attributes.integer("is_cpu_op", 0, 1):
            self._fail(node, "is communication, but marked as an operator of the CPU (is_cpu_op)")

    def _label(self, node: RawNode, attributes: Attributes) -> Label:
        operator = self._tables.operator(node.name or schema.NODE_TYPES[node.type])
        if not self._is_own or "label" not in attributes:
            return Label(operator=operator)
        fields = attributes.numbers("label")
        if len(fields) != len(Label._fields) or min(fields) < -1:
            self._fail(node, f"label must be {len(Label._fields)} numbers from -1, is {list(fields)[:8]}")
        label = Label(*fields)
        return label._replace(operator=operator if label.operator >= 0 else -1)

    def _fail(self, node: RawNode, why: str) -> None:
        raise TraceError(f"node {node.id}: {why}", file=self._path)
