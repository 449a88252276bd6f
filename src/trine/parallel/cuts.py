"""Where a pipeline is cut: at named layers, after equal times, or after equal numbers of layers.

Cuts that trine chooses lie between layers, as frameworks place them: what crosses is the output of a layer, once.
Inside one, what crosses may be many times as large (the features of an MLP, the logits of a vocabulary).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate, pairwise
from math import prod

import numpy as np

from trine.compute import kind_of
from trine.compute.kinds import layer_of
from trine.errors import PlanError, nearest
from trine.graph.workload import BACKWARD, Operator, Workload


def has_layers(operators: Sequence[Operator]) -> bool:
    """Whether the names of ``operators`` tell any layer."""
    return any(layer_of(op.layer) for op in operators)


def layer_starts(forward: Sequence[Operator]) -> list[int]:
    """Where in ``forward`` each unit of the model begins: what comes before the blocks, each block, what comes after.

    Operators between two blocks belong to the one before. Without blocks the whole model is one unit.
    """
    blocks = [layer_of(op.layer) for op in forward]
    inside = [i for i, block in enumerate(blocks) if block]
    if not inside:
        return [0]
    starts = [i for before, i in zip([-1, *inside], inside, strict=False) if before < 0 or blocks[before] != blocks[i]]
    after = inside[-1] + 1
    return [*([0] if starts[0] else []), *starts, *([after] if after < len(forward) else [])]


#: Operators in the stages so far -> what is made least (bytes sent across the cuts, then the sum of squares of the
#: stages' times), and where the last of these stages begins.
Row = dict[int, tuple[tuple[int, int], int]]
#: Positions that are compared for how equal they make the stages; of more, those nearest to the even one.
MAX_OPTIONS = 32


def named_starts(forward: Sequence[Operator], cuts: Sequence[str]) -> list[int]:
    """Positions in ``forward`` at which stages begin, given the layers that begin the second and later ones.

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


def places_of(workload: Workload, forward: Sequence[Operator]) -> list[int]:
    """Positions in ``forward`` at which a stage may begin, the first included.

    Where names tell layers (:func:`trine.parallel.cuts.layer_starts`), those at which one begins; elsewhere those at
    which another name begins. The loss is never parted from the head, the last operator that reads a weight, which
    makes the largest tensor of most models.
    """
    if has_layers(forward):
        places = layer_starts(forward)
    else:
        places = [i for i, op in enumerate(forward) if not i or not op.layer or op.layer != forward[i - 1].layer]
    head = _head(workload, forward)
    return [place for place in places if place <= head]


def _head(workload: Workload, forward: Sequence[Operator]) -> int:
    """Position of the last operator that reads a weight, where a loss follows; else that of the last operator."""
    last = len(forward) - 1
    weights = (i for i in range(last, -1, -1) if any(workload.tensors[t].role == "weight" for t in forward[i].inputs))
    head = next(weights, last)
    return head if any(kind_of(op) == "loss" for op in forward[head + 1 :]) else last


