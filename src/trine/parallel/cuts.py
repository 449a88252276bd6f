"""Pipeline cuts: at named layers, after equal times, or after equal numbers of layers.

Cuts that trine chooses lie between layers, as in the frameworks: only the output of a layer crosses, once.
A cut inside a layer may send many times more (the features of an MLP, the logits of a vocabulary).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import accumulate, pairwise
from math import prod

import numpy as np

from trine.compute import kind_of
from trine.compute.kinds import layer_of
from trine.errors import PlanError, nearest
from trine.graph.workload import BACKWARD, FORWARD, Operator, Workload
from trine.parallel.layer_counts import ACCOUNTED, accounted_counts
from trine.parallel.layer_places import block_places, has_layers, places_of, sendable

#: End of the last stage placed -> the minimised cost (bytes sent across the cuts, then the sum of squares of stage
#: times), and the start of that stage. Start and end are indices of places.
Row = dict[int, tuple[tuple[int, int], int]]
#: Most positions compared for equal stage times; if there are more, trine compares those nearest to the even split.
MAX_OPTIONS = 32


def starts_of_stages(
    workload: Workload,
    num_stages: int,
    cuts: Sequence[str],
    duration_ps: Mapping[int, int],
    balance: str,
    of_stage: Sequence[Sequence[Mapping[int, int]]],
    counts: Sequence[int],
) -> list[int]:
    """Return the positions in the forward operators at which stages begin.

    Parameters and errors: as :func:`trine.parallel.stages.cut_into_stages`.
    """
    forward = [op for op in workload.operators if op.phase == FORWARD]
    if cuts:
        return named_starts(forward, cuts)
    if counts:
        return counted_starts(workload, forward, counts)
    if balance in STARTS:
        return STARTS[balance](workload, forward, num_stages)
    return balanced_starts(workload, forward, num_stages, duration_ps, of_stage)


def named_starts(forward: Sequence[Operator], cuts: Sequence[str]) -> list[int]:
    """Return the positions in ``forward`` at which stages begin, from the first layers of stages 2 and later.

    Raises PlanError for unknown names and for cuts out of order.
    """
    index = {op.layer: i for i, op in reversed(list(enumerate(forward)))}
    starts = [0]
    for cut in cuts:
        if cut not in index:
            raise PlanError(f"no forward operator is called {cut!r}{nearest(cut, index)}")
        if index[cut] <= starts[-1]:
            raise PlanError(f"cut {cut!r} does not come after the cut before it: every stage needs an operator")
        starts.append(index[cut])
    return starts


def layered_starts(workload: Workload, forward: Sequence[Operator], num_stages: int) -> list[int]:
    """Return stages with equal numbers of layers; embedding (before the blocks) and head (after) count as one each.

    If the division leaves a remainder, the larger stages are spread evenly. Raises PlanError if the operators' names
    contain too few layers.
    """
    units = places_of(workload, forward) if has_layers(forward) else [0]
    _require_places(len(units), num_stages, has_layers(forward))
    return [units[stage * len(units) // num_stages] for stage in range(num_stages)]


def block_starts(workload: Workload, forward: Sequence[Operator], num_stages: int) -> list[int]:
    """Return Megatron-LM's stages: equal numbers of blocks, prologue on the first stage and epilogue on the last.

    If the division leaves a remainder, which Megatron-LM rejects, the larger stages are spread evenly.
    """
    blocks = _blocks(workload, forward, num_stages)
    starts = [blocks[stage * len(blocks) // num_stages] for stage in range(num_stages)]
    return [0, *starts[1:]]


def accounted_starts(workload: Workload, forward: Sequence[Operator], num_stages: int, *, rule: str) -> list[int]:
    """Return Megatron-core's stages if the embedding, the loss or both count as one block; some hold no block."""
    layers = len(block_places(workload, forward))
    return counted_starts(workload, forward, accounted_counts(layers, num_stages, rule))


def counted_starts(workload: Workload, forward: Sequence[Operator], counts: Sequence[int]) -> list[int]:
    """Return the starts of stages with these numbers of blocks, which add up to the model's.

    A stage without operators starts where the next one does. Raises PlanError if the last stage would be empty.
    """
    blocks = block_places(workload, forward)
    epilogue = next((place for place in places_of(workload, forward) if blocks and place > blocks[-1]), len(forward))
    if not counts[-1] and epilogue == len(forward):
        raise PlanError("the last pipeline chunk has no layers, and no operator follows the layers of the model")
    ends = [*blocks, epilogue]
    return [0, *(ends[before] for before in accumulate(counts[:-1]))]


