"""Does the project state the lowest versions of its dependencies, and none with a known vulnerability?"""

from __future__ import annotations

import importlib.util
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[3]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
#: Package -> versions with a known vulnerability, and the first ones without it (CVE-2025-4565, -32434; 2026-23528).
VULNERABLE = {
    "protobuf": (("5.0", "5.29.4", "6.30.0", "6.30.2", "6.31.0"), ("5.29.5", "6.31.1", "7.0.0")),
    "torch": (("2.4.0", "2.5.1"), ("2.8.0",)),
    "distributed": (("2024.8.0", "2025.12.0"), ("2026.1.0",)),
}


def requirements():
    """Return every requirement of the project."""
    return [
        Requirement(each) for each in (*PROJECT["dependencies"], *(each for extra in EXTRAS.values() for each in extra))
    ]


@pytest.mark.parametrize("package", VULNERABLE)
def test_vulnerable_versions_are_excluded(package):
    wrong, right = VULNERABLE[package]
    found = [each for each in requirements() if each.name == package]
    assert found
    for each in found:
        assert not [version for version in wrong if version in each.specifier]
        assert all(version in each.specifier for version in right)


def test_every_dependency_of_an_answer_states_its_lowest_version():
    spec = importlib.util.spec_from_file_location("lowest", ROOT / "tools" / "lowest.py")
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    extras = [name for name in EXTRAS if name != "test"]
    versions = dict(each.split("==") for each in tool.lowest(extras))
    assert set(versions) == {Requirement(each).name for each in PROJECT["dependencies"]} | {
        Requirement(each).name for name in extras for each in EXTRAS[name]
    }
    for each in requirements():
        if each.name in versions and str(each.specifier):
            assert versions[each.name] in each.specifier
