"""Recognise a trace of one rank that holds only a part of the model: tensor parallelism or a pipeline stage.

Data parallelism reduces gradients after they are computed; only a split layer needs a sum inside the forward pass. Only
pipelines (and rings of context parallelism) send to a single other rank.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from trine.graph.workload import BACKWARD, FORWARD
from trine.workload.pytorch.kineto import Kineto
from trine.workload.pytorch.steps import CollectiveRow, TracedStep, collective_rows

#: Sums of partial results; FSDP only gathers in the forward pass.
_SUMS = ("all_reduce", "reduce_scatter", "reduce")
_TO_ONE_RANK = ("send", "recv", "send_recv")
#: Smaller messages are losses, token counts and statistics of batch norms, not activations.
_MIN_BYTES = 1024
#: Minimum number of sums in a forward pass; a metric may take one.
_MIN_SUMS = 2


def recorded_shard(kineto: Kineto, step: TracedStep) -> str | None:
    """Return the rank, the job's size, and the parallelism that the trace shows, None for a whole model.

    Example: ``rank 0 of 8, with 3 all-reduces inside the forward pass: a shard of a tensor-parallel job``.
    """
    rows = list(collective_rows(kineto, step))
    world = _world_size(kineto, rows)
    if world == 1:
        return None
    sums = Counter(row.operation for row in rows if _is_inner_sum(row, step))
    messages = Counter(row.operation for row in rows if row.call is not None and row.operation in _TO_ONE_RANK)
    if sum(sums.values()) >= _MIN_SUMS:
        calls, place, job = sums, " inside the forward pass", "a shard of a tensor-parallel job"
    elif messages:
        calls, place, job = messages, "", "a stage of a pipeline, or one part of a sequence (context parallelism)"
    else:
        return None
    counts = " and ".join(f"{count} x {name}" for name, count in calls.most_common())
    return f"{_rank_text(kineto.rank, world)}, with {counts}{place}: {job}"


def _is_inner_sum(row: CollectiveRow, step: TracedStep) -> bool:
    """Return whether a collective adds up activations in the forward pass; kernels of CUDA graphs have no call."""
    if row.operation not in _SUMS or row.inside == "SyncBatchNorm":
        return False
    if row.size_bytes is not None and row.size_bytes < _MIN_BYTES:
        return False
    if row.call is None:
        return BACKWARD not in step.phases.values()
    return row.phase == FORWARD


def _world_size(kineto: Kineto, rows: list[CollectiveRow]) -> int | None:
    """Return the number of ranks: the profiler's, else the largest group of a collective, None if unknown."""
    if kineto.world_size is not None:
        return kineto.world_size
    return max((row.group_size for row in rows if row.group_size is not None), default=None)


def _rank_text(rank: int | None, world: int | None) -> str:
    if rank is None:
        return "one rank" if world is None else f"one rank of {world}"
    return f"rank {rank}" if world is None else f"rank {rank} of {world}"


def as_metadata(kineto: Kineto, step: TracedStep, key: str) -> Mapping[str, str]:
    """Return the entry of :func:`recorded_shard` for ``Workload.metadata``; empty for a whole model."""
    shard = recorded_shard(kineto, step)
    return {} if shard is None else {key: shard}
