"""Are the rates of the network models the right ones in cases that fit on paper?"""

import pytest

from trine.engine._limits import MAX_PS, MAX_WHOLE
from trine.engine.models import BUILT_IN, EqualSplit, FairSharing, network_model
from trine.errors import InputError


@pytest.mark.parametrize(
    ("routes", "capacity", "fair", "equal"),
    [
        ([], [8], [], []),
        ([[0]], [8], [8], [8]),
        ([[0], [0]], [8], [4, 4], [4, 4]),
        ([[0, 1], [0]], [8, 2], [2, 6], [2, 4]),
        ([[0, 1, 2], [0], [1], [2]], [10, 4, 6], [2, 8, 2, 4], [2, 5, 2, 3]),
        ([[0], [1]], [3, 5], [3, 5], [3, 5]),
        ([[0, 0]], [8], [4], [4]),
    ],
)
def test_rates(routes, capacity, fair, equal):
    assert FairSharing().rates(routes, capacity) == fair
    assert EqualSplit().rates(routes, capacity) == equal


def test_names():
    assert {name: network_model(name).name for name in BUILT_IN} == {
        "fair": "fair",
        "equal": "equal",
        "fifo": "fifo",
        "circuit": "circuit",
    }
    model = FairSharing()
    assert network_model(model) is model
    with pytest.raises(InputError, match="did you mean 'equal'"):
        network_model("equals")


def test_every_built_in_model_is_compiled_too():
    from trine.engine._state import MODELS

    assert sorted(MODELS) == sorted(BUILT_IN)


def test_limits_keep_the_exact_division_within_int64():
    assert MAX_PS < 2**63
    assert (MAX_WHOLE - 1) * 1000 < 2**63
    assert float(MAX_WHOLE) == MAX_WHOLE
