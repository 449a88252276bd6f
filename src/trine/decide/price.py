"""Prices of GPU-hours: one number, or a dated file with a price per GPU model."""

from __future__ import annotations

import datetime
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trine.cluster.presets import load_gpu
from trine.common.schema import Spec
from trine.common.spec import read_spec
from trine.errors import InputError, SpecError, nearest

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
    try:
        usd = float(text.strip().removeprefix("$").removesuffix("$"))
    except ValueError:
        raise InputError(f"must be dollars per GPU-hour such as 2.5, or a file (.yaml), got {text!r:.60}",
                         field="price") from None  # fmt: skip
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
    origin = f", {spec.source:.120}" if spec.source else ""
    return Price(f"{path} of {_date(spec.date, path)}{origin}", by_gpu=by_gpu)


def _date(value: object, path: str) -> str:
    """Return the date as YYYY-MM-DD."""
    if value is None:
        raise SpecError("prices need their date: add 'date: YYYY-MM-DD'", file=path, field="date")
    try:
        return datetime.date.fromisoformat(str(value)).isoformat()  # YAML reads an unquoted date as a date
    except ValueError:
        raise SpecError(f"must be a date such as 2026-11-20, got {value!r:.40}", file=path, field="date") from None
