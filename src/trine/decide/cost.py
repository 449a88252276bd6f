"""Cost of a whole training run from one step: days, GPU-hours, dollars and energy, with likely ranges.

``days`` and the other amounts are those of the steps alone. ``expected_days`` adds failures and checkpoints
(:mod:`trine.decide.goodput`). Prices are one number of dollars per GPU-hour, or a dated file of prices.
"""

from __future__ import annotations

import datetime
import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trine.cluster.presets import load_gpu
from trine.common.arguments import named_arguments
from trine.common.evidence import ASSUMED, MODELLED, Evidence
from trine.common.schema import Spec
from trine.common.spec import read_spec
from trine.common.units import PS_PER_S, finite_number
from trine.decide.failures import Failures
from trine.decide.goodput import Goodput, goodput_of
from trine.errors import InputError, SpecError, nearest
from trine.results import headline
from trine.results.columns import to_row
from trine.results.report import Row
from trine.results.text import wrapped_at

if TYPE_CHECKING:
    from trine.results import Result

_PS_PER_HOUR = 3600 * PS_PER_S
_JOULES_PER_KWH = 3.6e6
#: Lines of the cost on a terminal of 100 columns.
COST_LINES = 6
#: Effects that no number here includes.
LEFT_OUT = "evaluation, spare and idle GPUs, storage, hosts, NICs, switches and cooling"
#: Letters behind an amount, and their factors.
_SCALES = {"": 1.0, "k": 1e3, "m": 1e6, "b": 1e9, "g": 1e9, "t": 1e12}
_AMOUNT = re.compile(r"([0-9][0-9_]{0,20}(?:\.[0-9]{0,24})?(?:e[+-]?[0-9]{1,2})?) ?([kmbgt]?)")
#: Highest price of a GPU-hour; a larger number is a mistake.
MAX_PRICE = 10_000.0
_ENDINGS = (".yaml", ".yml", ".json")


class PriceFile(Spec):
    """A file of prices: dollars per hour of each GPU model on a date."""

    usd_per_gpu_hour: dict[str, float]
    date: Any = None
    source: str = ""


