"""From ``<prefix>.<rank>.et`` to the programs of all ranks, checked against each other."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping
from pathlib import Path

from trine.errors import InputError, TraceError, nearest
from trine.formats.chakra.groups import Groups, read_groups
from trine.formats.chakra.match import check
from trine.formats.chakra.messages import RawNode, TraceFile, read_file
from trine.formats.chakra.programs import Program, Roofline, Tables, make_program
from trine.formats.chakra.trace import ChakraTrace
from trine.graph.program import Collective, Send
from trine.workload.files import read_bytes, short

#: What trine writes into the metadata of its own traces.
WRITER = "trine"
#: Most bytes of all traces together, after decompression.
MAX_BYTES = 16 * 2**30
MAX_RANKS = 1 << 20


def groups_file(prefix: str) -> Path:
    """The file of process groups that trine writes, and looks for, beside the traces."""
    return Path(f"{prefix}.groups.json")


def read_chakra(
    prefix: str | os.PathLike[str],
    *,
    comm_groups: str | os.PathLike[str] | None = None,
    roofline: Roofline | None = None,
    algorithms: Mapping[str, str] | None = None,
) -> ChakraTrace:
    """Read the Chakra execution traces of all ranks, plain or gzip.

    Parameters
    ----------
    prefix: path up to ``.<rank>.et``; ranks are numbered from 0 without a gap.
    comm_groups: JSON of process groups, ``{"1": [0, 1]}``; ``<prefix>.groups.json`` is read by itself where it exists.
    roofline: time compute nodes by their ``num_ops`` and ``tensor_size`` instead of their durations.
    algorithms: collective -> the algorithm to simulate, where it is not to be the first that is registered for it.

    Raises
    ------
    InputError: an algorithm for a collective that no trace has.
    TraceError: names file and node: a file or node that cannot be read, a dependency on nothing or in a circle, a group
        that is not known or does not have the rank, a message that is not received, or ranks that disagree on a
        collective.
    """
    text = os.fspath(prefix)
    files = _files(text)
    known: Groups = {}
    beside = groups_file(text)
    if comm_groups is not None or beside.exists():
        known = read_groups(beside if comm_groups is None else Path(comm_groups), len(files))
    tables = Tables(len(files), roofline, algorithms or {})
    trace = _Reader(text, files, known, tables).trace()
    _check_used(trace, tables)
    return trace


def _check_used(trace: ChakraTrace, tables: Tables) -> None:
    """Refuse what was given and cannot matter."""
    steps = [step for program in trace.programs for step in program.steps]
    kinds = {step.kind for step in steps if isinstance(step, Collective)}
    for kind, name in tables.algorithms.items():
        if kind not in kinds:
            raise InputError(f"no trace has a {kind} to run by {name!r}{nearest(kind, kinds)}", field="algorithms")
    if tables.roofline is not None and not tables.has_timed:
        raise InputError("no trace has a GPU's compute node with a tensor_size to time by it", field="roofline")


def _numbered(prefix: str) -> dict[int, Path]:
    """rank -> file."""
    place = Path(prefix)
    pattern = re.compile(re.escape(place.name) + r"\.(\d{1,7})\.et(\.gz)?")
    if not place.name or not place.parent.is_dir():
        return {}
    found: dict[int, Path] = {}
    for path in sorted(place.parent.iterdir()):
        match = pattern.fullmatch(path.name)
        if match is None:
            continue
        rank = int(match[1])
        if rank in found:
            raise TraceError(f"is the trace of rank {rank}, and so is {found[rank].name}", file=path)
        found[rank] = path
    return found


def _files(prefix: str) -> tuple[Path, ...]:
    found = _numbered(prefix)
    if not found:
        place = Path(prefix)
        names = [path.name for path in place.parent.iterdir()] if place.parent.is_dir() else []
        prefixes = {match[1] for name in names if (match := re.fullmatch(r"(.+)\.\d+\.et(\.gz)?", name))}
        hint = nearest(place.name, prefixes) if prefixes else ""
        raise TraceError(f"there is no {place.name}.0.et: give the path up to .<rank>.et{hint}", file=prefix)
    missing = next((rank for rank in range(len(found)) if rank not in found), None)
    if missing is not None:
        raise TraceError(f"rank {missing} has no trace, but rank {max(found)} has", file=prefix)
    if len(found) > MAX_RANKS:
        raise TraceError(f"has traces of {len(found)} ranks, more than {MAX_RANKS}", file=prefix)
    return tuple(found[rank] for rank in range(len(found)))


class _Reader:
    """Reads file by file; files of equal content share a program."""

    def __init__(self, prefix: str, files: tuple[Path, ...], known: Groups, tables: Tables) -> None:
        self._prefix, self._files, self._known, self._tables = prefix, files, known, tables
        self._programs: list[Program] = []
        self._number_of: dict[bytes, int] = {}
        self._nodes: dict[bytes, RawNode] = {}
        self._head: TraceFile | None = None
        self._bytes = 0

    def trace(self) -> ChakraTrace:
        program_of = tuple(self._program(rank) for rank in range(len(self._files)))
        axes, layers = self._own_facts()
        trace = ChakraTrace(
            prefix=self._prefix,
            files=self._files,
            programs=tuple(self._programs),
            program_of=program_of,
            groups={name: ranks for ranks, name in self._tables.axes.items()},
            operator_names=tuple(self._tables.operators),
            layer_names=layers,
            axes=axes,
            roofline=self._tables.roofline,
            notes=tuple(dict.fromkeys(note for program in self._programs for note in program.notes)),
        )
        check(trace)
        return trace

    def _program(self, rank: int) -> int:
        """The number of the program of this rank."""
        path = self._files[rank]
        content = read_bytes(path)
        self._bytes += len(content)
        if self._bytes > MAX_BYTES:
            raise TraceError(f"the traces together have more than {MAX_BYTES} bytes", file=path)
        digest = hashlib.sha256(content).digest()
        if digest not in self._number_of:
            file = read_file(path, content, self._nodes)
            self._head = self._head or file
            own = file.attributes.get("writer") == WRITER
            self._number_of[digest] = len(self._programs)
            self._programs.append(make_program(file, self._known, self._tables, own=own))
        number = self._number_of[digest]
        self._check_rank(rank, self._programs[number])
        return number

    def _check_rank(self, rank: int, program: Program) -> None:
        for ranks, node in program.groups.items():
            if rank not in ranks:
                raise TraceError(
                    f"node {node}: rank {rank} is not in the group of its collective, {short(list(ranks))}",
                    file=self._files[rank],
                )
        for owner, node in program.owners.items():
            if owner != rank:
                raise TraceError(
                    f"node {node}: its own end is rank {owner}, but this is the trace of rank {rank}",
                    file=self._files[rank],
                )
        for step, node in zip(program.steps, program.nodes, strict=True):
            if isinstance(step, Send) and step.peer.position == rank:
                raise TraceError(f"node {node}: rank {rank} sends to itself", file=self._files[rank])

    def _own_facts(self) -> tuple[tuple[tuple[str, int], ...], tuple[str, ...]]:
        """Axes and names of layers, from the metadata of the first trace if trine wrote it."""
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
