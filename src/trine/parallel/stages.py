"""Pipeline stages: where the model is cut, and which tensors cross the cuts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from trine.errors import PlanError, nearest
from trine.model.workload import BACKWARD, FORWARD, OPTIMIZER, Operator, Workload


@dataclass(frozen=True, slots=True)
class Crossing:
    """A forward tensor made in stage ``source`` and needed in the later stage ``target``.

    ``tensor`` is its id where it is sent, ``producer`` and ``consumer`` the operators on either side. When training,
    its gradient travels back.
    """

    source: int
    target: int
    tensor: int
    producer: int
    consumer: int
    has_gradient: bool


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
    # best[i]: least bottleneck of the first i operators in the stages so far
    best = list(prefix)
    for _ in range(1, num_stages):
        best = [
            min((max(best[j], prefix[i] - prefix[j]) for j in range(i)), default=prefix[-1] + 1) for i in range(n + 1)
        ]
    limit = best[n]
    cost: list[dict[int, tuple[int, int]]] = [{0: (0, -1)}]
    for _ in range(num_stages):
        row: dict[int, tuple[int, int]] = {}
        for i in range(1, n + 1):
            options = [
                (bytes_sent + (crossing[j] if j else 0), j)
                for j, (bytes_sent, _) in cost[-1].items()
                if j < i and prefix[i] - prefix[j] <= limit
            ]
            if options:
                row[i] = min(options)
        cost.append(row)
    starts, i = [], n
    for row in reversed(cost[1:]):
        i = row[i][1]
        starts.append(i)
    return starts[::-1]


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
                size[tensor.storage] = tensor.size_bytes
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
    """Which tensors go from stage to stage: each to every stage that reads it, once."""
    writer: dict[int, tuple[int, int]] = {}
    found: dict[tuple[int, int, int], Crossing] = {}
    for op in forward:
        stage = stage_of[op.id]
        for tensor_id in op.inputs:
            tensor = workload.tensors[tensor_id]
            if tensor.storage in writer and tensor.role == "activation":
                producer, produced = writer[tensor.storage]
                source = stage_of[producer]
                if source != stage:
                    key = (source, stage, tensor.storage)
                    floating = "float" in tensor.dtype or tensor.dtype == "bfloat16"
                    found.setdefault(key, Crossing(source, stage, produced, producer, op.id, floating))
        for tensor_id in op.outputs:
            tensor = workload.tensors[tensor_id]
            if tensor.role == "activation" and tensor.size_bytes:
                writer[tensor.storage] = (op.id, tensor_id)
    for target, first in enumerate(starts[1:], start=1):
        if not any(c.target == target for c in found.values()):  # the trace lost the link (a view it does not list)
            before = forward[first - 1]
            outputs = [t for t in before.outputs if workload.tensors[t].role == "activation"]
            if outputs:
                found[(target - 1, target, -target)] = Crossing(
                    target - 1, target, outputs[0], before.id, forward[first].id, True
                )
    return tuple(sorted(found.values(), key=lambda c: (c.source, c.target, c.producer, c.tensor)))


def optimizer_operators(workload: Workload) -> tuple[Operator, ...]:
    """The operators of the optimizer step, in order."""
    return tuple(op for op in workload.operators if op.phase == OPTIMIZER)
