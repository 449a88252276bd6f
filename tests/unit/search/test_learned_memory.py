"""A search learns from a simulated layout how far the screen's memory was too low."""

import pytest

from trine.cluster import load_cluster
from trine.common.processes import SerialExecutor
from trine.parallel.constraints import LayoutFacts
from trine.parallel.plan import Plan
from trine.search.plan import memory_of
from trine.search.screened import MAX_MEMORY_LOW, ScreenedSearch
from trine.search.search import form_of_layer
from trine.search.space import Space
from trine.search.worker import Outcome, PackedJob, SearchJob
from trine.training.options import SimulateOptions
from trine.training.setup import setup_machine, setup_workload

GPUS = 4


@pytest.fixture
def search():
    """Return a search that has calibrated a layout on one stage, and one of two stages; and both layouts."""
    options = SimulateOptions(cluster=load_cluster("dgx-h100", gpus=GPUS), compare=False)
    machine = setup_machine(Plan(dp=GPUS), options)
    workload, chosen = setup_workload("model:llama-3.2-1b,layers=4,sequence=1024", machine, options)
    fixed = {"cp": 1, "tp": 1, "micro_batch": 1, "recompute": "none", "sharding": "zero1", "offload": "none"}
    space = Space(GPUS, 16, LayoutFacts(workload), chosen.profile, fixed)
    packed = PackedJob(SearchJob(workload=workload, options=options, gpus=GPUS))
    search = ScreenedSearch(packed, space, memory_of(machine), SerialExecutor(), 1)
    search.estimate_all(1)
    layouts = {layout.pp: layout for family in space.families() for layout in family.layouts()
               if not space.reason(layout) and layout.virtual_stages == 1 and layout.pp < 4}  # fmt: skip
    for layout in layouts.values():
        search._calibrate(layout)
    return search, layouts[1], layouts[2]


def simulated(memory_bytes):
    return Outcome(step_ps=1, memory_bytes=int(memory_bytes))


def test_a_memory_above_the_estimate_raises_later_estimates_of_the_same_kind(search):
    search, alone, staged = search
    before = search._needed(alone), search._needed(staged)
    assert min(before) > 0
    search._learn_memory(alone, simulated(1.02 * before[0]))
    assert search._needed(alone) == pytest.approx(1.02 * before[0], rel=1e-6)
    assert search._needed(staged) == before[1]


def test_a_memory_below_the_estimate_changes_nothing(search):
    search, alone, _ = search
    before = search._needed(alone)
    search._learn_memory(alone, simulated(0.9 * before))
    assert search._needed(alone) == before


def test_one_layout_raises_others_by_a_limited_factor(search):
    search, alone, _ = search
    before = search._needed(alone)
    search._learn_memory(alone, simulated(2 * before))
    assert search._needed(alone) == pytest.approx(MAX_MEMORY_LOW * before, rel=1e-6)


def test_likely_time_of_a_calibrated_layout_is_the_screens_recurrence(search):
    search, one, _ = search
    costs = search._likely.of(form_of_layer(one))
    stages = search.likely_stages(one, costs)
    likely_ps = search._time_bound(one, costs)
    assert likely_ps == search.screen.step_ps(one, search.micro_batches(one), costs, stages) > 0
    assert search._time_bound(one, None) == 0