def layered_starts(workload: Workload, forward: Sequence[Operator], num_stages: int) -> list[int]:
    """Stages of as equal numbers of layers as can be; embedding and head, before and after the blocks, are one each.

    Where they do not divide, the larger stages lie evenly among the others. Raises PlanError where the names of the
    operators tell too few layers.
    """
    units = places_of(workload, forward) if has_layers(forward) else [0]
    _require_places(len(units), num_stages, has_layers(forward))
    return [units[stage * len(units) // num_stages] for stage in range(num_stages)]


def block_starts(workload: Workload, forward: Sequence[Operator], num_stages: int) -> list[int]:
    """As Megatron-LM cuts: equal numbers of blocks; what comes before them goes with the first, after with the last.

    Where they do not divide, which Megatron-LM refuses, the larger stages lie evenly among the others.
    """
    blocks = _blocks(workload, forward, num_stages)
    starts = [blocks[stage * len(blocks) // num_stages] for stage in range(num_stages)]
    return [0, *starts[1:]]


def nanotron_starts(workload: Workload, forward: Sequence[Operator], num_stages: int) -> list[int]:
    """As nanotron cuts (models/base.py, build_model): by the elements of the weights of blocks and head.

    Blocks are put on a stage until their sum is above its even share of the whole; embedding and final norm cost
    nothing. Those of a block's norms count, as in huggingface/nanotron@90860f52: it decides where the head is as large
    as a whole number of blocks. The Ultra-Scale Playbook's 1B model is such a one, and its memory and times of 2 and 4
    stages have the smaller first stage that this gives, not the larger one of versions that leave norms out.

    Raises PlanError where that leaves a stage empty, or names tell no blocks.
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
    """Where the blocks of the model begin. Raises PlanError where their names tell fewer than stages."""
    found = [place for place in places_of(workload, forward) if layer_of(forward[place].layer)]
    if len(found) < num_stages:
        raise PlanError(
            f"{num_stages} stages need {num_stages} layers; {workload.name} has {len(found)} by its operators' names: "
            "use fewer stages, --balance time, or --cuts"
        )
    return found


def _counted_elements(workload: Workload, operators: Sequence[Operator]) -> int:
    """Elements of the matrices that ``operators`` multiply by, and of the weights of a block's other operators."""
    weights = {
        tensor.storage: prod(tensor.shape)
        for op in operators
        for tensor in (workload.tensors[t] for t in op.inputs)
        if tensor.role == "weight"
        and (len(tensor.shape) > 1 if kind_of(op) in ("linear", "matmul") else bool(layer_of(op.layer)))
    }
    return sum(weights.values())


def _require_places(found: int, num_stages: int, tells_layers: bool) -> None:
    if found >= num_stages:
        return
    if tells_layers:
        raise PlanError(
            f"{num_stages} pipeline stages need {num_stages} layers; the model has {found} with embedding and head: "
            "use fewer stages, or name cuts inside layers"
        )
    raise PlanError(
        f"{num_stages} pipeline stages need {num_stages} layers; the operators name {found} (as 'layers.3.mlp.up' "
        "does): use --balance time, or name the cuts"
    )


def balanced_starts(
    workload: Workload,
    forward: Sequence[Operator],
    num_stages: int,
    duration_ps: Mapping[int, int],
    of_stage: Sequence[Sequence[Mapping[int, int]]] = (),
) -> list[int]:
    """Stages of which the slowest is as fast as cuts at :func:`places_of` can make it.

    Among such cuts, those that send the fewest bytes; of several, those with the most equal times (least sum of
    squares) are taken, or nearly so where there are very many. A dynamic programme over the places that leave the
    stages on either side of them possible. of_stage: as in :func:`trine.parallel.stages.cut_into_stages`. Raises
    PlanError where there are fewer places than stages.
    """
    sent = _bytes_across(workload, forward)
    places = [i for i in places_of(workload, forward) if not i or sent[i] or sendable(workload, forward[i - 1])]
    if has_layers(forward):
        _require_places(len(places), num_stages, True)
    elif len(places) < num_stages:
        raise PlanError(
            f"{num_stages} pipeline stages need {num_stages} operators up to the head where a stage can begin; "
            f"the trace has {len(places)}"
        )
    known: dict[int, list[int]] = {}

    def total(times: Mapping[int, int]) -> list[int]:
        """Time before each place, and at the end."""
        if id(times) not in known:
            time = [0, *accumulate(_linked_time(workload, forward, times))]
            known[id(times)] = [*(time[place] for place in places), time[-1]]
        return known[id(times)]

    stages = [[total(times) for times in each] for each in of_stage] or [[total(duration_ps)]] * num_stages
    return [places[start] for start in _least_starts(stages, [sent[place] for place in places])]


def sendable(workload: Workload, op: Operator) -> list[int]:
    """Tensors that can be sent on behind ``op`` where the trace does not link it to what follows."""
    outputs = (workload.tensors[t] for t in op.outputs)
    return [tensor.id for tensor in outputs if tensor.role == "activation" and tensor.size_bytes]


#: Time before each place and at the end, on each GPU model that runs a stage.
Totals = Sequence[Sequence[int]]


def _span(totals: Totals, first: int, end: int) -> int:
    """Time of a stage between two places on its slowest GPU model."""
    if len(totals) == 1:
        return totals[0][end] - totals[0][first]
    return max(total[end] - total[first] for total in totals)


def _least_starts(stages: Sequence[Totals], across: Sequence[int]) -> list[int]:
    """The first place of each stage; ``across``: bytes sent at each place."""
    limit = _least_bottleneck(stages)
    n, num_stages = len(stages[0][0]) - 1, len(stages)
    total, is_even = stages[0][0], _is_even(stages)
    row: Row = {0: ((0, 0), -1)}
    rows: list[Row] = []
    for stage in range(1, num_stages + 1):
        least, most = stage, n - (num_stages - stage)
        if is_even:
            least = max(least, bisect_left(total, total[-1] - (num_stages - stage) * limit))
            most = min(most, bisect_right(total, stage * limit) - 1)
        row = _next_row(row, range(least, most + 1), stages[stage - 1], across, limit, stage)
        rows.append(row)
    starts, position = [], n
    for row in reversed(rows):
        position = row[position][1]
        starts.append(position)
    return starts[::-1]


def _is_even(stages: Sequence[Totals]) -> bool:
    """Whether all stages run on the same single GPU model."""
    return all(len(totals) == 1 and totals[0] is stages[0][0] for totals in stages)


def _next_row(before: Row, ends: range, totals: Totals, across: Sequence[int], limit: int, stage: int) -> Row:
    """Best cost for each end of one more stage, over the positions where that stage may begin.

    Those positions slide along with the end; of them, only those that no later one undercuts in bytes are kept.
    """
    window: list[tuple[int, int, int]] = []  # bytes sent, position, sum of squares so far; rising
    head = 0
    begins = iter(sorted(before))
    begin = next(begins, None)
    row: Row = {}
    for end in ends:
        while begin is not None and begin < end:
            sent, squares = before[begin][0]
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
    """Of the positions that send the fewest bytes, the one that makes the sum of squares least."""
    least, total = window[head][0], totals[0]
    last = bisect_left(window, (least + 1, -1, -1), head)
    if last - head > MAX_OPTIONS:
        even = total[end] * (stage - 1) // stage
        middle = bisect_left(window, even, head, last, key=lambda option: total[option[1]])
        head = max(head, min(middle, last - MAX_OPTIONS // 2) - MAX_OPTIONS // 2)
        last = head + MAX_OPTIONS
    squares, at = min((squares + _span(totals, at, end) ** 2, at) for _, at, squares in window[head:last])
    return (least, squares), at


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


def _least_bottleneck(stages: Sequence[Totals]) -> int:
    """The shortest time that the slowest of consecutive stages can have, from prefix sums."""
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
    """Whether stages of at most ``limit``, each made as long as can be, are no more than ``num_stages``."""
    position = 0
    for _ in range(num_stages):
        position = bisect_right(total, total[position] + limit) - 1
        if position == len(total) - 1:
            return True
    return False


def _fits_uneven(stages: Sequence[Totals], limit: int) -> bool:
    """Return whether stages on different GPU models can each take at most ``limit``, none of them empty."""
    ends = np.zeros(len(stages[0][0]), np.bool_)  # the places at which the stages so far may end
    ends[0] = True
    for totals in stages:
        arrays = [np.asarray(total, np.int64) for total in totals]
        first = np.max([np.searchsorted(total, total - limit) for total in arrays], axis=0)
        before = np.concatenate(([0], np.cumsum(ends)))
        ends = before[np.arange(len(ends))] > before[first]
    return bool(ends[-1])


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


#: ``Plan.balance`` -> where stages begin, given workload, forward operators and number of stages.
STARTS: dict[str, Callable[[Workload, Sequence[Operator], int], list[int]]] = {
    "layers": layered_starts,
    "blocks": block_starts,
    "nanotron": nanotron_starts,
}
