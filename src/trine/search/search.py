"""The search: layouts in the order of their lower bounds, simulated until no bound beats the best results.

The order and the size of the rounds depend on the layouts alone, not on the number of workers. So a search gives the
same answer with any executor.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future
from contextlib import contextmanager
from dataclasses import replace
from math import inf
from typing import Any, NamedTuple

from trine.common.observer import current_observer
from trine.common.processes import SerialExecutor, num_cpus, process_pool
from trine.common.shared_work import SharedWork
from trine.common.units import format_bytes
from trine.errors import PlanError
from trine.parallel.constraints import default_balance, resolve_layout
from trine.parallel.plan import Plan
from trine.search.bounds import StageLayers, StageSizes, memory_bound, step_bound
from trine.search.probe import LayerCosts, can_probe, has_equal_layers
from trine.search.ranked import Ranked
from trine.search.space import Family, Layout, Space
from trine.search.switches import (
    LATER_PER_ROUND,
    MAX_EP_RATIO,
    MAX_EXAMINED,
    MAX_LOOKED_AT,
    NUM_BASES,
    NUM_LATER,
    all_switched,
    has_switches,
    switched,
    without_exchanges,
)  # fmt: skip
from trine.search.ties import with_first
from trine.search.worker import Outcome, PackedJob, probe_all, simulate_layout
from trine.software.profile import SWITCH_FIELDS
from trine.training.memory_facts import facts_of

#: Layouts simulated in the first round, and most in a later one; each round doubles.
FIRST_ROUND, MAX_PER_ROUND = 4, 32
#: Spaces with more layouts than SMALL are large: unless the search is exact, it estimates from similar layouts.
SMALL = 1000
#: A search that is not exact ends after this many layouts in a row that are not among the best. In each round it
#: simulates the most promising of CHOICE times the round's layouts.
PATIENCE, PATIENCE_IF_LARGE, CHOICE = 64, 12, 4
#: Most simulations of a large space for its frontier of time and memory.
MAX_ON_FRONTIER = 96
#: Forms of parallelism that one task probes, and queued layouts whose forms are probed together.
PROBES_PER_TASK, LAYOUTS_AHEAD = 8, 60
#: Full recomputation repeats nearly the whole forward pass of a layer, at least this share of it.
REPEATED = 0.9
#: In a large space, more virtual stages have to lower the bound by this share.
GAIN = 0.005
MEMORY, MEMORY_SIMULATED = "memory, by its lower bound", "memory, as simulated"
MEMORY_LIKELY = "memory, estimated from similar layouts (--exact simulates them)"
TIGHT = "memory is tight: the upper end of its range exceeds the capacity"
TIGHT_LIKELY = "memory is likely tight, estimated from similar layouts (--exact simulates them)"
SLOWER_BY_SCREEN = "slower by the screen's estimate (--exact proves it by bounds)"
SLOWER = "slower than the best ones by its lower bound"
UNPROMISING = "likely slower: similar layouts took longer than their bounds allow (--exact simulates them)"
BEYOND_PATIENCE = (
    f"not examined: the search ended after {PATIENCE} others that are not among the best (--exact simulates them)"
)
NOT_PARALLEL = "no sequence parallelism, which costs memory and rarely gains time (--exact simulates them)"
SMALL_GAIN = "more virtual stages, which gain under 0.5 % by the bound (--exact simulates them)"
RECOMPUTES_FOR_NOTHING = "recomputation, although the same layout fits without it"
SAVES_NOTHING = "offload, although the same layout fits without it"


class Entry(NamedTuple):
    """An entry of the queue: a family, a layout to refine, or a layout to simulate.

    bound: its lower bound in ps, or in a screened search its estimate.
    """

    bound: int
    key: tuple[object, ...]
    stage: int
    subject: Any


FAMILY, LAYOUT, REFINED = range(3)


class Search:
    """A best-first search of one space. rejected: numbers of layouts by reason; ranked: simulated ones that fit;
    estimated: further layouts of the answer that were not simulated.

    pareto: simulate layouts that no result beats in both time and memory, besides the ``top`` fastest ones; in a large
    space that is not searched exactly, by estimates, and at most MAX_ON_FRONTIER.
    most: simulate no more layouts once one fits.
    layouts_ahead: queued layouts whose new forms are measured together with the next one. probes_per_task: forms that
    one task measures.
    """

    layouts_ahead, probes_per_task = LAYOUTS_AHEAD, PROBES_PER_TASK

    def __init__(
        self, packed: PackedJob, space: Space, capacity_bytes: int, executor: Executor, top: int,
        pareto: bool = False, exact: bool = False, most: int | None = None,
    ) -> None:  # fmt: skip
        job = packed.job()
        self.packed, self.job, self.space, self.capacity = packed, job, space, capacity_bytes
        self.executor, self.top, self.pareto, self.most = executor, top, pareto, most
        self._exact, self.estimates = exact, False
        self._since_best = self.num_simulated = self.num_layouts = self._num_with_offload = 0
        self._slowness: dict[tuple[object, ...], float] = {}
        self.memory_ratio: dict[tuple[object, ...], float] = {}
        self._gathers_each = not {"order", "reshard", "shard_unit_bytes", "prefetch", "overlap"} & space.fixed.keys()
        self._has_bounds = can_probe(job.workload) and (not exact or has_equal_layers(job.workload))
        self.layers = space.facts.layers or 1
        self.sizes = StageSizes(job.workload, self.layers)
        self.costs: dict[tuple[object, ...], LayerCosts | None] = {}
        self._of_weights: dict[tuple[object, ...], LayerCosts] = {}
        self._of_family: dict[tuple[object, ...], LayerCosts | None] = {}
        self._balances: dict[tuple[int, int], str] = {}
        self.queue: list[Entry] = []
        self.node_gpus = space.most_tp
        self.tight: list[Ranked] = []
        self.errors: list[float] = []
        self.num_screened = 0
        self._given: Ranked | None = None
        self.least_needed: list[tuple[Layout, int]] = []
        self.rejected: Counter[str] = space.rejected
        self.ranked: list[Ranked] = []
        self.estimated: list[Ranked] = []

    def run(self) -> None:
        """Search until no layout is left whose lower bound beats the results. Raises PlanError if none fits.

        Layouts whose memory is tight are among the results only if no other fits.
        """
        families = self.space.families()
        valid = sum(family.num_layouts for family in families)
        self.num_layouts = valid + self.rejected.total()
        self.estimates = self._has_bounds and valid > SMALL and not self._exact
        self.search(families)
        self._try_switches(families)
        self._rank_given()
        if not self.ranked:
            self.ranked, self.rejected[TIGHT] = self.tight, self.rejected[TIGHT] - len(self.tight)
        self.rejected += Counter()  # without zeros
        if not self.ranked:
            raise PlanError(self._nothing_fits())
        self.ranked = with_first(self.ranked, self.node_gpus)

    def search(self, families: Sequence[Family]) -> None:
        """Simulate the most promising layouts of the families."""
        if self.estimates:
            families = self.without_twins(families)
        if self._has_bounds:
            self.measure([family.layout for family in families])
        for family in families:
            heapq.heappush(self.queue, Entry(self._family_bound(family), self._place(family.layout), FAMILY, family))
        self._simulate_rounds()
        self.count_rest()

    def _nothing_fits(self) -> str:
        """Return the error for a search without a result: the least memory found, if memory is the reason."""
        if not self.least_needed:
            return self.space.empty()
        layout, needed = min(self.least_needed, key=lambda pair: pair[1])
        names = " x ".join(f"{name} {getattr(layout, name)}" for name in ("dp", "tp", "pp", "cp"))
        return f"{self.space.empty()}; the smallest simulated one, {names}, needs {format_bytes(needed)}"

    def _simulate_rounds(self) -> None:
        size = FIRST_ROUND
        while not self._is_done() and (batch := self._next_round(size)):
            self.simulate(batch)
            size = min(2 * size, MAX_PER_ROUND)
            if self.pareto and self.estimates:
                size = min(size, MAX_ON_FRONTIER - self.num_simulated)

    def _is_done(self) -> bool:
        """Return whether a search that is not exact has seen enough layouts."""
        most = self.most
        if self.pareto:
            return self.estimates and self.num_simulated >= MAX_ON_FRONTIER
        if self.ranked and most is not None and self.num_simulated >= most:
            return True
        if not (self._has_bounds or self.ranked or self.tight):
            return False  # without a bound of the memory, layouts that do not fit are simulated, too
        return not self._exact and self._since_best >= self._patience

    @property
    def _patience(self) -> int:
        return PATIENCE_IF_LARGE if self.estimates and self.ranked else PATIENCE

    def without_twins(self, families: Sequence[Family]) -> list[Family]:
        """Leave out families that differ from another only by the lack of sequence parallelism."""
        parallel = {family.layout._replace(sequence_parallel=False) for family in families
                    if family.layout.sequence_parallel and self._is_allowed(family)}  # fmt: skip
        kept = [family for family in families if family.layout not in parallel]
        self.rejected[NOT_PARALLEL] += sum(f.num_layouts for f in families) - sum(f.num_layouts for f in kept)
        return kept

    def _is_allowed(self, family: Family) -> bool:
        return any(not self.space.reason(layout) for layout in family.layouts())

    def answer(self) -> list[Ranked]:
        """Return the layouts of the answer: the recommended one, then the others by time, simulated or estimated.

        If all of them offload to the host, the fastest simulated layout without offload takes the last place.
        """
        others = sorted([*self.ranked[1:], *self.estimated], key=lambda each: each.order)
        shown = [self.ranked[0], *others][: self.top]
        without = [each for each in self.ranked if each.layout.offload == "none"]
        if without and len(shown) > 1 and all(each.layout.offload != "none" for each in shown):
            shown[-1] = min(without, key=lambda each: each.order)
        return shown

    # -- lower bounds ------------------------------------------------------------------------------------------------

    def measure(self, layouts: Sequence[Layout]) -> None:
        """Measure a layer under the forms of parallelism of these layouts that are new, several in one task."""
        plans: dict[tuple[object, ...], Plan] = {}
        for layout in layouts:
            if form_of_layer(layout) not in self.costs and form_of_layer(layout) not in plans:
                try:
                    plans[form_of_layer(layout)] = self._plan(layout)
                except PlanError:  # no plan; the layouts of this form are rejected one by one
                    self.costs[form_of_layer(layout)] = None
        keys = list(plans)
        parts = [keys[i : i + self.probes_per_task] for i in range(0, len(keys), self.probes_per_task)]
        futures = [self.executor.submit(probe_all, self.packed, [plans[key] for key in part]) for part in parts]
        for part, future in zip(parts, futures, strict=True):
            self.costs |= zip(part, future.result(), strict=True)
        for layout in layouts:
            costs = self.costs.get(form_of_layer(layout))
            if costs is not None:
                self._of_weights.setdefault(_weights_of(layout), costs.without_activations())

    def _plan(self, layout: Layout) -> Plan:
        """Return the plan of a layout with the fields that the software fills in."""
        return resolve_layout(self.space.plan(layout), self.space.software, self.space.facts)[0]

    def cost(self, layout: Layout) -> LayerCosts | None:
        """Return the costs of a layer; None if no bound is known. A new form is measured."""
        if not self._has_bounds:
            return None
        if form_of_layer(layout) not in self.costs:
            self.measure([layout])
        return self.costs[form_of_layer(layout)]

    def bounds(self, layout: Layout) -> tuple[int, int]:
        """Return lower bounds of a layout's step time in ps and of its allocated bytes, or 0 for unknown bounds."""
        costs = self.cost(layout)
        if costs is None:
            return 0, 0
        stages = self.stages_of(layout)
        return self._time_bound(layout, costs), memory_bound(
            layout, self.micro_batches(layout), costs, self.layers, stages
        )

    def stages_of(self, layout: Layout) -> StageLayers | None:
        """Return the layers of each stage, None if unknown: also if the request places the cuts."""
        fixed = self.space.fixed
        if layout.pp > 1 and {"first_stage_layers", "last_stage_layers"} & fixed.keys():
            return None
        return self.sizes.of(self.balance_of(layout), layout.pp, layout.virtual_stages)

    def balance_of(self, layout: Layout) -> str:
        """Return the rule that cuts a layout's pipeline."""
        key = (layout.pp, layout.virtual_stages)
        if key not in self._balances:
            rule = default_balance(self.space.software, self.space.facts.layers, *key)
            self._balances[key] = str(self.space.fixed.get("balance", rule))
        return self._balances[key]

    def micro_batches(self, layout: Layout) -> int:
        return self.space.global_batch // layout.dp // layout.micro_batch

    def _time_bound(self, layout: Layout, costs: LayerCosts | None) -> int:
        """Return the time in ps by which the queue orders a layout: a lower bound, or 0 for an unknown one."""
        return self._lower_bound(layout, costs)

    def _lower_bound(self, layout: Layout, costs: LayerCosts | None) -> int:
        """Return a lower bound of the step time in ps, or 0 for an unknown one."""
        if costs is None:
            return 0
        micro_batches, probe = self.micro_batches(layout), self.job.probe
        stages = self.stages_of(layout)
        message_ps = probe.message_ps(layout, costs.message)
        if has_switches(layout):
            costs, message_ps = without_exchanges(costs), 0
        slowdown = probe.clocks.slowdown(layout.micro_batch, micro_batches)
        time_ps = int(slowdown * step_bound(layout, micro_batches, costs, self.layers, stages, message_ps))
        if not self._gathers_each:
            return time_ps
        gathers, slowed = (micro_batches * (self.layers - 2) * ps for ps in probe.gathers(layout, costs.weights))
        alone = int(slowdown * micro_batches * self.layers * (costs.forward_alone + costs.backward_alone))
        return max(time_ps, gathers, alone + slowed if slowed else 0)

    def _family_bound(self, family: Family) -> int:
        """Return the least bound of a family; recomputation and offload only add work to the same operators."""
        return self._least_of_pipelines(family.layout, family.pipelines, self.costs.get(form_of_layer(family.layout)))

    def _least_of_pipelines(
        self, layout: Layout, pipelines: Sequence[tuple[str | None, int]], costs: LayerCosts | None
    ) -> int:
        layouts = (layout._replace(schedule=name, virtual_stages=count) for name, count in pipelines)
        return min((self._time_bound(layout, costs) for layout in layouts), default=0)

    # -- the queue -----------------------------------------------------------------------------------------------------

    def _place(self, layout: Layout) -> tuple[object, ...]:
        """Return the key that orders layouts of equal bounds.

        Without bounds it decides which layouts the search simulates before it ends: those with few GPUs for a replica
        come first, then those without recomputation and with large micro-batches, which are fast if they fit.
        """
        if self._has_bounds:
            return layout.key
        return (layout.tp * layout.pp * layout.cp, layout.recompute != "none", -layout.micro_batch, *layout.key)

    @property
    def _limit(self) -> int | None:
        """The time that a layout must beat to be among the best."""
        return None if len(self.ranked) < self.top else self.ranked[self.top - 1].outcome.step_ps

    @property
    def _mark(self) -> float:
        """The time that a layout must be likely to beat in a large space: the best, or the last of those asked for."""
        if not self.estimates or not self.ranked or self.pareto:
            return inf
        return self.ranked[0].outcome.step_ps

    @property
    def _horizon(self) -> float:
        """The largest bound of a layout worth simulating; in a large space, by the least slowness so far."""
        limit = inf if self._limit is None or self.pareto else self._limit
        return min(limit, self._mark / self._slowness.get((), 1.0))

    def _next_round(self, size: int) -> list[Entry]:
        """Return the next layouts to simulate: the most promising among the least bounds."""
        pool: list[Entry] = []
        horizon, limit = self._horizon, self._limit
        while self.queue and len(pool) < CHOICE * size and self.queue[0].bound <= horizon:
            entry = heapq.heappop(self.queue)
            if self.pareto and limit is not None and entry.bound > limit and self._is_beaten(entry):
                self.rejected[SLOWER] += entry.subject.num_layouts if entry.stage == FAMILY else 1
            elif entry.stage == FAMILY:
                self.expand(entry.subject)
            elif entry.stage == LAYOUT:
                self.refine(entry)
            elif self._estimate(entry) > self._mark:
                self.rejected[UNPROMISING] += 1
            else:
                pool.append(entry)
        pool.sort(key=lambda entry: (self._estimate(entry), entry.key))
        if self.estimates:  # one of each kind before others
            kinds = Counter[tuple[object, ...]]()
            order = [kinds.update([kin_of(entry.subject)]) or kinds[kin_of(entry.subject)] for entry in pool]
            pool = [entry for _, entry in sorted(zip(order, pool, strict=True), key=lambda pair: pair[0])]
        for entry in pool[size:]:
            heapq.heappush(self.queue, entry)
        return pool[:size]

    def _estimate(self, entry: Entry) -> float:
        """Return the likely time of a layout: its bound times the ratio found for the most similar simulated ones."""
        kin = kin_of(entry.subject)
        return entry.bound * next((self._slowness[key] for key in (kin, kin[:3], ()) if key in self._slowness), 1.0)

    def allocated(self, layout: Layout) -> int:
        """Return a lower bound of a layout's memory in bytes."""
        outside = facts_of(self.space.software, self.space.plan(layout), self.job.workload).outside_bytes
        return self.bounds(layout)[1] + outside

    def _is_beaten(self, entry: Entry) -> bool:
        """Return whether a result has less time and memory than a layout can have at least."""
        if entry.stage == FAMILY or not self._has_bounds:
            return False
        time_ps, allocated = float(self.bounds(entry.subject)[0]), float(self.allocated(entry.subject))
        if self.estimates:
            time_ps, allocated = self._estimate(entry), allocated * self.memory_ratio.get(store_of(entry.subject), 1.0)
        return any(
            each.outcome.step_ps <= time_ps and (each.outcome.memory_bytes or 0) <= allocated for each in self.ranked
        )

    def expand(self, family: Family) -> None:
        """Queue the layouts of a family that meet all rules; offload waits until memory rejects the other layouts."""
        costs = self.family_costs(family)
        self._of_family[_family_of(family.layout)] = costs
        spare = self._small_gains(family, costs) if self.estimates else ()
        for layout in family.layouts():
            if (layout.schedule, layout.virtual_stages) in spare:
                self.rejected[SMALL_GAIN] += len(family.offload)
            elif reason := self.space.reason(layout):
                self.rejected[reason] += len(family.offload)
            else:
                self._num_with_offload += len(family.offload) - 1
                self._push(layout, costs)

    def family_costs(self, family: Family) -> LayerCosts | None:
        """Return the costs of a family's form; None if they are unknown."""
        return self.costs.get(form_of_layer(family.layout))

    def _small_gains(self, family: Family, costs: LayerCosts | None) -> set[tuple[str | None, int]]:
        """Return the schedules that gain hardly more than fewer virtual stages do, by their bounds."""
        spare, best = set(), inf
        for schedule, count in sorted(family.pipelines, key=lambda pair: pair[1]):
            layout = family.layout._replace(schedule=schedule, virtual_stages=count)
            if count > 1 and not self.space.reason(layout):
                bound = self._lower_bound(layout, costs)
                spare |= {(schedule, count)} if bound > (1 - GAIN) * best else set()
                best = min(best, bound)
        return spare

    def _push(self, layout: Layout, costs: LayerCosts | None) -> None:
        """Queue a layout by the bound of its form or, before its measurement, of the form with ``costs``."""
        likely = self._likely_costs(layout, costs)
        heapq.heappush(self.queue, Entry(self._time_bound(layout, likely), self._place(layout), LAYOUT, layout))

    def _likely_costs(self, layout: Layout, costs: LayerCosts | None) -> LayerCosts | None:
        """Return the costs of a layout's form or, before its measurement, those of its family with recomputation."""
        own = self.costs.get(form_of_layer(layout))
        if own is None and costs is not None and layout.recompute == "full" and "recompute" not in self.space.fixed:
            again = int(REPEATED * costs.forward_chain)
            costs = replace(costs, backward=costs.backward + again, backward_within=costs.backward_within + again,
                            backward_alone=costs.backward_alone + again)  # fmt: skip
        return own or costs

    def refine(self, entry: Entry) -> None:
        """Queue a layout for simulation by the bound of its form, unless its memory does not fit.

        A new form is measured together with the forms of the next layouts.
        """
        layout: Layout = entry.subject
        try:
            self._plan(layout)
        except PlanError as error:
            self.rejected[str(error)] += 1
            return
        if self._has_bounds and form_of_layer(layout) not in self.costs:
            if not self.may_fit(layout):
                self.reject_for_memory(layout, MEMORY)
                return
            following = heapq.nsmallest(self.layouts_ahead, self.queue)
            horizon = self._horizon
            ahead = [e.subject for e in following if e.stage == LAYOUT and e.bound <= horizon]
            self.measure([layout, *filter(self.may_fit, ahead)])
        allocated = self.allocated(layout)
        if self.capacity and allocated > self.capacity:
            self.reject_for_memory(layout, MEMORY)
        elif (
            self.estimates and self.capacity and allocated * self.memory_ratio.get(store_of(layout), 0) > self.capacity
        ):
            self.reject_for_memory(layout, MEMORY_LIKELY)
        else:
            heapq.heappush(self.queue, entry._replace(bound=self.bounds(layout)[0], stage=REFINED))

    def may_fit(self, layout: Layout) -> bool:
        """Return whether the memory may hold a layout without its activations, as far as known before a measurement.

        Weights, gradients and optimizer states depend on tp, ep and etp alone. Recomputation, the micro-batch and the
        like change activations, so that a measurement of the layout's own form can only raise this lower bound.
        """
        costs = self._of_weights.get(_weights_of(layout))
        if costs is None or not self.capacity:
            return True
        try:
            plan = self.space.plan(layout)
        except PlanError:  # rejected one by one, with the reason
            return True
        least = memory_bound(layout, self.micro_batches(layout), costs, self.layers, self.stages_of(layout))
        return least + facts_of(self.space.software, plan, self.job.workload).outside_bytes <= self.capacity

    def reject_for_memory(self, layout: Layout, reason: str) -> None:
        """Count a layout, and queue the same one with offload: by the costs of its form or, if unknown, its family."""
        self.rejected[reason] += 1
        costs = self.costs.get(form_of_layer(layout)) or self._of_family.get(_family_of(layout))
        for each in self.space.offloading(layout):
            self._num_with_offload -= 1
            if why := self.space.reason(each):
                self.rejected[why] += 1
            else:
                self._push(each, costs)

    # -- simulation ----------------------------------------------------------------------------------------------------

    def simulate(self, batch: Sequence[Entry]) -> None:
        """Simulate a round, and rank its layouts. The order of results is the order of the round."""
        futures: list[Future[Outcome]] = [
            self.executor.submit(simulate_layout, self.packed, self.space.plan(entry.subject)) for entry in batch
        ]
        count = 1 if self.estimates else self.top
        best = self.ranked[:count]
        for entry, future in zip(batch, futures, strict=True):
            self.take(entry, future.result())
        self.ranked.sort(key=lambda ranked: ranked.order)
        if self.ranked[:count] != best:
            self._since_best = 0
        horizon = self._horizon
        waiting = sum(entry.bound <= horizon for entry in self.queue)
        if self.pareto and self.estimates:
            waiting = min(waiting, MAX_ON_FRONTIER - self.num_simulated)
        elif not (self._exact or self.pareto):
            waiting = min(waiting, max(0, self._patience - self._since_best))
        _report(self.num_simulated, self.num_simulated + waiting)

    def take(self, entry: Entry, outcome: Outcome) -> None:
        """Count a simulated layout, and learn how far its time and memory lie above their bounds."""
        self.num_simulated += not outcome.refused
        self._since_best += 1
        if entry.bound and outcome.step_ps:
            kin, ratio = kin_of(entry.subject), outcome.step_ps / entry.bound
            self._slowness |= {key: min(ratio, self._slowness.get(key, ratio)) for key in (kin, kin[:3], ())}
            store, least = store_of(entry.subject), self.allocated(entry.subject)
            if least:
                ratio = (outcome.memory_bytes or 0) / least
                self.memory_ratio[store] = min(ratio, self.memory_ratio.get(store, ratio))
        if outcome.refused:
            self.rejected[outcome.refused.partition(" (")[0]] += 1
        elif not outcome.fits:
            self.reject_for_memory(entry.subject, MEMORY_SIMULATED)
            self.least_needed.append((entry.subject, outcome.memory_bytes or 0))
        elif outcome.is_tight:
            self.reject_for_memory(entry.subject, TIGHT)
            self.tight.append(self.ranked_of(entry, outcome))
        else:
            self.ranked.append(self.ranked_of(entry, outcome))

    def ranked_of(self, entry: Entry, outcome: Outcome) -> Ranked:
        """Return a result with the number that it was queued by."""
        return Ranked(entry.subject, outcome, entry.bound)

    # -- switches of experts -------------------------------------------------------------------------------------------

    def _try_switches(self, families: Sequence[Family]) -> None:
        """Simulate the best layout with each combination of switches, then others with the best combination.

        Layouts with long exchanges are slow without switches, so that the search has left them out.
        """
        if not self.space.switches:
            return
        ordered = sorted(self.ranked or self.tight, key=lambda each: each.order)
        bases = [each.layout for each in ordered if each.layout.ep > 1][:NUM_BASES]
        if not bases and self.ranked:  # exchanges made all of them slower by their estimates
            limit_ps = self.ranked[0].outcome.step_ps
            bases = self._likely_bases(families, self.node_gpus, limit_ps, NUM_BASES)
        if not bases:
            return
        self._simulate_switched(all_switched(bases[0], self.space))
        best = min(self.ranked, key=lambda each: each.order, default=None)
        if self.most is not None or best is None or not has_switches(best.layout):
            return
        setting = {name: getattr(best.layout, name) for name in SWITCH_FIELDS}
        others = [switched(base, setting, self.space) for base in bases[1:]]
        self._simulate_switched([each for each in others if each is not None])
        later = self._later_switched(families, setting)
        for start in range(0, len(later), LATER_PER_ROUND):
            least = self.ranked[0].outcome.step_ps
            self._simulate_switched(later[start : start + LATER_PER_ROUND])
            if self.ranked[0].outcome.step_ps == least:
                break

    def _later_switched(self, families: Sequence[Family], setting: Mapping[str, Any]) -> list[Layout]:
        """Return at most NUM_LATER layouts with switches that are likely faster than the best one, best first."""
        best, known = self.ranked[0], {each.layout for each in (*self.ranked, *self.tight)}
        most_ep = MAX_EP_RATIO * best.layout.ep
        bases = self._likely_bases(families, most_ep, best.outcome.step_ps, NUM_LATER, setting, known)
        changed = [switched(base, setting, self.space) for base in bases]
        return [each for each in changed if each is not None]

    def _likely_bases(
        self,
        families: Sequence[Family],
        most_ep: int,
        limit_ps: int,
        count: int,
        setting: Mapping[str, Any] | None = None,
        known: Collection[Layout] = (),
    ) -> list[Layout]:
        """Return at most ``count`` layouts without switches that switches are likely to make faster than a limit.

        The best estimates come first. setting: only layouts that it changes into others than the known ones.
        """
        chosen, num_examined = list[Layout](), 0
        for entry in self._likely_switched(families, most_ep, limit_ps)[:MAX_LOOKED_AT]:
            plain = entry.subject
            if setting is not None:
                changed = switched(plain, setting, self.space)
                if changed is None or changed in known:
                    continue
            if self.space.reason(plain) or not self._is_likely_to_fit(plain):
                continue
            num_examined += 1
            self._examine(plain)
            if self._is_likely_to_fit(plain) and self._switched_estimate(plain, self.cost(plain)) < limit_ps:
                chosen.append(plain)
            if len(chosen) == count or num_examined == MAX_EXAMINED:
                break
        return chosen

    def _likely_switched(self, families: Sequence[Family], most_ep: int, limit_ps: int) -> list[Entry]:
        """Return layouts without switches that may beat a limit with them, in the order of these estimates.

        Nothing is measured for them: a new form has the likely costs of its family.
        """
        found: list[Entry] = []
        for family in families:
            costs, ep = self.family_costs(family), family.layout.ep
            if costs is None or not 1 < ep <= most_ep:
                continue
            if self._family_bound(family) - self._exchanges_ps(family.layout, costs) >= limit_ps:
                continue
            for layout in family.layouts():
                estimate = self._switched_estimate(layout, self._likely_costs(layout, costs))
                if estimate < limit_ps:
                    found.append(Entry(estimate, layout.key, LAYOUT, layout))
        found.sort()
        return found

    def _switched_estimate(self, plain: Layout, costs: LayerCosts | None) -> int:
        """Return the likely step of a layout in ps, if switches hide all exchanges of its experts."""
        if costs is None:
            return 0
        hidden = plain._replace(expert_overlap=True)
        return max(self._time_bound(plain, costs) - self._exchanges_ps(plain, costs), self._lower_bound(hidden, costs))

    def _exchanges_ps(self, layout: Layout, costs: LayerCosts) -> int:
        """Return the time of a rank's exchanges of experts in a step in ps."""
        return self.micro_batches(layout) * self.layers * costs.exchange // layout.pp

    def _is_likely_to_fit(self, layout: Layout) -> bool:
        """Return whether the memory of a layout is worth a simulation."""
        return not self.capacity or self.allocated(layout) <= self.capacity

    def _examine(self, layout: Layout) -> None:
        """Find a better estimate of a layout's time and memory; lower bounds have none."""

    def _simulate_switched(self, layouts: Sequence[Layout]) -> None:
        """Simulate layouts with switches, and rank them; they are no part of the enumerated space."""
        futures = [self.executor.submit(simulate_layout, self.packed, self.space.plan(each)) for each in layouts]
        for layout, future in zip(layouts, futures, strict=True):
            outcome = future.result()
            self.num_layouts += 1
            self.num_simulated += not outcome.refused
            result = Ranked(layout, outcome, self._lower_bound(layout, self.cost(layout)))
            if outcome.refused:
                self.rejected[outcome.refused.partition(" (")[0]] += 1
            elif not outcome.fits:
                self.rejected[MEMORY_SIMULATED] += 1
            elif outcome.is_tight:
                self.rejected[TIGHT] += 1
                self.tight.append(result)
            else:
                self.ranked.append(result)
        self.ranked.sort(key=lambda ranked: ranked.order)

    def add(self, given: Ranked) -> None:
        """Let a simulated layout take part in the ranking, such as the user's own."""
        if given.outcome.fits:
            self._given = given

    def _rank_given(self) -> None:
        """Rank the given layout, unless the search found it by itself; a tight one only if no other fits."""
        given = self._given
        if given is None or any(each.layout == given.layout for each in (*self.ranked, *self.tight)):
            return
        (self.tight if given.outcome.is_tight else self.ranked).append(given)
        self.num_layouts += 1
        self.rejected[TIGHT] += given.outcome.is_tight

    def count_rest(self) -> None:
        """Count the layouts that were not simulated by the reason."""
        limit = self._limit
        for entry in self.queue:
            is_slower = limit is not None and entry.bound > limit
            count = entry.subject.num_layouts if entry.stage == FAMILY else 1
            self.rejected[SLOWER if is_slower and not self.estimates else self.reason_of_rest] += count
        self.rejected[SAVES_NOTHING] += self._num_with_offload

    @property
    def reason_of_rest(self) -> str:
        """Why the layouts left in the queue are not simulated."""
        return UNPROMISING if self._has_bounds else BEYOND_PATIENCE


