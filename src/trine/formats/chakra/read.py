"""Read ``<prefix>.<rank>.et`` into the programs of all ranks.

The programs are checked against each other: every message is sent and received, collectives agree.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from trine.common.inputs import head, is_file, read_text
from trine.common.outputs import MANIFEST
from trine.common.recognise import CHAKRA, foreign_file
from trine.errors import InputError, TraceError, nearest
from trine.formats.chakra.messages import Groups, RawNode, TraceFile, read_file, read_groups
from trine.formats.chakra.programs import NodeRoofline, Program, Tables, make_program
from trine.formats.chakra.read_json import is_json_trace
from trine.formats.chakra.trace import ChakraTrace
from trine.graph.program import Collective, Recv, Send
from trine.workload.files import read_bytes, short

#: Writer's name in the metadata of trine's own traces.
WRITER = "trine"
#: Maximum size of all traces together, after decompression.
MAX_BYTES = 16 * 2**30
MAX_RANKS = 1 << 20
_RANK = r"\.(\d{1,7})\.et(\.gz)?"
#: Traces in JSON, if there are none in the binary form.
_JSON_RANK = r"\.(\d{1,7})\.json(\.gz)?"


def groups_file(prefix: str) -> Path:
    """Return the path of the file of process groups that trine writes, and looks for, beside the traces."""
    return Path(f"{prefix}.groups.json")


def manifest_file(prefix: str | os.PathLike[str]) -> Path:
    """Return the path of the list of files that trine writes last, beside the traces."""
    return Path(f"{os.fspath(prefix)}.{MANIFEST}")


def read_chakra(
    prefix: str | os.PathLike[str], *, comm_groups: str | os.PathLike[str] | None = None,
    roofline: NodeRoofline | None = None, algorithms: Mapping[str, str] | None = None,
) -> ChakraTrace:  # fmt: skip
    """Read the Chakra execution traces of all ranks, plain or gzip.

    prefix: path up to ``.<rank>.et``, or up to ``.<rank>.json`` for traces in JSON; also one of these files. Ranks
        are numbered from 0 without a gap.
    comm_groups: JSON of process groups, ``{"1": [0, 1]}``; default: ``<prefix>.groups.json`` if it exists.
    roofline: time compute nodes by their ``num_ops`` and ``tensor_size`` instead of their durations.
    algorithms: collective -> the algorithm to simulate; default: the first one registered for it.

    Raises InputError for an algorithm of a collective that no trace has. Raises TraceError, naming file and node, for a
    file or node that cannot be read, a missing or circular dependency, an unknown group or one without the rank, a
    message that is never received, or ranks that disagree on a collective.
    """
    text = _prefix_of(os.fspath(prefix))
    files = _files(text)
    known_groups: Groups = {}
    default_groups = groups_file(text)
    if comm_groups is not None or default_groups.exists():
        known_groups = read_groups(default_groups if comm_groups is None else Path(comm_groups), len(files))
    tables = Tables(len(files), roofline, algorithms or {})
    trace = _JobReader(text, files, known_groups, tables).trace()
    _check_used(trace, tables)
    return trace


def _check_used(trace: ChakraTrace, tables: Tables) -> None:
    """Refuse options that have no effect on the trace."""
    steps = [step for program in trace.programs for step in program.steps]
    kinds = {step.kind for step in steps if isinstance(step, Collective)}
    for kind, name in tables.algorithms.items():
        if kind not in kinds:
            raise InputError(f"no trace has a {kind} to run by {name!r}{nearest(kind, kinds)}", field="algorithms")
    if tables.roofline is not None and not tables.has_timed:
        raise InputError("no trace has a GPU's compute node with a tensor_size to time by it", field="roofline")


def _numbered(prefix: str, ending: str = _RANK) -> dict[int, Path]:
    """Return the trace file of each rank."""
    place = Path(prefix)
    pattern = re.compile(re.escape(place.name) + ending)
    if not place.name or not place.parent.is_dir():
        return {}
    files: dict[int, Path] = {}
    for path in sorted(place.parent.iterdir()):
        match = pattern.fullmatch(path.name)
        if match is None:
            continue
        rank = int(match[1])
        if rank in files:
            raise TraceError(f"is the trace of rank {rank}, like {files[rank].name}", file=path)
        files[rank] = path
    return files


def _check_list(place: Path, files: Mapping[int, Path]) -> None:
    """Compare the ranks of the traces with the list that trine writes beside them, if it exists."""
    sums = manifest_file(place)
    if not is_file(sums):
        return
    lines = read_text(sums, error=TraceError).splitlines()
    listed = set()
    for line in lines:
        if match := re.search(rf"  {re.escape(place.name)}{_RANK}$", line):
            listed.add(int(match[1]))
    for ranks, problem in ((listed - set(files), "are missing"), (set(files) - listed, "are of another set")):
        if ranks:
            rank_list = ", ".join(map(str, sorted(ranks)[:8])) + (", ..." if len(ranks) > 8 else "")
            problem_text = f"the traces of ranks {rank_list} {problem}: {sums.name} lists {len(listed)} ranks"
            raise TraceError(problem_text, file=place)


def _prefix_of(path: str) -> str:
    """Return the path up to ``.<rank>.et`` of one rank's trace; another path unchanged."""
    match = re.fullmatch(rf"(.+){_RANK}", path)
    return match[1] if match is not None and is_file(path) else path


