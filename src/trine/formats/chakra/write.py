"""A job as Chakra traces, one file a rank: programs are encoded once, and what differs from rank to rank filled in."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from trine.errors import InputError, PlanError, nearest
from trine.formats.chakra import encode, schema
from trine.formats.chakra.groups import GROUPS_NODE, group_text
from trine.formats.chakra.limits import TARGETS, check_target
from trine.formats.chakra.read import WRITER, groups_file
from trine.formats.chakra.template import Encoder, Sizes
from trine.graph.grid import RankGrid
from trine.graph.program import Collective, Job, Peer, Recv, Send
from trine.outputs import MANIFEST, OutputFolder
from trine.units import format_bytes

#: Version of the schema that traces name.
VERSION = "0.0.4"
#: More bytes than this are refused unless asked for.
MAX_BYTES = 64 * 2**30
#: About what filling a hole adds.
_HOLE_BYTES = 64


@dataclass(frozen=True, kw_only=True, slots=True)
class ChakraFiles:
    """What was written: ``<prefix>.<rank>.et``, and the file of process groups where the job has any.

    ``notes``: what the simulator that the traces are for does otherwise than trine, one sentence each.
    """

    prefix: str
    num_ranks: int
    num_nodes: int
    num_bytes: int
    groups: Path | None
    notes: tuple[str, ...]


def write_chakra(
    job: Job, prefix: str | os.PathLike[str], *, target: str = "astra-sim", max_bytes: int = MAX_BYTES
) -> ChakraFiles:
    """Write ``job`` as Chakra execution traces.

    Parameters
    ----------
    prefix: path up to ``.<rank>.et``; its folder must exist.
    target: ``astra-sim`` refuses what ASTRA-sim stops at, and gives process groups in ``<prefix>.groups.json`` only
        (its ``--comm-group-configuration``); ``chakra`` writes all that the schema can hold, with a metadata node for
        the groups besides.
    max_bytes: refuse to write more.

    Raises
    ------
    InputError: an unknown target, a prefix that cannot be written to, or traces of ranks that the job does not have.
    PlanError: something that the target cannot express, or more than ``max_bytes``.
    """
    text = os.fspath(prefix)
    if target not in TARGETS:
        raise InputError(f"unknown target {target!r}{nearest(target, TARGETS)}", field="target")
    _check_place(text, len(job.program_of))
    notes = check_target(job, text, target)
    writer = _Writer(job, has_metadata=target == "chakra")
    expected = writer.expected_bytes()
    if expected > max_bytes:
        raise PlanError(
            f"the traces of {len(job.program_of)} ranks would have about {format_bytes(expected)}, more than "
            f"{format_bytes(max_bytes)}: take fewer ranks or micro-batches"
        )
    num_bytes = num_nodes = 0
    with OutputFolder(Path(text).parent, manifest_file(text).name) as folder:
        for rank in range(len(job.program_of)):
            with folder.open(f"{Path(text).name}.{rank}.et") as file:
                num_bytes += sum(file.write(part) for part in writer.file(rank))
            num_nodes += writer.num_nodes(rank)
        groups = _write_groups(folder, groups_file(text), writer.groups())
    return ChakraFiles(
        prefix=text,
        num_ranks=len(job.program_of),
        num_nodes=num_nodes,
        num_bytes=num_bytes,
        groups=groups,
        notes=notes,
    )


def manifest_file(prefix: str) -> Path:
    """Where the list of a job's traces is, with their SHA-256; it is written last."""
    return Path(f"{prefix}.{MANIFEST}")


def _check_place(prefix: str, num_ranks: int) -> None:
    """Refuse a folder that is not there, and other traces of that name, which would be taken for ours."""
    if not Path(prefix).name or not Path(prefix).parent.is_dir():
        raise InputError("must be a path up to .<rank>.et, in a folder that exists", file=prefix)
    for beyond in (Path(f"{prefix}.{num_ranks}.et"), Path(f"{prefix}.{num_ranks}.et.gz"), Path(f"{prefix}.0.et.gz")):
        if beyond.exists():
            raise InputError(
                f"is there already, and the job's own traces are {Path(prefix).name}.0.et to {num_ranks - 1}.et: take "
                "another prefix",
                file=beyond,
            )


