"""Pipeline stages: where the model is cut, and which tensors cross the cuts."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from trine.errors import PlanError, nearest
from trine.model.workload import BACKWARD, FORWARD, OPTIMIZER, Operator, Tensor, Workload


@dataclass(frozen=True, slots=True)
class Crossing:
    """A forward tensor made in stage ``source`` and needed in the later stage ``target``.

    ``tensor`` is its id where it is sent, ``producer`` and ``consumer`` the operators on either side. When training,
    its gradient travels back: after ``gradient_after``, the last backward operator of a reader in the target stage, and
    before ``gradient_before``, the producer's first (-1: the end, or beginning, of the pass).
    ``guessed``: the trace does not link the two operators, so the output of the one before the cut is taken.
    """

    source: int
    target: int
    tensor: int
    producer: int
    consumer: int
    has_gradient: bool
    gradient_after: int = -1
    gradient_before: int = -1
    guessed: bool = False


@dataclass(frozen=True, slots=True)
class Stages:
    """``stage_of[operator id]`` of forward and backward operators; ``cuts`` are the layers that begin later stages."""

    num_stages: int
    stage_of: Mapping[int, int]
    cuts: tuple[str, ...]
    crossings: tuple[Crossing, ...]


def cut_into_stages(workload: Workload, num_stages: int, cuts: Sequence[str], duration_ps: Mapping[int, int]) -> Stages:
    """Cut the forward operators into consecutive stages; a backward operator goes where its forward operator is.

    Without ``cuts`` the slowest stage (forward and backward time in ``duration_ps``) is made as short as can be, and
    among such cuts the one that sends the fewest bytes is taken.

    Raises PlanError for unknown cut names, cuts out of order, and more stages than operators.
    """
    forward = [op for op in workload.operators if op.phase == FORWARD]
    if num_stages > len(forward):
        raise PlanError(
            f"{num_stages} pipeline stages need at least as many forward operators; the trace has {len(forward)}"
        )
    if num_stages == 1:
        starts = [0]
    else:
        starts = _given_starts(forward, cuts) if cuts else _balanced_starts(workload, forward, num_stages, duration_ps)
    stage_of: dict[int, int] = {}
    for stage, (first, last) in enumerate(zip(starts, [*starts[1:], len(forward)], strict=True)):
        for op in forward[first:last]:
            stage_of[op.id] = stage
    current = num_stages - 1
    for op in workload.operators:
        if op.phase == BACKWARD:
            current = stage_of.get(op.forward_id, current) if op.forward_id is not None else current
            stage_of[op.id] = current
    names = tuple(forward[first].layer for first in starts[1:])
    return Stages(num_stages, stage_of, names, _crossings(workload, forward, stage_of, starts))


def _given_starts(forward: Sequence[Operator], cuts: Sequence[str]) -> list[int]:
    index = {op.layer: i for i, op in reversed(list(enumerate(forward)))}
    starts = [0]
    for cut in cuts:
        if cut not in index:
            raise PlanError(f"no forward operator is called {cut!r}{nearest(cut, index)}")
        if index[cut] <= starts[-1]:
            raise PlanError(f"cut {cut!r} does not come after the cut before it: every stage needs an operator")
        starts.append(index[cut])
    return starts


def _linked_time(workload: Workload, forward: Sequence[Operator], duration_ps: Mapping[int, int]) -> list[int]:
    """Forward plus backward time of each forward operator."""
    position = {op.id: i for i, op in enumerate(forward)}
    time = [duration_ps[op.id] for op in forward]
    last = len(forward) - 1
    for op in workload.operators:
        if op.phase == BACKWARD:
            last = position.get(op.forward_id, last) if op.forward_id is not None else last
            time[last] += duration_ps[op.id]
    return time


def _balanced_starts(
    workload: Workload, forward: Sequence[Operator], num_stages: int, duration_ps: Mapping[int, int]
) -> list[int]:
    """Exact dynamic programme over cut positions: least bottleneck first, then fewest bytes across the cuts."""
    n = len(forward)
    prefix = [0, *accumulate(_linked_time(workload, forward, duration_ps))]
    crossing = _bytes_across(workload, forward)
    limit = _least_bottleneck(prefix, num_stages)
    # cost[k][i]: bytes across cuts, then sum of squares of stage times, then the last cut, of the first i operators
    # in k stages none of which is slower than the bottleneck
    cost: list[dict[int, tuple[int, int, int]]] = [{0: (0, 0, -1)}]
    for _ in range(num_stages):
        row: dict[int, tuple[int, int, int]] = {}
        for i in range(1, n + 1):
            options = [
                (sent + (crossing[j] if j else 0), squares + (prefix[i] - prefix[j]) ** 2, j)
                for j in range(bisect_left(prefix, prefix[i] - limit), i)
                if j in cost[-1]
                for sent, squares, _ in (cost[-1][j],)
            ]
            if options:
                row[i] = min(options)
        cost.append(row)
    starts, i = [], n
    for row in reversed(cost[1:]):
        i = row[i][2]
        starts.append(i)
    return starts[::-1]


def _least_bottleneck(prefix: Sequence[int], num_stages: int) -> int:
    """The shortest time that the slowest of ``num_stages`` consecutive stages can have, from prefix sums."""
    total = np.array(prefix, dtype=np.int64)
    stage = total[:, None] - total[None, :]  # [end, begin]
    stage[np.triu_indices(len(total), k=1)] = total[-1] + 1
    best = total
    for _ in range(1, num_stages):
        best = np.maximum(best[None, :], stage).min(axis=1)
    return int(best[-1])


def _bytes_across(workload: Workload, forward: Sequence[Operator]) -> list[int]:
    """Bytes of live forward tensors between operators i-1 and i, a cheap measure of what a cut there sends."""
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    size: dict[int, int] = {}
    for i, op in enumerate(forward):
        for tensor_id in op.outputs:
            tensor = workload.tensors[tensor_id]
            if tensor.role == "activation":
                first.setdefault(tensor.storage, i)
                size[tensor.storage] = max(size.get(tensor.storage, 0), tensor.size_bytes)
        for tensor_id in op.inputs:
            storage = workload.tensors[tensor_id].storage
            if storage in first:
                last[storage] = i
    change = [0] * (len(forward) + 1)
    for storage, end in last.items():
        change[first[storage] + 1] += size[storage]
        change[end + 1 if end + 1 <= len(forward) else len(forward)] -= size[storage]
    return list(accumulate(change))


def _crossings(
    workload: Workload, forward: Sequence[Operator], stage_of: Mapping[int, int], starts: Sequence[int]
) -> tuple[Crossing, ...]:
    """Which tensors go from stage to stage: each to every stage that reads it, once.

    Raises PlanError where a stage begins with operators that nothing before the cut feeds, as far as the trace says.
    """
    tensors = workload.tensors
    backward = backward_of(workload)
    writer: dict[int, tuple[int, int]] = {}  # storage -> operator that wrote it last, and its largest view
    readers: dict[tuple[int, int, int, int], list[Operator]] = {}  # source, target, producer, tensor
    for op in forward:
        stage = stage_of[op.id]
        crossed = {tensors[t].storage: None for t in op.inputs if tensors[t].role == "activation"}
        for storage in crossed:
            if storage in writer and stage_of[writer[storage][0]] != stage:
                producer, largest = writer[storage]
                readers.setdefault((stage_of[producer], stage, producer, largest), []).append(op)
        for tensor_id in op.outputs:
            tensor = tensors[tensor_id]
            if tensor.role == "activation" and tensor.size_bytes:
                known = writer[tensor.storage][1] if tensor.storage in writer else tensor_id
                writer[tensor.storage] = (op.id, max(tensor_id, known, key=lambda t: tensors[t].size_bytes))
    order = {op.id: i for i, op in enumerate(workload.operators)}
    found = [_crossing(workload, backward, order, key, ops) for key, ops in readers.items()]
    for target, first in enumerate(starts[1:], start=1):
        if not any(crossing.target == target for crossing in found):
            found.append(_guess(workload, forward[first - 1], forward[first], target))
    return tuple(sorted(found, key=lambda c: (c.source, c.target, order[c.producer], c.tensor)))


def _crossing(
    workload: Workload,
    backward: Mapping[int, Sequence[Operator]],
    order: Mapping[int, int],
    key: tuple[int, int, int, int],
    readers: Sequence[Operator],
) -> Crossing:
    """The crossing of one storage to the readers of one stage."""
    source, target, producer, tensor_id = key
    linked = [op.id for reader in readers for op in backward.get(reader.id, ())]
    before = backward.get(producer, ())
    return Crossing(
        source=source,
        target=target,
        tensor=tensor_id,
        producer=producer,
        consumer=readers[0].id,
        has_gradient=any(needs_gradient(workload, workload.tensors[tensor_id], op, backward) for op in readers),
        gradient_after=max(linked, key=order.__getitem__, default=-1),
        gradient_before=before[0].id if before else -1,
    )


def _guess(workload: Workload, before: Operator, after: Operator, target: int) -> Crossing:
    outputs = [t for t in before.outputs if workload.tensors[t].role == "activation" and workload.tensors[t].size_bytes]
    if not outputs:
        raise PlanError(
            f"the trace does not say which tensor goes from {before.layer!r} to {after.layer!r}, so the pipeline "
            "cannot be cut there: name other cuts, or record a trace with tensor shapes"
        )
    return Crossing(target - 1, target, outputs[0], before.id, after.id, True, guessed=True)


def backward_of(workload: Workload) -> dict[int, list[Operator]]:
    """Forward operator id -> its backward operators, in order."""
    found: dict[int, list[Operator]] = {}
    for op in workload.operators:
        if op.phase == BACKWARD and op.forward_id is not None:
            found.setdefault(op.forward_id, []).append(op)
    return found


def needs_gradient(
    workload: Workload, tensor: Tensor, reader: Operator, backward: Mapping[int, Sequence[Operator]] | None = None
) -> bool:
    """Whether the backward operator of ``reader`` computes the gradient of the activation ``tensor``.

    The trace says so by an output of the tensor's size, and denies it by an absent output, as of a first convolution;
    where it says neither, a floating-point activation is taken to need its gradient.
    """
    if tensor.role != "activation" or "float" not in tensor.dtype:
        return False
    linked = (backward if backward is not None else backward_of(workload)).get(reader.id, ())
    outputs = [workload.tensors[t] for op in linked for t in op.outputs]
    if any(out.role == "activation" and out.size_bytes == tensor.size_bytes for out in outputs):
        return True
    return not any(out.size_bytes == 0 for out in outputs)


def optimizer_operators(workload: Workload) -> tuple[Operator, ...]:
    """The operators of the optimizer step, in order."""
    return tuple(op for op in workload.operators if op.phase == OPTIMIZER)
