"""The screen: the likely step time and memory of any layout, without its simulation.

The time of a step is a recurrence over the passes of its pipeline (:mod:`trine.search.recurrence`) plus the end of the
step. Times of a layer come from the program of three layers (:mod:`trine.search.probe`), corrected by small simulations
of the same form (:mod:`trine.search.calibration`):

- ``rho``: how much longer a layer takes than its longest path alone, from contention of kernels and flows;
- ``fixed``: further time of a pass, such as the launch that waits for the GPU;
- ``tail``, ``tail_layer``: the end of a step, and its part per layer of a stage.

With L layers a stage and m micro-batches, the difference of the differences of four jobs (3 and 4 layers; m and m + 1)
is the time of one layer and micro-batch. A form that is not calibrated takes the corrections of the most similar one:
contention depends on tp, cp and experts, and hardly on the micro-batch.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from trine.common.arrays import Int64
from trine.search.bounds import StageLayers, memory_bounds
from trine.search.calibration import FormSample, SmallJobs, sample_of
from trine.search.probe import LayerCosts, Probe
from trine.search.recurrence import pipeline_ps
from trine.search.space import Layout

#: Share of a backward pass that computes gradients of weights, where a schedule divides it: a GEMM has one product for
#: its input and one for its weight.
WEIGHT_SHARE = 0.5
#: Fields of a form, the most important first: corrections of another sharding or offload say nothing about a tail.
_FORM = ("tp", "offload", "sharding", "cp", "ep", "etp", "sequence_parallel", "shard_ways", "recompute", "dp",
         "micro_batch")  # fmt: skip
#: Numbers of fields (with the schedule) that similar forms share, in the order of preference.
_NUM_SHARED = (12, 11, 10, 9, 4, 2)
#: Similar forms that share at least this many fields have nearly the same corrections.
_CLOSE = 9
_SIBLINGS = ("1f1b", "interleaved")


class Correction(NamedTuple):
    """Corrections of a form. Times in ps. layers: of a rank in the small jobs; micro_batch: samples of theirs.

    memory: of the first stage and of the last one, offset and ratio: the needed bytes are offset + ratio x the lower
    bound of the allocated bytes; empty if unknown.
    """

    rho: float
    fixed: float
    tail: float
    tail_layer: float
    layers: int
    micro_batch: int
    memory: tuple[tuple[float, float], ...]


NO_CORRECTION = Correction(1.0, 0.0, 0.0, 0.0, 0, 1, ())


class LayoutScreen:
    """Estimates of layouts, with the corrections of the forms calibrated so far.

    layers: of the model. global_batch: of a step.
    """

    def __init__(self, layers: int, probe: Probe, global_batch: int) -> None:
        self._layers, self._probe, self._global_batch = layers, probe, global_batch
        self._corrections: dict[tuple[object, ...], Correction] = {}
        self._rho: dict[int, float] = {}
        self._exact: dict[tuple[object, ...], Correction | None] = {}

    @property
    def num_forms(self) -> int:
        """Number of calibrated forms."""
        return len(self._exact)

    def is_calibrated(self, layout: Layout) -> bool:
        """Return whether small simulations of the layout's form were tried."""
        return form_of(layout) in self._exact

    def is_known(self, layout: Layout) -> bool:
        """Return whether the layout's form, or one that differs in recomputation, dp or micro-batch, was calibrated."""
        return form_of(layout) in self._exact or self._close(layout) is not None

    def _close(self, layout: Layout) -> Correction | None:
        """Return the corrections of a form that differs at most in recomputation, dp and micro-batch.

        1f1b and interleaved pipelines have the same passes and the same end of a step, so one stands in for the other.
        """
        form = form_of(layout)
        for kind in (form[0], *(each for each in _SIBLINGS if form[0] in _SIBLINGS and each != form[0])):
            for count in (count for count in _NUM_SHARED if count >= _CLOSE):
                if (found := self._corrections.get((kind, *form[1:count]))) is not None:
                    return found
        return None

    def calibrate(self, layout: Layout, costs: LayerCosts, jobs: SmallJobs | None) -> None:
        """Take the corrections of a layout's form from its small jobs; None: they cannot run."""
        form = form_of(layout)
        correction = None if jobs is None else self._correct(layout, costs, jobs)
        self._exact[form] = correction
        if correction is not None:
            for count in _NUM_SHARED:
                self._corrections.setdefault(form[:count], correction)
            self._corrections[form] = correction
            self._rho.setdefault(layout.tp, correction.rho)

    def _correct(self, layout: Layout, costs: LayerCosts, jobs: SmallJobs) -> Correction:
        """Return the corrections that make the estimates of the small jobs equal their simulations."""
        sample = sample_of(layout)
        small = layout._replace(pp=sample.pp, virtual_stages=sample.virtual_stages)
        (few, more), (least, most) = sample.layers, sample.micro_batches
        (few_least, few_most), (more_least, more_most) = jobs.times_ps
        steps, chunks = most - least, sample.virtual_stages

        message_ps = self._probe.messages(small, costs.message)

        def screened(layers: int, count: int, use: Correction) -> int:
            return _step(small, count, costs, [float(layers)] * sample.chunks, use, message_ps)

        costs = self._at_clock(layout, costs)
        work = (costs.forward + costs.backward) * chunks * steps * (more - few)
        rho = ((more_most - more_least) - (few_most - few_least)) / work if work else 1.0
        use = NO_CORRECTION._replace(rho=rho, micro_batch=layout.micro_batch, layers=few * chunks)
        missing = (few_most - few_least) - (screened(few, most, use) - screened(few, least, use))
        use = use._replace(fixed=missing / steps / (2 * chunks))
        tail = few_least - screened(few, least, use)
        tail_more = more_least - screened(more, least, use)
        tail_layer = (tail_more - tail) / ((more - few) * chunks)
        return use._replace(tail=tail, tail_layer=tail_layer, memory=_memory(small, costs, sample, jobs.needed_bytes))

    def correction(self, layout: Layout) -> Correction:
        """Return the corrections of the most similar calibrated form, or only the rho of its tp."""
        if (close := self._close(layout)) is not None:
            return close
        form = form_of(layout)
        for count in _NUM_SHARED:
            if (found := self._corrections.get(form[:count])) is not None:
                return found
        return NO_CORRECTION._replace(rho=self._rho.get(layout.tp, 1.0))

    def step_ps(self, layout: Layout, micro_batches: int, costs: LayerCosts, stages: StageLayers | None) -> int:
        """Return the likely step time in ps, or 0 for a schedule without recurrence. stages: None if unknown."""
        costs = self._at_clock(layout, costs)
        chunks, message_ps = chunk_layers(layout, stages, self._layers), self._probe.messages(layout, costs.message)
        return _step(layout, micro_batches, costs, chunks, self.correction(layout), message_ps)

    def _at_clock(self, layout: Layout, costs: LayerCosts) -> LayerCosts:
        """Return the costs at the clock of the layout's step."""
        count = self._global_batch // layout.dp // layout.micro_batch
        slowdown = self._probe.clocks.slowdown(layout.micro_batch, count)
        return costs if slowdown == 1.0 else costs.scaled(slowdown)

    def needed_bytes(self, layout: Layout, micro_batches: int, costs: LayerCosts, stages: StageLayers | None) -> int:
        """Return the likely memory of the fullest rank in bytes, or 0 if no similar form is calibrated."""
        correction = self.correction(layout)
        least = memory_bounds(layout, micro_batches, costs, self._layers, stages)
        pairs = zip(correction.memory, least, strict=False)
        return max((int(offset + ratio * bound) for (offset, ratio), bound in pairs), default=0)


