"""The search of a large space: all layouts in the order of the screen, and the best ones simulated."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import replace
from math import inf
from typing import TYPE_CHECKING

from trine.parallel.plan import PARAMETERS_SHARDED
from trine.results.memory import DOES_NOT_FIT
from trine.results.memory import TIGHT as TIGHT_MEMORY
from trine.search.bounds import memory_bound
from trine.search.calibration import sample_of, simulate_few_layers, together
from trine.search.likely_costs import LikelyCosts
from trine.search.ranked import Ranked
from trine.search.screen import LayoutScreen, layers_wait
from trine.search.search import (
    FAMILY,
    FIRST_ROUND,
    LAYOUT,
    MEMORY_LIKELY,
    RECOMPUTES_FOR_NOTHING,
    SLOWER_BY_SCREEN,
    TIGHT_LIKELY,
    UNPROMISING,
    Entry,
    Search,
    form_of_layer,
    store_of,
)  # fmt: skip
from trine.search.ties import RESOLUTION, assumptions
from trine.search.worker import memory_verdict_of
from trine.training.memory_facts import facts_of

if TYPE_CHECKING:
    from trine.search.bounds import StageLayers
    from trine.search.probe import LayerCosts
    from trine.search.space import Family, Layout
    from trine.search.worker import Outcome

#: Families whose forms are measured together with the form of the first family.
FAMILIES_AHEAD = 1
#: Schedules with a rough estimate (no schedule: one stage).
_ROUGHLY_KNOWN = (None, "1f1b", "interleaved", "gpipe")
#: A probe has the clock of a long step. The clock of a shorter step raises no speed by more than this, as a share of
#: the time.
FASTER_CLOCK = 0.97
#: Forms that the screen calibrates, at most. Where layers wait, each micro-batch is a form: up to the second number, if
#: a form with another micro-batch is known.
MAX_FORMS, MAX_IF_WAITING = 20, 32
#: Layouts to simulate, at most: in search of the best, and while none fits. Layouts tried for a second one that fits.
MOST, MAX_IF_NONE, MAX_FOR_SECOND = 8, 64, 3
#: Layouts of a tie that are simulated, since they take less for granted than the fastest, and entries looked at.
MAX_IN_TIE, LOOK_IN_TIE = 3, 200
#: Forms calibrated in search of a layout without offload, if the first offloads, at most.
MAX_FORMS_WITHOUT = 4
#: While no layout fits, those whose estimated memory exceeds the capacity by less are simulated: of calibrated forms,
#: and of others. Later, a layout at its capacity would be tight, and no use.
MEMORY_ERROR, MEMORY_ERROR_IF_CLOSE = 0.005, 0.02
#: Layouts whose estimated memory, with its error, is within this share of the capacity: their programs decide, before a
#: simulation in vain; and most such layouts.
NEAR_CAPACITY, MAX_BY_PROGRAMS = 0.03, 16
#: The screen's memory counts as too low by at most this factor.
MAX_MEMORY_LOW = 1.05
#: A layout whose estimate exceeds the best simulated time by more is not the fastest: the screen's error, as a share.
SCREEN_ERROR = 0.01
#: An entry whose estimate has grown by this share since it was queued goes back into the queue.
GROWN = 0.001


class ScreenedSearch(Search):
    """A search that orders layouts by the screen's estimates; its numbers ``bound`` are estimates.

    errors: of the screen, one for each simulated layout, as a share of the simulated time. num_screened: layouts with
    an estimate of their own; the others are rejected by a rule, or belong to families that even their fastest pipeline
    makes too slow. screen: None until a search of a large space begins.
    """

    screen: LayoutScreen | None = None
    layouts_ahead, probes_per_task = 2, 1

    def search(self, families: Sequence[Family]) -> None:
        """Search the families; without bounds, exactly, for the frontier, or in a small space, as :class:`Search`."""
        if not self.estimates or self.pareto:
            super().search(families)
            return
        self._begin(families)
        size = 1  # what the first one takes decides which others are worth a calibration
        while (count := self._round_size(size)) and (batch := self._candidates(count, self._horizon_ps())):
            if safe := self._without_tight(batch):
                self.simulate(safe)
            size = min(2 * size, FIRST_ROUND)
        if self.ranked:
            self._simulate_tie()
            self._simulate_second()
            self._estimate_others()
        else:
            self._simulate_likely_tight()
        self.count_rest()

    def _begin(self, families: Sequence[Family]) -> None:
        """Measure the smallest micro-batches, and queue the families by rough estimates of their fastest pipelines."""
        self.screen = LayoutScreen(self.layers, self.job.probe, self.space.global_batch)
        self._likely_tight: list[Entry] = []
        self._num_by_programs = 0
        self._memory_low: dict[tuple[bool, bool], float] = {}
        kept = self.without_twins(families)
        every = (family.layout._replace(recompute=each) for family in kept for each in family.recompute)
        self._likely = LikelyCosts({form_of_layer(layout): layout for layout in every}, self.costs)
        firsts = {family.recompute[0] for family in kept}
        self.measure([layout for layout in self._likely.smallest() if layout.recompute in firsts])
        for family in kept:
            heapq.heappush(self.queue, Entry(self._rough_estimate(family), family.layout.key, FAMILY, family))

    def _rough_estimate(self, family: Family) -> int:
        """Return less than the estimate of a family's fastest pipeline: the work of a mean stage, and no corrections.

        An entry with this estimate gets a better one once it is the first of the queue.
        """
        costs, layout = self._likely.of(form_of_layer(family.layout)), family.layout
        pipelines = self._pipelines_of(family)
        if costs is None or any(schedule not in _ROUGHLY_KNOWN for schedule, _ in pipelines):
            return 0
        layer = min(costs.forward, costs.forward_within) + min(costs.backward, costs.backward_within)
        stage = self.layers * layer // layout.pp
        most = max((count for _, count in pipelines), default=1)
        ends = (costs.first + costs.last) // layout.pp
        work = self.micro_batches(layout) * (stage + ends) + (layout.pp - 1) * stage // most
        return int(FASTER_CLOCK * work)

    def _pipelines_of(self, family: Family) -> list[tuple[str | None, int]]:
        """Return the family's pipelines that the software runs."""
        return [pair for pair in family.pipelines if self.space.has_schedule(pair[0], family.layout.pp)]

    def estimate_all(self, most: int) -> int:
        """Estimate about ``most`` layouts, the likely fastest families first; return their number. Simulate none."""
        self.estimates = True
        self._begin(self.space.families())
        while self.queue and self.num_screened < most:
            entry = heapq.heappop(self.queue)
            if entry.stage == FAMILY and self._is_measured(entry.subject):
                self.expand(entry.subject)
            elif entry.stage == FAMILY:
                self._measure_next(entry)
            elif entry.stage == LAYOUT:
                self.refine(entry)
        return self.num_screened

    @property
    def _known_screen(self) -> LayoutScreen:
        assert self.screen is not None
        return self.screen

    # -- probes --------------------------------------------------------------------------------------------------------

    def _is_measured(self, family: Family) -> bool:
        """Return whether a family's form was measured, or micro-batches below and above it, so that a guess is close.

        Then its layouts enter the queue, and a probe waits until one of them is among the best and likely to fit.
        """
        return self._likely.is_close(form_of_layer(family.layout))

    def family_costs(self, family: Family) -> LayerCosts | None:
        """Return the measured or likely costs of a family's form."""
        form = form_of_layer(family.layout)
        return super().family_costs(family) if self.screen is None or form in self.costs else self._likely.of(form)

    def _measure_next(self, entry: Entry) -> None:
        """Measure a layer for a family and the next ones of the queue; queue the family again."""
        if self._cannot_fit(entry.subject):
            self.expand(entry.subject)
            return
        following = [each.subject for each in heapq.nsmallest(FAMILIES_AHEAD, self.queue) if each.stage == FAMILY]
        unknown = (family for family in following if not self._is_measured(family))
        families = [entry.subject, *(family for family in unknown if not self._cannot_fit(family))]
        self.measure([self._likely.next_probe(form_of_layer(family.layout)) for family in families])
        heapq.heappush(self.queue, entry._replace(bound=self._estimate_now(entry)))

    def _cannot_fit(self, family: Family) -> bool:
        """Return whether weights, gradients and optimizer states alone exceed the memory in each layout of a family."""
        for layout in family.layouts():
            if layout.recompute != family.recompute[0]:  # recomputation changes activations alone
                continue
            if any(self.may_fit(layout._replace(offload=offload)) for offload in family.offload):
                return False
        return True

    def _family_bound(self, family: Family) -> int:
        """Return the least estimate of a family; from likely costs until its form is measured."""
        if self.screen is None:
            return super()._family_bound(family)
        costs = self._likely.of(form_of_layer(family.layout))
        return self._least_of_pipelines(family.layout, self._pipelines_of(family), costs)

    def may_fit(self, layout: Layout) -> bool:
        """Return whether memory may hold a layout, also by the activations of another micro-batch of its form.

        Activations grow exactly with the micro-batch; the peak beside them does not.
        """
        if not super().may_fit(layout):
            return False
        costs = None if self.screen is None or not self.capacity else self._likely.of(form_of_layer(layout))
        if costs is None:
            return True
        costs = replace(costs, peak=0, rise=0)
        least = memory_bound(layout, self.micro_batches(layout), costs, self.layers, self.stages_of(layout))
        outside = facts_of(self.space.software, self.space.plan(layout), self.job.workload).outside_bytes
        return least + outside <= self.capacity

    # -- estimates -----------------------------------------------------------------------------------------------------

    def _time_bound(self, layout: Layout, costs: LayerCosts | None) -> int:
        """Return the likely step time in ps; a lower bound if the screen has no recurrence, 0 if nothing is known."""
        if self.screen is None:
            return self._lower_bound(layout, costs)
        if costs is None:
            return 0
        stages = self.likely_stages(layout, costs)
        time_ps = self.screen.step_ps(layout, self.micro_batches(layout), costs, stages)
        if time_ps and (self._known_screen.is_calibrated(layout) or not layers_wait(layout)):
            return time_ps
        return max(time_ps, self._lower_bound(layout, costs))

    def likely_stages(self, layout: Layout, costs: LayerCosts) -> StageLayers | None:
        """Return the layers of each stage, by the likely cuts if they depend on operator times."""
        if layout.pp > 1 and {"first_stage_layers", "last_stage_layers"} & self.space.fixed.keys():
            return None
        return self.sizes.likely(self.balance_of(layout), layout, costs)

    def _needed(self, layout: Layout) -> float:
        """Return the likely memory of a layout in bytes."""
        costs = self.cost(layout)
        learned = self.allocated(layout) * self.memory_ratio.get(store_of(layout), 1.0)
        if costs is None or not self._known_screen.is_known(layout):
            return learned
        return max(learned, self._screened_bytes(layout, costs) * self._memory_low.get(_memory_kind(layout), 1.0))

    def _screened_bytes(self, layout: Layout, costs: LayerCosts) -> int:
        stages = self.likely_stages(layout, costs)
        return self._known_screen.needed_bytes(layout, self.micro_batches(layout), costs, stages)

    def _is_likely_to_fit(self, layout: Layout) -> bool:
        """Return whether a layout has likely a margin of memory."""
        if self.screen is None:
            return super()._is_likely_to_fit(layout)
        return not self.capacity or not self._is_likely_tight(layout)

    def _examine(self, layout: Layout) -> None:
        """Calibrate the form of a layout."""
        if self.screen is not None and not self.screen.is_known(layout):
            self._calibrate(layout)

    def _learn_memory(self, layout: Layout, outcome: Outcome) -> None:
        """Take the screen's error of a simulated layout's memory for later layouts, if the screen was too low."""
        costs = self.cost(layout)
        estimate = 0 if costs is None else self._screened_bytes(layout, costs)
        if estimate and outcome.memory_bytes:
            low = min(outcome.memory_bytes / estimate, MAX_MEMORY_LOW)
            kind = _memory_kind(layout)
            self._memory_low[kind] = max(low, self._memory_low.get(kind, 1.0))

    def _most_memory(self, layout: Layout) -> float:
        """Return the most estimated bytes of a layout that is worth a simulation."""
        if self.ranked:
            return self.capacity
        error = MEMORY_ERROR if self._known_screen.is_calibrated(layout) else MEMORY_ERROR_IF_CLOSE
        return (1 + error) * self.capacity

    def _estimate_now(self, entry: Entry) -> int:
        """Return the estimate of an entry with the corrections known by now."""
        if entry.stage == FAMILY:
            return self._family_bound(entry.subject)
        costs = self.costs.get(form_of_layer(entry.subject))
        return entry.bound if costs is None else self._time_bound(entry.subject, costs)

    def _push(self, layout: Layout, costs: LayerCosts | None) -> None:
        """Queue a layout, and count it as screened."""
        self.num_screened += self.screen is not None and costs is not None
        super()._push(layout, costs)

    # -- calibration ---------------------------------------------------------------------------------------------------

    def _calibrate(self, layout: Layout) -> None:
        """Simulate small jobs of a layout's form, both numbers of layers at the same time."""
        costs = self.cost(layout)
        if costs is None:
            self._known_screen.give_up(layout)
            return
        sample = sample_of(layout, self.micro_batches(layout), self.likely_stages(layout, costs))
        plan, knows_passes = self.space.plan(layout), self._known_screen.knows_passes(layout)
        futures = [self.executor.submit(simulate_few_layers, self.packed, plan, sample, chunks, knows_passes)
                   for chunks in sample.chunks]  # fmt: skip
        fewer, more = (future.result() for future in futures)
        self._known_screen.calibrate(layout, costs, together(sample, fewer, more))

    def _most_forms(self, layout: Layout) -> int:
        """Return the number of calibrated forms beyond which a layout's form is not calibrated."""
        return MAX_IF_WAITING if self._known_screen.is_close(layout) else MAX_FORMS

    def _calibrate_next(self, entry: Entry) -> None:
        """Calibrate the form of an entry, and queue the entry again."""
        self._calibrate(entry.subject)
        heapq.heappush(self.queue, entry._replace(bound=self._estimate_now(entry)))

    # -- rounds --------------------------------------------------------------------------------------------------------

    def _round_size(self, size: int) -> int:
        """Return the number of layouts to simulate next, 0 at the end."""
        if not self.ranked:
            return max(0, min(size, MAX_IF_NONE - self.num_simulated))
        most = MOST if self.most is None else self.most
        return max(0, min(size, most - self.num_simulated))

    def _horizon_ps(self) -> float:
        """Return the estimate beyond which no layout is simulated, once one fits."""
        return (1 + SCREEN_ERROR) * self.ranked[0].outcome.step_ps if self.ranked else inf

    def _candidates(
        self, size: int, horizon: float, may_measure: bool = True, without_offload: bool = False
    ) -> list[Entry]:
        """Return the next layouts to simulate in the order of their estimates.

        may_measure: probe and calibrate new forms, which cost time. Without it, layouts of new forms are left out.
        without_offload: leave layouts with offload out, and calibrate few forms.
        """
        most_forms = self._known_screen.num_forms + MAX_FORMS_WITHOUT if without_offload else MAX_IF_WAITING
        batch: list[Entry] = []
        waiting: list[Entry] = []
        fitting = {each.layout for each in self.ranked}
        chosen: set[Layout] = set()
        while self.queue and len(batch) < size and self.queue[0].bound <= horizon:
            entry = heapq.heappop(self.queue)
            estimate = self._estimate_now(entry)
            without = None if entry.stage == FAMILY else entry.subject._replace(recompute="none")
            if estimate > (1 + GROWN) * entry.bound:
                heapq.heappush(self.queue, entry._replace(bound=estimate))
            elif not may_measure and not self._has_costs(entry):
                waiting.append(entry)
            elif entry.stage == FAMILY and not self._is_measured(entry.subject):
                self._measure_next(entry)
            elif entry.stage == FAMILY:
                self.expand(entry.subject)
            elif without_offload and entry.subject.offload != "none":
                waiting.append(entry)
            elif entry.stage == LAYOUT:
                self.refine(entry)
            elif without != entry.subject and without in fitting:
                self.rejected[RECOMPUTES_FOR_NOTHING] += 1
            elif without in chosen:
                waiting.append(entry)
            elif not self._known_screen.is_known(entry.subject):
                if not may_measure:
                    waiting.append(entry)
                elif self._known_screen.num_forms < min(most_forms, self._most_forms(entry.subject)):
                    self._calibrate_next(entry)
                else:
                    self.rejected[UNPROMISING] += 1
            elif self.capacity and self._needed(entry.subject) > self._most_memory(entry.subject):
                self.reject_for_memory(entry.subject, MEMORY_LIKELY)
            elif self.capacity and self._is_likely_tight(entry.subject):
                self.reject_for_memory(entry.subject, TIGHT_LIKELY)
                self._likely_tight.append(entry._replace(bound=estimate))
            else:
                batch.append(entry._replace(bound=estimate))
                chosen.add(entry.subject)
        for entry in waiting:  # also those of which it is unknown whether they fit without recomputation
            heapq.heappush(self.queue, entry)
        return batch

    def _is_likely_tight(self, layout: Layout) -> bool:
        """Return whether the upper end of a layout's memory is likely to exceed the capacity."""
        error = MEMORY_ERROR if self._known_screen.is_calibrated(layout) else MEMORY_ERROR_IF_CLOSE
        return self._high_bytes(layout) > (1 + error) * self.capacity

    def _high_bytes(self, layout: Layout) -> float:
        """Return the upper end of a layout's likely memory in bytes."""
        facts = facts_of(self.space.software, self.space.plan(layout), self.job.workload)
        needed = self._needed(layout)
        return needed + facts.error * (needed - facts.outside_bytes)

    def _without_tight(self, batch: Sequence[Entry]) -> list[Entry]:
        """Return the entries that fit with a margin; the programs of those near the capacity decide."""
        is_near = {
            entry.subject: bool(self.capacity) and self._high_bytes(entry.subject) > (1 - NEAR_CAPACITY) * self.capacity
            for entry in batch
        }
        near = [entry for entry in batch if is_near[entry.subject]][: MAX_BY_PROGRAMS - self._num_by_programs]
        self._num_by_programs += len(near)
        futures = [
            self.executor.submit(memory_verdict_of, self.packed, self._plan(entry.subject), self.capacity)
            for entry in near
        ]
        verdicts = {entry.subject: future.result() for entry, future in zip(near, futures, strict=True)}
        kept = []
        for entry in batch:
            verdict = verdicts.get(entry.subject, "")
            if verdict == DOES_NOT_FIT:
                self.reject_for_memory(entry.subject, MEMORY_LIKELY)
            elif verdict == TIGHT_MEMORY:
                self.reject_for_memory(entry.subject, TIGHT_LIKELY)
                self._likely_tight.append(entry)
            else:
                kept.append(entry)
        return kept

    def _simulate_likely_tight(self) -> None:
        """Simulate the fastest layouts that were left out as likely tight, because no layout fits with a margin."""
        self._likely_tight.sort()
        chosen = self._likely_tight[: max(0, MAX_IF_NONE - self.num_simulated)][:MOST]
        self.rejected[TIGHT_LIKELY] -= len(chosen)
        if chosen:
            self.simulate(chosen)

    def _simulate_tie(self) -> None:
        """Simulate layouts that tie with the fastest by their estimate and take less for granted."""
        least = min(each.outcome.step_ps for each in self.ranked)
        horizon = (1 + RESOLUTION / 2) * least
        found = self._candidates(LOOK_IN_TIE, horizon, may_measure=False)
        mine = min(assumptions(each.layout, self.node_gpus) for each in self.ranked
                   if each.outcome.step_ps <= (1 + RESOLUTION) * least)  # fmt: skip
        found.sort(key=lambda entry: (assumptions(entry.subject, self.node_gpus), entry.bound, entry.key))
        chosen = [entry for entry in found if assumptions(entry.subject, self.node_gpus) < mine][:MAX_IN_TIE]
        self._queue_again([entry for entry in found if entry not in chosen])
        for entry in chosen:
            num_fitting = len(self.ranked)
            self.simulate([entry])
            if len(self.ranked) > num_fitting and self.ranked[-1].layout == entry.subject:
                break

    def _simulate_second(self) -> None:
        """Simulate a second layout, for the comparison of its parts with the first one's.

        If all simulated ones offload to the host, it is the fastest without, which takes less for granted.
        """
        if self.most is not None or self.top < 2:
            return
        for _ in range(MAX_FOR_SECOND):
            offload = all(each.layout.offload != "none" for each in self.ranked)
            if len(self.ranked) >= 2 and not offload:
                return
            batch = self._candidates(1, inf, without_offload=True) if offload else []
            if not batch and len(self.ranked) < 2:
                batch = self._candidates(1, inf, may_measure=False)
            if not batch:
                return
            self.simulate(batch)

    def _estimate_others(self) -> None:
        """Fill the list up to the requested number with estimates, of layouts whose forms are calibrated or close."""
        missing = self.top - len(self.ranked)
        seen: list[Entry] = []
        while missing > 0 and (found := self._candidates(missing, inf, may_measure=False)):
            seen += found
            for entry in found:
                if self._has_estimate(entry):
                    outcome = self.ranked[0].outcome.estimated(entry.bound, int(self._needed(entry.subject)))
                    self.estimated.append(self.ranked_of(entry, outcome))
                    missing -= 1
        self._queue_again(seen)

    def _has_estimate(self, entry: Entry) -> bool:
        """Return whether the number that a layout is queued by is an estimate, and not a mere lower bound."""
        layout, screen = entry.subject, self._known_screen
        costs = self.costs.get(form_of_layer(layout))
        if costs is None or screen.is_given_up(layout):
            return False
        stages = self.likely_stages(layout, costs)
        return screen.step_ps(layout, self.micro_batches(layout), costs, stages) > 0

    def _queue_again(self, entries: Sequence[Entry]) -> None:
        for entry in entries:
            heapq.heappush(self.queue, entry)

    def _has_costs(self, entry: Entry) -> bool:
        """Return whether a layer of an entry's form was probed."""
        form = form_of_layer(entry.subject.layout if entry.stage == FAMILY else entry.subject)
        return form in self.costs

    def take(self, entry: Entry, outcome: Outcome) -> None:
        """Count a simulated layout, and the screen's error."""
        if self.screen is not None and outcome.step_ps and entry.bound:
            self.errors.append(entry.bound / outcome.step_ps - 1)
            self._learn_memory(entry.subject, outcome)
        super().take(entry, outcome)

    def ranked_of(self, entry: Entry, outcome: Outcome) -> Ranked:
        """Return a result with its lower bound and the screen's estimate."""
        if self.screen is None:
            return super().ranked_of(entry, outcome)
        bound = self._lower_bound(entry.subject, self.cost(entry.subject))
        return Ranked(entry.subject, outcome, bound, entry.bound)

    @property
    def reason_of_rest(self) -> str:
        """Why the layouts left in the queue are not simulated."""
        return SLOWER_BY_SCREEN if self.screen is not None else super().reason_of_rest


def _memory_kind(layout: Layout) -> tuple[bool, bool]:
    """Return the fields of layouts whose estimated memory has a similar error: a pipeline, and sharded parameters."""
    return layout.pp > 1, layout.sharding in PARAMETERS_SHARDED
