"""SizeAnswer: how many GPUs of each machine type train a model on given tokens in given days or for a given budget."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, cast

from trine.cluster import load_cluster, load_gpu
from trine.cluster.parts import SCALE_UP
from trine.cluster.presets import known_clusters
from trine.common.arguments import check_whole, named_arguments
from trine.common.units import MAX_GPUS, format_time
from trine.decide.cost import LEFT_OUT, RunCost, number_words
from trine.decide.failures import Failures
from trine.decide.layout import ModelShape
from trine.decide.machine_size import Goal, MachineSearch, MachineSize
from trine.errors import InputError
from trine.results.columns import column, to_row
from trine.results.published_mfu import mfu_warning
from trine.results.report import Report, Row, Table
from trine.results.screen import Listing, Screen
from trine.results.text import columns, gpus_words, width
from trine.search.plan import train_command
from trine.search.report import words
from trine.training.options import SimulateOptions

if TYPE_CHECKING:
    from trine.cluster import Cluster

#: Tokens of a step without ``global_batch``, as Llama 2 and 3 were trained at first (arXiv 2307.09288, 2407.21783).
USUAL_STEP_TOKENS = 4 * 2**20
#: Machine types without ``clusters``: presets with links between GPUs, a usual fabric, and GPUs of this memory.
MIN_MEMORY_BYTES = 80 * 2**30
#: Largest number of GPUs to try by default.
DEFAULT_MAX_GPUS = 16_384
#: Relative change of the global batch by which more numbers of GPUs divide it.
BATCH_CHANGE = 0.25


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
    unfinished: tuple[str, ...] = ()

    @property
    def _question(self) -> str:
        if self.days is None:
            days = ""
        else:
            days = f"{self.days:g} day{'' if self.days == 1 else 's'}"
        goal = " and ".join(filter(None, (days, "" if self.budget is None else f"${self.budget:,.0f}")))
        return f"{self.model} on {number_words(self.tokens)} tokens in {goal}"

    @property
    def headline(self) -> str:
        """The machine type with the fewest GPUs."""
        first = self.machines[0]
        if first.cost is None or first.layout is None:
            return f"no machine trains {self._question}: {first.problem}"
        days = first.cost.expected_days.words()[0]
        return f"{self._question}: {self._answer} ({words(first.layout.layout)}), {days} days with failures"

    @property
    def _answer(self) -> str:
        first = self.machines[0]
        batch = "" if first.global_batch == self.global_batch else f" with batch {first.global_batch:,}"
        return "none" if first.cost is None else f"{gpus_words(first.num_gpus)} of {first.cluster}{batch}"

    def _rows(self, is_short: bool = False) -> list[tuple[str, ...]]:
        """Return the table's head and rows. is_short: layouts in the short form of ``trine plan``."""
        head = ("machine", "GPUs", "batch", "days", "likely", "GPU-hours", "cost", "kWh", "layout")
        rows = [head, *(_cells(each, each.cost, is_short) for each in self.machines if each.cost is not None)]
        if self.price_source is not None:
            return rows
        return [(*row[:6], *row[7:]) for row in rows]

    def _fitting_rows(self) -> list[tuple[str, ...]]:
        """Return the rows with long layouts if they fit on the terminal, else with short ones."""
        rows = self._rows()
        return rows if max(map(len, columns(rows, margin=4))) <= width() - 4 else self._rows(is_short=True)

    def _notes(self) -> list[tuple[str, str]]:
        """Return the notes on the first machine: another batch, time or money left, and a late end."""
        first = self.machines[0]
        notes = []
        if first.cost is not None and first.global_batch != self.global_batch:
            change = first.global_batch / self.global_batch - 1
            notes.append(
                f"{first.num_gpus:,} GPUs divide a global batch of {first.global_batch:,} ({change:+.0%}), not "
                f"{self.global_batch:,}; --batch-change 0 keeps yours"
            )
        notes += [each for each in (first.unused, first.late) if each]
        if self.unfinished:
            notes.append(f"interrupted before {', '.join(self.unfinished)}")
        mfu = "" if first.layout is None else mfu_warning(first.gpu, first.layout.precision, first.layout.mfu)
        return [("note", each) for each in (*notes, mfu) if each]

    def summary(self) -> str:
        """Return the machine types on one screen."""
        rows, title = self._fitting_rows(), "the fewest GPUs first" if self.days else "within the budget"
        title += "; days with failures, the rest without" if len(rows) > 1 else ""
        title += f" ({len(rows) - 1} machines; --details has all)" if len(rows) > MANY_ROWS else ""
        spare = (4, 5, len(rows[0]) - 2, 2, len(rows[0]) - 1)  # likely, GPU-hours, kWh, batch, layout
        failed = [f"{each.cluster}: {each.problem}" for each in self.machines if each.cost is None]
        cost = self.machines[0].cost
        return Screen(
            question=f"{self._question}, {self.global_batch:,} samples of {self.sequence:,} tokens per step",
            numbers=[("answer", self._answer, "")],
            listings=(Listing(title=title, rows=rows, spare=spare),),
            warnings=failed,
            warning_label="no answer",
            closing=(
                *self._notes(),
                *([] if cost is None else [("expected", cost.expected_line())]),
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
        return train_command(self.model, first.layout.layout, first.global_batch, first.cluster, nodes, {})

    def details(self) -> str:
        """Return all machine types, with step times and the numbers of GPUs that were tried."""
        lines = [self.headline, "", *columns(self._rows()), ""]
        for each in self.machines:
            tried = f"tried {', '.join(map(str, each.tried))} GPUs" if each.tried else "nothing tried"
            step = "" if each.layout is None else f"step {format_time(each.layout.step.step_ps)}; "
            reasons = "".join(f"{text}; " for text in (each.problem, each.unused, each.late) if text)
            failures = "" if each.cost is None else f"; {each.cost.expected_line()}"
            lines.append(f"{each.cluster}: {reasons}{step}{tried}{failures}")
        if self.unfinished:
            lines.append(f"interrupted before {', '.join(self.unfinished)}")
        return "\n".join([*lines, f"without {LEFT_OUT}", f"price: {self.price_source or 'none'}"])

    def document(self) -> Row:
        """Return the sizing as plain data (docs/reference/decide-json.md)."""
        question = to_row(self, "model", "tokens", "days", "budget_usd", "global_batch", "sequence", "price_source")
        return {**question, "unfinished": list(self.unfinished), **self.tables()}

    def record(self) -> Row:
        """Return the first machine as a flat row: its GPUs, layout, and cost, whose days are ``run_days``.

        Raises InputError if no machine has an answer.
        """
        row = self.machines[0].row()
        if row["problem"]:
            raise InputError(f"no machine trains {self._question}: {row['problem']}")
        layout, cost = cast("dict[str, Row]", row).pop("layout"), cast("dict[str, Row]", row).pop("cost")
        run_costs = {}
        for name in cost:
            run_costs[f"run_{name}" if "days" in name else name] = cost[name]
        return {**row, **layout, **run_costs}

    def pictures(self) -> Mapping[str, Callable[..., Any]]:
        """Return the picture of days over GPUs."""
        return {"machines": self._draw}

    def _draw(self) -> Any:
        from trine.decide.picture import draw_machines

        return draw_machines(self.headline, self.machines, self.days)

    def tables(self) -> dict[str, Table]:
        """Return ``machines``: one row per machine type."""
        return {"machines": [each.row() for each in self.machines]}


class SizeInterrupted(KeyboardInterrupt):
    """Ctrl-C during :func:`size` after some machine types have ended; ``answer`` has them."""

    def __init__(self, answer: SizeAnswer) -> None:
        super().__init__()
        self.answer = answer


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
    batch_change: float = BATCH_CHANGE,
    max_gpus: int = DEFAULT_MAX_GPUS,
    software: str | os.PathLike[str] | None = None,
    gradient_dtype: str | None = None,
    loss: str | None = None,
    precision: str | None = None,
    failures: Failures | None = None,
    progress: Callable[[int, int], object] | None = None,
    on_machine: Callable[[MachineSize], object] | None = None,
) -> SizeAnswer:
    """Return the smallest number of GPUs of each machine type that trains ``model`` on ``tokens`` tokens in time.

    model: such as ``model:llama-3-8b``. days: the limit for the smallest number of GPUs; the expected days count, with
    failures and checkpoints. budget: dollars, or a text such as ``2M$``; needs ``price``. Without ``days``, the largest
    number of GPUs whose run costs at most this, which ends soonest. price: dollars per GPU-hour, or a dated file.
    clusters: presets or files; by default trine's presets of data-centre nodes. global_batch: samples per step; by
    default 4 Mi tokens. batch_change: the global batch may differ by this share, so that more numbers of GPUs divide
    it. software, gradient_dtype, loss, precision: as of :func:`trine.simulate`. failures: as of :func:`trine.run_cost`.
    progress: called with the number of finished machine types, and of all. on_machine: called with each answer as it
    ends.

    The search assumes that more GPUs take fewer days and cost more. It follows the power law through the two nearest
    tries, so it may miss a number up to 2 % smaller.

    Raises InputError for invalid or contradictory arguments, SizeInterrupted (a KeyboardInterrupt) with the finished
    machine types.
    """
    shape = ModelShape.of(model)
    goal = Goal.of(tokens, days, budget, price, failures or Failures(), batch_change)
    batch = max(1, USUAL_STEP_TOKENS // shape.sequence) if global_batch is None else global_batch
    check_whole("global_batch", batch, 1, 10**9)
    check_whole("max_gpus", max_gpus, 1, MAX_GPUS)
    names = tuple(dict.fromkeys(clusters)) or machine_types()
    options = SimulateOptions(software=software, gradient_dtype=gradient_dtype, loss=loss, precision=precision)
    searches = [MachineSearch(shape, name, batch, max_gpus, goal, options) for name in names]
    machines: list[MachineSize] = []
    try:
        for number, search in enumerate(searches):
            machines.append(search.answer())
            if on_machine is not None:
                on_machine(machines[-1])
            if progress is not None:
                progress(number + 1, len(names))
    except KeyboardInterrupt:
        if not machines:
            raise
        unfinished = names[len(machines) :]
        raise SizeInterrupted(_answer_of(model, goal, batch, shape, machines, unfinished)) from None
    return _answer_of(model, goal, batch, shape, machines)


def _answer_of(
    model: str, goal: Goal, batch: int, shape: ModelShape, machines: Sequence[MachineSize],
    unfinished: tuple[str, ...] = (),
) -> SizeAnswer:  # fmt: skip
    """Return the answer with the finished machine types, the fewest GPUs first."""
    has_days = goal.days is not None
    ranked = sorted(machines, key=lambda each: (each.cost is None, *_rank(each, has_days), each.cluster))
    return SizeAnswer(
        model=model, tokens=goal.tokens, days=goal.days, budget=goal.budget, global_batch=batch,
        sequence=shape.sequence, machines=tuple(ranked), unfinished=unfinished,
        price_source=None if goal.price is None else goal.price.source,
    )  # fmt: skip


def _rank(machine: MachineSize, by_gpus: bool) -> tuple[float, ...]:
    """Return the number of GPUs, if it counts, and the days."""
    days = 0.0 if machine.cost is None else machine.cost.expected_days.value
    return (machine.num_gpus, days) if by_gpus or machine.cost is None else (days,)


@cache
def machine_types() -> tuple[str, ...]:
    """Return the presets of data-centre nodes: GPUs of 80 GiB or more, links between them, and a usual fabric."""
    return tuple(name for name in known_clusters() if _is_machine_type(load_cluster(name)))


def _is_machine_type(machine: Cluster) -> bool:
    gpu = machine.devices[machine.gpus[0]].gpu
    has_links = any(link.link_class == SCALE_UP for link in machine.link_table.numbers)
    has_network = machine.fabric and machine.library and has_links
    return bool(has_network and gpu and load_gpu(gpu).memory_bytes >= MIN_MEMORY_BYTES)


def _cells(machine: MachineSize, cost: RunCost, is_short: bool) -> tuple[str, ...]:
    days, likely = cost.expected_days.words()
    usd = cost.usd.words("$")[0] if cost.usd else ""
    kwh = cost.kwh.words()[0] if cost.kwh else ""
    layout_words = machine.words if is_short or machine.layout is None else words(machine.layout.layout)
    return (
        machine.cluster, f"{machine.num_gpus:,}", f"{machine.global_batch:,}", days, likely.removeprefix("likely "),
        cost.gpu_hours.words()[0], usd, kwh,
        layout_words,
    )  # fmt: skip
