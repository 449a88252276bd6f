"""The search: layouts in the order of their lower bounds, simulated until no bound beats the best results.

The order and the size of the rounds depend on the layouts alone, not on the number of workers. So a search gives the
same answer with any executor.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor, Future
from contextlib import contextmanager
from dataclasses import replace
from math import inf
from typing import Any, NamedTuple

from trine.common.observer import current_observer
from trine.common.processes import SerialExecutor, num_cpus, process_pool
from trine.errors import PlanError
from trine.parallel.constraints import default_balance, resolve_layout
from trine.parallel.plan import Plan
from trine.search.bounds import StageLayers, StageSizes, memory_bound, step_bound
from trine.search.probe import LayerCosts, can_probe
from trine.search.space import Family, Layout, Space
from trine.search.worker import Outcome, PackedJob, probe_all, simulate_layout
from trine.training.memory import facts_of

#: Layouts simulated in the first round, and most in a later one; each round doubles.
FIRST_ROUND, MOST_PER_ROUND = 4, 32
#: Spaces with more layouts than SMALL are large: unless the search is exact, it estimates from similar layouts.
SMALL = 1000
#: A search that is not exact ends after this many layouts in a row that are not among the best, or in a large space
#: are not the best. In each round it simulates the most promising of this many times the round's layouts.
PATIENCE, PATIENCE_IF_LARGE, CHOICE = 64, 12, 4
#: Simulations after which a large space is left: in search of the best layout, of the next best, and while too few fit.
MOST_FOR_BEST, MOST_FOR_OTHERS, MOST_IF_FEW = 24, 16, 36
#: Most simulations of a large space for its frontier of time and memory.
MOST_ON_FRONTIER = 96
#: Forms of parallelism that one task probes, and queued layouts whose forms are probed together.
PROBES_PER_TASK, LAYOUTS_AHEAD = 8, 60
#: Full recomputation repeats nearly the whole forward pass of a layer, at least this share of it.
REPEATED = 0.9
#: In a large space, more virtual stages have to lower the bound by this share.
GAIN = 0.005
MEMORY, MEMORY_SIMULATED = "memory, by its lower bound", "memory, as simulated"
MEMORY_LIKELY = "memory, estimated from similar layouts (--exact simulates them)"
SLOWER = "slower than the best ones by its lower bound"
UNPROMISING = "likely slower: similar layouts took longer than their bounds allow (--exact simulates them)"
NOT_PARALLEL = "no sequence parallelism, which costs memory and rarely gains time (--exact simulates them)"
SMALL_GAIN = "more virtual stages, which gain under 0.5 % by the bound (--exact simulates them)"
SAVES_NOTHING = "offload, although the same layout fits without it"


class Ranked(NamedTuple):
    """A simulated layout and its outcome. bound_ps: the lower bound of its time."""

    layout: Layout
    outcome: Outcome
    bound_ps: int

    @property
    def order(self) -> tuple[object, ...]:
        """The key of the ranking: time, then the layout."""
        return (self.outcome.step_ps, self.layout.key)


class _Entry(NamedTuple):
    """An entry of the queue: a family, a layout to refine, or a layout to simulate, by its lower bound in ps."""

    bound: int
    key: tuple[object, ...]
    stage: int
    subject: Any


_FAMILY, _LAYOUT, _REFINED = range(3)


class Search:
    """A best-first search of one space. rejected: numbers of layouts by reason; ranked: simulated ones that fit.

    pareto: simulate layouts that no result beats in both time and memory, besides the ``top`` fastest ones; in a large
    space that is not searched exactly, by estimates, and at most MOST_ON_FRONTIER.
    most: simulate no more layouts once one fits.
    """

    def __init__(
        self, packed: PackedJob, space: Space, capacity_bytes: int, executor: Executor, top: int,
        pareto: bool = False, exact: bool = False, most: int | None = None,
    ) -> None:  # fmt: skip
        job = packed.job()
        self.packed, self._job, self._space, self._capacity = packed, job, space, capacity_bytes
        self._executor, self._top, self._pareto, self._most = executor, top, pareto, most
        self._exact, self._estimates = exact, False
        self._since_best = self.num_simulated = self.num_layouts = self._num_with_offload = 0
        self._slowness: dict[tuple[object, ...], float] = {}
        self._memory: dict[tuple[object, ...], float] = {}
        self._gathers_each = not {"order", "reshard", "shard_unit_bytes", "prefetch", "overlap"} & space.fixed.keys()
        self._has_bounds = can_probe(job.workload)
        self._layers = space.facts.layers or 1
        self._sizes = StageSizes(job.workload, self._layers)
        self._costs: dict[tuple[object, ...], LayerCosts | None] = {}
        self._queue: list[_Entry] = []
        self._passed: list[_Entry] = []  # left out as likely slower
        self._fills = False  # the best is found, and the next best of a large space are sought
        self.rejected: Counter[str] = space.rejected
        self.ranked: list[Ranked] = []

    def run(self) -> None:
        """Search until no layout is left whose lower bound beats the results. Raises PlanError if none fits."""
        families = self._space.families()
        valid = sum(family.num_layouts for family in families)
        self.num_layouts = valid + self.rejected.total()
        self._estimates = self._has_bounds and valid > SMALL and not self._exact
        if self._estimates:
            families = self._without_twins(families)
        if self._has_bounds:
            self._measure([family.layout for family in families])
        for family in families:
            heapq.heappush(self._queue, _Entry(self._family_bound(family), family.layout.key, _FAMILY, family))
        self._simulate_rounds()
        if self._estimates and self._most is None and not self._pareto and self.ranked:
            self._fills, self._since_best = True, 0
            self.rejected[UNPROMISING] -= len(self._passed)
            for entry in self._passed:
                heapq.heappush(self._queue, entry)
            self._simulate_rounds()
        self._count_rest()
        if not self.ranked:
            raise PlanError(self._space.empty())

    def _simulate_rounds(self) -> None:
        size = FIRST_ROUND
        while not self._is_done() and (batch := self._next_round(size)):
            self._simulate(batch)
            size = min(2 * size, MOST_PER_ROUND)
            if self._pareto and self._estimates:
                size = min(size, MOST_ON_FRONTIER - self.num_simulated)

    def _is_done(self) -> bool:
        """Return whether a search that is not exact has seen enough layouts."""
        most = self._most
        if self._pareto:
            return self._estimates and self.num_simulated >= MOST_ON_FRONTIER
        if self._estimates and most is None:
            most = MOST_FOR_OTHERS if self._fills else MOST_FOR_BEST
            most = max(MOST_IF_FEW, 2 * self._top) if len(self.ranked) < self._top else most
        if self.ranked and most is not None and self.num_simulated >= most:
            return True
        return not self._exact and self._since_best >= self._patience

    @property
    def _patience(self) -> int:
        return PATIENCE_IF_LARGE if self._estimates and self.ranked else PATIENCE

    def _without_twins(self, families: Sequence[Family]) -> list[Family]:
        """Leave out families that differ from another only by the lack of sequence parallelism."""
        parallel = {family.layout._replace(sequence_parallel=False) for family in families
                    if family.layout.sequence_parallel and self._is_allowed(family)}  # fmt: skip
        kept = [family for family in families if family.layout not in parallel]
        self.rejected[NOT_PARALLEL] += sum(f.num_layouts for f in families) - sum(f.num_layouts for f in kept)
        return kept

    def _is_allowed(self, family: Family) -> bool:
        return any(not self._space.reason(layout) for layout in family.layouts())

    # -- lower bounds ------------------------------------------------------------------------------------------------

    def _measure(self, layouts: Sequence[Layout]) -> None:
        """Measure a layer under the forms of parallelism of these layouts that are new, several in one task."""
        plans: dict[tuple[object, ...], Plan] = {}
        for layout in layouts:
            if _form(layout) not in self._costs and _form(layout) not in plans:
                try:
                    plans[_form(layout)] = self._plan(layout)
                except PlanError:  # no plan; the layouts of this form are rejected one by one
                    self._costs[_form(layout)] = None
        keys = list(plans)
        parts = [keys[i : i + PROBES_PER_TASK] for i in range(0, len(keys), PROBES_PER_TASK)]
        futures = [self._executor.submit(probe_all, self.packed, [plans[key] for key in part]) for part in parts]
        for part, future in zip(parts, futures, strict=True):
            self._costs |= zip(part, future.result(), strict=True)

    def _plan(self, layout: Layout) -> Plan:
        """Return the plan of a layout with the fields that the software fills in."""
        return resolve_layout(self._space.plan(layout), self._space.software, self._space.facts)[0]

    def _cost(self, layout: Layout) -> LayerCosts | None:
        """Return the costs of a layer; None if no bound is known. A new form is measured."""
        if not self._has_bounds:
            return None
        if _form(layout) not in self._costs:
            self._measure([layout])
        return self._costs[_form(layout)]

    def bounds(self, layout: Layout) -> tuple[int, int]:
        """Return lower bounds of a layout's step time in ps and of its allocated bytes, or 0 for unknown bounds."""
        costs = self._cost(layout)
        if costs is None:
            return 0, 0
        stages = self._stages_of(layout)
        return self._time_bound(layout, costs), memory_bound(
            layout, self._micro_batches(layout), costs, self._layers, stages
        )

    def _stages_of(self, layout: Layout) -> StageLayers | None:
        """Return the layers of each stage, None if unknown: also if the request places the cuts."""
        fixed, software = self._space.fixed, self._space.software
        if layout.pp > 1 and {"first_stage_layers", "last_stage_layers"} & fixed.keys():
            return None
        rule = default_balance(software, self._space.facts.layers, layout.pp, layout.virtual_stages)
        return self._sizes.of(str(fixed.get("balance", rule)), layout.pp, layout.virtual_stages)

    def _micro_batches(self, layout: Layout) -> int:
        return self._space.global_batch // layout.dp // layout.micro_batch

    def _time_bound(self, layout: Layout, costs: LayerCosts | None) -> int:
        """Return a lower bound of the step time in ps, or 0 for an unknown one."""
        if costs is None:
            return 0
        micro_batches, probe = self._micro_batches(layout), self._job.probe
        stages = self._stages_of(layout)
        message_ps = probe.message_ps(layout, costs.message)
        time_ps = step_bound(layout, micro_batches, costs, self._layers, stages, message_ps)
        if not self._gathers_each:
            return time_ps
        gathers, slowed = (micro_batches * (self._layers - 2) * ps for ps in probe.gathers(layout, costs.weights))
        alone = micro_batches * self._layers * (costs.forward_alone + costs.backward_alone)
        return max(time_ps, gathers, alone + slowed if slowed else 0)

    def _family_bound(self, family: Family) -> int:
        """Return the least bound of a family; recomputation and offload only add work to the same operators."""
        costs = self._costs.get(_form(family.layout))
        layouts = (family.layout._replace(schedule=name, virtual_stages=count) for name, count in family.pipelines)
        return min((self._time_bound(layout, costs) for layout in layouts), default=0)

    # -- the queue -----------------------------------------------------------------------------------------------------

    @property
    def _limit(self) -> int | None:
        """The time that a layout must beat to be among the best."""
        return None if len(self.ranked) < self._top else self.ranked[self._top - 1].outcome.step_ps

    @property
    def _mark(self) -> float:
        """The time that a layout must be likely to beat in a large space: the best, or the last of those asked for."""
        if not self._estimates or not self.ranked or self._pareto:
            return inf
        if self._fills:
            return inf if self._limit is None else self._limit
        return self.ranked[0].outcome.step_ps

    @property
    def _horizon(self) -> float:
        """The largest bound of a layout worth simulating; in a large space, by the least slowness so far."""
        limit = inf if self._limit is None or self._pareto else self._limit
        return min(limit, self._mark / self._slowness.get((), 1.0))

    def _next_round(self, size: int) -> list[_Entry]:
        """Return the next layouts to simulate: the most promising among the least bounds."""
        pool: list[_Entry] = []
        horizon, limit = self._horizon, self._limit
        while self._queue and len(pool) < CHOICE * size and self._queue[0].bound <= horizon:
            entry = heapq.heappop(self._queue)
            if self._pareto and limit is not None and entry.bound > limit and self._is_beaten(entry):
                self.rejected[SLOWER] += entry.subject.num_layouts if entry.stage == _FAMILY else 1
            elif entry.stage == _FAMILY:
                self._expand(entry.subject)
            elif entry.stage == _LAYOUT:
                self._refine(entry)
            elif self._estimate(entry) > self._mark:
                self.rejected[UNPROMISING] += 1
                self._passed.append(entry)
            else:
                pool.append(entry)
        pool.sort(key=lambda entry: (self._estimate(entry), entry.key))
        if self._estimates:  # one of each kind before others
            kinds = Counter[tuple[object, ...]]()
            order = [kinds.update([_kin(entry.subject)]) or kinds[_kin(entry.subject)] for entry in pool]
            pool = [entry for _, entry in sorted(zip(order, pool, strict=True), key=lambda pair: pair[0])]
        for entry in pool[size:]:
            heapq.heappush(self._queue, entry)
        return pool[:size]

    def _estimate(self, entry: _Entry) -> float:
        """Return the likely time of a layout: its bound times the ratio found for the most similar simulated ones."""
        kin = _kin(entry.subject)
        return entry.bound * next((self._slowness[key] for key in (kin, kin[:3], ()) if key in self._slowness), 1.0)

    def _allocated(self, layout: Layout) -> int:
        """Return a lower bound of a layout's memory in bytes."""
        outside = facts_of(self._space.software, self._space.plan(layout), self._job.workload).outside_bytes
        return self.bounds(layout)[1] + outside

    def _is_beaten(self, entry: _Entry) -> bool:
        """Return whether a result has less time and memory than a layout can have at least."""
        if entry.stage == _FAMILY or not self._has_bounds:
            return False
        time_ps, allocated = float(self.bounds(entry.subject)[0]), float(self._allocated(entry.subject))
        if self._estimates:
            time_ps, allocated = self._estimate(entry), allocated * self._memory.get(_store(entry.subject), 1.0)
        return any(
            each.outcome.step_ps <= time_ps and (each.outcome.memory_bytes or 0) <= allocated for each in self.ranked
        )

    def _expand(self, family: Family) -> None:
        """Queue the layouts of a family that meet all rules; offload waits until memory rejects the other layouts."""
        costs = self._costs.get(_form(family.layout))
        spare = self._small_gains(family, costs) if self._estimates else ()
        for layout in family.layouts():
            if (layout.schedule, layout.virtual_stages) in spare:
                self.rejected[SMALL_GAIN] += len(family.offload)
            elif reason := self._space.reason(layout):
                self.rejected[reason] += len(family.offload)
            else:
                self._num_with_offload += len(family.offload) - 1
                self._push(layout, costs)

    def _small_gains(self, family: Family, costs: LayerCosts | None) -> set[tuple[str | None, int]]:
        """Return the schedules that gain hardly more than fewer virtual stages do, by their bounds."""
        spare, best = set(), inf
        for schedule, count in sorted(family.pipelines, key=lambda pair: pair[1]):
            layout = family.layout._replace(schedule=schedule, virtual_stages=count)
            if count > 1 and not self._space.reason(layout):
                bound = self._time_bound(layout, costs)
                spare |= {(schedule, count)} if bound > (1 - GAIN) * best else set()
                best = min(best, bound)
        return spare

    def _push(self, layout: Layout, costs: LayerCosts | None) -> None:
        """Queue a layout by the bound of its form or, before its measurement, of the form with ``costs``."""
        own = self._costs.get(_form(layout))
        if own is None and costs is not None and layout.recompute == "full" and "recompute" not in self._space.fixed:
            again = int(REPEATED * costs.forward_chain)
            costs = replace(costs, backward=costs.backward + again, backward_within=costs.backward_within + again,
                            backward_alone=costs.backward_alone + again)  # fmt: skip
        heapq.heappush(self._queue, _Entry(self._time_bound(layout, own or costs), layout.key, _LAYOUT, layout))

    def _refine(self, entry: _Entry) -> None:
        """Queue a layout for simulation by the bound of its form, unless its memory does not fit.

        A new form is measured together with the forms of the next layouts.
        """
        layout: Layout = entry.subject
        try:
            self._plan(layout)
        except PlanError as error:
            self.rejected[str(error)] += 1
            return
        if self._has_bounds and _form(layout) not in self._costs:
            following = heapq.nsmallest(LAYOUTS_AHEAD, self._queue)
            horizon = self._horizon
            self._measure([layout, *(e.subject for e in following if e.stage == _LAYOUT and e.bound <= horizon)])
        allocated = self._allocated(layout)
        if self._capacity and allocated > self._capacity:
            self._reject_for_memory(layout, MEMORY)
        elif self._estimates and self._capacity and allocated * self._memory.get(_store(layout), 0) > self._capacity:
            self._reject_for_memory(layout, MEMORY_LIKELY)
        else:
            heapq.heappush(self._queue, entry._replace(bound=self.bounds(layout)[0], stage=_REFINED))

    def _reject_for_memory(self, layout: Layout, reason: str) -> None:
        """Count a layout, and queue the same one with offload."""
        self.rejected[reason] += 1
        for each in self._space.offloading(layout):
            self._num_with_offload -= 1
            if why := self._space.reason(each):
                self.rejected[why] += 1
            else:
                self._push(each, self._costs.get(_form(layout)))

    # -- simulation ----------------------------------------------------------------------------------------------------

    def _simulate(self, batch: Sequence[_Entry]) -> None:
        """Simulate a round, and rank its layouts. The order of results is the order of the round."""
        futures: list[Future[Outcome]] = [
            self._executor.submit(simulate_layout, self.packed, self._space.plan(entry.subject)) for entry in batch
        ]
        count = 1 if self._estimates and not self._fills else self._top
        best = self.ranked[:count]
        for entry, future in zip(batch, futures, strict=True):
            self._take(entry, future.result())
        self.ranked.sort(key=lambda ranked: ranked.order)
        if self.ranked[:count] != best:
            self._since_best = 0
        horizon = self._horizon
        waiting = sum(entry.bound <= horizon for entry in self._queue)
        if self._pareto and self._estimates:
            waiting = min(waiting, MOST_ON_FRONTIER - self.num_simulated)
        elif not (self._exact or self._pareto):
            waiting = min(waiting, max(0, self._patience - self._since_best))
        _report(self.num_simulated, self.num_simulated + waiting)

    def _take(self, entry: _Entry, outcome: Outcome) -> None:
        """Count a simulated layout, and learn how far its time and memory lie above their bounds."""
        self.num_simulated += not outcome.refused
        self._since_best += 1
        if entry.bound and outcome.step_ps:
            kin, ratio = _kin(entry.subject), outcome.step_ps / entry.bound
            self._slowness |= {key: min(ratio, self._slowness.get(key, ratio)) for key in (kin, kin[:3], ())}
            store, least = _store(entry.subject), self._allocated(entry.subject)
            if least:
                ratio = (outcome.memory_bytes or 0) / least
                self._memory[store] = min(ratio, self._memory.get(store, ratio))
        if outcome.refused:
            self.rejected[outcome.refused.partition(" (")[0]] += 1
        elif not outcome.fits:
            self._reject_for_memory(entry.subject, MEMORY_SIMULATED)
        else:
            self.ranked.append(Ranked(entry.subject, outcome, entry.bound))

    def _count_rest(self) -> None:
        """Count the layouts that were not simulated by the reason."""
        limit = self._limit
        for entry in self._queue:
            is_slower = limit is not None and entry.bound > limit
            count = entry.subject.num_layouts if entry.stage == _FAMILY else 1
            self.rejected[SLOWER if is_slower else UNPROMISING] += count
        self.rejected[SAVES_NOTHING] += self._num_with_offload
        self.rejected += Counter()  # without zeros


