"""Quantities with units: parsed exactly on input, integers inside, formatted for people.

Inside trine, times are int64 picoseconds, sizes are bytes, and bandwidths are whole bytes per second. A time that is
not a whole number of picoseconds is always rounded *up*.
"""

from __future__ import annotations

import math
import re
from fractions import Fraction

from trine.errors import UnitError

PS_PER_S = 10**12
PS_PER_US = 10**6
MAX_INT64 = 2**63 - 1
#: GPUs of the largest machine that trine accepts.
MAX_GPUS = 2**24

_TIME = {
    "ps": Fraction(1), "ns": Fraction(10**3), "us": Fraction(10**6), "µs": Fraction(10**6), "μs": Fraction(10**6),
    "ms": Fraction(10**9), "s": Fraction(10**12), "min": Fraction(60 * 10**12), "h": Fraction(3600 * 10**12),
}  # fmt: skip
_DECIMAL = {"": 1, "k": 10**3, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15, "E": 10**18}
_BINARY = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "Pi": 2**50}
_PREFIX = {**_DECIMAL, **_BINARY}
_BYTES = {f"{p}B": Fraction(f) for p, f in _PREFIX.items()}
_BITS = {f"{p}{b}": Fraction(f, 8) for p, f in _PREFIX.items() for b in ("b", "bit")}
_BANDWIDTH = {
    **{f"{unit}/s": factor for unit, factor in {**_BYTES, **_BITS}.items()},
    **{f"{p}bps": Fraction(f, 8) for p, f in _PREFIX.items()},
    **{f"{p}Bps": Fraction(f) for p, f in _PREFIX.items()},
}
_RATE = {f"{p}{name}": Fraction(f) for p, f in _DECIMAL.items() for name in ("FLOP/s", "FLOPS", "flop/s", "flops")}

_POWER = {f"{p}W": Fraction(f) for p, f in _DECIMAL.items()}
_FREQUENCY = {f"{p}Hz": Fraction(f) for p, f in _DECIMAL.items()}

_QUANTITY = re.compile(r"\s*([+-]?(?:\d+(?:_\d+)*\.?\d*|\.\d+)(?:[eE][+-]?\d{1,3})?)\s*([A-Za-zµμ/]*)\s*", re.ASCII)


#: Longest whole number that trine reads, in digits: int64 has at most 19, but zeros may lead.
_MAX_DIGITS = 40


def whole_number(text: str, least: int = 0, most: int = MAX_INT64) -> int | None:
    """Return the whole number from ``least`` to ``most`` that a text holds, or None.

    The text has digits from 0 to 9 with at most a minus sign before them: not ``1_000``, ``+5``, ``--5``, ``１`` or
    ``²``, although ``int`` or ``str.isdigit`` accepts some of these.
    """
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdigit()) or len(digits) > _MAX_DIGITS:
        return None
    number = int(text)
    return number if least <= number <= most else None


#: A decimal number, and its longest text.
_DECIMAL_NUMBER = re.compile(r"\s*[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d{1,5})?\s*", re.ASCII)
_MAX_NUMBER = 64


def finite_number(text: str, least: float = -math.inf, most: float = math.inf) -> float | None:
    """Return the decimal number from ``least`` to ``most`` that a text holds, or None.

    Not ``inf``, ``nan``, ``1e309`` (no float holds it), ``1_000``, ``0x10``, nor a text of more than 64 characters.
    """
    if len(text) > _MAX_NUMBER or _DECIMAL_NUMBER.fullmatch(text) is None:
        return None
    number = float(text)
    return number if math.isfinite(number) and least <= number <= most else None


