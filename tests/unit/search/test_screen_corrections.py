"""Corrections that stand in for those of forms without small jobs of their own."""

import dataclasses

import numpy as np
from test_report import LAYOUT

from trine.search.probe import LayerCosts
from trine.search.recurrence import StageMessages
from trine.search.screen import NO_CORRECTION, LayoutScreen, _step, form_of

KNOWN = LAYOUT._replace(pp=1, dp=8, tp=2, cp=1, sharding="zero1", offload="none", schedule=None, micro_batch=1)


def screen_with(*pairs):
    """Return a screen that took these pairs of layout and rho as calibrated."""
    screen = LayoutScreen(16, None, 64)
    for layout, rho in pairs:
        screen._take(layout, form_of(layout), NO_CORRECTION._replace(rho=rho, micro_batch=layout.micro_batch))
    return screen


def test_a_form_is_known_by_one_that_differs_in_micro_batch():
    screen = screen_with((KNOWN, 1.1))
    other = KNOWN._replace(micro_batch=4, dp=4)
    assert screen.is_known(other)
    assert screen.correction(other).rho == 1.1


def test_a_form_whose_layers_wait_is_known_only_at_the_same_micro_batch():
    gathers = KNOWN._replace(sharding="fsdp", micro_batch=8)
    screen = screen_with((gathers, 1.1))
    assert screen.is_known(gathers._replace(recompute="full"))
    assert screen.is_close(gathers._replace(micro_batch=1))
    assert not screen.is_known(gathers._replace(micro_batch=1))
    screen = screen_with((KNOWN._replace(offload="activations"), 1.1))
    assert not screen.is_known(KNOWN._replace(offload="activations", micro_batch=2))


def test_of_several_forms_the_least_contention_stands_for_an_unknown_one():
    screen = screen_with((KNOWN._replace(cp=4), 1.3), (KNOWN._replace(cp=2), 1.1), (KNOWN._replace(ep=2), 1.2))
    assert not screen.is_known(KNOWN)
    assert screen.correction(KNOWN).rho == 1.1
    assert screen.correction(KNOWN._replace(cp=4)).rho == 1.3


def test_waits_for_gathers_or_copies_are_not_those_of_another_form():
    gathers = KNOWN._replace(sharding="fsdp")
    copies = KNOWN._replace(offload="activations")
    screen = screen_with((gathers, 2.0), (copies, 3.0))
    assert screen.correction(KNOWN).rho == 1.0
    assert screen.correction(gathers._replace(cp=2)).rho == 2.0
    screen = screen_with((gathers, 2.0), (KNOWN._replace(cp=2), 1.2))
    assert screen.correction(copies).rho == 1.2


def test_the_contention_of_a_tp_degree_stands_for_another_schedule():
    screen = screen_with((KNOWN, 1.2))
    assert screen.correction(KNOWN._replace(pp=4, schedule="1f1b")).rho == 1.2
    assert screen.correction(KNOWN._replace(tp=4)).rho == 1.0


def test_waits_of_the_first_and_last_round_grow_with_virtual_stages():
    layout = KNOWN._replace(pp=2, dp=4, schedule="interleaved", virtual_stages=4)
    nothing = dict.fromkeys((each.name for each in dataclasses.fields(LayerCosts)), 0)
    costs = LayerCosts(**{**nothing, "forward_within": 10, "backward_within": 20, "resident": {}, "rest": {}})
    messages = StageMessages(np.zeros(2, np.int64), np.zeros(2, np.int64))
    use = NO_CORRECTION._replace(fill=-100.0, tail=1000.0, virtual_stages=2, fill_batches=4, layers=4)
    without = use._replace(fill=0.0)

    def step(stages, correction, micro_batches=4):
        return _step(
            layout._replace(virtual_stages=stages), micro_batches, costs, [1.0] * 2 * stages, correction, messages
        )

    assert step(2, use) == step(2, without)
    assert step(4, use) == step(4, without) - 100
    assert step(8, use) == step(8, without) - 300
    assert step(8, use, 16) == step(8, without, 16) - 75
    one = without._replace(virtual_stages=4)
    assert step(2, one._replace(fill=-100.0)) == step(2, one)  # fewer virtual stages than the small jobs: no guess
