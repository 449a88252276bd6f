"""The screen: the likely step time and memory of any layout, without its simulation.

The time of a step is a recurrence over the passes of its pipeline (:mod:`trine.search.recurrence`) plus the end of the
step. Times of a layer come from the program of three layers (:mod:`trine.search.probe`), corrected by small simulations
of the same form (:mod:`trine.search.calibration`):

- ``rho``: how much longer a layer takes than its longest path alone, from contention of kernels and flows;
- ``fixed``: further time of a pass, such as the launch that waits for the GPU;
- ``starts``, ``ends``, ``behind``: how much longer the first forward pass and the last backward passes of a chunk take
  (:mod:`trine.search.pass_times`);
- ``tail``, ``tail_layer``: the end of a step, and its part per layer of a stage.

Four jobs (two numbers of layers and of micro-batches) determine them. They run at the clock of the layout's step
(:mod:`trine.search.step_clocks`), and their chunks differ from each other as the layout's do, so that the same rank
limits the pace. A form that is not calibrated takes the corrections of the most similar one: contention depends on tp,
cp and experts, and hardly on the micro-batch.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from operator import attrgetter
from typing import NamedTuple

import numpy as np

from trine.common.arrays import Int64
from trine.common.units import PS_PER_S
from trine.parallel.plan import GRADIENTS_SHARDED, PARAMETERS_SHARDED
from trine.parallel.schedules import SCHEDULES, known_order
from trine.search.bounds import StageLayers, by_stage, memory_bounds
from trine.search.calibration import FormSample, SmallJobs
from trine.search.pass_times import NO_FURTHER_TIME, EndRates, end_rates
from trine.search.probe import LayerCosts, Probe
from trine.search.recurrence import StageMessages, pipeline_ps
from trine.search.space import Layout

#: Fields of a form, the most important first: corrections of another sharding or offload say nothing about a tail.
_FORM = ("tp", "offload", "sharding", "cp", "ep", "etp", "sequence_parallel", "shard_ways", "recompute", "dp",
         "micro_batch")  # fmt: skip
_FORM_OF = attrgetter(*_FORM)
#: Numbers of fields (with the schedule) that similar forms share, in the order of preference.
_NUM_SHARED = (12, 11, 10, 9, 4, 2)
#: Forms that share only this many fields may differ in sharding and offload.
_WITHOUT_SHARDING = 2
#: Similar forms that share at least this many fields have nearly the same corrections.
_CLOSE = 9
#: Most reserved bytes per further byte of the lower bound: in jobs of a few layers, segments of the allocator that
#: happen to fill up or not say more than a layer does.
MAX_PER_BYTE = 1.05
#: Newton's method: most iterations, the relative shift of a derivative, and the error that ends it.
ITERATIONS, SHIFT, EXACT = 8, 1e-3, 1e-5


class Correction(NamedTuple):
    """Corrections of a form, with its sharding and offload. Times in ps.

    layers: of a rank in the small jobs. micro_batch: samples of theirs. starts, ends, behind: see
    :class:`trine.search.pass_times.EndPasses`. fill: the part of the tail that is no time after the passes: passes of
    the first and the last round wait for other passes less, or more, than those of a round between them. A rank has as
    many of these passes as virtual stages. In steps of more rounds, the rounds between them make up for this;
    virtual_stages, fill_batches: virtual stages and fewest micro-batches of the small jobs.

    memory: of the first stage and of the last one, offset and ratio: the needed bytes are offset + ratio x the lower
    bound of the allocated bytes; empty if unknown.
    """

    rho: float
    fixed: float
    tail: float
    tail_layer: float
    layers: float
    micro_batch: int
    memory: tuple[tuple[float, float], ...]
    sharding: str = "none"
    offload: str = "none"
    starts: EndRates = NO_FURTHER_TIME
    ends: EndRates = NO_FURTHER_TIME
    behind: EndRates = NO_FURTHER_TIME
    fill: float = 0.0
    virtual_stages: int = 1
    fill_batches: int = 1


NO_CORRECTION = Correction(1.0, 0.0, 0.0, 0.0, 0, 1, ())


class LayoutScreen:
    """Estimates of layouts, with the corrections of the forms calibrated so far.

    layers: of the model. global_batch: of a step.
    """

    def __init__(self, layers: int, probe: Probe, global_batch: int) -> None:
        self._layers, self._probe, self._global_batch = layers, probe, global_batch
        self._corrections: dict[tuple[object, ...], Correction] = {}
        self._rho: dict[int, float] = {}
        self._of_passes: dict[tuple[object, ...], Correction] = {}
        self._exact: dict[tuple[object, ...], Correction | None] = {}
        self._scaled: dict[tuple[int, float], tuple[LayerCosts, LayerCosts]] = {}
        self._estimates: dict[Layout, tuple[LayerCosts, Correction, int]] = {}

    @property
    def num_forms(self) -> int:
        """Number of calibrated forms."""
        return len(self._exact)

    def is_calibrated(self, layout: Layout) -> bool:
        """Return whether small simulations of the layout's form were tried."""
        return form_of(layout) in self._exact

    def is_known(self, layout: Layout) -> bool:
        """Return whether the layout's form, or one that differs in recomputation, dp or micro-batch, was calibrated.

        Where layers wait for gathers or copies, the micro-batch must be equal: a wait has the same length in each
        micro-batch, so that the step of a smaller one was estimated up to 77 % too short (deepseek-v3 with FSDP).
        """
        if self.is_calibrated(layout):
            return True
        close = self._close(layout)
        return close is not None and (not layers_wait(layout) or close.micro_batch == layout.micro_batch)

    def is_close(self, layout: Layout) -> bool:
        """Return whether a form that differs in recomputation, dp or micro-batch was calibrated."""
        return self._close(layout) is not None

    def _close(self, layout: Layout) -> Correction | None:
        """Return the corrections of a form that differs at most in recomputation, dp and micro-batch."""
        return self._most_similar(form_of(layout), _CLOSE)

    def _most_similar(self, form: tuple[object, ...], at_least: int) -> Correction | None:
        """Return the corrections of the calibrated form that shares most fields; None if none shares ``at_least``."""
        for count in _NUM_SHARED:
            if count >= at_least and (found := self._corrections.get(form[:count])) is not None:
                return found
        return None

    def knows_passes(self, layout: Layout) -> bool:
        """Return whether the passes of a form with the same passes were calibrated."""
        return _passes_of(layout) in self._of_passes

    def give_up(self, layout: Layout) -> None:
        """Take the form of a layout as known without corrections: no program of it could be written and measured."""
        self._exact.setdefault(form_of(layout), None)

    def is_given_up(self, layout: Layout) -> bool:
        """Return whether no small job of the layout's form could run."""
        return self._exact.get(form_of(layout), NO_CORRECTION) is None

    def calibrate(self, layout: Layout, costs: LayerCosts, jobs: SmallJobs | None) -> None:
        """Take the corrections of a layout's form from its small jobs; None: they cannot run."""
        form = form_of(layout)
        correction = None if jobs is None else self._correct(layout, costs, jobs)
        self._exact[form] = correction
        if correction is not None:
            self._take(layout, form, correction)
            self._of_passes.setdefault(_passes_of(layout), correction)

    def _take(self, layout: Layout, form: tuple[object, ...], correction: Correction) -> None:
        """Keep the corrections of a form, and as corrections of similar forms.

        Of several forms that are not close, the least contention counts: an estimate that is too long would hide a
        good layout, one that is too short only costs a calibration. Where layers wait for gathers or copies, the
        corrections hold these waits, which other forms do not have.
        """
        waits = layers_wait(layout)
        for count in _NUM_SHARED:
            if count >= _CLOSE:
                self._corrections.setdefault(form[:count], correction)
            elif count > _WITHOUT_SHARDING or not waits:
                known = self._corrections.get(form[:count])
                if known is None or correction.rho < known.rho:
                    self._corrections[form[:count]] = correction
        self._corrections[form] = correction
        if not waits:
            self._rho[layout.tp] = min(correction.rho, self._rho.get(layout.tp, inf))

    def _correct(self, layout: Layout, costs: LayerCosts, jobs: SmallJobs) -> Correction:
        """Return the corrections that make the estimates of the small jobs equal their simulations."""
        sample = jobs.sample
        few, more = (list(map(float, chunks)) for chunks in sample.chunks)
        least, most = sample.micro_batches
        small = layout._replace(pp=sample.pp, virtual_stages=sample.virtual_stages)
        messages = self._messages(small, costs)
        costs = self._at_clock(layout, costs)

        def screened(chunks: list[float], count: int, use: Correction) -> int:
            return _step(small, count, costs, chunks, use, messages)

        on_rank = [most_layers(small, chunks) for chunks in (few, more)]
        use = NO_CORRECTION._replace(micro_batch=layout.micro_batch, layers=on_rank[0], sharding=layout.sharding,
                                     offload=layout.offload)  # fmt: skip
        if jobs.end_passes:
            use = _with_end_rates(use, jobs)
        (few_least, *few_most), (more_least, *more_most) = jobs.times_ps
        if few_most and more_most:
            targets = few_most[0] - few_least, more_most[0] - more_least
            work = (costs.forward + costs.backward) * sample.virtual_stages * (most - least)
            use = _solve(
                use._replace(rho=(targets[1] - targets[0]) / work if work else 1.0), targets,
                lambda each: (screened(few, most, each) - screened(few, least, each),
                              screened(more, most, each) - screened(more, least, each)),
            )  # fmt: skip
        else:
            known = self._of_passes[_passes_of(layout)]
            use = use._replace(rho=known.rho, fixed=known.fixed * layout.micro_batch / known.micro_batch)
        tail = few_least - screened(few, least, use)
        tail_more = more_least - screened(more, least, use)
        tail_layer = (tail_more - tail) / (on_rank[1] - on_rank[0])
        fill = tail - jobs.end_passes[0].after if jobs.end_passes else 0.0
        use = use._replace(fill=fill, virtual_stages=sample.virtual_stages, fill_batches=least)
        return use._replace(tail=tail, tail_layer=tail_layer, memory=_memory(small, costs, sample, jobs.needed_bytes))

    def correction(self, layout: Layout) -> Correction:
        """Return the corrections of the most similar calibrated form, or only the rho of its tp.

        1f1b and interleaved pipelines have similar passes and ends of a step, so one stands in for the other.
        """
        form = form_of(layout)
        kinds = [form[0]]
        if known_order(str(form[0])).alternates:
            kinds += [kind for kind in SCHEDULES.names() if kind != form[0] and known_order(kind).alternates]
        for kind in kinds:
            if (found := self._most_similar((kind, *form[1:]), 0)) is not None:
                return found
        return NO_CORRECTION._replace(rho=self._rho.get(layout.tp, 1.0))

    def step_ps(self, layout: Layout, micro_batches: int, costs: LayerCosts, stages: StageLayers | None) -> int:
        """Return the likely step time in ps, or 0 for a schedule without recurrence. stages: None if unknown."""
        use = self.correction(layout)
        found = self._estimates.get(layout)
        if found is not None and found[0] is costs and found[1] == use:
            return found[2]
        time_ps = self._corrected_ps(layout, micro_batches, self._at_clock(layout, costs), stages, use)
        self._estimates[layout] = costs, use, time_ps
        return time_ps

    def _corrected_ps(
        self, layout: Layout, micro_batches: int, costs: LayerCosts, stages: StageLayers | None, use: Correction
    ) -> int:
        """Return the step time in ps with the corrections of a similar form. costs: at the clock of the step."""
        chunks = chunk_layers(layout, stages, self._layers)
        if layout.offload == "optimizer" and (use.offload, use.sharding) != (layout.offload, layout.sharding):
            tail = use.tail + self._host_update_ps(layout, costs, chunks)
            if use.offload == "optimizer":
                tail -= self._host_update_ps(layout._replace(sharding=use.sharding), costs, chunks)
            use = use._replace(tail=tail)
        return _step(layout, micro_batches, costs, chunks, use, self._messages(layout, costs))

    def _host_update_ps(self, layout: Layout, costs: LayerCosts, chunks: list[float]) -> float:
        """Return the time in ps in which the host updates the weights of the rank with the most layers.

        As :class:`trine.parallel.offload.HostOptimizer` does, without the copies.
        """
        ways = 1 if layout.sharding == "none" else (layout.shard_ways or layout.dp) * layout.cp
        of_layer, of_rest = (3 * sizes.get("gradients", 0) + 2 * sizes.get("optimizer_state", 0)
                             for sizes in (costs.resident, costs.rest))  # fmt: skip
        traffic = most_layers(layout, chunks) * of_layer + of_rest / min(layout.pp, 2)
        return traffic / ways / self._probe.host_bytes_per_s * PS_PER_S

    def _messages(self, layout: Layout, costs: LayerCosts) -> StageMessages:
        return StageMessages(self._probe.messages(layout, costs.message), self._probe.waits(layout, costs.message))

    def _micro_batches(self, layout: Layout) -> int:
        return self._global_batch // layout.dp // layout.micro_batch

    def _at_clock(self, layout: Layout, costs: LayerCosts) -> LayerCosts:
        """Return the costs at the clock of the layout's step."""
        slowdown = self._probe.clocks.slowdown(layout.micro_batch, self._micro_batches(layout))
        if slowdown == 1.0:
            return costs
        key = (id(costs), slowdown)  # the costs are kept beside, so that no other object gets their id
        if key not in self._scaled:
            self._scaled[key] = costs, costs.scaled(slowdown)
        return self._scaled[key][1]

    def needed_bytes(self, layout: Layout, micro_batches: int, costs: LayerCosts, stages: StageLayers | None) -> int:
        """Return the likely memory of the fullest rank in bytes, or 0 if no similar form is calibrated."""
        correction = self.correction(layout)
        least = memory_bounds(layout, micro_batches, costs, self._layers, stages)
        pairs = zip(correction.memory, least, strict=False)
        return max((int(offset + ratio * bound) for (offset, ratio), bound in pairs), default=0)


