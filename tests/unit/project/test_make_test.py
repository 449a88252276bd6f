"""Does make test try fewer examples, and make test-slow all; and is no case of a thinned test asked by neither?"""

from types import SimpleNamespace

import conftest
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

TRIED = []


@given(st.integers())
@settings(max_examples=80, deadline=None, database=None)
def test_some_property(number):
    TRIED.append(number)


def test_examples_are_as_many_as_asked_for_or_fewer():
    TRIED.clear()
    test_some_property()
    assert len(TRIED) == (80 if conftest.IS_FULL else 80 // conftest.ONE_IN)


class Item(SimpleNamespace):
    def add_marker(self, mark):
        self.marks.append(mark.name)


@pytest.mark.parametrize("is_full", [False, True])
@pytest.mark.parametrize(("keep", "left"), [(0, []), (1, range(12)), (4, [0, 5, 10]), (5, [0, 6])])
def test_cases_left_out_are_slow_or_thinned(monkeypatch, is_full, keep, left):
    monkeypatch.setattr(conftest, "THINNED", {"unit/test_x.py": {"test_y": keep}})
    monkeypatch.setattr(conftest, "IS_FULL", is_full)
    items = [Item(nodeid=f"tests/unit/test_x.py::test_y[{each}]", marks=[], obj=None) for each in range(12)]
    conftest.pytest_collection_modifyitems(SimpleNamespace(args=["a::b"]), items)
    assert [number for number, item in enumerate(items) if not item.marks] == list(left)
    assert {mark for item in items for mark in item.marks} <= {"thinned" if is_full else "slow"}


def test_a_name_that_is_gone_is_an_error(monkeypatch):
    monkeypatch.setattr(conftest, "THINNED", {"unit/project/test_make_test.py": {"test_of_old": 3}})
    with pytest.raises(pytest.UsageError, match="test_of_old"):
        conftest.check_names({("unit/project/test_make_test.py", "test_some_property"): []})
    monkeypatch.setattr(conftest, "THINNED", {"unit/test_gone.py": 0})
    with pytest.raises(pytest.UsageError, match="test_gone"):
        conftest.check_names({})
