"""Which layouts does a search look at after it has found the best switches, and does it stop at its limits?

The search is a stand-in with made times: step = 100 - ep, exchanges = 10 ep per layer and micro-batch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest

import trine
from trine.search.ranked import Ranked
from trine.search.screened import ScreenedSearch
from trine.search.search import MEMORY_SIMULATED, Search, form_of_layer
from trine.search.space import Family, Layout
from trine.search.switches import MAX_EP_RATIO, MAX_EXAMINED, NUM_LATER, has_switches
from trine.search.words import plan_words

SETTING = {"expert_overlap": True}
BEST_PS = 1000


def layout(ep: int, micro_batch: int = 1, **changes: Any) -> Layout:
    usual: dict[str, Any] = {"tp": 1, "pp": 1, "cp": 1, "etp": None, "sharding": "zero1", "shard_ways": None,
                             "schedule": None, "virtual_stages": 1, "sequence_parallel": None, "recompute": "none",
                             "offload": "none"}  # fmt: skip
    return Layout(dp=64, ep=ep, micro_batch=micro_batch, **(usual | changes))


def family(ep: int, micro_batch: int = 1) -> Family:
    return Family(layout(ep, micro_batch), ((None, 1),), ("zero1",), ("none",), ("none",))


class Made(Search):
    """A search whose times are given. steps: of a layout without switches; estimates: with them."""

    def __init__(self, best: Layout, estimate_ps: Callable[[Layout], int]) -> None:
        self.space: Any = SimpleNamespace(
            switches=[SETTING], reason=lambda plain: "no" if plain.ep == 48 else "", plan=lambda each: each
        )
        self.ranked = [Ranked(best._replace(**SETTING), self.outcome(BEST_PS), 0)]
        self.tight: list[Ranked] = []
        self.costs = {}
        for ep in range(1, 99):
            for micro_batch in (1, 2):
                self.costs[form_of_layer(layout(ep, micro_batch))] = SimpleNamespace(exchange=0)
        self.capacity, self.most, self.layers, self.node_gpus = 80, None, 4, 8
        self.estimate_ps, self.examined = estimate_ps, list[Layout]()

    @staticmethod
    def outcome(step_ps: int, **changes: Any) -> Any:
        usual = {"refused": "", "fits": True, "is_tight": False}
        return SimpleNamespace(step_ps=step_ps, **(usual | changes))

    def cost(self, layout: Layout) -> Any:
        return SimpleNamespace(exchange=0)

    def _likely_costs(self, layout: Layout, costs: Any) -> Any:
        return costs

    def _family_bound(self, family: Family) -> int:
        return 0

    def _switched_estimate(self, plain: Layout, costs: Any) -> int:
        return self.estimate_ps(plain)

    def _exchanges_ps(self, layout: Layout, costs: Any) -> int:
        return 0

    def _examine(self, layout: Layout) -> None:
        self.examined.append(layout)

    def allocated(self, layout: Layout) -> int:
        return 80 if layout.micro_batch == 1 else 81


def later(search: Search, *families: Family) -> list[int]:
    return [each.ep for each in search._later_switched(families, SETTING)]


def test_layouts_of_at_most_four_times_the_experts_ranks_are_tried_best_first():
    search = Made(layout(2), lambda plain: BEST_PS - plain.ep)
    families = [family(ep) for ep in (1, 2, 4, 2 * MAX_EP_RATIO, 2 * MAX_EP_RATIO + 1)]
    assert later(search, *families) == [2 * MAX_EP_RATIO, 4]  # the best itself is known, and 1 has no experts to spread


def test_a_layout_must_be_faster_than_the_best():
    estimates = {4: BEST_PS, 8: BEST_PS - 1}
    assert later(Made(layout(2), lambda plain: estimates[plain.ep]), family(4), family(8)) == [8]


def test_layouts_that_cannot_run_or_fit_are_not_examined():
    search = Made(layout(16), lambda plain: BEST_PS - plain.ep)
    assert later(search, family(48), family(32, micro_batch=2), family(8)) == [8]
    assert [each.ep for each in search.examined] == [8]
    search.capacity = 0  # an unknown memory holds all
    assert later(search, family(32, micro_batch=2)) == [32]


def test_at_most_a_few_are_chosen_and_examined():
    chosen = later(Made(layout(24), lambda plain: BEST_PS - plain.ep), *(family(ep) for ep in range(2, 24, 2)))
    assert len(chosen) == min(NUM_LATER, MAX_EXAMINED)
    assert chosen == sorted(chosen, reverse=True)
    first = Made(layout(24), lambda plain: BEST_PS - plain.ep)

    def slow_after_a_look(plain: Layout) -> int:
        return BEST_PS if plain in first.examined else BEST_PS - plain.ep

    first.estimate_ps = slow_after_a_look
    assert later(first, *(family(ep) for ep in range(2, 24, 2))) == []
    assert len(first.examined) == MAX_EXAMINED


def test_switches_are_tried_on_the_best_layouts_whose_experts_are_spread():
    search, tried = Made(layout(2), lambda plain: BEST_PS), list[list[Layout]]()
    search._simulate_switched = tried.append  # type: ignore[method-assign, assignment]
    times = {1: 10, 8: 20, 4: 30}
    search.ranked = [Ranked(layout(ep), search.outcome(step_ps), 0) for ep, step_ps in times.items()]
    search._try_switches(())
    assert tried == [[layout(8)._replace(**SETTING)]]  # no switched layout is ranked, so that no other is tried
    search.ranked = search.ranked[:1]
    search._try_switches(())
    assert len(tried) == 1  # one layout, without experts on several ranks


def test_switches_are_tried_on_a_likely_layout_if_the_simulated_ones_spread_no_experts():
    search, tried = Made(layout(1), lambda plain: BEST_PS - plain.ep), list[list[Layout]]()
    search._simulate_switched = tried.append  # type: ignore[method-assign, assignment]
    search.ranked = [Ranked(layout(1), search.outcome(BEST_PS), 0)]
    search._try_switches([family(ep) for ep in (1, 4, 8, 16)])
    assert tried == [[layout(8)._replace(**SETTING)]]  # 16 ranks are more than a node has
    slower = Made(layout(1), lambda plain: BEST_PS)
    slower._simulate_switched = tried.append  # type: ignore[method-assign, assignment]
    slower.ranked = search.ranked
    slower._try_switches([family(8)])
    assert len(tried) == 1


@pytest.mark.parametrize(("screen", "capacity", "tight", "expected"), [
    (None, 80, True, True), ("screen", 80, True, False), ("screen", 80, False, True), ("screen", 0, True, True),
])  # fmt: skip
def test_a_screened_search_asks_the_screen_for_room(screen: Any, capacity: int, tight: bool, expected: bool):
    search: Any = ScreenedSearch.__new__(ScreenedSearch)
    search.screen, search.capacity = screen, capacity
    search._is_likely_tight = lambda plain: tight
    search.allocated = lambda plain: 80
    assert search._is_likely_to_fit(layout(8)) is expected


@pytest.mark.parametrize(("screen", "is_known", "calibrated"), [(None, False, 0), ("s", True, 0), ("s", False, 1)])
def test_an_unknown_form_is_calibrated_once_looked_at(screen: Any, is_known: bool, calibrated: int):
    search: Any = ScreenedSearch.__new__(ScreenedSearch)
    looked_at: list[Layout] = []
    search.screen = screen and SimpleNamespace(is_known=lambda plain: is_known)
    search._calibrate = looked_at.append
    search._examine(layout(8))
    assert len(looked_at) == calibrated


@pytest.mark.parametrize(("lower", "expected"), [(50, 70), (90, 90)])
def test_the_estimate_with_switches_is_without_exchanges_and_above_the_bound(lower: int, expected: int):
    search: Any = Made(layout(2), lambda plain: 0)
    search._time_bound = lambda plain, costs: 100
    search._exchanges_ps = lambda plain, costs: 30
    search._lower_bound = lambda plain, costs: lower if plain.expert_overlap else 0
    assert Search._switched_estimate(search, layout(8), SimpleNamespace()) == expected  # type: ignore[arg-type]
    assert Search._switched_estimate(search, layout(8), None) == 0


def test_exchanges_are_of_all_micro_batches_and_a_stages_layers():
    search = Made(layout(2), lambda plain: 0)
    search.micro_batches = lambda plain: 6  # type: ignore[method-assign]
    costs: Any = SimpleNamespace(exchange=5)
    assert Search._exchanges_ps(search, layout(8, pp=2), costs) == 6 * 4 * 5 // 2


def test_switched_layouts_are_counted_by_their_outcome():
    search = Made(layout(2), lambda plain: 0)
    outcomes = [search.outcome(5), search.outcome(6, fits=False), search.outcome(7, is_tight=True),
                search.outcome(8, refused="ep (why)"), search.outcome(4)]  # fmt: skip
    search.num_layouts = search.num_simulated = 0
    search.rejected, search.ranked, search.packed = Counter(), [], None  # type: ignore[assignment]
    search._lower_bound = lambda each, costs: 3  # type: ignore[method-assign, assignment]

    def submit(*_: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_result(outcomes[search.num_submitted])
        search.num_submitted += 1
        return future

    search.num_submitted, search.executor = 0, SimpleNamespace(submit=submit)  # type: ignore[attr-defined, assignment]
    search._simulate_switched([layout(ep) for ep in (2, 4, 8, 16, 32)])
    assert [each.layout.ep for each in search.ranked] == [32, 2]
    assert [each.layout.ep for each in search.tight] == [8]
    assert (search.num_layouts, search.num_simulated) == (5, 4)
    assert search.rejected[MEMORY_SIMULATED] == 1
    assert search.rejected["ep"] == 1


@pytest.mark.parametrize(
    ("changes", "expected"),
    [({}, False), ({"expert_overlap": True}, True), ({"shared_expert_overlap": True}, True), ({"dispatch": "x"}, True)],
)
def test_each_switch_counts(changes: dict[str, Any], expected: bool):
    assert has_switches(layout(4, **changes)) is expected


def test_a_layout_in_words_names_degrees_above_one():
    assert plan_words(trine.Plan(batch=8, micro_batch=2)) == "one GPU, micro-batch 2"
    assert plan_words(trine.Plan(dp=2, tp=4, batch=8)) == "dp 2 × tp 4"
