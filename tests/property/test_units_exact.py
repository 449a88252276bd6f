"""Does a quantity survive being written with any unit, and is rounding always up?"""

from __future__ import annotations

import contextlib
from fractions import Fraction

from hypothesis import given, settings
from hypothesis import strategies as st

from trine.cluster.serialize import exact_bandwidth, exact_time
from trine.common import units
from trine.errors import UnitError


@given(st.integers(0, 2**63 - 1))
def test_exact_texts_are_read_back(number: int) -> None:
    assert units.parse_time(exact_time(number)) == number
    if number:
        assert units.parse_bandwidth(exact_bandwidth(number)) == number


@given(st.decimals(0, 10**6, places=15), st.sampled_from(["ps", "ns", "us", "ms", "s"]))
def test_times_round_up_by_less_than_a_picosecond(number: object, unit: str) -> None:
    factor = {"ps": 1, "ns": 10**3, "us": 10**6, "ms": 10**9, "s": 10**12}[unit]
    exact = Fraction(str(number)) * factor
    assert 0 <= units.parse_time(f"{number:f} {unit}") - exact < 1


@settings(max_examples=40, deadline=None)
@given(st.text(max_size=80) | st.from_regex(r"[0-9_.eE+-]{1,8} ?[a-zA-Z/]{0,4}", fullmatch=True))
def test_no_text_gives_another_error(text: str) -> None:
    for parse in (units.parse_time, units.parse_bytes, units.parse_bandwidth, units.parse_rate):
        with contextlib.suppress(UnitError):
            assert parse(text) >= 0


@given(st.integers(0, 2**50), st.integers(1, 10**15))
def test_transfer_time_brackets_the_exact_one(num_bytes: int, bytes_per_s: int) -> None:
    exact = Fraction(num_bytes * 10**12, bytes_per_s)
    assert 0 <= units.transfer_ps(num_bytes, bytes_per_s) - exact < 1