def nanotron_starts(workload: Workload, forward: Sequence[Operator], num_stages: int) -> list[int]:
    """Return nanotron's stages (models/base.py, build_model), balanced by weight elements of blocks and head.

    A stage receives blocks until the running sum exceeds its even share of the total; embedding and final norm cost
    nothing. The norms of a block count, as in huggingface/nanotron@90860f52. They matter if the head is as large
    as a whole number of blocks, as in the Ultra-Scale Playbook's 1B model: its memory and times with 2 and 4
    stages show the smaller first stage of this rule, not the larger one of versions that ignore norms.

    Raises PlanError if a stage stays empty, or if names contain no blocks.
    """
    blocks = _blocks(workload, forward, num_stages)
    units = [*blocks, *(place for place in places_of(workload, forward) if place > blocks[-1])]
    ends = [*units[1:], len(forward)]
    total = list(accumulate(_counted_elements(workload, forward[a:b]) for a, b in zip(units, ends, strict=True)))
    starts, stage = [0], 0
    for end, so_far in zip(ends[:-1], total[:-1], strict=True):
        if so_far * num_stages > total[-1] * (stage + 1):
            stage += 1
            starts.append(end)
    if len(starts) < num_stages:
        raise PlanError(
            f"nanotron's rule leaves {num_stages - len(starts)} of {num_stages} stages empty: the head has more "
            "parameters than a block; take fewer stages, or another balance"
        )
    return starts


def _blocks(workload: Workload, forward: Sequence[Operator], num_stages: int) -> list[int]:
    """Return the first positions of the model's blocks. Raises PlanError if names contain fewer blocks than stages."""
    places = block_places(workload, forward)
    if len(places) < num_stages:
        raise PlanError(
            f"{num_stages} stages need {num_stages} layers; {workload.name} has {len(places)}: "
            "use fewer stages, --balance time, or --cuts"
        )
    return places


def _counted_elements(workload: Workload, operators: Sequence[Operator]) -> int:
    """Return the elements of the matrices that ``operators`` multiply by, plus the other weights of blocks."""
    weights = {}
    for op in operators:
        for tensor in (workload.tensors[t] for t in op.inputs):
            is_matrix = len(tensor.shape) > 1 if kind_of(op) in ("linear", "matmul") else bool(layer_of(op.layer))
            if tensor.role == "weight" and is_matrix:
                weights[tensor.storage] = prod(tensor.shape)
    return sum(weights.values())


def _require_places(count: int, num_stages: int, tells_layers: bool) -> None:
    if count >= num_stages:
        return
    if tells_layers:
        raise PlanError(
            f"{num_stages} pipeline stages need {num_stages} layers; the model has {count} with embedding and head: "
            "use fewer stages, or name cuts inside layers"
        )
    raise PlanError(
        f"{num_stages} pipeline stages need {num_stages} layers; the operators name {count} (as 'layers.3.mlp.up' "
        "does): use --balance time, or name the cuts"
    )


def balanced_starts(
    workload: Workload,
    forward: Sequence[Operator],
    num_stages: int,
    duration_ps: Mapping[int, int],
    of_stage: Sequence[Sequence[Mapping[int, int]]] = (),
) -> list[int]:
    """Return the stages that minimise the slowest stage's time, with cuts at :func:`places_of`.

    Ties go to the cuts that send the fewest bytes, then to the most equal times (least sum of squares; approximate
    if there are very many positions). A dynamic programme visits only the places that keep the stages before and
    after possible. of_stage: as in :func:`trine.parallel.stages.cut_into_stages`. Raises PlanError if there are
    fewer places than stages.
    """
    traffic = _bytes_across(workload, forward)
    places = [i for i in places_of(workload, forward) if not i or traffic[i] or sendable(workload, forward[i - 1])]
    if has_layers(forward):
        _require_places(len(places), num_stages, True)
    elif len(places) < num_stages:
        raise PlanError(
            f"{num_stages} pipeline stages need {num_stages} operators up to the head where a stage can begin; "
            f"the trace has {len(places)}"
        )
    cache: dict[int, list[int]] = {}

    def total(times: Mapping[int, int]) -> list[int]:
        """Return the time before each place, and at the end."""
        if id(times) not in cache:
            time = [0, *accumulate(_linked_time(workload, forward, times))]
            cache[id(times)] = [*(time[place] for place in places), time[-1]]
        return cache[id(times)]

    model_totals = []
    for models in of_stage:
        model_totals.append([total(times) for times in models])
    stages = model_totals or [[total(duration_ps)]] * num_stages
    traffic_of_places = [traffic[place] for place in places]
    return [places[start] for start in least_starts(stages, traffic_of_places)]


#: Time before each place and at the end, on each GPU model that runs a stage.
Totals = Sequence[Sequence[int]]


def _span(totals: Totals, first: int, end: int) -> int:
    """Return the time of a stage between two places on its slowest GPU model."""
    if len(totals) == 1:
        return totals[0][end] - totals[0][first]
    return max(total[end] - total[first] for total in totals)


def least_starts(stages: Sequence[Totals], across: Sequence[int]) -> list[int]:
    """Return the first place of each stage; ``across``: bytes sent at each place."""
    limit = _least_bottleneck(stages)
    n, num_stages = len(stages[0][0]) - 1, len(stages)
    total, is_even = stages[0][0], _is_even(stages)
    row: Row = {0: ((0, 0), -1)}
    rows: list[Row] = []
    for stage in range(1, num_stages + 1):
        low, high = stage, n - (num_stages - stage)
        if is_even:
            low = max(low, bisect_left(total, total[-1] - (num_stages - stage) * limit))
            high = min(high, bisect_right(total, stage * limit) - 1)
        row = _next_row(row, range(low, high + 1), stages[stage - 1], across, limit, stage)
        rows.append(row)
    starts, position = [], n
    for row in reversed(rows):
        position = row[position][1]
        starts.append(position)
    return starts[::-1]