def _write_groups(folder: OutputFolder, place: Path, groups: dict[str, list[int]]) -> Path | None:
    """One group a line, or no file (and none of an earlier job) where there is no group."""
    if not groups:
        place.unlink(missing_ok=True)
        return None
    rows = ",\n".join(f"  {json.dumps(name)}: {json.dumps(ranks)}" for name, ranks in groups.items())
    with folder.open(place.name) as file:
        file.write(f"{{\n{rows}\n}}\n".encode())
    return place


class _Writer:
    """Templates of all programs, and how to fill them for a rank."""

    def __init__(self, job: Job, *, has_metadata: bool) -> None:
        self._job, self._grid = job, RankGrid(job.axes)
        self._has_metadata = has_metadata
        encoder = Encoder(job, self._grid)
        self._templates = [encoder.template(program.steps) for program in job.programs]
        self._sizes = Sizes(job, self._grid)
        self._members: dict[str, tuple[int, npt.NDArray[np.int64]]] = {}
        self._group_of: dict[str, npt.NDArray[np.int64]] = {}
        self._number_groups()
        self._head = encode.framed(encode.file_head(VERSION, self._facts()))

    def _facts(self) -> list[bytes]:
        return [
            encode.string("writer", WRITER),
            encode.strings("axes", [f"{name}={size}" for name, size in self._job.axes]),
            encode.strings("layers", self._job.layer_names),
        ]

    def _number_groups(self) -> None:
        """Number the groups smaller than all ranks from 1 on, axis by axis; 0 is the name of all ranks."""
        first = 1
        steps = (step for program in self._job.programs for step in program.steps)
        for axis in dict.fromkeys(step.axis for step in steps if isinstance(step, Collective)):
            if not 1 < self._grid.size(axis) < self._grid.num_ranks:
                continue
            members = self._grid.members(axis)
            numbers = np.empty(self._grid.num_ranks, np.int64)
            numbers[members] = np.arange(first, first + len(members))[:, None]
            self._members[axis], self._group_of[axis] = (first, members), numbers
            first += len(members)

    def expected_bytes(self) -> int:
        """About how many bytes all files have."""
        per_program = [
            len(self._head)
            + sum(len(part) if isinstance(part, bytes) else len(part.head) + _HOLE_BYTES for part in template.parts)
            for template in self._templates
        ]
        counts = np.bincount(np.asarray(self._job.program_of, np.int64), minlength=len(per_program))
        return int(sum(size * count for size, count in zip(per_program, counts.tolist(), strict=True)))

    def num_nodes(self, rank: int) -> int:
        """How many nodes the file of a rank has."""
        own = self._templates[self._job.program_of[rank]].num_nodes
        return own + (1 if self._has_metadata and self._members else 0)

    def groups(self) -> dict[str, list[int]]:
        """All process groups by name."""
        return {
            str(first + index): group
            for first, members in self._members.values()
            for index, group in enumerate(members.tolist())
        }

    def file(self, rank: int) -> Iterator[bytes]:
        """The file of one rank, part by part."""
        yield self._head
        if self._has_metadata and self._members:
            own = {str(self._group_of[axis][rank]): tuple(self._grid.group(rank, axis)) for axis in self._members}
            head = encode.node(0, GROUPS_NODE, schema.METADATA, (), ())
            yield encode.framed(head + encode.node_inputs(group_text(own)))
        names = {
            axis: encode.node_attribute(encode.string("pg_name", str(numbers[rank])))
            for axis, numbers in self._group_of.items()
        }
        ends: dict[tuple[Peer, bool], tuple[int, bytes]] = {}
        for part in self._templates[self._job.program_of[rank]].parts:
            if isinstance(part, bytes):
                yield part
            elif isinstance(part.step, Collective):
                yield encode.framed(part.head + names[part.step.axis])
            else:
                yield encode.framed(part.head + self._message(rank, part.step, ends))

    def _message(self, rank: int, step: Send | Recv, ends: dict[tuple[Peer, bool], tuple[int, bytes]]) -> bytes:
        """Both ends of a message, and for a receive its bytes; ``ends`` keeps what was encoded for this rank."""
        key = step.peer, isinstance(step, Send)
        if key not in ends:
            other = self._grid.resolve(rank, step.peer)
            source, target = (rank, other) if isinstance(step, Send) else (other, rank)
            fields = encode.int32("comm_src", source), encode.int32("comm_dst", target)
            ends[key] = other, b"".join(map(encode.node_attribute, fields))
        other, encoded = ends[key]
        if isinstance(step, Send):
            return encoded
        size = encode.int64("comm_size", self._sizes.of(other, rank, step))
        return encoded + encode.node_attribute(size)
