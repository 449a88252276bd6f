"""Summaries of plans: counts of operations, blocks and connections."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from trine.gpu.plans.plan import KernelPlan
from trine.gpu.plans.reading import walk


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
        limit = "any size" if self.max_bytes is None else f"{self.max_bytes} bytes"
        place = " in place" if self.in_place else ""
        return [
            f"plan         {self.name} ({self.format})",
            f"collective   {self.collective}{place}, {self.num_ranks} ranks",
            f"protocol     {self.protocol}, {self.chunks} chunks, messages of {self.min_bytes} bytes to {limit}",
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
        name=plan.name, collective=plan.collective, format=plan.format, protocol=plan.protocol, in_place=plan.in_place,
        num_ranks=plan.num_ranks, chunks=plan.chunks_of_size, threads_per_block=plan.threads_per_block,
        blocks_per_gpu=(min(blocks), max(blocks)), operations=dict(operations.most_common()),
        connections=dict(connections.most_common()), multicast_groups=len(plan.groups), min_bytes=plan.min_bytes,
        max_bytes=None if plan.max_bytes == largest else plan.max_bytes, notes=plan.notes,
    )  # fmt: skip