@dataclass(frozen=True, slots=True)
class Price:
    """Dollars per GPU-hour. by_gpu: prices of GPU models by trine's name; None: ``usd`` is the price of each model."""

    source: str
    usd: float = 0.0
    by_gpu: Mapping[str, float] | None = None

    def of(self, gpu: str | None) -> float:
        """Return the price of an hour of a GPU. Raises InputError if the file has no price for it."""
        if self.by_gpu is None:
            return self.usd
        if gpu is None or gpu not in self.by_gpu:
            raise InputError(f"{self.source} has no price for {gpu!r}{nearest(gpu, self.by_gpu)}", field="price")
        return self.by_gpu[gpu]


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
        ends = " to ".join(number_words(end) for end in (self.low, self.high) if end is not None)
        return f"{before}{number_words(self.value)}{after}", f"likely {before}{ends}{after}" if ends else ""


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
    a price; price_source: its source. goodput: effect of failures and checkpoints, which the ``expected_`` amounts
    include and the others do not.
    """

    tokens: float
    steps: int
    num_gpus: int
    days: Range
    gpu_hours: Range
    usd: Range | None
    kwh: Range | None
    goodput: Goodput
    usd_per_gpu_hour: float | None = None
    price_source: str | None = None

    @property
    def expected_days(self) -> Range:
        """Days with failures, restarts and checkpoints."""
        return self._expected(self.days)

    @property
    def expected_gpu_hours(self) -> Range:
        """GPU-hours with failures, restarts and checkpoints."""
        return self._expected(self.gpu_hours)

    @property
    def expected_usd(self) -> Range | None:
        """Dollars with failures, restarts and checkpoints; None without a price."""
        return None if self.usd is None else self._expected(self.usd)

    def _expected(self, amount: Range) -> Range:
        """Return an amount with failures; the ends multiply, because the step and failures are independent."""
        low, high = (amount.value if end is None else end for end in (amount.low, amount.high))
        goodput = self.goodput
        return Range(amount.value * goodput.slowdown, low * goodput.low, high * goodput.high)

    def rows(self) -> list[tuple[str, str, str]]:
        """Return name, value and likely range of each amount, as a screen shows them."""
        amounts = (("run", self.days, "", " days"), ("GPU-hours", self.gpu_hours, "", ""),
                   ("cost", self.usd, "$", ""), ("energy", self.kwh, "", " kWh"))  # fmt: skip
        return [(name, *amount.words(*around)) for name, amount, *around in amounts if amount is not None]

    def line(self) -> str:
        """Return the cost in one sentence, with likely ranges."""
        parts = []
        for name, value, likely in self.rows():
            unit = "" if name != "GPU-hours" else " GPU-hours"
            parts.append(f"{value}{unit}" + (f" ({likely})" if likely and name in ("run", "cost") else ""))
        return f"{', '.join(parts)} for {number_words(self.tokens)} tokens in {self.steps:,} equal steps"

    def expected_line(self) -> str:
        """Return the expected time and cost with failures in one sentence."""
        days, likely = self.expected_days.words(after=" days")
        parts = [f"{days} ({likely})", f"{self.expected_gpu_hours.words()[0]} GPU-hours"]
        parts += [] if self.expected_usd is None else [self.expected_usd.words("$")[0]]
        return f"{', '.join(parts)}; {self.goodput.words()}"

    def text(self) -> list[str]:
        """Return the cost as at most COST_LINES lines below the answer of a step."""
        price = "" if self.price_source is None else f"; {self.price_source}"
        return [
            *wrapped_at("run", f"{self.line()}{price}; without {LEFT_OUT}", 13),
            *wrapped_at("expected", self.expected_line(), 13),
        ]

    @property
    def evidence(self) -> tuple[Evidence, ...]:
        """Evidence of the amounts."""
        rows = [Evidence("run time", MODELLED, f"{self.steps:,} equal steps; without {LEFT_OUT}")]
        rows += self.goodput.evidence
        if self.price_source is not None:
            rows.append(Evidence("price", ASSUMED, self.price_source))
        if self.kwh is not None:
            rows.append(Evidence("energy", ASSUMED, "power of the GPUs by state (presets/power.yaml)"))
        return tuple(rows)

    def document(self) -> Row:
        """Return the cost as plain data (docs/reference/decide-json.md)."""
        amounts = {
            f"{key}{ending}": getattr(getattr(self, key), end, None)
            for key in ("days", "gpu_hours", "usd", "kwh", "expected_days", "expected_gpu_hours", "expected_usd")
            for ending, end in (("", "value"), ("_low", "low"), ("_high", "high"))
        }
        prices = to_row(self, "usd_per_gpu_hour", "price_source")
        return {**to_row(self, "tokens", "steps", "num_gpus"), **amounts, **prices, "goodput": self.goodput.document(),
                "left_out": LEFT_OUT}  # fmt: skip


@named_arguments
def run_cost(
    step: Result | RunStep,
    tokens: float | str,
    price: Price | float | str | os.PathLike[str] | None = None,
    failures: Failures | None = None,
) -> RunCost:
    """Return the cost of training on ``tokens`` tokens (a number or a text such as ``1.4T``) in equal steps.

    step: a result, or its facts. price: dollars per GPU-hour, or a file (:func:`trine.decide.cost.read_price`).
    failures: failures, checkpoints and restarts; None: the defaults of presets/failures.yaml.

    Raises InputError for a step without tokens, such as a convolutional network's, an inference step, an invalid
    price, or failures that leave no progress.
    """
    amount, facts = parse_amount(tokens, "tokens"), step if isinstance(step, RunStep) else RunStep.of(step)
    steps = math.ceil(amount / facts.tokens)
    if facts.ends_ps is None:
        low, high = (None, None)
    else:
        low, high = (ps / _PS_PER_HOUR for ps in facts.ends_ps)
    hours = Range(facts.step_ps / _PS_PER_HOUR, low, high).times(steps)
    known = price if isinstance(price, Price) or price is None else read_price(price)
    usd_per_hour = None if known is None else known.of(facts.gpu)
    step_s = facts.step_ps / PS_PER_S
    goodput = goodput_of(failures or Failures(), facts.gpu, facts.num_gpus, step_s, steps * step_s)
    usd = None if usd_per_hour is None else hours.times(facts.num_gpus * usd_per_hour)
    kwh = None if facts.mean_w is None else hours.times(facts.mean_w * 3600 / _JOULES_PER_KWH)
    price_source = None if known is None else known.source
    return RunCost(
        tokens=amount, steps=steps, num_gpus=facts.num_gpus, days=hours.times(1 / 24),
        gpu_hours=hours.times(facts.num_gpus), usd=usd, kwh=kwh, goodput=goodput, usd_per_gpu_hour=usd_per_hour,
        price_source=price_source,
    )  # fmt: skip


def number_words(value: float) -> str:
    """Return three digits and a unit prefix from a million on, else thousands with commas."""
    for scale, letter in ((1e12, "T"), (1e9, "B"), (1e6, "M")):
        if value >= scale * 0.9995:
            return f"{value / scale:.3g}{letter}"
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def parse_amount(value: str | float, field: str, unit: str = "") -> float:
    """Return an amount such as ``1.4T``, ``300B``, ``2e12`` or, with the unit ``$``, ``2M$``.

    Raises InputError, naming ``field``, for another text, and for amounts that are not above 0.
    """
    text = str(value).strip().lower().replace(",", "")
    match = _AMOUNT.fullmatch(text.removeprefix(unit).removesuffix(unit).strip() if unit else text)
    amount = float(match[1].replace("_", "")) * _SCALES[match[2]] if match is not None else 0.0
    if not 0 < amount < 1e30:
        raise InputError(f"must be an amount above 0 such as {'2M' + unit if unit else '1.4T'}, got {value!r:.60}",
                         field=field)  # fmt: skip
    return amount


def read_price(price: float | str | os.PathLike[str]) -> Price:
    """Return a price from a number of dollars per GPU-hour, or from a file of prices.

    The file (YAML or JSON) has ``date`` (YYYY-MM-DD), ``usd_per_gpu_hour`` (GPU: dollars) and optionally ``source``.
    Raises InputError for a price out of range, a file without a date, and an unknown key or GPU.
    """
    text = os.fspath(price) if isinstance(price, str | os.PathLike) else repr(price)
    if text.endswith(_ENDINGS):
        return _read_file(text)
    usd = finite_number(text.strip().removeprefix("$").removesuffix("$"))
    if usd is None:
        raise InputError(
            f"must be dollars per GPU-hour such as 2.5, or a file (.yaml), got {text!r:.60}", field="price"
        )
    return Price(f"${_checked(usd, None, 'price'):g} per GPU-hour, as given", usd)


def _checked(usd: float, file: object, field: str) -> float:
    if not 0 < usd <= MAX_PRICE:  # also refuses NaN
        raise InputError(f"must be dollars above 0 and at most {MAX_PRICE:g}, got {usd!r:.40}", file=file, field=field)
    return usd


def _read_file(path: str) -> Price:
    spec = read_spec(path, PriceFile)
    by_gpu: dict[str, float] = {}
    for name, usd in spec.usd_per_gpu_hour.items():
        field = f"usd_per_gpu_hour.{name!s:.40}"
        try:
            gpu = load_gpu(name).name
        except SpecError as error:
            raise SpecError(str(error), file=path, field=field) from None
        if gpu in by_gpu:
            raise SpecError(f"gives a second price for {gpu}", file=path, field=field)
        by_gpu[gpu] = _checked(usd, path, field)
    if spec.date is None:
        raise SpecError("prices need their date: add 'date: YYYY-MM-DD'", file=path, field="date")
    try:
        date = datetime.date.fromisoformat(str(spec.date)).isoformat()  # YAML reads an unquoted date as a date
    except ValueError:
        raise SpecError(f"must be a date such as 2026-11-20, got {spec.date!r:.40}", file=path, field="date") from None
    return Price(f"{path} of {date}{f', {spec.source:.120}' if spec.source else ''}", by_gpu=by_gpu)
