"""Does make test try fewer examples, and make test-slow all; and is no case of a thinned test asked by neither?

Does it state why it skips a test, and does CI run the tests that need torch?
"""

import ast
import re
import tomllib
from pathlib import Path
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


ROOT = Path(__file__).parents[3]
#: Calls that leave a test out, and the number of arguments that precede the reason.
LEAVE_OUT = {
    "pytest.skip": 0,
    "pytest.xfail": 0,
    "pytest.mark.skip": 0,
    "pytest.mark.skipif": 1,
    "pytest.mark.xfail": 1,
}


def without_reason(text):
    """Return the lines of skips and xfails in a file that state no reason."""
    if not re.search(r"pytest\.(?:mark\.)?(?:skip|xfail)", text):
        return []
    tree = ast.parse(text)
    calls = {id(node.func): node for node in ast.walk(tree) if isinstance(node, ast.Call)}
    lines = []
    for node in ast.walk(tree):
        if not isinstance(node, ast.Attribute) or node.attr not in ("skip", "skipif", "xfail"):
            continue
        place = LEAVE_OUT.get(ast.unparse(node))
        if place is None:
            continue
        call = calls.get(id(node))
        has_name = call is not None and any(keyword.arg == "reason" for keyword in call.keywords)
        if not has_name and (call is None or len(call.args) <= place):
            lines.append(node.lineno)
    return sorted(lines)


def test_a_skip_without_a_reason_is_noticed():
    text = "import pytest\npytest.skip()\n@pytest.mark.skip\ndef test(): pytest.skip('no g++')\n"
    assert without_reason(text) == [2, 3]
    assert without_reason("pytest.mark.skipif(True)\npytest.mark.xfail(strict=True)\n") == [1, 2]
    assert without_reason("pytest.mark.skipif(True, reason='x')\npytest.xfail(f'{1}')\n") == []


def test_every_skip_and_xfail_states_its_reason_and_make_test_prints_it():
    silent = {
        str(path.relative_to(ROOT)): lines
        for path in (ROOT / "tests").rglob("*.py")
        if (lines := without_reason(path.read_text(encoding="utf-8")))
    }
    assert silent == {}
    options = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["pytest"]["ini_options"]["addopts"]
    assert "-rsx" in options.split()


def test_ci_does_not_run_without_torch():
    conftest.check_required(["pytest"])
    with pytest.raises(pytest.UsageError, match="no_such_package, which is not installed"):
        conftest.check_required(["pytest", "no_such_package"])
    commands = (ROOT / ".ci/run").read_text().splitlines()
    required = next(i for i, line in enumerate(commands) if line.startswith("export TRINE_REQUIRE=torch"))
    assert any("pip install" in line and "torch==" in line for line in commands[:required])
    assert [line for line in commands[required:] if line.startswith("make")] == ["make test", "make test-slow"]