def _json_files(prefix: str) -> dict[int, Path]:
    """Return the traces in JSON at a prefix, or those of the job that a single file belongs to.

    Raises TraceError for a file of another program, with the command that reads it.
    """
    if not is_file(prefix):
        return _numbered(prefix, _JSON_RANK)
    if (foreign := foreign_file(head(prefix, 1 << 18).decode("utf-8", "replace"), CHAKRA)) is not None:
        raise TraceError(foreign, file=prefix)
    if not is_json_trace(Path(prefix)):
        return {}
    match = re.fullmatch(rf"(.+?){_JSON_RANK}", prefix)
    return {0: Path(prefix)} if match is None else _numbered(match[1], _JSON_RANK)


def _files(prefix: str) -> tuple[Path, ...]:
    files = _numbered(prefix) or _json_files(prefix)
    if not files:
        place = Path(prefix)
        if place.parent.is_dir():
            names = [path.name for path in place.parent.iterdir()]
        else:
            names = []
        prefixes = set()
        for name in names:
            if match := re.fullmatch(r"(.+)\.\d+\.et(\.gz)?", name):
                prefixes.add(match[1])
        hint = nearest(place.name, prefixes) if prefixes else ""
        if is_file(prefix):
            forms = "PREFIX.<rank>.et, or .json of Chakra's feeder or jsonizer"
            raise TraceError(f"is no Chakra trace; those are {forms}{hint}", file=prefix)
        raise TraceError(f"there is no {place.name}.0.et: give the path up to .<rank>.et{hint}", file=prefix)
    missing = next((rank for rank in range(len(files)) if rank not in files), None)
    if missing is not None:
        raise TraceError(f"rank {missing} has no trace, but rank {max(files)} has", file=prefix)
    _check_list(Path(prefix), files)
    if len(files) > MAX_RANKS:
        raise TraceError(f"has traces of {len(files)} ranks, more than {MAX_RANKS}", file=prefix)
    return tuple(files[rank] for rank in range(len(files)))


class _JobReader:
    """Reader of a job's files; files of equal content share a program."""

    def __init__(self, prefix: str, files: tuple[Path, ...], known_groups: Groups, tables: Tables) -> None:
        self._prefix, self._files, self._known_groups, self._tables = prefix, files, known_groups, tables
        self._programs: list[Program] = []
        self._number_of: dict[bytes, int] = {}
        self._nodes: dict[bytes, RawNode] = {}
        self._head: TraceFile | None = None
        self._bytes = 0

    def trace(self) -> ChakraTrace:
        program_of = tuple(self._program(rank) for rank in range(len(self._files)))
        axes, layers = self._own_facts()
        groups = {name: ranks for ranks, name in self._tables.axes.items()}
        program_notes = dict.fromkeys(note for program in self._programs for note in program.notes)
        trace = ChakraTrace(
            prefix=self._prefix, files=self._files, programs=tuple(self._programs), program_of=program_of,
            groups=groups, operator_names=tuple(self._tables.operators), layer_names=layers, axes=axes,
            roofline=self._tables.roofline, notes=tuple(program_notes),
        )  # fmt: skip
        check(trace)
        return trace

    def _program(self, rank: int) -> int:
        """Return the number of this rank's program."""
        path = self._files[rank]
        content = read_bytes(path)
        self._bytes += len(content)
        if self._bytes > MAX_BYTES:
            raise TraceError(f"the traces together have more than {MAX_BYTES} bytes", file=path)
        digest = hashlib.sha256(content).digest()
        if digest not in self._number_of:
            file = read_file(path, content, self._nodes)
            self._head = self._head or file
            is_own = file.attributes.get("writer") == WRITER
            self._number_of[digest] = len(self._programs)
            self._programs.append(make_program(file, self._known_groups, self._tables, own=is_own))
        number = self._number_of[digest]
        self._check_rank(rank, self._programs[number])
        return number

    def _check_rank(self, rank: int, program: Program) -> None:
        file = self._files[rank]
        for ranks, node in program.groups.items():
            if rank not in ranks:
                group = short(list(ranks))
                raise TraceError(f"node {node}: rank {rank} is not in the group of its collective, {group}", file=file)
        for owner, node in program.owners.items():
            if owner != rank:
                message = f"node {node}: its own end is rank {owner}, but this is the trace of rank {rank}"
                raise TraceError(message, file=file)
        for step, node in zip(program.steps, program.nodes, strict=True):
            if isinstance(step, Send) and step.peer.position == rank:
                raise TraceError(f"node {node}: rank {rank} sends to itself", file=file)

    def _own_facts(self) -> tuple[tuple[tuple[str, int], ...], tuple[str, ...]]:
        """Return the axes and names of layers from the metadata of the first trace if trine wrote it."""
        head = self._head
        if head is None or head.attributes.get("writer") != WRITER:
            return (), ()
        axes = []
        for text in head.attributes.texts("axes"):
            name, _, size = text.partition("=")
            if not name or not size.isascii() or not size.isdigit() or len(size) > 7 or int(size) < 1:
                raise TraceError(f"the metadata: axes has {short(text)}, a valid one is 'dp=4'", file=head.path)
            axes.append((name, int(size)))
        return tuple(axes), head.attributes.texts("layers")


