"""Are quantities parsed exactly, and refused if they are not of the requested kind?"""

from __future__ import annotations

import pytest

from trine.common import units
from trine.errors import InputError, UnitError


@pytest.mark.parametrize(
    ("text", "ps"),
    [
        ("1 us", 10**6),
        ("1us", 10**6),
        (" 1.5  ns ", 1500),
        ("1 µs", 10**6),
        ("1 μs", 10**6),
        ("0.1 ps", 1),
        ("1e-3 s", 10**9),
        ("2 min", 120 * 10**12),
        ("1_000 ms", 10**12),
        ("0", 0),
        (0, 0),
        (0.0, 0),
        ("9223372 s", 9223372 * 10**12),
    ],
)
def test_times_become_picoseconds_rounded_up(text: object, ps: int) -> None:
    assert units.parse_time(text) == ps


@pytest.mark.parametrize(
    ("value", "ps"), [(1, 10**12), (1e-6, 10**6), (0.5, 5 * 10**11), ("1 us", 10**6), (1.1e-12, 2), (0.1, 10**11)]
)
def test_bare_times_are_seconds_where_allowed(value: object, ps: int) -> None:
    assert units.parse_time(value, base=True) == ps


@pytest.mark.parametrize(
    ("text", "size"),
    [("25 MiB", 25 * 2**20), ("1TB", 10**12), ("1.5 kB", 1500), ("8 KB", 8000), ("64 B", 64), ("1 Mbit", None)],
)
def test_sizes_are_whole_bytes(text: str, size: int | None) -> None:
    if size is None:
        with pytest.raises(UnitError, match="unknown unit 'Mbit'"):
            units.parse_bytes(text)
    else:
        assert units.parse_bytes(text) == size


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        ("50 GB/s", 50 * 10**9),
        ("400 Gbit/s", 50 * 10**9),
        ("400 Gb/s", 50 * 10**9),
        ("400 Gbps", 50 * 10**9),
        ("1 GiB/s", 2**30),
        ("3.35 TB/s", 3_350_000_000_000),
    ],
)
def test_bandwidths_are_bytes_per_second(text: str, rate: int) -> None:
    assert units.parse_bandwidth(text) == rate


def test_compute_rates() -> None:
    assert units.parse_rate("989.4 TFLOP/s") == 989_400_000_000_000
    with pytest.raises(UnitError, match="positive"):
        units.parse_rate(0)


@pytest.mark.parametrize(
    ("parse", "value", "message"),
    [
        (units.parse_time, 5, "needs a unit"),
        (units.parse_time, "5", "needs a unit"),
        (units.parse_time, "-1 us", "must not be negative"),
        (units.parse_time, "1 GB/s", "unknown unit 'GB/s'"),
        (units.parse_time, "1 parsec", "unknown unit 'parsec'"),
        (units.parse_time, "", "number with a unit"),
        (units.parse_time, "1 2 us", "number with a unit"),
        (units.parse_time, "1e400 s", "too large"),
        (units.parse_time, True, "number with a unit"),
        (units.parse_time, None, "number with a unit"),
        (units.parse_time, float("nan"), "finite"),
        (units.parse_time, float("inf"), "finite"),
        (units.parse_time, "9" * 65 + " s", "number with a unit"),
        (units.parse_bytes, "0.5 B", "whole number of bytes"),
        (units.parse_bytes, "1 gb", "unknown unit"),
        (units.parse_bandwidth, "0 GB/s", "must be positive"),
        (units.parse_bandwidth, "0.4 B/s", "must be positive"),
        (units.parse_bandwidth, "50 GB", "unknown unit 'GB'"),
    ],
)
def test_wrong_quantities_are_refused(parse: object, value: object, message: str) -> None:
    with pytest.raises(UnitError, match=message) as caught:
        parse(value)  # type: ignore[operator]
    assert isinstance(caught.value, InputError)


def test_transfer_time_is_rounded_up() -> None:
    assert units.transfer_ps(1, 10**12) == 1
    assert units.transfer_ps(1, 3 * 10**12) == 1
    assert units.transfer_ps(10, 3 * 10**12) == 4
    assert units.transfer_ps(2**50, 10**15) == -(-(2**50) * 10**12 // 10**15)


@pytest.mark.parametrize(
    ("shown", "text"),
    [
        (units.format_time(94_038_000_000), "94.04 ms"),
        (units.format_time(0), "0 ps"),
        (units.format_time(999), "999 ps"),
        (units.format_bytes(25 * 2**20), "25 MiB"),
        (units.format_bandwidth(65 * 10**9), "65 GB/s"),
    ],
)
def test_quantities_for_people(shown: str, text: str) -> None:
    assert shown == text
