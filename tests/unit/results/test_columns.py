"""Rows of JSON and tables: keys, units, absent values, and their order."""

from dataclasses import dataclass, field
from typing import NamedTuple

import pytest
from json_keys import declared_rows

from trine.check.two_runs import SIZE
from trine.cli.cluster import DEVICE
from trine.collectives.result import PAIR, PART, ROW
from trine.decide.compare import INPUT
from trine.decide.support import ENTRY, MODULE
from trine.decide.term import TERM
from trine.gpu.collective import result as load_store_result
from trine.gpu.detail.detail import PEER, WAY
from trine.gpu.results import load_store_columns
from trine.results.columns import Column, Columns, column, to_row
from trine.results.step_columns import COLLECTIVE, ENERGY, FOLD_STAGE, HOST, LINK, MEMORY
from trine.runs.result import CAUSE
from trine.search.layout_row import LAYOUT
from trine.search.other_profiles import PROFILE
from trine.training.explained import HELD
from trine.training.neighbour import JOB


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
    found = to_row(Use(3, 4, 2_000_000, "a"), "name", "start_us", "mean_s", "rate_GBps", "rank")
    assert list(found.items()) == [("name", "a"), ("start_us", 2.0), ("mean_s", 1e-6), ("rate_GBps", 5.0), ("rank", 3)]
    assert to_row(Use(3, 4, -1), "start_s", "name") == {"start_s": None, "name": None}


def test_objects_without_fields_and_unknown_keys():
    assert to_row(Pair(10**12, 2.5), "time_s", "wall_s") == {"time_s": 1.0, "wall_s": 2.5}
    with pytest.raises(AttributeError):
        to_row(Pair(1, 2.0), "end_s")


@dataclass(frozen=True)
class Place:
    """A use at a place, as a table of nested objects has it."""

    use: Use
    number: int = 7


TABLE = Columns(
    Column(key="number", unit="integer", meaning="Number."),
    Column(key="begin_s", unit="s", meaning="Start and rate.", attribute="use.start_ps", none=-1, null_if="none"),
    Column(key="rate_GBps", unit="GB/s", meaning="Start and rate.", attribute="use.rate_bytes_per_s", null_if="none"),
    Column(key="mean_us", unit="us", meaning="Mean.", attribute="use.mean_ps"),
    Column(key="label", unit="text", meaning="Label.", attribute="use.label", none="", null_if="no label"),
)


def test_declared_columns_follow_paths_and_convert_units():
    assert list(TABLE.row(Place(Use(3, 4, 2 * 10**12, "a"))).items()) == [
        ("number", 7), ("begin_s", 2.0), ("rate_GBps", 5.0), ("mean_us", 10**6), ("label", "a"),
    ]  # fmt: skip
    row = TABLE.row(Place(Use(3, 4, -1)))
    assert row["begin_s"] is None
    assert row["label"] is None


def test_the_reference_of_declared_columns_shares_lines_of_one_meaning():
    rows = declared_rows("answer", ["rows[]", "best"], TABLE)
    assert [row.meaning for row in rows] == ["Number.", "Start and rate.", "Mean.", "Label."]
    assert rows[1].keys == ("rows[].begin_s", "rows[].rate_GBps", "best.begin_s", "best.rate_GBps")
    assert (rows[1].unit, rows[1].null_if) == ("s, GB/s", "none")
    assert rows[3].unit == "text"


STEP = (COLLECTIVE, LINK, MEMORY, HOST, ENERGY, FOLD_STAGE, JOB, HELD, PROFILE)
LOAD_STORE = [getattr(load_store_columns, name) for name in ("KIND", "LINK", "OPERATION", "USE", "REQUEST")]


DECISIONS = (LAYOUT, TERM, INPUT, ENTRY, MODULE)
OTHERS = (ROW, PAIR, PART, SIZE, CAUSE, DEVICE, PEER, WAY, load_store_result.PART, load_store_result.LEVEL)


@pytest.mark.parametrize("table", [TABLE, *STEP, *DECISIONS, *OTHERS, *LOAD_STORE])
def test_declared_columns_are_complete(table):
    keys = [each.key for each in table]
    assert len(keys) == len(set(keys)) > 2
    assert all(each.unit and each.meaning.endswith((".", "`.")) for each in table)
    assert all(each.null_if for each in table if each.none is not None)
