"""Costs of a layer that no probe has measured, next to the measured ones."""

import pytest

from trine.cluster import load_cluster
from trine.parallel.constraints import LayoutFacts
from trine.parallel.plan import Plan
from trine.search.likely_costs import LEAST_PER_SAMPLE, LikelyCosts
from trine.search.search import form_of_layer
from trine.search.space import Space
from trine.search.worker import SearchJob
from trine.training.options import SimulateOptions
from trine.training.setup import setup_machine, setup_workload

GPUS, BATCH = 8, 64
TIMES = ("forward", "backward", "forward_alone", "backward_alone", "last")


@pytest.fixture(scope="module")
def measured():
    """Return layouts and costs of all micro-batches of one form, by form."""
    options = SimulateOptions(cluster=load_cluster("dgx-h100", gpus=GPUS), compare=False)
    workload, chosen = setup_workload("model:llama-3.2-1b", setup_machine(Plan(dp=GPUS), options), options)
    space = Space(GPUS, BATCH, LayoutFacts(workload), chosen.profile, {"tp": 2, "pp": 1, "cp": 1, "ep": 1})
    layouts = {form_of_layer(family.layout): family.layout for family in space.families()}
    layouts = {form: layout for form, layout in layouts.items() if layout.sequence_parallel}
    probe = SearchJob(workload=workload, options=options, gpus=GPUS).probe
    return layouts, {form: probe.costs(space.plan(layout)) for form, layout in layouts.items()}


def sizes_of(layouts):
    return sorted(layouts, key=lambda form: layouts[form].micro_batch)


def test_the_smallest_micro_batch_is_measured_first_then_the_largest_then_its_own(measured):
    layouts, costs = measured
    small, middle, *_, large = sizes_of(layouts)
    known = {}
    likely = LikelyCosts(layouts, known)
    assert likely.of(middle) is None
    assert likely.smallest() == [layouts[small]]
    known[small] = costs[small]
    assert likely.next_probe(middle) == layouts[large]
    known[large] = costs[large]
    assert likely.next_probe(middle) == layouts[middle]
    known[middle] = costs[middle]
    assert likely.of(middle) is costs[middle]


def test_a_guess_from_the_smallest_micro_batch_is_rather_too_fast(measured):
    layouts, costs = measured
    small, *others = sizes_of(layouts)
    likely = LikelyCosts(layouts, {small: costs[small]})
    for form in others:
        guess, true = likely.of(form), costs[form]
        assert guess.forward + guess.backward <= 1.02 * (true.forward + true.backward)
        assert guess.kept == true.kept
        assert guess.message == true.message
        assert guess.resident == true.resident


def test_a_guess_between_two_micro_batches_is_close_and_rather_too_fast(measured):
    layouts, costs = measured
    small, *between, large = sizes_of(layouts)
    likely = LikelyCosts(layouts, {small: costs[small], large: costs[large]})
    assert between
    for form in between:
        guess, true = likely.of(form), costs[form]
        for name in TIMES:
            assert 0.75 * getattr(true, name) <= getattr(guess, name) <= 1.03 * getattr(true, name), name
        assert guess.kept == true.kept


def test_a_guess_is_renewed_by_each_probe(measured):
    layouts, costs = measured
    small, middle, *_, large = sizes_of(layouts)
    known = {small: costs[small]}
    likely = LikelyCosts(layouts, known)
    ratio = layouts[middle].micro_batch / layouts[small].micro_batch
    first = likely.of(middle)
    assert first.forward == max(costs[small].forward, int(costs[small].forward * ratio * LEAST_PER_SAMPLE))
    known[large] = costs[large]
    assert likely.of(middle).forward > first.forward
    assert likely.of(middle) is likely.of(middle)


def test_a_guess_is_close_between_two_measured_micro_batches(measured):
    layouts, costs = measured
    small, middle, *_, large = sizes_of(layouts)
    known = {small: costs[small]}
    likely = LikelyCosts(layouts, known)
    assert likely.is_close(small)
    assert not likely.is_close(middle)
    known[large] = costs[large]
    assert likely.is_close(middle)
    guess, true = likely.of(middle), costs[middle]
    assert guess.forward + guess.backward == pytest.approx(true.forward + true.backward, rel=0.25)
    known[large] = None  # no program of it could be written
    assert not likely.is_close(middle)
