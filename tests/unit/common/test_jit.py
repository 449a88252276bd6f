"""Are kernels cached in the right folder, and only there?"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parents[3] / "src"
PROGRAM = """
import sys
from trine.common import _jit

def twice(x):
    return 2 * x

import numba
before = numba.config.CACHE_DIR
module = sys.argv[1]
sys.path.insert(0, module)
import _small
assert numba.config.CACHE_DIR == before, "the setting of other libraries must come back"
print(_jit.cache_directory())
print(_jit.is_cold(_small.twice))
assert _small.twice(21) == 42
print(_jit.is_cold(_small.twice))
"""
SMALL = """from trine.common._jit import inlined, kernel

@inlined
def two():
    return 2

@kernel
def twice(x):
    return two() * x
"""


def run(tmp_path, expect=0, **environment):
    (tmp_path / "_small.py").write_text(SMALL)
    base = {k: v for k, v in os.environ.items() if not k.startswith(("NUMBA_", "XDG_"))}
    environment = {**base, "PYTHONPATH": str(SOURCE), **environment}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path)], env=environment, capture_output=True, text=True
    )
    assert done.returncode == expect, done.stderr
    return done.stdout.split("\n")[:3], done.stderr


def test_cold_then_warm(tmp_path):
    (directory, first, second), _ = run(tmp_path, XDG_CACHE_HOME=str(tmp_path / "cache"))
    assert (first, second) == ("True", "False")
    assert Path(directory).parent == tmp_path / "cache" / "trine"
    assert list(Path(directory).rglob("*.nbc"))
    (again, third, _), _ = run(tmp_path, XDG_CACHE_HOME=str(tmp_path / "cache"))
    assert (again, third) == (directory, "False")


def test_numba_cache_dir_wins(tmp_path):
    (directory, *_), _ = run(tmp_path, NUMBA_CACHE_DIR=str(tmp_path / "n"), XDG_CACHE_HOME=str(tmp_path / "x"))
    assert Path(directory).is_relative_to(tmp_path / "n")


def test_bounds_checking_has_a_cache_of_its_own(tmp_path):
    plain, checked = (
        run(tmp_path, NUMBA_CACHE_DIR=str(tmp_path / "n"), NUMBA_BOUNDSCHECK=flag)[0][0] for flag in ("0", "1")
    )
    assert plain != checked


def test_a_cache_that_cannot_be_written_warns_and_compiles(tmp_path):
    (tmp_path / "file").write_text("")
    (directory, first, second), errors = run(tmp_path, XDG_CACHE_HOME=str(tmp_path / "file"))
    assert (directory, first, second) == ("None", "True", "False")
    assert "compiled anew in each process" in errors


def test_without_compiler_nothing_is_cold(tmp_path):
    (_, first, second), _ = run(tmp_path, NUMBA_CACHE_DIR=str(tmp_path / "n"), NUMBA_DISABLE_JIT="1")
    assert (first, second) == ("False", "False")


@pytest.mark.parametrize("changed", [False, True])
def test_the_hash_covers_every_kernel_source(tmp_path, changed, monkeypatch):
    from trine.common import _jit

    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "_callee.py").write_text("a")
    (tmp_path / "shell.py").write_text("a")
    monkeypatch.setattr(_jit, "__file__", str(tmp_path / "_jit.py"))
    before = _jit._fingerprint()
    (tmp_path / ("deep/_callee.py" if changed else "shell.py")).write_text("b")
    assert (_jit._fingerprint() != before) == changed