def _kin(layout: Layout) -> tuple[object, ...]:
    """Return the fields that layouts with a similar ratio of time and bound share."""
    return (layout.pp > 1, layout.sharding, layout.tp, layout.pp, layout.cp, layout.virtual_stages)


def _store(layout: Layout) -> tuple[object, ...]:
    """Return the fields that layouts with a similar ratio of memory and bound share."""
    return (layout.pp, layout.sharding, layout.tp, layout.recompute, layout.offload)


def _form(layout: Layout) -> tuple[object, ...]:
    """Return the part of a layout that the costs of a layer depend on."""
    return (layout.tp, layout.cp, layout.ep, layout.etp, layout.micro_batch, layout.sequence_parallel,
            layout.recompute, layout.offload == "activations")  # fmt: skip


def _report(done: int, total: int) -> None:
    progress = current_observer().progress
    if progress is not None:
        progress(done, max(total, 1), 0)


@contextmanager
def workers(executor: Executor | None, num_workers: int | None, packed: PackedJob) -> Iterator[Executor]:
    """Give the executor of a search of ``packed``: the caller's, else processes, one per CPU."""
    if executor is not None:
        yield executor
        return
    count = num_workers or num_cpus()
    if count == 1:
        yield SerialExecutor()
        return
    pool = process_pool(count, needs_script=packed.needs_script)
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)
