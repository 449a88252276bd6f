"""Rows of JSON and tables: keys, units, absent values, and their order."""

from dataclasses import dataclass, field
from typing import NamedTuple

import pytest

from trine.results.columns import column, to_row, to_rows


@dataclass(frozen=True, slots=True)
class Use:
    rank: int
    stands_for: int = field(metadata=column("ranks_alike"))
    start_ps: int = field(metadata=column(none=-1))
    label: str = field(default="", metadata=column("name", none=""))
    axes: tuple[str, ...] = ("dp",)
    rate_bytes_per_s: int = 5 * 10**9

    @property
    def mean_ps(self):
        return self.start_ps / 2


class Pair(NamedTuple):
    time_ps: int
    wall_s: float


def test_all_fields_in_order_with_times_in_seconds():
    assert to_row(Use(3, 4, 5 * 10**11)) == {
        "rank": 3, "ranks_alike": 4, "start_s": 0.5, "name": None, "axes": ["dp"], "rate_bytes_per_s": 5 * 10**9,
    }  # fmt: skip


def test_chosen_keys_in_their_order_with_units_properties_and_absent_values():
    found = to_row(Use(3, 4, 2_000_000, "a"), "name start_us mean_s rate_GBps rank")
    assert list(found.items()) == [("name", "a"), ("start_us", 2.0), ("mean_s", 1e-6), ("rate_GBps", 5.0), ("rank", 3)]
    assert to_row(Use(3, 4, -1), "start_s name") == {"start_s": None, "name": None}


def test_objects_without_fields_and_unknown_keys():
    assert to_rows([Pair(10**12, 2.5), Pair(0, 0.0)], "time_s wall_s") == [
        {"time_s": 1.0, "wall_s": 2.5}, {"time_s": 0.0, "wall_s": 0.0},
    ]  # fmt: skip
    with pytest.raises(AttributeError):
        to_row(Pair(1, 2.0), "end_s")
