"""The number of GPUs of one machine type that meets a goal: the search, its answer, and the reason for time left."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from trine.cluster import load_cluster, load_gpu
from trine.common.observer import announce_stage
from trine.decide.batches import batch_for, nearest_multiple
from trine.decide.cost import Price, RunCost, number_words, parse_amount, read_price, run_cost
from trine.decide.failures import Failures
from trine.decide.first_count import USUAL_EXPONENT, first_count
from trine.decide.layout import FoundLayout, ModelShape, best_layout, gpus_of_node, scaled_layout
from trine.errors import InputError
from trine.results.columns import to_row
from trine.results.report import Row, seconds
from trine.results.text import gpus_words
from trine.search.report import words
from trine.training.options import SimulateOptions

#: GPUs that are added at a time: the GPUs of most nodes, and of large numbers at most this share.
_GRANULE, _STEP_SHARE = 8, 1 / 32
#: A layout is scaled to numbers of GPUs within this factor; beyond it, layouts are searched again.
_SCALED = 1.5
#: MFU of the first guess, and FLOPs of training per parameter and token.
_USUAL_MFU, _FLOPS = 0.42, 6
#: Bytes per parameter of weights, gradients and optimizer state: the first guess of a search within a budget.
_STATE_BYTES = 18
#: An answer that leaves more than this share of the days or the budget unused gives the reason.
MUCH_UNUSED = 0.2


@dataclass(frozen=True, slots=True)
class Goal:
    """The request. days, budget: at least one is given. batch_change: largest relative change of the global batch."""

    tokens: float
    days: float | None
    budget: float | None
    price: Price | None
    failures: Failures
    batch_change: float

    @staticmethod
    def of(
        tokens: float | str, days: float | None, budget: float | str | None, price: Any, failures: Failures,
        batch_change: float,
    ) -> Goal:  # fmt: skip
        """Return the goal. Raises InputError for invalid or contradictory values."""
        if days is None and budget is None:
            raise InputError("give --days or --budget")
        if days is not None and (isinstance(days, bool) or not 0 < days <= 36_525):
            raise InputError(f"must be above 0 and at most 36525, got {days!r:.40}", field="days")
        if budget is not None and price is None:
            raise InputError("needs --price: dollars per GPU-hour, or a dated file", field="budget")
        is_number = isinstance(batch_change, int | float) and not isinstance(batch_change, bool)
        if not is_number or not 0 <= batch_change <= 0.9:
            raise InputError(f"must be a share from 0 to 0.9, got {batch_change!r:.40}", field="batch_change")
        dollars = None if budget is None else parse_amount(budget, "budget", "$")
        known_price = None if price is None else read_price(price)
        return Goal(parse_amount(tokens, "tokens"), days, dollars, known_price, failures, batch_change)

    def is_met(self, cost: RunCost) -> bool:
        """Return whether the expected days and dollars, with failures, keep to the limits."""
        is_in_time = self.days is None or cost.expected_days.value <= self.days
        usd = cost.expected_usd
        return is_in_time and (self.budget is None or (usd is not None and usd.value <= self.budget))


@dataclass(frozen=True, kw_only=True, slots=True)
class MachineSize:
    """The answer for one machine type. layout, cost: None with ``problem``, the reason for no answer.

    global_batch: samples per step, near the requested ones. unused: the reason why much of the days or of the budget is
    left, "" if little is. late: a note if the likely range ends after the limit, else "".
    """

    cluster: str
    gpu: str
    num_gpus: int = 0
    global_batch: int = 0
    layout: FoundLayout | None = None
    cost: RunCost | None = None
    problem: str = ""
    unused: str = ""
    late: str = ""
    tried: tuple[int, ...] = ()

    @property
    def words(self) -> str:
        """The layout in words, as ``trine plan`` names it."""
        return "" if self.layout is None else words(self.layout.layout, is_short=True)

    @property
    def sentence(self) -> str:
        """The answer in one line, as the row that appears while the search goes on."""
        if self.cost is None:
            return f"{self.cluster}: {self.problem}"
        gpus = gpus_words(self.num_gpus)
        days = self.cost.expected_days.words()[0]
        return f"{self.cluster}: {gpus}, {days} days with failures, batch {self.global_batch:,}, {self.words}"

    def row(self) -> Row:
        """Return the answer as plain data."""
        layout, cost = self.layout, self.cost
        facts = None if layout is None else layout.layout._asdict()
        step_time = None if layout is None else seconds(layout.step.step_ps)
        mfu = None if layout is None else layout.mfu
        cost_row = None if cost is None else cost.document()
        return {
            **to_row(self, "cluster", "gpu"), "gpus": self.num_gpus or None, "global_batch": self.global_batch or None,
            "problem": self.problem or None, "unused": self.unused or None, "late": self.late or None,
            "tried": list(self.tried), "layout": facts,
            "step_time_s": step_time,
            "mfu": mfu, "mfu_definition": "full attention",
            "cost": cost_row,
        }  # fmt: skip


def _multiples(granule: int, limit: int) -> Iterator[int]:
    """Yield multiples of ``granule`` up to ``limit``, in steps that double as the numbers grow."""
    count = step = granule
    while count <= limit:
        yield count
        while 2 * step <= count * _STEP_SHARE and count % (2 * step) == 0:
            step *= 2
        count += step


@dataclass(frozen=True, slots=True)
class _Try:
    """One number of GPUs: its layout and cost, or the problem."""

    layout: FoundLayout | None = None
    cost: RunCost | None = None
    problem: str = ""


class MachineSearch:
    """The search over the numbers of GPUs of one machine type; each number is tried once."""

    def __init__(
        self, shape: ModelShape, cluster: str, batch: int, max_gpus: int, goal: Goal, options: SimulateOptions
    ) -> None:
        self._shape, self._cluster, self._goal, self._options = shape, cluster, goal, options
        self._node = load_cluster(cluster)
        self._gpu = self._node.devices[self._node.gpus[0]].gpu or ""
        self._max_gpus, self._batch = max_gpus, batch
        limit = max_gpus if self._node.fabric is not None else min(max_gpus, len(self._node.gpus))
        granule = min(_GRANULE, gpus_of_node(self._node))
        possible = (*(count for count in (1, 2, 4) if count < min(granule, limit + 1)), *_multiples(granule, limit))
        self._memory_bytes = load_gpu(self._gpu).memory_bytes if self._gpu else 0
        self._batches: dict[int, int] = {}
        for count in possible:
            found = batch_for(shape, count, batch, goal.batch_change, self._memory_bytes)
            if found is not None:
                self._batches[count] = found
        self._counts = list(self._batches)
        self._tried: dict[int, _Try] = {}
        self._searched: dict[int, FoundLayout] = {}

    def answer(self) -> MachineSize:
        """Return the number of GPUs that meets the goal."""
        if not self._counts:
            return self._without("no layout of the model fits its GPUs")
        try:
            _ = self._goal.price and self._goal.price.of(load_gpu(self._gpu).name)
        except InputError as error:  # the file lacks this GPU
            return self._without(str(error))
        chosen = self._fewest_in_time() if self._goal.days is not None else self._most_affordable()
        if chosen is None:
            return self._without(self._why())
        tried = self._tried[chosen]
        cost = tried.cost
        assert cost is not None
        if not self._goal.is_met(cost):
            usd = cost.expected_usd
            return self._without(f"{chosen:,} GPUs cost ${usd.value:,.0f}" if usd is not None else "no price")
        return MachineSize(
            cluster=self._cluster, gpu=self._gpu, num_gpus=chosen, global_batch=self._batches[chosen],
            layout=tried.layout, cost=cost, unused=self._why_unused(chosen, cost), late=self._lateness(chosen, cost),
            tried=tuple(sorted(self._tried)),
        )  # fmt: skip

    def _without(self, problem: str) -> MachineSize:
        return MachineSize(cluster=self._cluster, gpu=self._gpu, problem=problem, tried=tuple(sorted(self._tried)))

    def _why(self) -> str:
        costs = [tried.cost for tried in self._tried.values() if tried.cost is not None]
        if not costs:
            return self._tried[max(self._tried)].problem
        if self._goal.days is None:
            cheapest = min(each.expected_usd.value for each in costs if each.expected_usd)
            return f"the cheapest tried run costs ${cheapest:,.0f}"
        best = min(costs, key=lambda each: each.expected_days.value)
        days = best.expected_days.words()[0]
        return f"{best.num_gpus:,} GPUs need {days} days (up to {self._counts[-1]:,} GPUs tried)"

    def _try(self, count: int) -> _Try:
        if count not in self._tried:
            announce_stage(f"{self._cluster}: layouts of {gpus_words(count)}")
            self._tried[count] = self._new_try(count)
        return self._tried[count]

    def _new_try(self, count: int) -> _Try:
        goal = self._goal
        layout = self._scaled(count)
        if layout is None:
            layout = best_layout(self._shape, self._cluster, count, self._batches[count], self._options)
            self._searched |= {} if layout is None else {count: layout}
        if layout is None:
            return _Try(problem=f"no tried layout fits the memory of {gpus_words(count)}")
        try:
            return _Try(layout, run_cost(layout.step, goal.tokens, goal.price, goal.failures))
        except InputError as error:  # failures leave no progress
            return _Try(problem=str(error))

    def _scaled(self, count: int) -> FoundLayout | None:
        """Return the layout of the nearest searched number with more or fewer replicas, and set its batch."""
        near = [each for each in self._searched if 1 / _SCALED <= count / each <= _SCALED]
        if not near:
            return None
        like = self._searched[min(near, key=lambda each: abs(each - count))].layout
        unit = count // (like.tp * like.pp * like.cp) * like.micro_batch
        batch = nearest_multiple(unit, self._batch, self._goal.batch_change) if unit else None
        if batch is None:
            return None
        layout = scaled_layout(self._shape, self._cluster, count, batch, like, self._options)
        if layout is not None:
            self._batches[count] = batch
        return layout

    def _fewest_in_time(self) -> int | None:
        """Return the fewest GPUs that end in time, or None."""

        def days(count: int) -> float | None:
            cost = self._try(count).cost
            return None if cost is None else cost.expected_days.value

        limit = self._goal.days or 0.0
        peak = load_gpu(self._gpu).flop_per_s.get("bfloat16", 1e14)
        flops = _FLOPS * self._shape.parameters * self._goal.tokens
        guess = max(1.0, flops / (limit * 86_400 * peak * _USUAL_MFU))
        power_of_two = 2.0 ** round(math.log2(guess))  # its layouts divide well, and scale to the answer
        return first_count(self._counts, power_of_two, days, limit, is_falling=True)

    def _most_affordable(self) -> int | None:
        """Return the largest number of GPUs within the budget; None if no number is."""

        def dollars(count: int) -> float | None:
            cost = self._try(count).cost
            return None if cost is None or cost.expected_usd is None else cost.expected_usd.value

        guess = _STATE_BYTES * self._shape.parameters / max(1, self._memory_bytes)
        too_dear = first_count(self._counts, guess, dollars, self._goal.budget or 0.0, is_falling=False)
        below = [count for count in self._counts if too_dear is None or count < too_dear]
        for count in below[-1:]:
            self._try(count)
        costs = [tried.cost for count, tried in self._tried.items() if count in set(below)]
        return max((cost.num_gpus for cost in costs if cost is not None and self._goal.is_met(cost)), default=None)

    def _why_unused(self, chosen: int, cost: RunCost) -> str:
        """Return why much of the days, or of the budget without days, is left; "" if little is."""
        days, budget, usd = self._goal.days, self._goal.budget, cost.expected_usd
        place = self._counts.index(chosen)
        if days is not None:
            left = 1 - cost.expected_days.value / days
            neighbour, side = place - 1, "smaller"
        else:
            left = 0.0 if budget is None or usd is None else 1 - usd.value / budget
            neighbour, side = place + 1, "larger"
        if left <= MUCH_UNUSED:
            return ""
        share = f"{left:.0%} of the {'days' if days is not None else 'budget'} unused"
        if not 0 <= neighbour < len(self._counts):
            end = f"--max-gpus is {self._max_gpus:,}" if neighbour > 0 else "no smaller number has a layout"
            return f"{share}: {end}"
        count = self._counts[neighbour]
        tried = self._try(count)
        if tried.cost is None:
            return f"{share}: {tried.problem}, the next {side} number"
        amount = tried.cost.expected_days.words(after=" days")[0]
        if days is None and tried.cost.expected_usd is not None:
            amount = tried.cost.expected_usd.words("$")[0]
        reason = f"{share}: {gpus_words(count)}, the next {side} number, would take {amount}"
        if abs(count - chosen) > max(_GRANULE, 2 * _STEP_SHARE * chosen):
            reason += f"; numbers between do not divide a global batch within {self._goal.batch_change:.0%} of yours"
        return reason

    def _lateness(self, chosen: int, cost: RunCost) -> str:
        """Return a note if the run may end after the limit, with the GPUs that would end in time at the late end."""
        days, late = self._goal.days, cost.expected_days.high
        if days is None or late is None or late <= days:
            return ""
        needed = chosen * (late / days) ** (1 / USUAL_EXPONENT)
        enough = next((count for count in self._counts if count >= needed), None)
        remedy = "" if enough is None else f"; about {enough:,} GPUs would still end in time"
        return (
            f"the likely range ends after {number_words(late)} days, {number_words(late - days)} days too late{remedy}"
        )