def kin_of(layout: Layout) -> tuple[object, ...]:
    """Return the fields that layouts with a similar ratio of time and bound share."""
    return (layout.pp > 1, layout.sharding, layout.tp, layout.pp, layout.cp, layout.virtual_stages)


def store_of(layout: Layout) -> tuple[object, ...]:
    """Return the fields that layouts with a similar ratio of memory and bound share."""
    return (layout.pp, layout.sharding, layout.tp, layout.recompute, layout.offload)


def form_of_layer(layout: Layout) -> tuple[object, ...]:
    """Return the part of a layout that the costs of a layer depend on."""
    return (layout.tp, layout.cp, layout.ep, layout.etp, layout.micro_batch, layout.sequence_parallel,
            layout.recompute, layout.offload == "activations")  # fmt: skip


def _family_of(layout: Layout) -> tuple[object, ...]:
    """Return the part of a form that all layouts of a family share."""
    return form_of_layer(layout)[:-2]


def _weights_of(layout: Layout) -> tuple[object, ...]:
    """Return the part of a form that a rank's weights depend on."""
    return layout.tp, layout.ep, layout.etp


def _report(done: int, total: int) -> None:
    progress = current_observer().progress
    if progress is not None:
        progress(done, max(total, 1), 0)


@contextmanager
def workers(executor: Executor | None, num_workers: int | None, packed: PackedJob) -> Iterator[Executor]:
    """Give the executor of a search of ``packed``: the caller's, else processes, one per CPU with this one."""
    if executor is not None:
        yield executor
        return
    count = num_workers or num_cpus()
    if count == 1:
        yield SerialExecutor()
        return
    pool = SharedWork(process_pool(count - 1, needs_script=packed.needs_script), count - 1)
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)