def _parse(value: object, units: dict[str, Fraction], subject: str, example: str, base: bool) -> Fraction:
    """Return ``value`` in the base unit of ``units``; ``base`` allows bare numbers, already in that unit."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise UnitError(f"{subject} must be a number with a unit such as {example!r}, got {value!r}")
    if isinstance(value, int | float):
        if value != value or value in (float("inf"), float("-inf")):
            raise UnitError(f"{subject} must be finite, got {value!r}")
        if value == 0 or base:
            return Fraction(str(value)) if isinstance(value, float) else Fraction(value)
        raise UnitError(f"{subject} needs a unit, such as {example!r}; got the bare number {value!r}")
    match = _QUANTITY.fullmatch(value) if len(value) <= 64 else None
    if match is None:
        raise UnitError(f"{subject} must be a number with a unit such as {example!r}, got {value[:80]!r}")
    number = Fraction(match[1].replace("_", ""))
    unit = match[2]
    if unit == "":
        if number == 0:
            return number
        raise UnitError(f"{subject} needs a unit, such as {example!r}; got {value!r}")
    if unit not in units:
        raise UnitError(f"{subject} has an unknown unit {unit!r} in {value!r}; a valid example is {example!r}")
    return number * units[unit]


def _as_integer(number: Fraction, subject: str, value: object, *, up: bool) -> int:
    if number < 0:
        raise UnitError(f"{subject} must not be negative, got {value!r}")
    integer = -(-number.numerator // number.denominator) if up else round(number)
    if integer > MAX_INT64:
        raise UnitError(f"{subject} is too large")
    return int(integer)


def parse_time(value: object, subject: str = "a time", *, base: bool = False, example: str = "1 us") -> int:
    """Parse ``"1.5 us"`` into picoseconds, rounded up; ``base=True`` also takes bare numbers, in seconds.

    example: a valid time, for the text of an error.
    """
    number = _parse(value, _TIME, subject, example, base)
    if base and not isinstance(value, str):
        number *= PS_PER_S
    return _as_integer(number, subject, value, up=True)


def parse_bytes(value: object, subject: str = "a size", *, base: bool = False) -> int:
    """Parse ``"25 MiB"`` into whole bytes; ``base=True`` also takes bare numbers, in bytes."""
    number = _parse(value, _BYTES, subject, "25 MiB", base)
    if number.denominator != 1:
        raise UnitError(f"{subject} must be a whole number of bytes, got {value!r}")
    return _as_integer(number, subject, value, up=False)


def parse_bandwidth(value: object, subject: str = "a bandwidth", *, base: bool = False) -> int:
    """Parse ``"50 GB/s"`` or ``"400 Gbit/s"`` into whole bytes per second, which must be positive."""
    return _positive(_parse(value, _BANDWIDTH, subject, "50 GB/s", base), subject, value)


def parse_rate(value: object, subject: str = "a compute rate") -> int:
    """Parse ``"989 TFLOP/s"`` into whole floating-point operations per second, which must be positive."""
    return _positive(_parse(value, _RATE, subject, "989 TFLOP/s", False), subject, value)


def parse_power(value: object, subject: str = "a power") -> int:
    """Parse ``"700 W"`` into whole watts, which must be positive."""
    return _positive(_parse(value, _POWER, subject, "700 W", False), subject, value)


def _positive(number: Fraction, subject: str, value: object) -> int:
    integer = _as_integer(number, subject, value, up=False)
    if integer <= 0:
        raise UnitError(f"{subject} must be positive, got {value!r}")
    return integer


def parse_cycle(value: object, subject: str = "a clock") -> int:
    """Parse ``"1.98 GHz"`` into the picoseconds of a cycle, rounded to the nearest; at most 1 THz, at least 1 MHz."""
    hertz = _parse(value, _FREQUENCY, subject, "1.98 GHz", False)
    if not 10**6 <= hertz <= 10**12:
        raise UnitError(f"{subject} must be between 1 MHz and 1 THz, got {value!r}")
    return round(PS_PER_S / hertz)


def transfer_ps(num_bytes: int, bytes_per_s: int) -> int:
    """Return the exact transfer time of ``num_bytes`` at ``bytes_per_s`` in picoseconds, rounded up."""
    return -(-num_bytes * PS_PER_S // bytes_per_s)


def _scaled(value: float, steps: tuple[tuple[float, str], ...]) -> str:
    for factor, unit in steps:
        if abs(value) >= factor:
            return f"{value / factor:.4g} {unit}" if abs(value / factor) < 1000 else f"{value / factor:,.0f} {unit}"
    return f"{value:g} {steps[-1][1]}"


def format_time(ps: float) -> str:
    """Format picoseconds for people: ``"94.04 ms"``."""
    return _scaled(ps, ((1e12, "s"), (1e9, "ms"), (1e6, "us"), (1e3, "ns"), (1, "ps")))


def format_bytes(num_bytes: float) -> str:
    """Format bytes for people, with binary prefixes: ``"25 MiB"``."""
    return _scaled(num_bytes, ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"), (1, "B")))


def format_bandwidth(bytes_per_s: float) -> str:
    """Format bytes per second for people, with decimal prefixes as vendors use: ``"65 GB/s"``."""
    return _scaled(bytes_per_s, ((1e12, "TB/s"), (1e9, "GB/s"), (1e6, "MB/s"), (1e3, "kB/s"), (1, "B/s")))


def format_clock(cycle_ps: int) -> str:
    """Format the clock rate of a cycle in picoseconds: ``"1.98 GHz"``."""
    return _scaled(PS_PER_S / cycle_ps, ((1e9, "GHz"), (1e6, "MHz"), (1, "Hz")))


def format_energy(joules: float) -> str:
    """Format joules for people: ``"8.4 kJ"``."""
    return _scaled(joules, ((1e12, "TJ"), (1e9, "GJ"), (1e6, "MJ"), (1e3, "kJ"), (1, "J")))


def format_power(watts: float) -> str:
    """Format watts for people: ``"5.6 kW"``."""
    return _scaled(watts, ((1e9, "GW"), (1e6, "MW"), (1e3, "kW"), (1, "W")))
