"""Do fixed costs of a profile's software run as often, and reduce over as many axes, as the profile says?"""

from collections import Counter

import pytest

import trine
from trine.graph.program import Collective, Compute, Phase
from trine.parallel.build import build_job
from trine.parallel.plan import Plan
from trine.software.profile import FixedCost, Software, usual_software

COSTS = [
    FixedCost(name="join", when="micro-batch", gradient_passes=1),
    FixedCost(name="norm", gradient_passes=1, all_reduces=2, axis="world"),
    FixedCost(name="inside", gradient_passes=1, all_reduces=1, axis="model"),
    FixedCost(name="loss", all_reduces=1, axis="dp"),
]


def programs(costs=COSTS, **plan):
    software = Software(name="of a test", description="Numbers of a test.", step=costs)
    workload = trine.synthesize("gpt-2-medium", layers=2, sequence=64, batch=4, software=software)
    job, _ = build_job(workload, Plan(**plan).filled(), trine.compute.make_compute("auto", workload))
    names = {i: op.attributes["cost"] for i, op in enumerate(workload.operators) if "cost" in op.attributes}
    return job.programs, names


@pytest.mark.parametrize(
    ("plan", "axes"),
    [
        ({"tp": 2, "dp": 2, "micro_batch": 1}, {"norm": ("tp", "dp"), "inside": ("tp",), "loss": ("dp",)}),
        ({"tp": 2, "micro_batch": 2}, {"norm": ("tp",), "inside": ("tp",)}),
        ({"dp": 4, "micro_batch": 4}, {"norm": ("dp",), "loss": ("dp",)}),
        ({"pp": 2, "dp": 2, "micro_batch": 1, "schedule": "1f1b"},
         {"norm": ("pp", "dp"), "inside": ("pp",), "loss": ("dp",)}),
        ({"pp": 2, "dp": 2, "micro_batch": 1, "schedule": "zb-h1"},
         {"norm": ("pp", "dp"), "inside": ("pp",), "loss": ("dp",)}),
    ],
)  # fmt: skip
def test_each_cost_runs_and_reduces_as_often_as_the_profile_says(plan, axes):
    found, names = programs(**plan)
    for program in found:
        ran = Counter(
            names[step.label.operator]
            for step in program.steps
            if isinstance(step, Compute) and step.label.phase == Phase.OPTIMIZER and step.label.operator in names
        )
        assert ran == {"join": 4 // plan["micro_batch"], "norm": 1, "inside": 1, "loss": 1}
        reduced = Counter(
            (step.key[1], step.axis)
            for step in program.steps
            if isinstance(step, Collective) and isinstance(step.key, tuple) and step.key[0] == "cost"
        )
        times = {"norm": 2, "inside": 1, "loss": 1}
        assert reduced == {(name, axis): times[name] for name, each_axis in axes.items() for axis in each_axis}


def test_a_profile_without_costs_reduces_nothing():
    found, names = programs(costs=[], dp=2, micro_batch=2)
    assert not names
    assert not [
        step for program in found for step in program.steps
        if isinstance(step, Collective) and isinstance(step.key, tuple) and step.key[0] == "cost"
    ]  # fmt: skip


def test_the_vendor_decides_the_usual_software():
    """The profiles of both vendors are the same today; their reasons are not."""
    rules = usual_software()
    for workload in ("transformer", "other"):
        for vendor in ("nvidia", "amd"):
            rule = rules.rule_for(workload, vendor)
            assert (rule.workload, rule.vendor) == (workload, vendor)
        assert rules.rule_for(workload, "of nobody").vendor == "nvidia"
