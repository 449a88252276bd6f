"""Are folded runs equal to unfolded ones, to the picosecond, for every task of every rank?

The unfolded graph is made by parallel/instantiate.py, which shares no code with folding. More examples, for those who
have time, and other ones each time: TRINE_FOLD_EXAMPLES=2000.
"""

from __future__ import annotations

import os
from random import Random

import pytest
from folded_cases import private_case, random_case, reckless
from hypothesis import given, settings
from hypothesis import strategies as st

EXAMPLES = int(os.environ.get("TRINE_FOLD_EXAMPLES", "18"))
FIXED = "TRINE_FOLD_EXAMPLES" not in os.environ
seeds = st.integers(0, 2**32)


@given(seed=seeds)
@settings(max_examples=EXAMPLES, deadline=None, derandomize=FIXED)
def test_random_jobs_on_random_machines(seed: int) -> None:
    random_case(seed).run(fold="verify")


@given(seed=seeds)
@settings(max_examples=EXAMPLES, deadline=None, derandomize=FIXED)
def test_stopped_and_cut_wherever_that_is_possible(seed: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        reckless(Random(seed), patch)
        random_case(seed, most=32).run(fold="verify")


@given(seed=seeds)
@settings(max_examples=max(4, EXAMPLES // 3), deadline=None, derandomize=FIXED)
def test_in_plain_python_too(seed: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        reckless(Random(seed), patch)
        random_case(seed, most=6).run(fold="verify", engine="reference")


@given(seed=seeds)
@settings(max_examples=EXAMPLES, deadline=None, derandomize=FIXED)
def test_queues_where_every_link_is_one_routes_own(seed: int) -> None:
    private_case(seed).run(fold="verify", network="fifo")