def _solve(
    use: Correction, targets: tuple[int, int], differences: Callable[[Correction], tuple[int, int]]
) -> Correction:
    """Return ``rho`` and ``fixed`` for which the estimated times of further micro-batches equal the simulated ones.

    Newton's method: which pass limits a pipeline may change with both.
    """
    best, least = use, inf
    for _ in range(ITERATIONS):
        found = differences(use)
        errors = [target - each for target, each in zip(targets, found, strict=True)]
        if (size := max(map(abs, errors))) < least:
            best, least = use, size
        if size <= EXACT * max(targets):
            break
        step = max(abs(use.fixed) * SHIFT, SHIFT * max(targets))
        by_rho = [(a - b) / SHIFT for a, b in zip(differences(use._replace(rho=use.rho + SHIFT)), found, strict=True)]
        by_fixed = [
            (a - b) / step for a, b in zip(differences(use._replace(fixed=use.fixed + step)), found, strict=True)
        ]
        scale = by_rho[0] * by_fixed[1] - by_rho[1] * by_fixed[0]
        if not scale:
            break
        rho = (errors[0] * by_fixed[1] - errors[1] * by_fixed[0]) / scale
        fixed = (by_rho[0] * errors[1] - by_rho[1] * errors[0]) / scale
        use = use._replace(rho=use.rho + rho, fixed=use.fixed + fixed)
    return best


