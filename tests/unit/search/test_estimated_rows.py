"""Rows of an answer that are estimated: which layouts they may have, and how pages and pictures mark them."""

from types import SimpleNamespace
from typing import Any

import pytest
from test_report import LAYOUT, answer, estimated, ranked

from trine.report.blocks import Points, Table
from trine.report.layouts import plan_page
from trine.search.screen import LayoutScreen
from trine.search.screened import ScreenedSearch
from trine.search.search import REFINED, Entry, form_of_layer

#: Micro-batch -> the screen's time in ps; 0: a schedule without recurrence.
TIMES = {1: 0, 2: 11, 4: 12, 8: 13, 16: 14}
COSTS: Any = SimpleNamespace()


def entry(micro_batch: int, bound: int) -> Entry:
    return Entry(bound, (micro_batch,), REFINED, LAYOUT._replace(micro_batch=micro_batch))


@pytest.fixture
def search() -> Any:
    """Return a search with one simulated layout and a queue in the order of micro-batches; size 4 cannot run."""
    found: Any = ScreenedSearch.__new__(ScreenedSearch)
    screen: Any = LayoutScreen(8, COSTS, 1024)
    screen.step_ps = lambda layout, *rest: TIMES[layout.micro_batch]
    screen.give_up(LAYOUT._replace(micro_batch=4))
    found.screen, found.top, found.ranked, found.estimated = screen, 3, [ranked(10, 60)], []
    found.queue = [entry(size, 10 + size) for size in TIMES]
    found.costs = {form_of_layer(each.subject): COSTS for each in found.queue[:4]}
    found.likely_stages = lambda layout, costs: None
    found.micro_batches = lambda layout: 1
    found._needed = lambda layout: 7
    found._lower_bound = lambda layout, costs: 5
    found.cost = lambda layout: COSTS

    def candidates(size: int, horizon: float, may_measure: bool = True) -> list[Entry]:
        assert not may_measure
        batch, found.queue = found.queue[:size], found.queue[size:]
        return batch

    found._candidates = candidates
    return found


def test_a_lower_bound_is_no_estimate(search: Any):
    search._estimate_others()
    assert [each.layout.micro_batch for each in search.estimated] == [2, 8]
    assert [each.outcome.step_ps for each in search.estimated] == [12, 18]  # as in the queue
    assert all(each.outcome.is_estimated for each in search.estimated)
    assert sorted(each.key[0] for each in search.queue) == sorted(TIMES)  # none is lost


def test_a_layout_without_costs_has_no_estimate(search: Any):
    search.top = 10
    search._estimate_others()
    assert [each.layout.micro_batch for each in search.estimated] == [2, 8]


@pytest.mark.parametrize("given", [None, ranked(12, 40, dp=16)])
def test_a_page_marks_estimated_rows_and_names_the_layouts_that_it_compares(given: Any):
    found = answer(ranked(10, 60), estimated(10.5, 50, dp=2), ranked(11, 40, dp=8), given=given)
    page = plan_page(found.document(), "trine plan")
    ranking, difference = page.sections[:2]
    table = next(block for block in ranking.blocks if isinstance(block, Table))
    points = next(block for block in ranking.blocks if isinstance(block, Points))
    assert [str(row[0]).endswith("(estimated)") for row in table.rows] == [False, True, False]
    assert [point.name.endswith("(estimated)") for point in points.points] == [False, True, False]
    assert (
        " against dp 8 \u00d7" in difference.answer if given is None else " against dp 16 \u00d7" in difference.answer
    )


def test_a_picture_has_a_cross_for_each_estimated_row():
    pytest.importorskip("matplotlib")
    rows = ranked(10, 60), estimated(10.5, 50, dp=2), ranked(11, 40, dp=8)
    (axes,) = answer(*rows, simulated=(rows[0], rows[2])).plot().axes
    places = {each.get_label(): each.get_offsets().tolist() for each in axes.collections}
    assert places["estimated"] == [[50.0, 10.5]]
    assert places["simulated"] == [[60.0, 10.0], [40.0, 11.0]]