def form_of(layout: Layout) -> tuple[object, ...]:
    """Return the fields of a layout that its corrections depend on, the most important first."""
    kind = "" if layout.pp == 1 else str(layout.schedule)
    return (kind, *(getattr(layout, name) for name in _FORM))


def chunk_layers(layout: Layout, stages: StageLayers | None, layers: int) -> list[float]:
    """Return the layers of each chunk; equal parts if they are unknown."""
    chunks = layout.pp * layout.virtual_stages
    return [layers / chunks] * chunks if stages is None else [float(count) for count in stages.chunks]


def _step(
    layout: Layout, micro_batches: int, costs: LayerCosts, chunks: list[float], use: Correction, message_ps: Int64
) -> int:
    """Return the step time in ps with layers ``chunks`` and the corrections ``use``."""
    passes = _passes_ps(layout, costs, chunks, use)
    of_rank = max(sum(chunks[rank :: layout.pp]) for rank in range(layout.pp))
    tail = use.tail + use.tail_layer * (of_rank - use.layers)
    if layout.pp == 1:
        return int(micro_batches * int(passes[0, 0] + passes[1, 0]) + tail)
    time_ps = pipeline_ps(str(layout.schedule), layout.pp, micro_batches, passes, message_ps)
    return int(time_ps + tail) if time_ps else 0


def _passes_ps(layout: Layout, costs: LayerCosts, chunks: list[float], use: Correction) -> Int64:
    """Return the times of passes by kind and chunk in ps."""
    layers = np.array(chunks)
    more = np.maximum(layers - 1, 0.0)
    one = np.minimum(layers, 1.0)
    forward = use.rho * (more * costs.forward + one * costs.forward_within)
    backward = use.rho * (more * costs.backward + one * costs.backward_within)
    scale = layout.micro_batch / use.micro_batch
    third = costs.first / 3, costs.last / 3  # a forward pass is a third of the work
    forward[0] += third[0]
    backward[0] += 2 * third[0]
    forward[-1] += third[1]
    backward[-1] += 2 * third[1]
    forward += use.fixed * scale
    backward += use.fixed * scale
    weight = WEIGHT_SHARE * backward
    times: Int64 = np.maximum(np.stack([forward, backward, backward - weight, weight]), 0).astype(np.int64)
    return times


def _memory(
    layout: Layout, costs: LayerCosts, sample: FormSample, needed: tuple[tuple[int, int], tuple[int, int]]
) -> tuple[tuple[float, float], ...]:
    """Return offset and ratio of the needed memory against its lower bound, from the two numbers of layers."""
    bounds = []
    for layers in sample.layers:
        each = np.full((sample.virtual_stages, sample.pp), layers, np.int64)
        stages = StageLayers((layers,) * sample.chunks, each.sum(0), (each > 0).sum(0))
        bounds.append(memory_bounds(layout, sample.micro_batches[1], costs, layers * sample.chunks, stages))
    lines = []
    for end in range(2):
        less, more = bounds[0][end], bounds[1][end]
        if more <= less or not needed[0][end] or not needed[1][end]:
            return ()
        ratio = (needed[1][end] - needed[0][end]) / (more - less)
        lines.append((needed[0][end] - ratio * less, ratio))
    return tuple(lines)
