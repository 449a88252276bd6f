"""The search: layouts in the order of their lower bounds, simulated until no bound beats the best results.

The order and the size of the rounds depend on the layouts alone, not on the number of workers. So a search gives the
same answer with any executor.
"""

from __future__ import annotations

import heapq
import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from contextlib import contextmanager
from typing import Any, NamedTuple

from trine.common.observer import current_observer
from trine.errors import PlanError
from trine.parallel.constraints import resolve_layout
from trine.parallel.plan import Plan
from trine.search.bounds import StageSizes, memory_bound, step_bound
from trine.search.probe import LayerCosts, can_probe
from trine.search.space import Family, Layout, Space
from trine.search.worker import Outcome, PackedJob, SearchJob, probe_all, simulate_layout
from trine.training.memory import facts_of

#: Layouts simulated in the first round, and most in a later one; each round doubles.
FIRST_ROUND, MOST_PER_ROUND = 4, 32
#: A search that is not exact ends after this many layouts in a row that are not among the best. In each round it
#: simulates the most promising of this many times the round's layouts.
PATIENCE, CHOICE = 64, 4
#: Forms of parallelism that one task probes, and queued layouts whose forms are probed together.
PROBES_PER_TASK, LAYOUTS_AHEAD = 8, 200
MEMORY, MEMORY_SIMULATED = "memory, by its lower bound", "memory, as simulated"
SLOWER = "slower than the best ones by its lower bound"
UNPROMISING = "not simulated: 64 layouts with similar bounds were slower (--exact simulates them)"
SAVES_NOTHING = "offload, where the same layout fits without it"


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

    pareto: simulate all layouts that no result beats in both time and memory, besides the ``top`` fastest ones.
    """

    def __init__(
        self, job: SearchJob, space: Space, capacity_bytes: int, executor: Executor, top: int,
        pareto: bool = False, exact: bool = False,
    ) -> None:  # fmt: skip
        self.packed, self._space, self._capacity = PackedJob(job), space, capacity_bytes
        self._executor, self._top, self._pareto = executor, top, pareto
        self._exact = exact or pareto
        self._since_best = 0
        self._ratios: dict[tuple[object, ...], float] = {}
        self._workload = job.workload
        self._probe_of = job
        self._gathers_each = not {"order", "reshard", "shard_unit_bytes", "prefetch", "overlap"} & space.fixed.keys()
        self._has_bounds = can_probe(job.workload)
        self._layers = space.facts.layers or 1
        self._sizes = StageSizes(job.workload, self._layers)
        defaults = {} if space.software is None else space.software.plan_fields()
        self._balance = str(space.fixed.get("balance", defaults.get("balance", "time")))
        self._costs: dict[tuple[object, ...], LayerCosts | None] = {}
        self._queue: list[_Entry] = []
        self._num_with_offload = 0
        self.rejected: Counter[str] = space.rejected
        self.ranked: list[Ranked] = []
        self.num_simulated = 0
        self.num_layouts = 0

    def run(self) -> None:
        """Search until no layout is left whose lower bound beats the results. Raises PlanError if none fits."""
        families = self._space.families()
        self.num_layouts = sum(family.num_layouts for family in families) + self.rejected.total()
        self._probe(families)
        for family in families:
            heapq.heappush(self._queue, _Entry(self._family_bound(family), family.layout.key, _FAMILY, family))
        size = FIRST_ROUND
        while (self._exact or self._since_best < PATIENCE) and (batch := self._next_round(size)):
            self._simulate(batch)
            size = min(2 * size, MOST_PER_ROUND)
        self._count_rest()
        if not self.ranked:
            raise PlanError(self._space.empty())

    # -- lower bounds ------------------------------------------------------------------------------------------------

    def _probe(self, families: Sequence[Family]) -> None:
        """Measure a layer under every form of parallelism, without recomputation."""
        if self._has_bounds:
            self._measure([family.layout for family in families])

    def _measure(self, layouts: Sequence[Layout]) -> None:
        """Measure the forms of these layouts that are new, several in one task."""
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

    def _probe_ahead(self, entry: _Entry) -> None:
        """Measure the form of the next layout together with those of the layouts behind it, if it is a new one."""
        if not self._has_bounds or _form(entry.subject) in self._costs:
            return
        following = heapq.nsmallest(LAYOUTS_AHEAD, self._queue)
        self._measure([entry.subject, *(each.subject for each in following if each.stage == _LAYOUT)])

    def _plan(self, layout: Layout) -> Plan:
        """Return the plan of a layout with the fields that the software fills in."""
        return resolve_layout(self._space.plan(layout), self._space.software, self._space.facts)[0]

    def _cost(self, layout: Layout) -> LayerCosts | None:
        key = _form(layout)
        if key not in self._costs:
            self._measure([layout])
        return self._costs[key]

    def bounds(self, layout: Layout) -> tuple[int, int]:
        """Return lower bounds of a layout's step time in ps and of its allocated bytes."""
        return self._bounds(layout, self._cost(layout) if self._has_bounds else None)

    def _bounds(self, layout: Layout, costs: LayerCosts | None) -> tuple[int, int]:
        """Return lower bounds of the step time in ps and the allocated bytes; 0 if none is known."""
        if costs is None:
            return 0, 0
        micro_batches = self._space.global_batch // layout.dp // layout.micro_batch
        sizes = self._sizes.of(self._balance, layout.pp * layout.virtual_stages)
        probe = self._probe_of.probe
        time_ps = step_bound(layout, micro_batches, costs, self._layers, sizes, probe.message_ps(layout, costs.message))
        if self._gathers_each:
            gathers, slowed = (micro_batches * (self._layers - 2) * ps for ps in probe.gathers(layout, costs.weights))
            alone = micro_batches * self._layers * (costs.forward_alone + costs.backward_alone)
            time_ps = max(time_ps, gathers, alone + slowed if slowed else 0)
        return (
            time_ps,
            memory_bound(layout, micro_batches, costs, self._layers, sizes),
        )

    def _family_bound(self, family: Family) -> int:
        """Return the least bound of a family; recomputation and offload only add work to the same operators."""
        layout = family.layout
        costs = self._costs.get(_form(layout)) if self._has_bounds else None
        return min((self._bounds(layout._replace(schedule=schedule, virtual_stages=stages), costs)[0]
                    for schedule, stages in family.pipelines), default=0)  # fmt: skip

    # -- the queue -----------------------------------------------------------------------------------------------------

    @property
    def _limit(self) -> int | None:
        """The time that a layout must beat to be among the best."""
        return None if len(self.ranked) < self._top else self.ranked[self._top - 1].outcome.step_ps

    def _next_round(self, size: int) -> list[_Entry]:
        """Return the next layouts to simulate: the most promising of those with the least bounds."""
        pool: list[_Entry] = []
        while self._queue and len(pool) < CHOICE * size:
            limit = self._limit
            if limit is not None and self._queue[0].bound > limit and not self._pareto:
                break
            entry = heapq.heappop(self._queue)
            if limit is not None and entry.bound > limit and self._is_beaten(entry):
                self.rejected[SLOWER] += entry.subject.num_layouts if entry.stage == _FAMILY else 1
                continue
            if entry.stage == _FAMILY:
                self._expand(entry.subject)
            elif entry.stage == _LAYOUT:
                self._probe_ahead(entry)
                self._refine(entry.subject)
            else:
                pool.append(entry)
        pool.sort(key=lambda entry: (self._estimate(entry), entry.key))
        for entry in pool[size:]:
            heapq.heappush(self._queue, entry)
        return pool[:size]

    def _estimate(self, entry: _Entry) -> float:
        """Return the likely time of a layout: its bound times the ratio found for the most similar simulated ones."""
        layout = entry.subject
        keys = (_kin(layout), _kin(layout)[:3], ())
        return entry.bound * next((self._ratios[key] for key in keys if key in self._ratios), 1.0)

    def _is_beaten(self, entry: _Entry) -> bool:
        """Return whether a result has less time and memory than a layout can have at least."""
        if entry.stage == _FAMILY or not self._has_bounds:
            return False
        time_ps, allocated = self._bounds(entry.subject, self._cost(entry.subject))
        outside = facts_of(self._space.software, self._space.plan(entry.subject), self._workload).outside_bytes
        return any(
            each.outcome.step_ps <= time_ps and (each.outcome.memory_bytes or 0) <= allocated + outside
            for each in self.ranked
        )

    def _expand(self, family: Family) -> None:
        """Queue the layouts of a family that meet all rules; those with offload wait until memory rejects the other."""
        costs = self._costs.get(_form(family.layout)) if self._has_bounds else None
        for layout in family.layouts():
            if reason := self._space.reason(layout):
                self.rejected[reason] += len(family.offload)
            else:
                self._num_with_offload += len(family.offload) - 1
                self._push(layout, self._bounds(layout, costs)[0])

    def _push(self, layout: Layout, bound: int, stage: int = _LAYOUT) -> None:
        heapq.heappush(self._queue, _Entry(bound, layout.key, stage, layout))

    def _refine(self, layout: Layout) -> None:
        """Queue a layout for simulation by the bound of its own form, unless its memory does not fit."""
        try:
            self._plan(layout)
        except PlanError as error:
            self.rejected[str(error)] += 1
            return
        time_ps, allocated = self.bounds(layout)
        outside = facts_of(self._space.software, self._space.plan(layout), self._workload).outside_bytes
        if self._capacity and allocated + outside > self._capacity:
            self._reject_for_memory(layout, MEMORY)
        else:
            self._push(layout, time_ps, _REFINED)

    def _reject_for_memory(self, layout: Layout, reason: str) -> None:
        """Count a layout, and queue the same one with offload."""
        self.rejected[reason] += 1
        for each in self._space.offloading(layout):
            self._num_with_offload -= 1
            if why := self._space.reason(each):
                self.rejected[why] += 1
            else:
                self._push(each, self._bounds(each, self._costs.get(_form(layout)))[0])

    # -- simulation ----------------------------------------------------------------------------------------------------

    def _simulate(self, batch: Sequence[_Entry]) -> None:
        """Simulate a round, and rank its layouts; the results are taken in the order of the round."""
        futures: list[Future[Outcome]] = [
            self._executor.submit(simulate_layout, self.packed, self._space.plan(entry.subject)) for entry in batch
        ]
        best = self.ranked[: self._top]
        for entry, future in zip(batch, futures, strict=True):
            outcome = future.result()
            self.num_simulated += not outcome.refused
            self._since_best += 1
            if entry.bound and outcome.step_ps:
                kin, ratio = _kin(entry.subject), outcome.step_ps / entry.bound
                self._ratios |= {kin: ratio, kin[:3]: ratio, (): ratio}
            if outcome.refused:
                self.rejected[outcome.refused.partition(" (")[0]] += 1
            elif not outcome.fits:
                self._reject_for_memory(entry.subject, MEMORY_SIMULATED)
            else:
                self.ranked.append(Ranked(entry.subject, outcome, entry.bound))
        self.ranked.sort(key=lambda ranked: ranked.order)
        if self.ranked[: self._top] != best:
            self._since_best = 0
        limit = self._limit
        waiting = sum(limit is None or entry.bound <= limit for entry in self._queue)
        if not self._exact:
            waiting = min(waiting, max(0, PATIENCE - self._since_best))
        _report(self.num_simulated, self.num_simulated + waiting)

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
    """Return the part of a layout by which ratios of time and bound are similar."""
    return (layout.pp > 1, layout.sharding, layout.tp, layout.pp, layout.cp, layout.virtual_stages)


def _form(layout: Layout) -> tuple[object, ...]:
    """Return the part of a layout that the costs of a layer depend on."""
    return (layout.tp, layout.cp, layout.ep, layout.etp, layout.micro_batch, layout.sequence_parallel,
            layout.recompute, layout.offload == "activations")  # fmt: skip


def _report(done: int, total: int) -> None:
    progress = current_observer().progress
    if progress is not None:
        progress(done, max(total, 1), 0)


@contextmanager
def workers(executor: Executor | None, num_workers: int | None) -> Iterator[Executor]:
    """Give the executor of a search: the caller's, else processes, one per CPU."""
    if executor is not None:
        yield executor
        return
    count = num_workers or os.cpu_count() or 1
    if count == 1:
        yield _Here()
        return
    from multiprocessing import get_context

    pool = ProcessPoolExecutor(count, mp_context=get_context("spawn"))
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)


class _Here(Executor):
    """An executor that runs every task at once, in this process."""

    def submit(self, task: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Run the task, and return its finished future."""
        future: Future[Any] = Future()
        try:
            future.set_result(task(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        return future
