"""Does ``trine doctor`` tell what is installed, and name what is slow?"""

import json
import os
import subprocess
import sys

import pytest
from click.testing import CliRunner

from trine.cli.main import app
from trine.common import installation
from trine.common._version import __version__


def answer_of(environment: dict[str, str]) -> tuple[str, dict]:
    """Return the text and the JSON of ``trine doctor`` in a process with these variables."""
    command = [sys.executable, "-m", "trine", "doctor", "--json", "-"]
    variables = {key: value for key, value in os.environ.items() if key not in installation.SLOW_SETTINGS}
    done = subprocess.run(command, capture_output=True, text=True, env=variables | environment, check=True)
    return done.stderr, json.loads(done.stdout)


def test_a_cache_without_kernels_and_slow_settings_are_named(tmp_path):
    text, answer = answer_of({"NUMBA_CACHE_DIR": str(tmp_path), "NUMBA_DISABLE_JIT": "1"})
    assert answer["versions"]["trine"] == __version__
    assert answer["kernel_cache"]["folder"].startswith(str(tmp_path))
    assert answer["kernel_cache"]["kernels"] == 0
    assert any(line.startswith("NUMBA_DISABLE_JIT=1: ") for line in answer["advice"])
    assert any("trine warmup" in line for line in answer["advice"])
    assert "NUMBA_DISABLE_JIT=1" in text


def test_a_folder_that_others_can_write_is_named(tmp_path):
    tmp_path.joinpath("trine").mkdir()
    _, answer = answer_of({"NUMBA_CACHE_DIR": str(tmp_path)})
    folder = answer["kernel_cache"]["folder"]
    os.chmod(folder, 0o777)
    _, answer = answer_of({"NUMBA_CACHE_DIR": str(tmp_path)})
    assert answer["kernel_cache"]["folder"] is None
    assert "can be written by others" in answer["kernel_cache"]["problem"]
    assert answer["kernel_cache"]["problem"] in answer["advice"]


def test_packages_are_those_of_the_metadata():
    found = {package.name: package for package in installation.packages()}
    assert {"numpy", "numba", "click", "rich", "pyyaml", "protobuf"} <= set(found)
    assert found["numpy"].version is not None
    assert found["numpy"].extra == ""
    assert found["torch"].extra == "capture"
    assert "pytest" not in found


def test_a_missing_extra_prints_the_command_that_installs_it(monkeypatch):
    def version_of(name):
        return None if name == "pyarrow" else "1.0"

    monkeypatch.setattr(installation, "_version_of", version_of)
    done = CliRunner().invoke(app, ["doctor"])
    assert done.exit_code == 0
    assert "pip install 'trine[parquet]'" in done.output
    assert "extra     plot: matplotlib 1.0" in done.output


@pytest.mark.parametrize(("quota", "usable"), [("50000 100000", 0.5), ("max 100000", None), ("", None), ("a b", None)])
def test_the_quota_of_a_container_counts(tmp_path, monkeypatch, quota, usable):
    """kernel documentation, cgroup-v2: cpu.max holds quota and period in microseconds, or ``max``."""
    monkeypatch.setattr(installation, "_CGROUP", tmp_path)
    tmp_path.joinpath("cpu.max").write_text(quota)
    tmp_path.joinpath("memory.max").write_text(str(1 << 30))
    of_affinity = len(os.sched_getaffinity(0))
    assert installation.processors().usable == (usable or of_affinity)
    assert installation.memory_bytes() == 1 << 30
