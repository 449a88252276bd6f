"""Layouts whose weights alone exceed the memory are rejected without a measurement of their form."""

import itertools

import pytest

from trine.cluster import load_cluster
from trine.parallel.constraints import LayoutFacts
from trine.parallel.plan import Plan
from trine.search.screened import ScreenedSearch
from trine.search.search import MEMORY, Entry, Search, form_of_layer, workers
from trine.search.space import Space
from trine.search.worker import PackedJob, SearchJob, simulate_layout
from trine.training.options import SimulateOptions
from trine.training.setup import setup_machine, setup_workload


def search_of(model, capacity_bytes, executor, software="megatron-core", kind=Search):
    """Return a search of a model on 8 GPUs that has not begun, and its layouts by the rules."""
    options = SimulateOptions(cluster=load_cluster("dgx-h100", gpus=8), software=software, compare=False)
    machine = setup_machine(Plan(dp=8), options)
    workload, chosen = setup_workload(model, machine, options)
    space = Space(8, 16, LayoutFacts(workload), chosen.profile, {"cp": 1})
    job = SearchJob(workload=workload, options=options, gpus=8)
    search = kind(PackedJob(job), space, capacity_bytes, executor, 1)
    layouts = [layout for family in space.families() for layout in family.layouts() if not space.reason(layout)]
    return search, [each for layout in layouts for each in (layout, *space.offloading(layout))]


@pytest.mark.parametrize("model", ["model:llama-3.2-1b,layers=4,sequence=1024", "model:mixtral-8x7b,layers=4"])
def test_the_bound_without_activations_is_below_that_of_each_form(model):
    with workers(None, 1, None) as executor:
        search, layouts = search_of(model, 1, executor)
        chosen = layouts[:: max(1, len(layouts) // 60)]
        search.measure(chosen)
        for layout in chosen:
            if search.cost(layout) is None:
                continue
            search.capacity = search.allocated(layout)
            assert search.may_fit(layout), layout


def test_a_layout_that_cannot_fit_is_rejected_without_a_measurement():
    with workers(None, 1, None) as executor:
        search, layouts = search_of("model:llama-3.2-1b,layers=4,sequence=1024", 2**30, executor)
        first = layouts[0]
        search.measure([first])
        pairs = itertools.product(("selective", "full"), (1, 2))
        others = [first._replace(recompute=recompute, micro_batch=size) for recompute, size in pairs]
        for other in others:
            assert not search.may_fit(other)
            search.refine(Entry(0, other.key, 1, other))
            assert form_of_layer(other) not in search.costs
        assert search.rejected[MEMORY] == len(others)


@pytest.mark.parametrize("model", ["model:llama-3.2-1b,layers=4,sequence=1024", "model:mixtral-8x7b,layers=4"])
def test_the_activations_of_other_micro_batches_reject_no_layout_that_may_fit(model):
    with workers(None, 1, None) as executor:
        all_known, layouts = search_of(model, 1, executor)
        search, _ = search_of(model, 1, executor, kind=ScreenedSearch)
        search.estimates = True
        search._begin(search.space.families())
        chosen = [each for each in layouts if each.micro_batch > 1][:: max(1, len(layouts) // 40)]
        assert any(form_of_layer(each) not in search.costs for each in chosen)
        num_rejected = 0
        for layout in chosen:
            if all_known.cost(layout) is None:
                continue
            search.capacity = all_known.allocated(layout)
            assert search.may_fit(layout), layout
            search.capacity = search.capacity // 2
            num_rejected += not search.may_fit(layout)
        assert num_rejected > 0


def test_the_power_of_a_layout_is_there_only_if_asked_for():
    with workers(None, 1, None) as executor:
        search, layouts = search_of("model:llama-3.2-1b,layers=4,sequence=1024", 0, executor)
    plan, job = search.space.plan(layouts[0]), search.job
    powers = [simulate_layout(PackedJob(SearchJob(workload=job.workload, options=job.options, gpus=8, with_power=each)),
                              plan).mean_w for each in (False, True)]  # fmt: skip
    assert powers[0] is None
    assert 8 * 100 < powers[1] < 8 * 700