class _Call(NamedTuple):
    """Properties of a collective that the members of a group must agree on, and its node."""

    kind: str
    size_bytes: int
    root: int
    algorithm: str | None
    node: int


def check(trace: ChakraTrace) -> None:
    """Raise TraceError, naming files and nodes, at the first inconsistency."""
    _check_layers(trace)
    _check_messages(trace)
    _check_collectives(trace)


def _check_layers(trace: ChakraTrace) -> None:
    for number, program in enumerate(trace.programs):
        for step, node in zip(program.steps, program.nodes, strict=True):
            if step.label.layer >= len(trace.layer_names):
                message = f"node {node}: label names layer {step.label.layer}, there are {len(trace.layer_names)}"
                raise TraceError(message, file=trace.files[trace.program_of.index(number)])


class _Message(NamedTuple):
    """Both ends of a message and its identity: (tag, bytes, number of earlier messages with both)."""

    source: int
    target: int
    tag: tuple[int | str, ...]


#: message -> (rank, node) that sends or receives it
_Ends = dict[_Message, tuple[int, int]]


def _check_messages(trace: ChakraTrace) -> None:
    """Check that sends and receives pair up one to one."""
    sent: _Ends = {}
    received: _Ends = {}
    for rank, number in enumerate(trace.program_of):
        program = trace.programs[number]
        for step, node in zip(program.steps, program.nodes, strict=True):
            if isinstance(step, Send):
                sent[_Message(rank, step.peer.position, step.tag)] = rank, node
            elif isinstance(step, Recv):
                received[_Message(step.peer.position, rank, step.tag)] = rank, node
    for message in sent:
        if message not in received:
            raise _unmatched(trace, message, sent, received, "sends", "has no receive for it")
    for message in received:
        if message not in sent:
            raise _unmatched(trace, message, received, sent, "receives", "does not send it")


def _unmatched(trace: ChakraTrace, message: _Message, ours: _Ends, theirs: _Ends, verb: str, lack: str) -> TraceError:
    """Return the error for a message with one end, with a near match between the same ranks as a hint."""
    rank, node = ours[message]
    peer = message.target if rank == message.source else message.source
    tag, size, turn = message.tag
    near = next(((m.tag[1], n) for m, (_, n) in theirs.items() if m[:2] == message[:2] and m.tag[0] == tag), None)
    hint = "" if near is None else f"; its node {near[1]} has {near[0]} bytes under this tag"
    ours_text = f"node {node}: rank {rank} {verb} {size} bytes under tag {tag} ({int(turn) + 1}. such message)"
    return TraceError(f"{ours_text}, but rank {peer} {lack}{hint}", file=trace.files[rank])


def _check_collectives(trace: ChakraTrace) -> None:
    calls = [_calls(trace, number) for number in range(len(trace.programs))]
    for axis, ranks in trace.groups.items():
        first = calls[trace.program_of[ranks[0]]].get(axis, [])
        for rank in ranks[1:]:
            mine = calls[trace.program_of[rank]].get(axis, [])
            if mine is first:
                continue
            group, file = _listed(ranks), trace.files[rank]
            for turn, (expected, call) in enumerate(zip(first, mine, strict=False)):
                if expected[:-1] != call[:-1]:
                    here = f"node {call.node}: collective {turn + 1} of group {group} is {_text(call)} on rank {rank}"
                    there = f"{_text(expected)} on rank {ranks[0]} (node {expected.node})"
                    raise TraceError(f"{here}, but {there}", file=file)
            if len(mine) != len(first):
                counts = (
                    f"rank {rank} has {len(mine)} collectives of group {group}, but rank {ranks[0]} has {len(first)}"
                )
                raise TraceError(counts, file=file)


def _calls(trace: ChakraTrace, number: int) -> dict[str, list[_Call]]:
    """Return the collectives of one program, by group."""
    calls_by_group: dict[str, list[_Call]] = defaultdict(list)
    program = trace.programs[number]
    for step, node in zip(program.steps, program.nodes, strict=True):
        if isinstance(step, Collective):
            calls_by_group[step.axis].append(_Call(step.kind, step.size_bytes, step.root, step.algorithm, node))
    return dict(calls_by_group)


def _text(call: _Call) -> str:
    root = f" from {call.root}" if call.root >= 0 else ""
    by = f" by {call.algorithm}" if call.algorithm else ""
    return f"{call.kind} of {call.size_bytes} bytes{root}{by}"


def _listed(ranks: tuple[int, ...]) -> str:
    return f"[{', '.join(map(str, ranks[:8]))}{', ...' if len(ranks) > 8 else ''}]"
