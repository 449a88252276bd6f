"""A job as Chakra traces, one file a rank: programs are encoded once, and what differs from rank to rank filled in.

What readers of such traces cannot take is an error or a note before anything is written.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from trine.errors import InputError, PlanError, nearest
from trine.formats.chakra import schema, template
from trine.formats.chakra.messages import GROUPS_NODE, group_text
from trine.formats.chakra.read import WRITER, groups_file, manifest_file
from trine.formats.chakra.schema import COLLECTIVES
from trine.formats.chakra.template import Encoder, Sizes
from trine.graph.grid import RankGrid
from trine.graph.program import (
    COMPUTE_STREAM,
    LAUNCH_STREAM,
    Collective,
    Compute,
    HostCopy,
    Job,
    Peer,
    Recv,
    Send,
    Step,
)
from trine.outputs import OutputFolder
from trine.units import format_bytes

TARGETS = ("astra-sim", "chakra")
#: Collectives that ASTRA-sim simulates; a broadcast it replays, at others it stops (Workload::issue_coll_comm).
_SIMULATED = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast")


def check_target(job: Job, prefix: str, target: str) -> tuple[str, ...]:
    """Sentences about what the target does otherwise than trine.

    Raises PlanError: the first thing that it cannot express, and what to do about it.
    """
    steps = [step for program in job.programs for step in program.steps]
    _check_schema(steps)
    if target == "chakra":
        return ("durations in whole us carry their remainder on; duration_ps has them exactly", *_lost(steps))
    _check_astra_sim(steps, prefix)
    return (*_notes(job, steps), *_lost(steps))


def _check_schema(steps: list[Step]) -> None:
    known = set(COLLECTIVES.values())
    for step in steps:
        if not isinstance(step, Compute | Send | Recv | Collective | HostCopy):
            raise PlanError(f"a {type(step).__name__} step has no node type in Chakra")
        if isinstance(step, Collective) and step.kind not in known:
            raise PlanError(f"{step.kind} is no collective of Chakra: {', '.join(dict.fromkeys(COLLECTIVES.values()))}")


def _check_astra_sim(steps: list[Step], prefix: str) -> None:
    if "empty" in Path(prefix).name:
        raise PlanError(f"ASTRA-sim reads no file of groups whose path contains 'empty': rename {prefix!r}")
    for step in steps:
        if isinstance(step, HostCopy):
            raise PlanError(
                "ASTRA-sim's statistics stop at memory nodes: leave the input copies out (--inputs none, "
                "Plan(inputs='none')) and offload nothing, or write for target 'chakra'"
            )
        if isinstance(step, Compute) and step.stream == LAUNCH_STREAM:
            raise PlanError(
                "ASTRA-sim's statistics stop at CPU operators: leave the launches out (--no-cpu, no launch costs), or "
                "write for target 'chakra'"
            )
        if isinstance(step, Collective) and step.kind not in _SIMULATED:
            raise PlanError(f"ASTRA-sim has no {step.kind}; it simulates {', '.join(_SIMULATED)}")


def _lost(steps: list[Step]) -> Iterator[str]:
    if any(isinstance(step, Send | Collective) and step.pressure_ppm for step in steps):
        yield "that communication slows compute down (--overlap modelled) has no place in the traces"


def _notes(job: Job, steps: list[Step]) -> Iterator[str]:
    yield "durations are whole us, remainders carried on, so that sums are right to 1 us (duration_ps is exact)"
    yield "no num_ops and tensor_size are known: roofline-enabled must be 0"
    collectives = [step for step in steps if isinstance(step, Collective)]
    if collectives:
        yield "ASTRA-sim chooses algorithms by its system file, and runs one collective or send of an NPU at a time"
    if any(step.kind == "broadcast" for step in collectives):
        yield "ASTRA-sim takes 1 ns for a broadcast"
    sizes = dict(job.axes)
    if any(len(_sized(step.axis, sizes)) < len([s for s in sizes.values() if s > 1]) for step in collectives):
        yield "ASTRA-sim makes a one-dimensional ring of every process group smaller than all ranks"
    streams = {step.stream for step in steps if isinstance(step, Compute)}
    if streams - {COMPUTE_STREAM}:
        yield f"ASTRA-sim runs the {len(streams)} streams of a GPU as one"


def _sized(axis: str, sizes: dict[str, int]) -> list[str]:
    return [name for name in axis.split("+") if sizes[name] > 1]


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
    writer = _JobWriter(job, has_metadata=target == "chakra")
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


class _JobWriter:
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
        self._head = template.framed(template.file_head(VERSION, self._facts()))

    def _facts(self) -> list[bytes]:
        return [
            template.string("writer", WRITER),
            template.strings("axes", [f"{name}={size}" for name, size in self._job.axes]),
            template.strings("layers", self._job.layer_names),
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
            head = template.node(0, GROUPS_NODE, schema.METADATA, (), ())
            yield template.framed(head + template.node_inputs(group_text(own)))
        names = {
            axis: template.node_attribute(template.string("pg_name", str(numbers[rank])))
            for axis, numbers in self._group_of.items()
        }
        ends: dict[tuple[Peer, bool], tuple[int, bytes]] = {}
        for part in self._templates[self._job.program_of[rank]].parts:
            if isinstance(part, bytes):
                yield part
            elif isinstance(part.step, Collective):
                yield template.framed(part.head + names[part.step.axis])
            else:
                yield template.framed(part.head + self._message(rank, part.step, ends))

    def _message(self, rank: int, step: Send | Recv, ends: dict[tuple[Peer, bool], tuple[int, bytes]]) -> bytes:
        """Both ends of a message, and for a receive its bytes; ``ends`` keeps what was encoded for this rank."""
        key = step.peer, isinstance(step, Send)
        if key not in ends:
            other = self._grid.resolve(rank, step.peer)
            source, target = (rank, other) if isinstance(step, Send) else (other, rank)
            fields = template.int32("comm_src", source), template.int32("comm_dst", target)
            ends[key] = other, b"".join(map(template.node_attribute, fields))
        other, encoded = ends[key]
        if isinstance(step, Send):
            return encoded
        size = template.int64("comm_size", self._sizes.of(other, rank, step))
        return encoded + template.node_attribute(size)