def _with_end_rates(use: Correction, jobs: SmallJobs) -> Correction:
    """Return corrections with the further times of the first and the last passes, from both numbers of layers."""
    fewer, more = jobs.end_passes
    layers = jobs.sample.chunks[0]
    return use._replace(
        starts=end_rates(fewer.first_forward, more.first_forward, layers),
        ends=end_rates(fewer.last_backward, more.last_backward, layers),
        behind=end_rates(fewer.behind, more.behind, layers),
    )


def _passes_of(layout: Layout) -> tuple[object, ...]:
    """Return the fields that the passes of a layout depend on, besides the micro-batch and the number of stages.

    Offloaded activations and gathers of sharded parameters are part of the passes, and do not grow with the
    micro-batch; how gradients are reduced is not.
    """
    kind = "" if layout.pp == 1 else str(layout.schedule)
    sharding = layout.sharding if layout.sharding in PARAMETERS_SHARDED else ""
    in_passes = sharding, layout.offload == "activations", layout.micro_batch if layers_wait(layout) else 0
    return (kind, layout.tp, layout.cp, layout.ep, layout.etp, layout.sequence_parallel, layout.recompute, *in_passes)


def layers_wait(layout: Layout) -> bool:
    """Return whether each layer waits for gathers of its parameters, or for copies of its activations to the host."""
    return layout.sharding in PARAMETERS_SHARDED or layout.offload == "activations"


