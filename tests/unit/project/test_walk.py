"""Do the walks of an answer list real functions, and do they not become longer?"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
#: Functions today. The goals: a workload passes 40.
LIMITS = {"The workload": 64, "The plan": 50, "One micro-batch": 54, "One message": 15}


@pytest.fixture(scope="module")
def page() -> str:
    run = subprocess.run([sys.executable, ROOT / "tools/walk.py"], capture_output=True, text=True, check=True)
    return run.stdout


def test_walks_do_not_become_longer(page: str) -> None:
    counts = {title: int(count) for title, count in re.findall(r"^## (.+): (\d+) functions$", page, re.M)}
    assert set(counts) == set(LIMITS)
    longer = {title: count for title, count in counts.items() if count > LIMITS[title]}
    assert not longer


def test_walks_name_functions_that_exist(page: str) -> None:
    listed = re.findall(r"^\d+\. `(.+)`: `(?:.*\.)?(\w+)`$", page, re.M)
    assert len(listed) >= 150
    for file, name in listed:
        assert f"def {name}(" in (ROOT / "src/trine" / file).read_text(), (file, name)
    files = [file for file, _ in listed]
    assert {"training/setup.py", "parallel/memory.py", "collectives/query.py"} <= set(files)
