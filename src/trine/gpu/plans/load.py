"""Loading of plans in any format: MSCCL++ JSON of either generation, or MSCCL XML."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from trine.common.inputs import read_text
from trine.common.schema import show
from trine.common.spec import parse_json
from trine.errors import SpecError
from trine.gpu.plans.plan import KernelPlan
from trine.gpu.plans.read_json import read_plan
from trine.gpu.plans.read_xml import read_xml
from trine.gpu.plans.reading import check_plan_shape, walk
from trine.gpu.plans.vocabulary import V1, V2


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
    for words in (V1, V2):
        if isinstance(first, Mapping) and words.chunks[0] in first:
            return read_plan(data, file, words)
    raise SpecError(
        "is not a plan: gpus[0] has neither 'inputChunks' (MSCCL++ up to v0.7) nor 'input_chunks' (from v0.8 on)",
        file=file,
    )


# Summaries of plans.


@dataclass(frozen=True, kw_only=True, slots=True)
class PlanSummary:
    """Counts of a plan. ``operations``: by name, bodies of pipelines once. ``connections``: by kind, each end.

    ``min_bytes``, ``max_bytes`` (None: no limit): supported message sizes.
    """

    name: str
    collective: str
    format: str
    protocol: str
    in_place: bool
    num_ranks: int
    chunks: int
    threads_per_block: int | None
    blocks_per_gpu: tuple[int, int]
    operations: dict[str, int]
    connections: dict[str, int]
    multicast_groups: int
    min_bytes: int
    max_bytes: int | None
    notes: tuple[str, ...]

    def lines(self) -> list[str]:
        """Return the summary as text, one line for each property."""
        low, high = self.blocks_per_gpu
        blocks = f"{low}" if low == high else f"{low} to {high}"
        most = "any size" if self.max_bytes is None else f"{self.max_bytes} bytes"
        return [
            f"plan         {self.name} ({self.format})",
            f"collective   {self.collective}{' in place' if self.in_place else ''}, {self.num_ranks} ranks",
            f"protocol     {self.protocol}, {self.chunks} chunks, messages of {self.min_bytes} bytes to {most}",
            f"blocks       {blocks} a GPU, {self.threads_per_block or '?'} threads each",
            f"operations   {_counts(self.operations)}",
            f"connections  {_counts(self.connections)}; multicast groups: {self.multicast_groups}",
            *(f"note         {note}" for note in self.notes),
        ]


def _counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counts.items()) or "none"


def describe_plan(plan: KernelPlan) -> PlanSummary:
    """Count the elements of a plan."""
    operations = Counter(op.name for gpu in plan.gpus for block in gpu.blocks for _, op in walk(block))
    connections = Counter(connection.kind for gpu in plan.gpus for connection in gpu.connections)
    blocks = [len(gpu.blocks) for gpu in plan.gpus]
    largest = 2**64 - 1
    return PlanSummary(
        name=plan.name,
        collective=plan.collective,
        format=plan.format,
        protocol=plan.protocol,
        in_place=plan.in_place,
        num_ranks=plan.num_ranks,
        chunks=plan.chunks_of_size,
        threads_per_block=plan.threads_per_block,
        blocks_per_gpu=(min(blocks), max(blocks)),
        operations=dict(operations.most_common()),
        connections=dict(connections.most_common()),
        multicast_groups=len(plan.groups),
        min_bytes=plan.min_bytes,
        max_bytes=None if plan.max_bytes == largest else plan.max_bytes,
        notes=plan.notes,
    )
