"""Does an answer state the load of the busiest rank of experts, and nothing where all ranks get the same?"""

from __future__ import annotations

import pytest

import trine
from trine.common.evidence import EXPERT_LOAD

MODEL = "model:mixtral-8x7b,layers=1,sequence=512"


def stated(**plan: object) -> list[str]:
    layout = trine.Plan(dp=4, batch=1, **plan)  # type: ignore[arg-type]
    result = trine.simulate(MODEL, layout, cluster="dgx-h100", compare=False)
    return [row.detail for row in result.evidence if row.what == EXPERT_LOAD]


def test_uneven_experts_are_stated_with_their_cause():
    (detail,) = stated(ep=4, expert_imbalance="zipf:1")
    assert detail.startswith("zipf:1: ")


@pytest.mark.parametrize("plan", [{"ep": 4}, {"ep": 1}], ids=["even", "not spread"])
def test_even_experts_are_not_stated(plan: dict[str, int]):
    assert stated(**plan) == []
