"""Lower bounds of the step time and of the memory of a layout, from the costs of one layer.

No bound exceeds the simulated value (tests/property/test_plan_bounds.py checks random layouts).

Step time. A rank's compute stream runs its operators one after the other. Within a pass, the longest path from the
first operator of a layer to the first of the next one includes the collectives that the next operator waits for; each
takes at least its time alone. Paths of consecutive layers add up. A rank of stage ``s`` with ``k`` layers in each of
its ``v`` chunks therefore works at least ``v ((k - 1) (F + B) + F' + B')`` per micro-batch, where F and B are the
paths of a layer and F' and B' those to the end of its last operator, for the last layer of a pass.
Before its first operator, a micro-batch has passed the stages before it, and after its last backward operator a
gradient passes them back: at least ``F (k - 1) + F''`` and ``B (k - 1) + B''`` each, where F'' and B'' leave out
operators that may run after the message. If the software waits for the GPU after each pass, the message and the first
launch lie between two passes. Offloaded activations leave the GPU layer by layer in the forward pass, which waits for
all but the last two copies, and return in the backward pass. Schedules that divide the backward pass end with weight
gradients, and no stage waits for them: only the way forward counts. Contention, other launches and gradients only add
to this. With sharded parameters, the collectives of a queue follow each other: two gathers and a reduction per layer
and micro-batch (:meth:`trine.search.probe.Probe.gathers`). While they run, their kernels slow compute by a pressure p,
so that a rank needs its compute time alone plus at least p times theirs, whether they run beside compute or not.

Memory. Weights, gradients and optimizer states of a rank's layers stay allocated; each micro-batch between its
forward and its backward pass keeps the tensors that the layers saved.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from trine.common.arrays import Int64
from trine.compute.kinds import layer_of
from trine.errors import PlanError
from trine.graph.workload import FORWARD, Workload
from trine.parallel.cuts import STARTS, least_starts
from trine.parallel.plan import GRADIENTS_SHARDED, PARAMETERS_SHARDED, TIME
from trine.parallel.schedules import BACKWARD_PASS, FORWARD_PASS, INPUT_PASS, Pipeline, known_order

if TYPE_CHECKING:
    from trine.search.probe import LayerCosts
    from trine.search.space import Layout


class StageLayers(NamedTuple):
    """Layers of each pipeline stage. chunks: of each chunk. layers, passes: of each stage, and chunks with layers."""

    chunks: tuple[int, ...]
    layers: Int64
    passes: Int64


class StageSizes:
    """Layers of each pipeline chunk, by the profile's rule for cuts."""

    def __init__(self, workload: Workload, layers: int) -> None:
        self._workload, self._layers = workload, layers
        self._cache: dict[tuple[str, int, int], StageLayers | None] = {}
        self._likely: dict[tuple[object, ...], StageLayers | None] = {}

    def of(self, balance: str, pp: int, virtual_stages: int) -> StageLayers | None:
        """Return the layers of each stage; None if the cuts depend on operator times, or the rule refuses them."""
        key = (balance, pp, virtual_stages)
        if key not in self._cache:
            chunks = (self._layers,) if pp * virtual_stages == 1 else self._count(balance, pp * virtual_stages)
            self._cache[key] = by_stage(chunks, pp, virtual_stages) if chunks else None
        return self._cache[key]

    def likely(self, balance: str, layout: Layout, costs: LayerCosts) -> StageLayers | None:
        """Return the layers of each stage, also if the cuts equalise operator times; None if the rule refuses them.

        Those cuts are likely, not certain: stages of nearly equal times may be cut elsewhere.
        """
        if balance != TIME or layout.pp == 1:
            return self.of(balance, layout.pp, layout.virtual_stages)
        layer = costs.forward_alone + costs.backward_alone
        key = (balance, layout.pp * layout.virtual_stages, layer, costs.first, costs.last)
        if key not in self._likely:
            self._likely[key] = self._with_equal_times(layout, layer, costs)
        return self._likely[key]

    def _with_equal_times(self, layout: Layout, layer: int, costs: LayerCosts) -> StageLayers | None:
        """Return the stages cut by time between embedding, layers and head, each a unit."""
        layers, chunks = self._layers, layout.pp * layout.virtual_stages
        if chunks > layers + 2:
            return None
        totals = list(accumulate([0, costs.first, *[layer] * layers, costs.last]))
        starts = least_starts([[totals]] * chunks, [1] * len(totals))
        ends = [*starts[1:], layers + 2]
        counts = tuple(max(0, min(b, layers + 1) - max(a, 1)) for a, b in zip(starts, ends, strict=True))
        return by_stage(counts, layout.pp, layout.virtual_stages)

    def _count(self, balance: str, chunks: int) -> tuple[int, ...]:
        forward = [op for op in self._workload.operators if op.phase == FORWARD]
        try:
            starts = STARTS[balance](self._workload, forward, chunks) if balance in STARTS else None
        except PlanError:
            return ()
        parts = () if starts is None else zip(starts, [*starts[1:], len(forward)], strict=True)
        return tuple(len({block for op in forward[a:b] if (block := layer_of(op.layer))}) for a, b in parts)


def by_stage(chunks: tuple[int, ...], pp: int, virtual_stages: int) -> StageLayers:
    """Return the layers of each stage from those of each chunk."""
    each = np.array(chunks, np.int64).reshape(virtual_stages, pp)
    return StageLayers(chunks, each.sum(0), (each > 0).sum(0))


