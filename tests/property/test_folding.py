"""Are folded runs equal to unfolded ones, to the picosecond, for every task of every rank?"""

from __future__ import annotations

import os

import pytest
from folded_cases import Case, cases
from hypothesis import given, settings

import trine.folding.episodes as episodes

#: More examples, for those who have time: TRINE_FOLD_EXAMPLES=2000.
EXAMPLES = int(os.environ.get("TRINE_FOLD_EXAMPLES", "25"))


@given(case=cases())
@settings(max_examples=EXAMPLES, deadline=None)
def test_random_jobs_on_random_machines(case: Case) -> None:
    case.run(fold="verify")


@given(case=cases())
@settings(max_examples=EXAMPLES, deadline=None)
def test_stopped_whenever_that_is_possible(case: Case) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(episodes, "MANY_TASKS", 0)
        patch.setattr(episodes, "WORTH_A_STOP", 2.0)
        patch.setattr(episodes, "RUN_TASKS", 1)
        case.run(fold="verify")
