"""The areas of the mutation run cover the source, and no pattern has lost its files."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]

SPEC = importlib.util.spec_from_file_location("areas", ROOT / "tests" / "mutation" / "areas.py")
assert SPEC is not None
assert SPEC.loader is not None
areas = importlib.util.module_from_spec(SPEC)
sys.modules["areas"] = areas
SPEC.loader.exec_module(areas)


@pytest.mark.parametrize("name", sorted(areas.AREAS))
def test_every_pattern_of_an_area_has_files(name):
    area = areas.AREAS[name]
    assert area.source_files()
    assert area.test_files()


def test_every_file_of_the_source_belongs_to_an_area():
    covered = {path for area in areas.AREAS.values() for path in area.source_files()}
    files = {path for path in areas.SOURCE.rglob("*.py") if path.name != "__init__.py"}
    assert sorted(map(str, files - covered)) == []


def test_a_pattern_without_files_is_an_error():
    with pytest.raises(ValueError, match=r"src/trine matches 'no_such_folder/\*\.py'"):
        areas.Area(("no_such_folder/*.py",), ("unit/search/*",)).source_files()


@pytest.mark.slow
def test_a_change_that_its_tests_ask_about_is_killed(tmp_path):
    """The run itself finds the changed function, although the tests' collection freezes all objects."""
    tool = ROOT / "tests" / "mutation" / "mutate.py"
    choose = f"""
import ast, json, sys
sys.path.insert(0, {str(tool.parent)!r})
from mutate import SOURCE, changes, mutated
path = SOURCE / "workload" / "pytorch" / "communication.py"
text = path.read_text()
for index, (node, _, _, function) in enumerate(changes(ast.parse(text))):
    if function == "total" and ast.unparse(node) == "size is None":
        after = ast.unparse(mutated(text, index)[2])
        print(json.dumps({{"path": "workload/pytorch/communication.py", "index": index, "line": node.lineno,
                          "function": function, "before": "size is None", "after": after}}))
"""
    chosen = subprocess.run([sys.executable, "-c", choose], capture_output=True, text=True, check=True).stdout
    assert chosen.count("\n") == 1
    (tmp_path / "recorded-collectives.jsonl").write_text(chosen)
    command = [sys.executable, str(tool), "--area", "recorded-collectives", "--again", "--out", str(tmp_path)]
    done = subprocess.run([*command, "--tests", "test_trace_distributed"], capture_output=True, text=True, check=True)
    assert "recorded-collectives: 1 of 1 killed" in done.stdout
