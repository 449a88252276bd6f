"""Do worker processes start from any script: without a guard, from stdin, and with tasks that the script defines?"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

POOL = "from trine.common.processes import process_pool\n"
UNGUARDED = POOL + "with process_pool(2) as pool:\n    print(sorted(pool.map(abs, [-3, 2])))\n"
OWN_TASK = (
    POOL + "def twice(x):\n    return 2 * x\n"
    "if __name__ == '__main__':\n"
    "    with process_pool(2, needs_script=True) as pool:\n        print(sorted(pool.map(twice, [3, 2])))\n"
    "    print(__file__.endswith('job.py'))\n"
)
SWEEP = (
    "import trine\n"
    "spec = trine.ExperimentSpec(command='train', settings={'workload': 'model:gpt-2,layers=2', "
    "'cluster': 'dgx-h100'}, vary={'gpus': '1,2,4,8'})\n"
    "print(len(trine.sweep(spec, 'out', processes=2).to_frame()))\n"
)


def output_of(tmp_path: Path, text: str, is_file: bool = True) -> str:
    script = tmp_path / "job.py"
    script.write_text(text)
    words = [sys.executable, str(script)] if is_file else [sys.executable, "-"]
    given = None if is_file else text
    done = subprocess.run(words, capture_output=True, text=True, check=False, cwd=tmp_path, input=given)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("is_file", [True, False], ids=["file", "stdin"])
def test_a_script_without_a_guard_may_use_processes(tmp_path: Path, is_file: bool) -> None:
    assert output_of(tmp_path, UNGUARDED, is_file) == "[2, 3]\n"


def test_tasks_of_the_script_need_the_script(tmp_path: Path) -> None:
    assert output_of(tmp_path, OWN_TASK) == "[4, 6]\nTrue\n"


def test_a_sweep_runs_from_a_script_without_a_guard(tmp_path: Path) -> None:
    assert output_of(tmp_path, SWEEP) == "4\n"
