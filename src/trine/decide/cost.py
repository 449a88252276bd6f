"""Cost of a whole training run from one step: days, GPU-hours, dollars and energy, with likely ranges."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from trine.common.evidence import ASSUMED, MODELLED, Evidence
from trine.common.units import PS_PER_S
from trine.decide.price import Price, parse_amount, read_price
from trine.errors import InputError
from trine.results import headline
from trine.results.report import Row
from trine.results.text import wrapped_at

if TYPE_CHECKING:
    from trine.results import Result

_PS_PER_HOUR = 3600 * PS_PER_S
_JOULES_PER_KWH = 3.6e6
#: Lines of the cost on a terminal of 100 columns.
COST_LINES = 4
#: Effects that no number here includes.
LEFT_OUT = "failures and restarts, checkpoints, evaluation, idle GPUs, storage, hosts, NICs, switches and cooling"


@dataclass(frozen=True, slots=True)
class Range:
    """An amount and its likely ends; None if no likely range of the step is known."""

    value: float
    low: float | None
    high: float | None

    def times(self, factor: float) -> Range:
        """Return the amount and its ends, multiplied."""
        return Range(self.value * factor, *(None if end is None else end * factor for end in (self.low, self.high)))

    def words(self, before: str = "", after: str = "") -> tuple[str, str]:
        """Return the value, and its likely range, in words."""
        value = f"{before}{number_words(self.value)}{after}"
        if self.low is None or self.high is None:
            return value, ""
        return value, f"likely {before}{number_words(self.low)} to {number_words(self.high)}{after}"


@dataclass(frozen=True, kw_only=True, slots=True)
class RunStep:
    """One step of a run. ends_ps: its likely ends, None if unknown; mean_w: power of all GPUs, None if unknown."""

    step_ps: int
    ends_ps: tuple[int, int] | None
    tokens: int
    num_gpus: int
    gpu: str | None
    mean_w: float | None

    @staticmethod
    def of(result: Result) -> RunStep:
        """Return the step of a result. Raises InputError for inference, and for samples without tokens."""
        work = result.work
        if work is None or not work.tokens or not result.plan.get("is_training"):
            raise InputError(f"{result.plan.get('workload')!r:.80} has no training step of tokens", field="tokens")
        return RunStep(
            step_ps=result.step_time_ps, ends_ps=headline.ends_ps(result), tokens=work.tokens, num_gpus=work.num_gpus,
            gpu=work.gpu, mean_w=None if result.energy is None else result.energy.mean_w,
        )  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class RunCost:
    """Cost of a training run of ``tokens`` tokens in ``steps`` equal steps on ``num_gpus`` GPUs.

    usd: None without a price. kwh: of the GPUs alone; None if their power is unknown. usd_per_gpu_hour: None without
    a price; price_source: its source.
    """

    tokens: float
    steps: int
    num_gpus: int
    days: Range
    gpu_hours: Range
    usd: Range | None
    kwh: Range | None
    usd_per_gpu_hour: float | None = None
    price_source: str | None = None

    def rows(self) -> list[tuple[str, str, str]]:
        """Return name, value and likely range of each amount, as a screen shows them."""
        amounts = [("run", self.days, "", " days"), ("GPU-hours", self.gpu_hours, "", "")]
        amounts += [("cost", self.usd, "$", "")] if self.usd is not None else []
        amounts += [("energy", self.kwh, "", " kWh")] if self.kwh is not None else []
        return [(name, *amount.words(before, after)) for name, amount, before, after in amounts]

    def line(self) -> str:
        """Return the cost in one sentence, with likely ranges."""
        parts = []
        for name, value, likely in self.rows():
            unit = "" if name != "GPU-hours" else " GPU-hours"
            parts.append(f"{value}{unit}" + (f" ({likely})" if likely and name in ("run", "cost") else ""))
        return f"{', '.join(parts)} for {number_words(self.tokens)} tokens in {self.steps:,} equal steps"

    def text(self) -> list[str]:
        """Return the cost as at most COST_LINES lines below the answer of a step."""
        price = "" if self.price_source is None else f"; {self.price_source}"
        return wrapped_at("run", f"{self.line()}{price}; without {LEFT_OUT}", 13)

    @property
    def evidence(self) -> tuple[Evidence, ...]:
        """Evidence of the amounts."""
        rows = [Evidence("run time", MODELLED, f"{self.steps:,} equal steps; without {LEFT_OUT}")]
        if self.price_source is not None:
            rows.append(Evidence("price", ASSUMED, self.price_source))
        if self.kwh is not None:
            rows.append(Evidence("energy", ASSUMED, "power of the GPUs by state (presets/power.yaml)"))
        return tuple(rows)

    def document(self) -> Row:
        """Return the cost as plain data (docs/reference/decide-json.md)."""
        row: Row = {"tokens": self.tokens, "steps": self.steps, "num_gpus": self.num_gpus}
        for key in ("days", "gpu_hours", "usd", "kwh"):
            amount = getattr(self, key)
            for end, name in (("value", key), ("low", f"{key}_low"), ("high", f"{key}_high")):
                row[name] = None if amount is None else getattr(amount, end)
        price = {"usd_per_gpu_hour": self.usd_per_gpu_hour, "price_source": self.price_source}
        return {**row, **price, "left_out": LEFT_OUT}


def run_cost(
    step: Result | RunStep, tokens: float | str, price: Price | float | str | os.PathLike[str] | None = None
) -> RunCost:
    """Return the cost of training on ``tokens`` tokens (a number or a text such as ``1.4T``) in equal steps.

    step: a result, or its facts. price: dollars per GPU-hour, or a file (:func:`trine.decide.price.read_price`).

    Raises InputError for a step without tokens, such as a convolutional network's, an inference step, or an invalid
    price.
    """
    amount, facts = parse_amount(tokens, "tokens"), step if isinstance(step, RunStep) else RunStep.of(step)
    steps = math.ceil(amount / facts.tokens)
    low, high = (None, None) if facts.ends_ps is None else (ps / _PS_PER_HOUR for ps in facts.ends_ps)
    hours = Range(facts.step_ps / _PS_PER_HOUR, low, high).times(steps)
    known = price if isinstance(price, Price) or price is None else read_price(price)
    usd_per_hour = None if known is None else known.of(facts.gpu)
    return RunCost(
        tokens=amount, steps=steps, num_gpus=facts.num_gpus, days=hours.times(1 / 24),
        gpu_hours=hours.times(facts.num_gpus),
        usd=None if usd_per_hour is None else hours.times(facts.num_gpus * usd_per_hour),
        kwh=None if facts.mean_w is None else hours.times(facts.mean_w * 3600 / _JOULES_PER_KWH),
        usd_per_gpu_hour=usd_per_hour, price_source=None if known is None else known.source,
    )  # fmt: skip


def number_words(value: float) -> str:
    """Return three digits and a unit prefix from a million on, else thousands with commas."""
    for scale, letter in ((1e12, "T"), (1e9, "B"), (1e6, "M")):
        if value >= scale * 0.9995:
            return f"{value / scale:.3g}{letter}"
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
