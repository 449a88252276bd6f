"""Are the figures of the stored reports those of the last page, and does a worse, missing or smaller one fail?"""

from dataclasses import replace
from statistics import median

import pytest

from trine.report.html import render
from validation.accuracy import Figure, changes, figures, read_report, read_stored
from validation.accuracy_page import accuracy_page


@pytest.fixture(scope="module")
def found() -> list[Figure]:
    return figures()


def test_no_figure_is_worse_than_on_the_last_page(found):
    worse = [change.sentence for change in changes(read_stored(), found) if change.is_worse]
    assert worse == [], "python -m validation accuracy --store, if the reason is known"


def test_figures_have_names_of_their_own(found):
    assert len({figure.key for figure in found}) == len(found) > 300
    assert all(0 <= figure.error < 5 and figure.rows > 0 for figure in found)
    kinds = {figure.kind for figure in found}
    assert {"training steps", "serving", "peak memory", "collectives", "operators", "order of layouts"} <= kinds


def test_the_figures_are_those_of_the_rows(found):
    """The median error of the time per token, computed from the rows of the report."""
    rows = [row for row in read_report("serving")["rows"] if row.get("quantity") == "tpot"]
    errors = [abs(row["predicted"] / row["measured"] - 1) for row in rows if row["predicted"]]
    figure = next(each for each in found if each.key == "serving: time per token, all (median)")
    assert figure.rows == len(errors)
    assert figure.error == pytest.approx(median(errors), abs=1e-3)  # times of stored rows are rounded


BEFORE = Figure(kind="serving", name="all", statistic="median", error=0.10, rows=100)


@pytest.mark.parametrize(
    ("after", "is_worse"),
    [
        (replace(BEFORE, error=0.119), False),  # less than two points
        (replace(BEFORE, error=0.121), True),
        (replace(BEFORE, error=0.05), False),
        (replace(BEFORE, rows=99), True),
        (replace(BEFORE, rows=101), False),
        (None, True),
    ],
)
def test_what_counts_as_worse(after, is_worse):
    (change,) = changes([BEFORE], [] if after is None else [after])
    assert change.is_worse is is_worse
    assert change.key in change.sentence


def test_a_large_error_may_grow_by_a_tenth():
    before = replace(BEFORE, error=0.80)
    assert [change.is_worse for change in changes([before], [replace(before, error=0.87)])] == [False]
    assert [change.is_worse for change in changes([before], [replace(before, error=0.89)])] == [True]


def test_new_figures_are_told_and_fail_nothing():
    (change,) = changes([], [BEFORE])
    assert not change.is_worse
    assert "new" in change.sentence
    assert changes([BEFORE], [BEFORE]) == []


def test_the_page_has_each_kind_of_row(found):
    page = accuracy_page(found)
    assert [section.key for section in page.sections] == [
        "training", "serving", "memory", "collectives", "parts", "others",
    ]  # fmt: skip
    content = render(page)
    assert len(content) < 2_000_000
    for text in (b"AISimulate", b"LLMServingSim", b"BLIS", b"SimuMax", b"TrioSim", b"nemo-launcher"):
        assert text in content, text
