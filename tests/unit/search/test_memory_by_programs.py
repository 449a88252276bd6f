"""The memory verdict of a layout from its programs, against that of its simulation."""

import pytest

from trine.cluster import load_cluster
from trine.parallel.constraints import LayoutFacts
from trine.parallel.plan import Plan
from trine.search.space import Layout, Space
from trine.search.worker import PackedJob, SearchJob, memory_verdict_of, simulate_layout
from trine.training.options import SimulateOptions
from trine.training.setup import setup_machine, setup_workload

PLAIN = Layout(
    dp=8, tp=1, pp=1, cp=1, ep=1, etp=None, sharding="zero1", shard_ways=None, schedule=None, virtual_stages=1,
    micro_batch=1, sequence_parallel=None, recompute="none", offload="none",
)  # fmt: skip
LAYOUTS = {
    "replicas": PLAIN,
    "fsdp, two samples": PLAIN._replace(sharding="fsdp", micro_batch=2),
    "pipeline": PLAIN._replace(dp=2, pp=4, schedule="1f1b", recompute="selective"),
    "virtual stages": PLAIN._replace(dp=4, pp=2, schedule="interleaved", virtual_stages=2),
    "host optimizer": PLAIN._replace(dp=4, tp=2, sequence_parallel=True, offload="optimizer"),
    "host activations": PLAIN._replace(offload="activations"),
}


@pytest.fixture(scope="module")
def job():
    """Return a packed job on 8 GPUs and its space."""
    options = SimulateOptions(cluster=load_cluster("dgx-h100", gpus=8), compare=False)
    model = "model:llama-3.2-1b,layers=8,sequence=1024"
    workload, chosen = setup_workload(model, setup_machine(Plan(dp=8), options), options)
    space = Space(8, 64, LayoutFacts(workload), chosen.profile, {})
    return PackedJob(SearchJob(workload=workload, options=options, gpus=8)), space


@pytest.mark.parametrize("name", LAYOUTS)
def test_programs_give_the_verdict_of_the_simulation(job, name):
    packed, space = job
    plan = space.plan(LAYOUTS[name])
    outcome = simulate_layout(packed, plan)
    assert not outcome.refused
    needed = outcome.memory_bytes
    assert memory_verdict_of(packed, plan, int(0.99 * needed)) == "does not fit"
    assert memory_verdict_of(packed, plan, int(1.01 * needed)) == "tight"
    assert memory_verdict_of(packed, plan, 2 * needed) == "fits"


def test_a_layout_without_a_program_has_no_verdict(job):
    packed, space = job
    assert memory_verdict_of(packed, space.plan(PLAIN._replace(dp=1, pp=8, schedule="interleaved")), 2**30) == ""