def _is_even(stages: Sequence[Totals]) -> bool:
    """Return whether all stages run on the same single GPU model."""
    return all(len(totals) == 1 and totals[0] is stages[0][0] for totals in stages)


def _next_row(previous: Row, ends: range, totals: Totals, across: Sequence[int], limit: int, stage: int) -> Row:
    """Return the best cost for each end of one more stage, over the positions at which that stage may begin.

    These positions form a window that slides with the end; a position leaves it if a later one sends fewer bytes.
    """
    window: list[tuple[int, int, int]] = []  # bytes sent, position, sum of squares before it; rising
    head = 0
    begins = iter(sorted(previous))
    begin = next(begins, None)
    row: Row = {}
    for end in ends:
        while begin is not None and begin < end:
            sent, squares = previous[begin][0]
            sent += across[begin] if begin else 0
            while len(window) > head and window[-1][0] > sent:
                window.pop()
            window.append((sent, begin, squares))
            begin = next(begins, None)
        while head < len(window) and _span(totals, window[head][1], end) > limit:
            head += 1
        if head < len(window):
            row[end] = _most_equal(window, head, end, totals, stage)
    return row


def _most_equal(
    window: Sequence[tuple[int, int, int]], head: int, end: int, totals: Totals, stage: int
) -> tuple[tuple[int, int], int]:
    """Return the position with the least sum of squares among those that send the fewest bytes."""
    least, total = window[head][0], totals[0]
    last = bisect_left(window, (least + 1, -1, -1), head)
    if last - head > MAX_OPTIONS:
        even = total[end] * (stage - 1) // stage
        middle = bisect_left(window, even, head, last, key=lambda option: total[option[1]])
        head = max(head, min(middle, last - MAX_OPTIONS // 2) - MAX_OPTIONS // 2)
        last = head + MAX_OPTIONS
    squares, start = min((squares + _span(totals, start, end) ** 2, start) for _, start, squares in window[head:last])
    return (least, squares), start


def _linked_time(workload: Workload, forward: Sequence[Operator], duration_ps: Mapping[int, int]) -> list[int]:
    """Return the forward plus backward time of each forward operator."""
    position = {op.id: i for i, op in enumerate(forward)}
    time = [duration_ps[op.id] for op in forward]
    last = len(forward) - 1
    for op in workload.operators:
        if op.phase == BACKWARD:
            last = position.get(op.forward_id, last) if op.forward_id is not None else last
            time[last] += duration_ps[op.id]
    return time


def _least_bottleneck(stages: Sequence[Totals]) -> int:
    """Return the shortest possible time of the slowest of consecutive stages, from prefix sums."""
    total, high = stages[0][0], max(_span(totals, 0, len(totals[0]) - 1) for totals in stages)
    is_even, low = _is_even(stages), 0
    if is_even:
        low = max(-(-total[-1] // len(stages)), max(b - a for a, b in pairwise(total)))
    while low < high:
        middle = (low + high) // 2
        if _fits(total, len(stages), middle) if is_even else _fits_uneven(stages, middle):
            high = middle
        else:
            low = middle + 1
    return low


def _fits(total: Sequence[int], num_stages: int, limit: int) -> bool:
    """Return whether ``num_stages`` stages, each filled up to ``limit``, hold all operators."""
    position = 0
    for _ in range(num_stages):
        position = bisect_right(total, total[position] + limit) - 1
        if position == len(total) - 1:
            return True
    return False


def _fits_uneven(stages: Sequence[Totals], limit: int) -> bool:
    """Return whether non-empty stages on different GPU models can each take at most ``limit``."""
    ends = np.zeros(len(stages[0][0]), np.bool_)  # possible ends of the stages visited
    ends[0] = True
    for totals in stages:
        arrays = [np.asarray(total, np.int64) for total in totals]
        first = np.max([np.searchsorted(total, total - limit) for total in arrays], axis=0)
        before = np.concatenate(([0], np.cumsum(ends)))
        ends = before[np.arange(len(ends))] > before[first]
    return bool(ends[-1])


def _bytes_across(workload: Workload, forward: Sequence[Operator]) -> list[int]:
    """Return the bytes of live forward tensors between operators i-1 and i, a cheap estimate of a cut's traffic."""
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


#: ``Plan.balance`` -> function that returns the stages' starts from workload, forward operators and number of stages.
STARTS: dict[str, Callable[[Workload, Sequence[Operator], int], list[int]]] = {
    "layers": layered_starts,
    "blocks": block_starts,
    "nanotron": nanotron_starts,
    **{name: partial(accounted_starts, rule=name) for name in ACCOUNTED},
}