def step_bound(
    layout: Layout, micro_batches: int, costs: LayerCosts, layers: int, stages: StageLayers | None, message_ps: int = 0
) -> int:
    """Return a lower bound of the step time in ps.

    stages: None if unknown. message_ps: time of a message that every pass waits for, or 0.
    """
    pp, chunks = layout.pp, layout.virtual_stages
    alone = costs.forward_alone + costs.backward_alone
    order = known_order(layout.schedule)
    if order.joins_passes:  # joined passes share the stream, so that paths overlap
        return micro_batches * (layers * alone + costs.first + costs.last) // pp
    if stages is None:  # the mean over the stages: the slowest takes at least as long
        passes = min(layers, pp * chunks)
        work = (layers - passes) * (costs.forward + costs.backward) + costs.first + costs.last
        work += passes * (alone if order.splits_backward else costs.forward_within + costs.backward_within)
        return micro_batches * work // pp
    # With a split backward pass, weight gradients may run between an input gradient and its communication.
    copies = (stages.layers - 2 * chunks) * costs.offload
    works = np.zeros(pp, np.int64)
    for path, within, own in (
        (costs.forward, costs.forward_within, costs.forward_alone),
        (costs.backward, costs.backward_within, costs.backward_alone),
    ):
        each, last = (own, own) if order.splits_backward else (path, within)
        works += np.maximum((stages.layers - stages.passes) * each + stages.passes * last, copies)
    works[0] += costs.first
    works[-1] += costs.last
    total = micro_batches * works + _arrival(layout, costs, stages)
    if message_ps and order.ends_backward:  # the last message has no pass behind it; ends of the pipeline
        messages = np.full(pp, 2 * chunks)  # send only one way
        messages[[0, -1]] -= 1
        total += np.maximum(0, micro_batches * messages - 1) * message_ps + micro_batches * chunks * costs.launch
    return int(total.max())


def _arrival(layout: Layout, costs: LayerCosts, stages: StageLayers) -> Int64:
    """Return the time of a micro-batch through the stages before each one, and back, without the ends of passes."""
    first = np.array(stages.chunks[: layout.pp], np.int64)
    way = (first - 1) * costs.forward + costs.forward_chain
    if known_order(layout.schedule).ends_backward:
        back = costs.backward if layout.recompute == "none" else costs.backward_alone
        way += (first - 1) * back + costs.backward_chain
    way[first < 1] = 0
    return np.cumsum(way) - way


def memory_bound(layout: Layout, micro_batches: int, costs: LayerCosts, layers: int, stages: StageLayers | None) -> int:
    """Return a lower bound of the bytes that the fullest rank allocates."""
    return max(memory_bounds(layout, micro_batches, costs, layers, stages))


def memory_bounds(
    layout: Layout, micro_batches: int, costs: LayerCosts, layers: int, stages: StageLayers | None
) -> tuple[int, int]:
    """Return lower bounds of the bytes that a rank of the first stage and of the last stage allocates.

    If the layers of the stages are unknown, both are the bound of the fullest stage.
    """
    resident = _resident(costs.resident, layout)
    kept = 0 if layout.offload == "activations" else costs.kept
    if layout.pp == 1:
        rest = _resident(costs.rest, layout) + (layers - 1) * kept + (costs.peak if kept else 0)
        return (layers * resident + rest,) * 2
    if stages is None or known_order(layout.schedule).joins_passes:
        return (-(-layers * resident // layout.pp),) * 2
    first, last = (
        _memory_of_stage(layout, stage, micro_batches, costs, stages, resident, kept) for stage in (0, layout.pp - 1)
    )
    return first, last


def _memory_of_stage(
    layout: Layout, stage: int, micro_batches: int, costs: LayerCosts, stages: StageLayers, resident: int, kept: int
) -> int:
    mine = stages.chunks[stage :: layout.pp]
    most = 0
    if kept:
        most = in_flight(layout.schedule or "", stage, layout.pp, layout.virtual_stages, micro_batches, mine) * kept
    most += costs.peak - kept if stage and layout.virtual_stages == 1 and mine[0] and kept else costs.rise
    return sum(mine) * resident + most


def _resident(sizes: Mapping[str, int], layout: Layout) -> int:
    """Return the bytes of weights, gradients and optimizer states that stay on a rank.

    Gradients that last between steps are in a buffer, which an offloaded optimizer leaves on the GPU.
    """
    ways = (layout.shard_ways or layout.dp) * layout.cp
    state = 0 if layout.offload == "optimizer" else sizes.get("optimizer_state", 0)
    gradients = sizes.get("gradients", 0)
    if layout.sharding == "none":
        return sizes.get("weights", 0) + gradients + state
    weights = 0 if layout.sharding in PARAMETERS_SHARDED else sizes.get("weights", 0)
    if layout.ep > 1 or layout.etp is not None:  # experts may have more replicas than dense weights
        ways *= layout.tp
    if layout.sharding in GRADIENTS_SHARDED:
        gradients = 0 if layout.sharding == "fsdp" else gradients // ways
    return weights + gradients + state // ways


@cache
def in_flight(schedule: str, stage: int, pp: int, chunks: int, micro_batches: int, layers: tuple[int, ...]) -> int:
    """Return the most layers whose tensors a rank keeps at a time, each counted once per micro-batch in flight.

    layers: of each chunk of the rank. Later micro-batches repeat, so only the first rounds of the pipeline are counted.
    """
    order = known_order(schedule)
    held_passes = order.held(stage, Pipeline(pp, micro_batches, chunks))
    if held_passes is None or order.joins_passes:
        return 0
    if not order.takes_virtual_stages and not order.splits_backward:
        return held_passes * sum(layers)
    shown = min(micro_batches, 4 * pp)
    held = most = 0
    for action in order.passes(stage, Pipeline(pp, shown, chunks)):
        size = layers[action.chunk // pp]
        held += size if action.kind == FORWARD_PASS else -size if action.kind in (BACKWARD_PASS, INPUT_PASS) else 0
        most = max(most, held)
    return most
