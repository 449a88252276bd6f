"""SizeAnswer: how many GPUs of each machine type train a model on given tokens in given days or for a given budget."""

from __future__ import annotations

import os
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, cast

from trine.cluster import load_cluster, load_gpu
from trine.cluster.parts import SCALE_UP
from trine.cluster.presets import known_clusters
from trine.common.arguments import check_whole, named_arguments
from trine.common.observer import announce_stage
from trine.common.units import MAX_GPUS, format_time
from trine.decide.cost import LEFT_OUT, Price, RunCost, number_words, parse_amount, read_price, run_cost
from trine.decide.layout import FoundLayout, ModelShape, best_layout, gpus_of_node, has_layout
from trine.errors import InputError
from trine.results.columns import column, to_row
from trine.results.published_mfu import best_public_mfu, mfu_warning
from trine.results.report import Report, Row, Table, seconds
from trine.results.screen import Listing, Screen
from trine.results.text import columns
from trine.search.plan import train_command
from trine.search.report import words
from trine.training.options import SimulateOptions

if TYPE_CHECKING:
    from trine.cluster import Cluster

#: Tokens of a step without ``global_batch``, as Llama 2 and 3 were trained at first (arXiv 2307.09288, 2407.21783).
USUAL_STEP_TOKENS = 4 * 2**20
#: MachineSize types without ``clusters``: presets with links between GPUs, a usual fabric, and GPUs of this memory.
LEAST_MEMORY_BYTES = 80 * 2**30
#: Largest number of GPUs to try by default.
DEFAULT_MAX_GPUS = 16_384
#: GPUs that are added at a time: the GPUs of most nodes.
_GRANULE = 8
#: MFU of the first guess for a GPU without published steps, and FLOPs of training per parameter and token.
_USUAL_MFU, _FLOPS = 0.4, 6


@dataclass(frozen=True, kw_only=True, slots=True)
class MachineSize:
    """The answer for one machine type. layout, cost: None with ``problem``, the reason for no answer."""

    cluster: str
    gpu: str
    num_gpus: int = 0
    layout: FoundLayout | None = None
    cost: RunCost | None = None
    problem: str = ""
    tried: tuple[int, ...] = ()

    @property
    def words(self) -> str:
        """The layout in words."""
        return "" if self.layout is None else words(self.layout.layout, is_short=True)

    def row(self) -> Row:
        """Return the answer as plain data."""
        layout, cost = self.layout, self.cost
        facts = None if layout is None else layout.layout._asdict()
        return {
            **to_row(self, "cluster gpu"), "gpus": self.num_gpus or None, "problem": self.problem or None,
            "tried": list(self.tried), "layout": facts,
            "step_time_s": None if layout is None else seconds(layout.step.step_ps),
            "mfu": None if layout is None else layout.mfu,
            "mfu_definition": "full attention", "cost": None if cost is None else cost.document(),
        }  # fmt: skip


#: Longer tables, with their heading, may not fit on the screen.
MANY_ROWS = 10


