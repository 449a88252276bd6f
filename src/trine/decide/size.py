"""SizeAnswer: how many GPUs of each machine type train a model on given tokens in given days or for a given budget."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, ClassVar

from trine.cluster import load_cluster, load_gpu
from trine.cluster.parts import SCALE_UP
from trine.cluster.presets import known_clusters
from trine.common.arguments import check_whole, named_arguments
from trine.common.observer import announce_stage
from trine.common.units import MAX_GPUS, format_time
from trine.decide.answers import narrowed
from trine.decide.cost import LEFT_OUT, RunCost, number_words, run_cost
from trine.decide.layout import Layout, ModelShape, best_layout, gpus_of_node, has_layout
from trine.decide.price import Price, parse_amount, read_price
from trine.errors import InputError
from trine.results.headline import best_public_mfu
from trine.results.report import Report, Row, Table, seconds
from trine.results.screen import Listing, Screen
from trine.results.text import columns
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
    layout: Layout | None = None
    cost: RunCost | None = None
    problem: str = ""
    tried: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True, repr=False)
class SizeAnswer(Report):
    """MachineSize types with the number of GPUs that meets the goal, the fewest first; then those that cannot."""

    SCHEMA: ClassVar[str] = "size"

    model: str
    tokens: float
    days: float | None
    budget: float | None
    global_batch: int
    sequence: int
    machines: tuple[MachineSize, ...]
    price_source: str | None = None

    @property
    def _question(self) -> str:
        parts = [] if self.days is None else [f"{self.days:g} day{'' if self.days == 1 else 's'}"]
        goal = " and ".join([*parts, *([] if self.budget is None else [f"${self.budget:,.0f}"])])
        return f"{self.model} on {number_words(self.tokens)} tokens in {goal}"

    @property
    def headline(self) -> str:
        """The machine type with the fewest GPUs."""
        first = self.machines[0]
        if first.cost is None:
            return f"no machine trains {self._question}: {first.problem}"
        return (
            f"{self._question}: {_gpus(first.num_gpus)} of {first.cluster} "
            f"({_layout(first)}), {first.cost.days.words()[0]} days"
        )

    def _rows(self) -> list[tuple[str, ...]]:
        with_price = self.price_source is not None
        head = ("machine", "GPUs", "days", "likely", "GPU-hours", *(("cost",) if with_price else ()), "kWh", "layout")
        return [head, *(_cells(each, with_price) for each in self.machines if each.cost is not None)]

    def summary(self) -> str:
        """Return the machine types on one screen."""
        spare = (3, 4, -2 + len(self._rows()[0]), -1 + len(self._rows()[0]))  # likely, GPU-hours, kWh, layout
        failed = [f"{each.cluster}: {each.problem}" for each in self.machines if each.cost is None]
        return Screen(
            question=f"{self._question}, {self.global_batch:,} samples of {self.sequence:,} tokens per step",
            numbers=[("answer", self._answer(), "")],
            listings=(
                Listing(
                    title="the fewest GPUs first" if self.days else "within the budget",
                    rows=narrowed(self._rows(), spare),
                ),
            ),
            warnings=failed,
            warning_label="no answer",
            closing=(
                ("price", self.price_source or "none: --price 2.5 (dollars per GPU-hour) or a dated file"),
                ("without", LEFT_OUT),
                ("next", self._next()),
            ),
        ).text()

    def _answer(self) -> str:
        first = self.machines[0]
        return "none" if first.cost is None else f"{_gpus(first.num_gpus)} of {first.cluster}"

    def _next(self) -> str:
        first = self.machines[0]
        if first.layout is None:
            return "--days or --budget larger, or other machines with --cluster"
        plan, node = first.layout.plan, load_cluster(first.cluster)
        flags = {"dp": plan.dp, "tp": plan.tp, "pp": plan.pp, "ep": plan.ep, "micro-batch": plan.micro_batch}
        words = [f"--{name} {value}" for name, value in flags.items() if value != 1]
        chosen = {"sharding": plan.sharding, "recompute": plan.recompute}
        words += [f"--{name} {value}" for name, value in chosen.items() if value != "none"]
        words += [f"--nodes {-(-first.num_gpus // len(node.gpus))}"] if first.num_gpus > len(node.gpus) else []
        words += [f"--global-batch {self.global_batch}", f"--cluster {first.cluster}"]
        return f"trine train {self.model} {' '.join(words)}"

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
        return {
            "model": self.model, "tokens": self.tokens, "days": self.days, "budget_usd": self.budget,
            "global_batch": self.global_batch, "sequence": self.sequence, "price_source": self.price_source,
            **self.tables(),
        }  # fmt: skip

    def tables(self) -> dict[str, Table]:
        """Return ``machines``: one row per machine type."""
        return {"machines": [_machine_row(each) for each in self.machines]}


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
    machines.sort(key=lambda each: (each.cost is None, _rank(each, days is not None), each.cluster))
    return SizeAnswer(
        model=model, tokens=goal.tokens, days=goal.days, budget=goal.budget, global_batch=batch,
        sequence=shape.sequence, machines=tuple(machines),
        price_source=None if goal.price is None else goal.price.source,
    )  # fmt: skip


def _rank(machine: MachineSize, by_gpus: bool) -> float:
    """Return the number of GPUs, or the days."""
    return machine.num_gpus if by_gpus or machine.cost is None else machine.cost.days.value


@cache
def machine_types() -> tuple[str, ...]:
    """Return the presets of data-centre nodes: GPUs of 80 GiB or more, links between them, and a usual fabric."""
    return tuple(name for name in known_clusters() if _is_machine_type(load_cluster(name)))


def _is_machine_type(machine: Cluster) -> bool:
    gpu = machine.devices[machine.gpus[0]].gpu
    has_links = any(link.link_class == SCALE_UP for link in machine.link_table.numbers)
    return bool(machine.fabric and machine.library and has_links and gpu and _memory(gpu) >= LEAST_MEMORY_BYTES)


def _memory(gpu: str) -> int:
    return load_gpu(gpu).memory_bytes


PriceSource = float | str | os.PathLike[str]


@dataclass(frozen=True, slots=True)
class _Goal:
    """The request. days, budget: at least one is given."""

    tokens: float
    days: float | None
    budget: float | None
    price: Price | None

    @staticmethod
    def of(tokens: float | str, days: float | None, budget: float | str | None, price: PriceSource | None) -> _Goal:
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
        self._counts = [count for count in self._possible(limit) if has_layout(shape, count, batch)]
        self._tried: dict[int, tuple[Layout, RunCost] | None] = {}

    def _possible(self, limit: int) -> Iterator[int]:
        granule = min(_GRANULE, gpus_of_node(self._node))
        yield from (count for count in (1, 2, 4) if count < min(granule, limit + 1))
        yield from range(granule, limit + 1, granule)

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
            self._tried[count] = None if layout is None else (layout, self._cost(layout))
        tried = self._tried[count]
        return None if tried is None else tried[1]

    def _cost(self, layout: Layout) -> RunCost:
        return run_cost(layout.step, self._goal.tokens, self._goal.price)

    def _meets(self, count: int) -> bool:
        cost = self._try(count)
        return cost is not None and self._goal.in_time(cost)

    def _fewest_in_time(self) -> int | None:
        """Return the smallest number of GPUs in time; None if no number is."""
        steps = self._doubled()
        number = min(range(len(steps)), key=lambda i: (abs(steps[i] - self._first_guess()), i))
        if self._meets(steps[number]):
            while number and self._meets(steps[number - 1]):
                number -= 1
        else:
            number += 1
            while number < len(steps) and not self._meets(steps[number]):
                number += 1
        if number == len(steps):
            return None
        below = steps[number - 1] if number else 0
        return _first([n for n in self._counts if below < n <= steps[number]], self._meets)

    def _most_affordable(self) -> int | None:
        """Return the largest number of GPUs within the budget; None if no number is."""

        def is_too_dear(count: int) -> bool:
            cost = self._try(count)
            return cost is not None and not self._goal.affordable(cost)

        steps, best = self._doubled(), None
        for number, count in enumerate(steps):
            if is_too_dear(count):
                if best is None:
                    return None
                between = [n for n in self._counts if steps[number - 1] < n <= count]
                below = [steps[number - 1], *between][: between.index(_first(between, is_too_dear) or count) + 1]
                return next((n for n in reversed(below) if self._tried.get(n)), best)
            best = count if self._tried[count] else best
        return best

    def _doubled(self) -> list[int]:
        """Return the possible numbers of GPUs nearest to powers of two, ascending; the last one is the largest."""
        steps, power = [], 1
        while power < 2 * self._counts[-1]:
            at_most = [count for count in self._counts if power // 2 < count <= power]
            steps += at_most[-1:]
            power *= 2
        return steps

    def _first_guess(self) -> float:
        """Return the number of GPUs that the best published MFU would need."""
        public, peak = best_public_mfu(self._gpu), load_gpu(self._gpu).flop_per_s.get("bfloat16", 1e14)
        flops = _FLOPS * self._shape.parameters * self._goal.tokens
        return flops / ((self._goal.days or 1) * 86_400 * peak * (_USUAL_MFU if public is None else public[0]))


def _first(counts: Sequence[int], is_true: Callable[[int], bool]) -> int | None:
    """Return the first number for which ``is_true`` holds, by halving; it holds for the last one."""
    low, high = 0, len(counts) - 1
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if is_true(counts[middle]) else (middle + 1, high)
    return counts[low] if counts else None


def _gpus(count: int) -> str:
    return f"{count:,} GPU{'' if count == 1 else 's'}"


def _layout(machine: MachineSize) -> str:
    if machine.layout is None:
        return ""
    plan = machine.layout.plan
    axes = [f"{axis} {getattr(plan, axis)}" for axis in ("tp", "ep", "pp", "dp") if getattr(plan, axis) > 1]
    return " x ".join(axes or ["one GPU"]) + (", recomputation" if plan.recompute != "none" else "")


def _cells(machine: MachineSize, with_price: bool) -> tuple[str, ...]:
    cost = machine.cost
    assert cost is not None
    price = (cost.usd.words("$")[0] if cost.usd is not None else "",) if with_price else ()
    kwh = "" if cost.kwh is None else cost.kwh.words()[0]
    days, likely = cost.days.words()
    return (machine.cluster, f"{machine.num_gpus:,}", days, likely.removeprefix("likely "), cost.gpu_hours.words()[0],
            *price, kwh, _layout(machine))  # fmt: skip


def _machine_row(machine: MachineSize) -> Row:
    row: Row = {"cluster": machine.cluster, "gpu": machine.gpu, "gpus": machine.num_gpus or None,
                "problem": machine.problem or None, "tried": list(machine.tried)}  # fmt: skip
    if machine.layout is None or machine.cost is None:
        return {**row, "layout": None, "step_time_s": None, "mfu": None, "cost": None}
    layout, plan = machine.layout, machine.layout.plan
    names = ("dp", "tp", "pp", "ep", "batch", "micro_batch", "schedule", "sharding", "recompute")
    return {
        **row, "layout": {name: getattr(plan, name) for name in names}, "step_time_s": seconds(layout.step.step_ps),
        "mfu": layout.mfu, "cost": machine.cost.document(),
    }  # fmt: skip
