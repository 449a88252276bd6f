"""Does tools/house.py find hidden import cycles and class names that repeat; is the house as pyproject.toml allows?"""

import importlib.util
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def tool():
    spec = importlib.util.spec_from_file_location("house", ROOT / "tools" / "house.py")
    found = importlib.util.module_from_spec(spec)
    sys.modules["house"] = found
    spec.loader.exec_module(found)
    yield found
    del sys.modules["house"]


def tree(folder, **files):
    for name, text in files.items():
        path = folder / f"{name.replace('__', '/')}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


LAZY = "def f():\n    from p.b import x\n    return x\n"
TYPES = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from .a import f\n"


def test_lazy_type_and_relative_imports_make_a_cycle(tool, tmp_path):
    house = tool.measure(tree(tmp_path, p__a=LAZY, p__b=TYPES, p__c="import p.a\n"))
    assert tool.cycles(house.imports) == [["p.a", "p.b"]]


def test_a_cycle_through_a_package_is_found_and_a_chain_is_none(tool, tmp_path):
    root = tree(tmp_path, p__c="from p import x\n", p__d="from p import c\n")
    (root / "p" / "__init__.py").write_text("from p.d import c\nx = 1\n")
    assert tool.cycles(tool.measure(root).imports) == [["p", "p.c", "p.d"]]
    assert tool.cycles({"a": {"b"}, "b": {"c"}, "c": set()}) == []


def test_public_class_names_may_not_repeat_and_private_ones_may(tool, tmp_path):
    twice = "class Part:\n    pass\n\nclass _Reader:\n    pass\n"
    house = tool.measure(tree(tmp_path, p__a=twice, p__b=twice, p__c="class Other:\n    pass\n"))
    assert house.shared_names() == {"Part": ["p.a", "p.b"]}
    figures = tool.limited(house, [])
    assert tool.above_limits(figures, figures) == []
    (wrong,) = tool.above_limits(figures, figures | {"shared_class_names": 0})
    assert wrong == "shared class names: 1, and pyproject.toml allows 0"


def test_lines_of_packages_are_counted_and_printed(tool, tmp_path):
    text = (
        'import os\n\n\ndef f(a,\n      b):\n    """Return what f says so.\n\n    More.\n    """\n    import sys\n\n'
        "    # a comment\n    def g():\n        return 1\n\n    return (\n        a + b\n    )\n"
    )
    house = tool.measure(tree(tmp_path, p__q__a=text, p__q__b="class A:\n    x = 1\n", p__c="x = 1\n"))
    assert house.packages["q"] == {
        "lines": 20,
        "logic": 4,
        "files": 2,
        "classes": 1,
        "hits": house.packages["q"]["hits"],
    }
    assert house.packages["p"]["lines"] == 1
    assert "  q: lines 20, logic 4, files 2, classes 1" in tool.package_lines(house)[-1]


def test_figures_of_functions(tool, tmp_path):
    text = "def f(a, b, c, d, e, f, *, g, h, i):\n    return 1\n\n\ndef g():\n    return 2\n"
    house = tool.measure(tree(tmp_path, p__a=text, cli__a=text))
    assert sorted(house.functions)[-1] == (2, "p.a.g")
    assert house.wide == ["cli.a.f", "p.a.f"]
    assert "functions 4, p50 2" in tool.report(house, [])


IDEAS = """# Why this file exists, before anything is defined.

A = 1


# A label.


# The second idea of this module.


def f():
    # A comment inside a function is no heading.

    return 1


# A comment that belongs to the next line is none either.
B = 2
# The third idea goes on

# Headings of several lines begin like this one,
# and count once.
C = 3
"""


def test_headings_of_second_ideas_are_found(tool, tmp_path):
    house = tool.measure(tree(tmp_path, p__a=IDEAS, p__b="A = 1\n\n# The end of a file can be a heading, too.\n"))
    assert house.ideas == {"p.a": [9, 22], "p.b": [3]}
    assert "files with a second idea below a heading 2" in tool.report(house, [])


PACKED = """def f(a, b):
    one = [x for x in a]
    two = [x for x in a if any(y for y in b)]
    if (n := len(a)) and (m := len(b)):
        return [x if x else n for x in a]
    for x in [y for y in b]:
        g = lambda z: z
    return sorted(a, key=lambda x: x) if b else m
"""


def test_packed_statements_are_counted_without_the_statements_inside(tool, tmp_path):
    house = tool.measure(tree(tmp_path, p__a=PACKED, p__b="x = 1\n" * 92))
    assert house.packed == {"p.a": [3, 4, 5, 8], "p.b": []}
    assert house.packed_per_1000() == 40
    assert "packed statements per 1,000 lines 40.0" in tool.report(house, [])


TUPLES = """from typing import Tuple


def two() -> tuple[int, str]: ...
def three() -> tuple[int, str, int]: ...
def many() -> tuple[int, ...]: ...
def nested() -> list[tuple[int, int, int]]: ...
def none(): ...


class A:
    async def four(self) -> tuple[int, int, int, dict[str, tuple[int, ...]]]: ...
"""


def test_functions_that_return_large_tuples_are_named(tool, tmp_path):
    house = tool.measure(tree(tmp_path, p__a=TUPLES))
    assert house.tuples == ["p.a.three", "p.a.four"]
    assert "functions that return tuples of 3 or more parts 2" in tool.report(house, [])


def test_dense_places_are_named(tool, tmp_path):
    house = tool.measure(tree(tmp_path, p__a=IDEAS, p__b=PACKED, p__c=TUPLES))
    assert tool.dense_places(house) == [
        "  second idea: p.a line 9",
        "  second idea: p.a line 22",
        "  packed: p.b lines 3, 4, 5, 8",
        "  tuple: p.c.three",
        "  tuple: p.c.four",
    ]


@pytest.mark.slow
def test_the_house_is_as_is_allowed(tool):
    """As make check asks in every make test."""
    allowed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["house"]
    house = tool.measure(ROOT / "src")
    assert tool.above_limits(tool.limited(house, tool.cycles(house.imports)), allowed) == []


def test_a_name_that_a_module_defines_twice_is_found(tool, tmp_path):
    text = "A, B = 1, 2\ndef f():\n    return B\n\n\nC: int = 3\nB = 4\n"
    assert tool.measure(tree(tmp_path, a=text, b="X = 1\ndef f():\n    X = 2\n")).rebound == ["a.B is defined twice"]