def form_of(layout: Layout) -> tuple[object, ...]:
    """Return the fields of a layout that its corrections depend on, the most important first."""
    kind = "" if layout.pp == 1 else str(layout.schedule)
    return (kind, *_FORM_OF(layout))


def chunk_layers(layout: Layout, stages: StageLayers | None, layers: int) -> list[float]:
    """Return the layers of each chunk; equal parts if they are unknown."""
    chunks = layout.pp * layout.virtual_stages
    return [layers / chunks] * chunks if stages is None else [float(count) for count in stages.chunks]


def most_layers(layout: Layout, chunks: list[float]) -> float:
    """Return the layers of the rank with the most."""
    return max(sum(chunks[rank :: layout.pp]) for rank in range(layout.pp))


def _step(
    layout: Layout, micro_batches: int, costs: LayerCosts, chunks: list[float], use: Correction, messages: StageMessages
) -> int:
    """Return the step time in ps with layers ``chunks`` and the corrections ``use``."""
    passes = _passes_ps(layout, costs, chunks, use)
    tail = use.tail + use.tail_layer * (most_layers(layout, chunks) - use.layers)
    further = max(layout.virtual_stages / use.virtual_stages - 1, 0.0)
    tail += use.fill * further * min(use.fill_batches / micro_batches, 1.0)
    if layout.pp == 1:
        return int(micro_batches * int(passes[0, 0] + passes[1, 0] + passes[4, 0]) + tail)
    time_ps = pipeline_ps(str(layout.schedule), layout.pp, micro_batches, passes, messages)
    return int(time_ps + tail) if time_ps else 0


