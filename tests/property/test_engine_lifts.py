"""Is a folded run, of one task a class, the run of all tasks to the picosecond?"""

import numpy as np
import pytest
from engine_lifts import random_lift
from hypothesis import given, settings
from hypothesis import strategies as st

from trine.collectives.run import link_bytes
from trine.engine.run import run

seeds = st.integers(0, 2**32)


def assert_same(lift, network, engine):
    folded = run(lift.folded, network=network, engine=engine)
    unfolded = run(lift.unfolded, network=network, engine=engine)
    for field in ("ready_ps", "start_ps", "end_ps"):
        expected = getattr(folded, field)[lift.task_class]
        np.testing.assert_array_equal(getattr(unfolded, field), expected, err_msg=field)


@pytest.mark.parametrize("network", ["fair", "equal"])
@given(seed=seeds, num_links=st.integers(1, 8), pressed=st.booleans(), capped=st.booleans())
@settings(max_examples=120, deadline=None)
def test_folded_is_unfolded(network, seed, num_links, pressed, capped):
    lift = random_lift(np.random.default_rng(seed), 40, num_links, pressed=pressed, capped=capped)
    assert_same(lift, network, "compiled")


@pytest.mark.parametrize("network", ["fair", "equal"])
@given(seed=seeds, pressed=st.booleans(), capped=st.booleans())
@settings(max_examples=16, deadline=None)
def test_in_plain_python_too(network, seed, pressed, capped):
    lift = random_lift(np.random.default_rng(seed), 16, 4, pressed=pressed, capped=capped)
    assert_same(lift, network, "reference")
    folded = [run(lift.folded, network=network, engine=engine).end_ps for engine in ("compiled", "reference")]
    np.testing.assert_array_equal(*folded)


@given(seed=seeds)
@settings(max_examples=20, deadline=None)
def test_a_link_of_a_class_carries_what_each_of_its_links_does(seed):
    lift = random_lift(np.random.default_rng(seed), 30, 5)
    for route in range(len(lift.folded.route_latency_ps)):
        first, last = lift.folded.route_ptr[route : route + 2]
        assert len(set(lift.folded.route_links[first:last])) == last - first
    folded, unfolded = link_bytes(lift.folded), link_bytes(lift.unfolded)
    assert set(unfolded.tolist()) == set(folded.tolist())
