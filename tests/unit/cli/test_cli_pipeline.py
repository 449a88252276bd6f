"""Do the pipeline options of ``trine train`` reach the plan, and are those that cannot matter refused?"""

import pytest

from trine.cli.layout import LayoutOptions, plan_from
from trine.cli.parameters import given
from trine.errors import PlanError
from trine.parallel.plan import Plan


def test_options_reach_the_plan():
    plan = plan_from(
        LayoutOptions(),
        given(
            Plan, pp=2, dp=2, batch=8, micro_batch=1, schedule="Interleaved", virtual_stages=2, balance="layers",
            recompute="full", recompute_layers=1, sync="each",
        ),
    )  # fmt: skip
    assert (plan.schedule, plan.virtual_stages, plan.balance) == ("interleaved", 2, "layers")
    assert (plan.recompute, plan.recompute_layers, plan.sync) == ("full", 1, "each")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"dp": 2, "virtual_stages": 2}, "--virtual-stages needs a pipeline: add --pp N"),
        ({"dp": 2, "balance": "layers"}, "--balance needs a pipeline: add --pp N"),
        ({"pp": 2, "sync": "each"}, "sync needs replicas"),
        ({"pp": 2, "recompute_layers": 1}, "recompute_layers is about full recomputation"),
        ({"pp": 2, "schedule": "interleave"}, "did you mean 'interleaved'"),
        ({"pp": 2, "recompute": "selectiv"}, "did you mean 'selective'"),
    ],
)
def test_options_that_cannot_matter_are_refused(options, says):
    with pytest.raises(PlanError, match=says):
        plan_from(LayoutOptions(), given(Plan, **options))