def _passes_ps(layout: Layout, costs: LayerCosts, chunks: list[float], use: Correction) -> Int64:
    """Return the times of passes by kind and chunk in ps."""
    layers = np.array(chunks)
    more = np.maximum(layers - 1, 0.0)
    one = np.minimum(layers, 1.0)
    forward = use.rho * (more * costs.forward + one * costs.forward_within)
    backward = use.rho * (more * costs.backward + one * costs.backward_within)
    weight = use.rho * layers * costs.weight
    for chunk, whole, ahead, late in (
        (0, costs.first, costs.first_forward, costs.first_weight),
        (-1, costs.last, costs.last_forward, costs.last_weight),
    ):
        forward[chunk] += ahead
        backward[chunk] += whole - ahead
        weight[chunk] += late
    scale = layout.micro_batch / use.micro_batch
    forward += use.fixed * scale
    backward += use.fixed * scale
    after = layers * costs.after
    after[0] += costs.after_rest / 2
    after[-1] += costs.after_rest / 2
    if layout.sharding in GRADIENTS_SHARDED:  # a rank adds up only its own gradients
        after /= (layout.shard_ways or layout.dp) * layout.cp
    further = [rates.of(chunks) for rates in (use.starts, use.ends, use.behind)]
    rows = [forward, backward, backward - weight, weight, after, *further]
    times: Int64 = np.maximum(np.stack(rows), 0).astype(np.int64)
    return times


def _memory(
    layout: Layout, costs: LayerCosts, sample: FormSample, needed: tuple[tuple[int, int], tuple[int, int]]
) -> tuple[tuple[float, float], ...]:
    """Return offset and ratio of the needed memory against its lower bound, from the two numbers of layers."""
    bounds = []
    for chunks in sample.chunks:
        stages = by_stage(chunks, sample.pp, sample.virtual_stages)
        bounds.append(memory_bounds(layout, sample.micro_batches[1], costs, sum(chunks), stages))
    lines = []
    for end in range(2):
        less, more = bounds[0][end], bounds[1][end]
        if more <= less or not needed[0][end] or not needed[1][end]:
            return ()
        ratio = (needed[1][end] - needed[0][end]) / (more - less)
        ratio = min(max(ratio, 1.0), MAX_PER_BYTE)
        lines.append((needed[1][end] - ratio * more, ratio))
    return tuple(lines)
