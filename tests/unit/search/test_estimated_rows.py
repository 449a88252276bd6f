"""Rows of an answer that are estimated: only layouts with an estimate of the screen, not with a lower bound alone."""

from types import SimpleNamespace
from typing import Any

import pytest
from test_report import LAYOUT, ranked

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
