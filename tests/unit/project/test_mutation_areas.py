"""The areas of the mutation run cover the source, and no pattern has lost its files."""

import importlib.util
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