@dataclass(frozen=True, kw_only=True, repr=False)
class SizeAnswer(Report):
    """MachineSize types with the number of GPUs that meets the goal, the fewest first; then those that cannot."""

    SCHEMA: ClassVar[str] = "size"

    model: str
    tokens: float
    days: float | None
    budget: float | None = field(metadata=column("budget_usd"))
    global_batch: int
    sequence: int
    machines: tuple[MachineSize, ...]
    price_source: str | None = None

    @property
    def _question(self) -> str:
        days = "" if self.days is None else f"{self.days:g} day{'' if self.days == 1 else 's'}"
        goal = " and ".join(filter(None, (days, "" if self.budget is None else f"${self.budget:,.0f}")))
        return f"{self.model} on {number_words(self.tokens)} tokens in {goal}"

    @property
    def headline(self) -> str:
        """The machine type with the fewest GPUs."""
        first = self.machines[0]
        if first.cost is None:
            return f"no machine trains {self._question}: {first.problem}"
        return f"{self._question}: {self._answer} ({first.words}), {first.cost.days.words()[0]} days"

    @property
    def _answer(self) -> str:
        first = self.machines[0]
        gpus = f"{first.num_gpus:,} GPU{'' if first.num_gpus == 1 else 's'}"
        return "none" if first.cost is None else f"{gpus} of {first.cluster}"

    def _rows(self) -> list[tuple[str, ...]]:
        head = ("machine", "GPUs", "days", "likely", "GPU-hours", "cost", "kWh", "layout")
        rows = [head, *(_cells(each, each.cost) for each in self.machines if each.cost is not None)]
        return rows if self.price_source is not None else [(*row[:5], *row[6:]) for row in rows]

    def summary(self) -> str:
        """Return the machine types on one screen."""
        rows, title = self._rows(), "the fewest GPUs first" if self.days else "within the budget"
        title += f" ({len(rows) - 1} machines; --details has all)" if len(rows) > MANY_ROWS else ""
        first = self.machines[0].layout
        mfu = "" if first is None else mfu_warning(self.machines[0].gpu, first.precision, first.mfu)
        spare = (3, 4, len(rows[0]) - 2, len(rows[0]) - 1)  # likely, GPU-hours, kWh, layout
        failed = [f"{each.cluster}: {each.problem}" for each in self.machines if each.cost is None]
        return Screen(
            question=f"{self._question}, {self.global_batch:,} samples of {self.sequence:,} tokens per step",
            numbers=[("answer", self._answer, "")],
            listings=(Listing(title=title, rows=rows, spare=spare),),
            warnings=failed,
            warning_label="no answer",
            closing=(
                *([("note", mfu)] if mfu else []),
                ("price", self.price_source or "none: --price 2.5 (dollars per GPU-hour) or a dated file"),
                ("without", LEFT_OUT),
                ("next", self._next()),
            ),
        ).text()

    def _next(self) -> str:
        first = self.machines[0]
        if first.layout is None:
            return "--days or --budget larger, or other machines with --cluster"
        nodes = -(-first.num_gpus // len(load_cluster(first.cluster).gpus))
        return train_command(self.model, first.layout.layout, self.global_batch, first.cluster, nodes, {})

    def details(self) -> str:
        """Return all machine types, with step times and the numbers of GPUs that were tried."""
        lines = [self.headline, "", *columns(self._rows()), ""]
        for each in self.machines:
            tried = f"tried {', '.join(map(str, each.tried))} GPUs" if each.tried else "nothing tried"
            step = "" if each.layout is None else f"step {format_time(each.layout.step.step_ps)}; "
            lines.append(f"{each.cluster}: {each.problem + '; ' if each.problem else ''}{step}{tried}")
        return "\n".join([*lines, f"without {LEFT_OUT}", f"price: {self.price_source or 'none'}"])

    def document(self) -> Row:
        """Return the sizing as plain data (docs/reference/decide-json.md)."""
        keys = "model tokens days budget_usd global_batch sequence price_source"
        return {**to_row(self, keys), **self.tables()}

    def record(self) -> Row:
        """Return the first machine as a flat row: its GPUs, layout, and cost, whose days are ``run_days``.

        Raises InputError if no machine has an answer.
        """
        row = self.machines[0].row()
        if row["problem"]:
            raise InputError(f"no machine trains {self._question}: {row['problem']}")
        layout, cost = cast("dict[str, Row]", row).pop("layout"), cast("dict[str, Row]", row).pop("cost")
        return {**row, **layout, **{f"run_{name}" if "days" in name else name: cost[name] for name in cost}}

    def tables(self) -> dict[str, Table]:
        """Return ``machines``: one row per machine type."""
        return {"machines": [each.row() for each in self.machines]}


@named_arguments
def size(
    model: str,
    tokens: float | str,
    *,
    days: float | None = None,
    budget: float | str | None = None,
    price: float | str | os.PathLike[str] | None = None,
    clusters: Sequence[str] = (),
    global_batch: int | None = None,
    max_gpus: int = DEFAULT_MAX_GPUS,
    software: str | os.PathLike[str] | None = None,
    progress: Callable[[int, int], object] | None = None,
) -> SizeAnswer:
    """Return the smallest number of GPUs of each machine type that trains ``model`` on ``tokens`` tokens in time.

    model: such as ``model:llama-3-8b``. days: the limit for the smallest number of GPUs.
    budget: dollars, or a text such as ``2M$``; needs ``price``. Without ``days``, the largest number of GPUs whose run
    costs at most this, which ends soonest. price: dollars per GPU-hour, or a dated file. clusters: presets or files;
    by default trine's presets of data-centre nodes. global_batch: samples per step; by default 4 Mi tokens. software:
    as of :func:`trine.simulate`. progress: called with the number of finished machine types, and of all.

    The search assumes that more GPUs take fewer days and cost more. It doubles the number of GPUs, then halves the
    interval among numbers that divide into equal replicas.

    Raises InputError for invalid or contradictory arguments.
    """
    shape, goal = ModelShape.of(model), _Goal.of(tokens, days, budget, price)
    batch = max(1, USUAL_STEP_TOKENS // shape.sequence) if global_batch is None else global_batch
    check_whole("global_batch", batch, 1, 10**9)
    check_whole("max_gpus", max_gpus, 1, MAX_GPUS)
    names = tuple(dict.fromkeys(clusters)) or machine_types()
    options = SimulateOptions(software=software)
    machines = []
    for number, name in enumerate(names):
        machines.append(_Search(shape, name, batch, max_gpus, goal, options).answer())
        if progress is not None:
            progress(number + 1, len(names))
    machines.sort(key=lambda each: (each.cost is None, *_rank(each, days is not None), each.cluster))
    return SizeAnswer(
        model=model, tokens=goal.tokens, days=goal.days, budget=goal.budget, global_batch=batch,
        sequence=shape.sequence, machines=tuple(machines),
        price_source=None if goal.price is None else goal.price.source,
    )  # fmt: skip


def _rank(machine: MachineSize, by_gpus: bool) -> tuple[float, ...]:
    """Return the number of GPUs, if it counts, and the days."""
    days = 0.0 if machine.cost is None else machine.cost.days.value
    return (machine.num_gpus, days) if by_gpus or machine.cost is None else (days,)


@cache
def machine_types() -> tuple[str, ...]:
    """Return the presets of data-centre nodes: GPUs of 80 GiB or more, links between them, and a usual fabric."""
    return tuple(name for name in known_clusters() if _is_machine_type(load_cluster(name)))


def _is_machine_type(machine: Cluster) -> bool:
    gpu = machine.devices[machine.gpus[0]].gpu
    has_links = any(link.link_class == SCALE_UP for link in machine.link_table.numbers)
    has_network = machine.fabric and machine.library and has_links
    return bool(has_network and gpu and load_gpu(gpu).memory_bytes >= LEAST_MEMORY_BYTES)


@dataclass(frozen=True, slots=True)
class _Goal:
    """The request. days, budget: at least one is given."""

    tokens: float
    days: float | None
    budget: float | None
    price: Price | None

    @staticmethod
    def of(tokens: float | str, days: float | None, budget: float | str | None, price: Any) -> _Goal:
        if days is None and budget is None:
            raise InputError("give --days or --budget")
        if days is not None and (isinstance(days, bool) or not 0 < days <= 36_525):
            raise InputError(f"must be above 0 and at most 36525, got {days!r:.40}", field="days")
        if budget is not None and price is None:
            raise InputError("needs --price: dollars per GPU-hour, or a dated file", field="budget")
        dollars = None if budget is None else parse_amount(budget, "budget", "$")
        return _Goal(parse_amount(tokens, "tokens"), days, dollars, None if price is None else read_price(price))

    def in_time(self, cost: RunCost) -> bool:
        return self.days is None or cost.days.value <= self.days

    def affordable(self, cost: RunCost) -> bool:
        return self.budget is None or (cost.usd is not None and cost.usd.value <= self.budget)


class _Search:
    """The search over the numbers of GPUs of one machine type; each number is tried once."""

    def __init__(
        self, shape: ModelShape, cluster: str, batch: int, max_gpus: int, goal: _Goal, options: SimulateOptions
    ) -> None:
        self._shape, self._cluster, self._batch, self._goal, self._options = shape, cluster, batch, goal, options
        self._node = load_cluster(cluster)
        self._gpu = self._node.devices[self._node.gpus[0]].gpu or ""
        limit = max_gpus if self._node.fabric is not None else min(max_gpus, len(self._node.gpus))
        granule = min(_GRANULE, gpus_of_node(self._node))
        possible = (*(count for count in (1, 2, 4) if count < min(granule, limit + 1)),
                    *range(granule, limit + 1, granule))  # fmt: skip
        self._counts: list[int] = [count for count in possible if has_layout(shape, count, batch)]
        self._tried: dict[int, tuple[FoundLayout, RunCost] | None] = {}

    def answer(self) -> MachineSize:
        """Return the number of GPUs that meets the goal."""
        if not self._counts:
            return self._without("no layout of the model fits its GPUs")
        try:
            _ = self._goal.price and self._goal.price.of(load_gpu(self._gpu).name)
        except InputError as error:  # the file lacks this GPU
            return self._without(str(error))
        by_days = self._goal.days is not None
        chosen = self._first(self._goal.in_time, self._first_guess()) if by_days else self._most_affordable()
        if chosen is None:
            return self._without(self._why())
        layout, cost = self._tried[chosen] or (None, None)
        if cost is not None and not self._goal.affordable(cost):
            return self._without(f"{chosen:,} GPUs cost ${cost.usd.value:,.0f}" if cost.usd is not None else "no price")
        return MachineSize(cluster=self._cluster, gpu=self._gpu, num_gpus=chosen, layout=layout, cost=cost,
                       tried=tuple(sorted(self._tried)))  # fmt: skip

    def _without(self, problem: str) -> MachineSize:
        return MachineSize(cluster=self._cluster, gpu=self._gpu, problem=problem, tried=tuple(sorted(self._tried)))

    def _why(self) -> str:
        costs = [tried[1] for tried in self._tried.values() if tried is not None]
        if not costs:
            return f"no tried layout fits the memory of {max(self._tried):,} GPUs"
        if self._goal.days is None:
            return f"the cheapest tried run costs ${min(each.usd.value for each in costs if each.usd):,.0f}"
        best = min(costs, key=lambda each: each.days.value)
        return f"{best.num_gpus:,} GPUs need {best.days.words()[0]} days (up to {self._counts[-1]:,} GPUs tried)"

    def _try(self, count: int) -> RunCost | None:
        if count not in self._tried:
            announce_stage(f"{self._cluster}: layouts of {count:,} GPUs")
            layout = best_layout(self._shape, self._cluster, count, self._batch, self._options)
            goal = self._goal
            self._tried[count] = None if layout is None else (layout, run_cost(layout.step, goal.tokens, goal.price))
        tried = self._tried[count]
        return tried and tried[1]

    def _first(self, is_true: Callable[[RunCost], bool], guess: float) -> int | None:
        """Return the first number of GPUs whose cost is true, or None: by doubling from ``guess``, then by halving."""

        def holds(count: int) -> bool:
            cost = self._try(count)
            return cost is not None and is_true(cost)

        powers = (2**i for i in range(self._counts[-1].bit_length() + 1))
        nearest = [[count for count in self._counts if power // 2 < count <= power][-1:] for power in powers]
        steps = [count for found in nearest for count in found]  # the possible numbers nearest to powers of two
        number = min(range(len(steps)), key=lambda i: (abs(steps[i] - guess), i))
        while number and holds(steps[number]) and holds(steps[number - 1]):
            number -= 1
        while not holds(steps[number]):
            number += 1
            if number == len(steps):
                return None
        below = steps[number - 1] if number else 0
        between = [count for count in self._counts if below < count <= steps[number]]
        return between[bisect_left(between, True, hi=len(between) - 1, key=holds)]

    def _most_affordable(self) -> int | None:
        """Return the largest number of GPUs within the budget; None if no number is."""
        too_dear = self._first(lambda cost: not self._goal.affordable(cost), 0)
        tried = [count for count, found in self._tried.items() if found and (too_dear is None or count < too_dear)]
        return max(tried, default=None)

    def _first_guess(self) -> float:
        """Return the number of GPUs that the best published MFU would need."""
        public, peak = best_public_mfu(self._gpu, "bfloat16"), load_gpu(self._gpu).flop_per_s.get("bfloat16", 1e14)
        flops = _FLOPS * self._shape.parameters * self._goal.tokens
        return flops / ((self._goal.days or 1) * 86_400 * peak * (_USUAL_MFU if public is None else public.mfu))


def _cells(machine: MachineSize, cost: RunCost) -> tuple[str, ...]:
    days, likely = cost.days.words()
    return (
        machine.cluster, f"{machine.num_gpus:,}", days, likely.removeprefix("likely "), cost.gpu_hours.words()[0],
        cost.usd.words("$")[0] if cost.usd else "", cost.kwh.words()[0] if cost.kwh else "", machine.words,
    )  # fmt: skip
