"""Writer of a job as Chakra traces, one file per rank. Each program is encoded once, then filled in for each rank.

Features that the traces' readers do not support are reported as errors or notes before any file is written.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from trine.common.outputs import OutputFolder
from trine.common.units import format_bytes
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

TARGETS = ("astra-sim", "chakra")
#: Collectives that ASTRA-sim simulates; it replays a broadcast, and stops at others (Workload::issue_coll_comm).
_SIMULATED = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast")


def check_target(job: Job, prefix: str, target: str) -> tuple[str, ...]:
    """Return sentences about differences between the target and trine.

    Raises PlanError for the first feature that the target cannot express, with the remedy.
    """
    steps = [step for program in job.programs for step in program.steps]
    _check_schema(steps)
    if target == "chakra":
        return ("durations in whole us carry their remainder on; duration_ps has them exactly", *_lost(steps))
    _check_astra_sim(steps, prefix)
    return (*_notes(job, steps), *_lost(steps))


def _check_schema(steps: list[Step]) -> None:
    kinds = set(COLLECTIVES.values())
    for step in steps:
        if not isinstance(step, Compute | Send | Recv | Collective | HostCopy):
            raise PlanError(f"a {type(step).__name__} step has no node type in Chakra")
        if isinstance(step, Collective) and step.kind not in kinds:
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
            remedy = "leave the launches out (--no-cpu, no launch costs), or write for target 'chakra'"
            raise PlanError(f"ASTRA-sim's statistics stop at CPU operators: {remedy}")
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
    sized = {name for name, size in job.axes if size > 1}
    if any(not sized <= set(step.axis.split("+")) for step in collectives):
        yield "ASTRA-sim makes a one-dimensional ring of every process group smaller than all ranks"
    streams = {step.stream for step in steps if isinstance(step, Compute)}
    if streams - {COMPUTE_STREAM}:
        yield f"ASTRA-sim runs the {len(streams)} streams of a GPU as one"


#: Schema version written to the traces.
VERSION = "0.0.4"
#: Default limit on the total size of the traces.
MAX_BYTES = 64 * 2**30
#: Approximate bytes added by filling a hole.
_HOLE_BYTES = 64


@dataclass(frozen=True, kw_only=True, slots=True)
class ChakraFiles:
    """Written files: ``<prefix>.<rank>.et``, and the file of process groups if the job has any.

    ``notes``: differences between the target simulator and trine, one sentence each.
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

    prefix: path up to ``.<rank>.et``; its folder must exist.
    target: ``astra-sim`` rejects nodes at which ASTRA-sim stops, and writes process groups to ``<prefix>.groups.json``
        only (its ``--comm-group-configuration``); ``chakra`` writes everything that the schema can hold, and also adds
        a metadata node for the groups.
    max_bytes: limit on the total size.

    Raises InputError for an unknown target, an unwritable prefix, or existing traces of ranks that the job does not
    have; PlanError for a feature that the target cannot express, or more than ``max_bytes``.
    """
    text = os.fspath(prefix)
    if target not in TARGETS:
        raise InputError(f"unknown target {target!r}{nearest(target, TARGETS)}", field="target")
    _check_place(text, len(job.program_of))
    notes = check_target(job, text, target)
    writer = _JobWriter(job, has_metadata=target == "chakra")
    expected = writer.expected_bytes()
    if expected > max_bytes:
        sizes = f"about {format_bytes(expected)}, more than {format_bytes(max_bytes)}"
        raise PlanError(
            f"the traces of {len(job.program_of)} ranks would have {sizes}: take fewer ranks or micro-batches"
        )
    num_bytes = num_nodes = 0
    with OutputFolder(Path(text).parent, manifest_file(text).name) as folder:
        for rank in range(len(job.program_of)):
            with folder.open(f"{Path(text).name}.{rank}.et") as file:
                num_bytes += sum(file.write(part) for part in writer.file(rank))
            num_nodes += writer.num_nodes(rank)
        groups = _write_groups(folder, groups_file(text), writer.groups())
    return ChakraFiles(
        prefix=text, num_ranks=len(job.program_of), num_nodes=num_nodes, num_bytes=num_bytes, groups=groups, notes=notes
    )


def _check_place(prefix: str, num_ranks: int) -> None:
    """Raise InputError for a missing folder, and for leftover traces that readers would attribute to this job."""
    if not Path(prefix).name or not Path(prefix).parent.is_dir():
        raise InputError("must be a path up to .<rank>.et, in a folder that exists", file=prefix)
    for beyond in (Path(f"{prefix}.{num_ranks}.et"), Path(f"{prefix}.{num_ranks}.et.gz"), Path(f"{prefix}.0.et.gz")):
        if beyond.exists():
            written = f"{Path(prefix).name}.0.et to {num_ranks - 1}.et"
            raise InputError(
                f"is there already, and the job's own traces are {written}: take another prefix", file=beyond
            )


def _write_groups(folder: OutputFolder, place: Path, groups: dict[str, list[int]]) -> Path | None:
    """Write one group per line; without groups, write no file and delete an earlier job's file."""
    if not groups:
        place.unlink(missing_ok=True)
        return None
    rows = ",\n".join(f"  {json.dumps(name)}: {json.dumps(ranks)}" for name, ranks in groups.items())
    with folder.open(place.name) as file:
        file.write(f"{{\n{rows}\n}}\n".encode())
    return place


class _JobWriter:
    """Templates of all programs, which it fills in for each rank."""

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
        """Assign numbers from 1 to the groups smaller than all ranks, axis by axis; 0 stands for all ranks."""
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
        """Return the approximate total size of all files."""
        per_program = []
        for program in self._templates:
            size = len(self._head)
            for part in program.parts:
                size += len(part) if isinstance(part, bytes) else len(part.head) + _HOLE_BYTES
            per_program.append(size)
        counts = np.bincount(np.asarray(self._job.program_of, np.int64), minlength=len(per_program))
        return int(sum(size * count for size, count in zip(per_program, counts.tolist(), strict=True)))

    def num_nodes(self, rank: int) -> int:
        """Return the number of nodes in the file of a rank."""
        num_template_nodes = self._templates[self._job.program_of[rank]].num_nodes
        return num_template_nodes + (1 if self._has_metadata and self._members else 0)

    def groups(self) -> dict[str, list[int]]:
        """Return all process groups by name."""
        return {
            str(first + index): group
            for first, members in self._members.values()
            for index, group in enumerate(members.tolist())
        }

    def file(self, rank: int) -> Iterator[bytes]:
        """Yield the file of one rank, part by part."""
        yield self._head
        if self._has_metadata and self._members:
            groups = {str(self._group_of[axis][rank]): tuple(self._grid.group(rank, axis)) for axis in self._members}
            head = template.node(0, GROUPS_NODE, schema.METADATA, (), ())
            yield template.framed(head + template.node_inputs(group_text(groups)))
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
        """Encode both ends of a message, and a receive's bytes; ``ends`` caches the encoded ends for this rank."""
        key = step.peer, isinstance(step, Send)
        if key not in ends:
            peer_rank = self._grid.resolve(rank, step.peer)
            source, target = (rank, peer_rank) if isinstance(step, Send) else (peer_rank, rank)
            fields = template.int32("comm_src", source), template.int32("comm_dst", target)
            ends[key] = peer_rank, b"".join(map(template.node_attribute, fields))
        peer_rank, encoded = ends[key]
        if isinstance(step, Send):
            return encoded
        size = template.int64("comm_size", self._sizes.of(peer_rank, rank, step))
        return encoded + template.node_attribute(size)
