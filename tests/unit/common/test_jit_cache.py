"""Are kernel files that are damaged, foreign or writable by others never loaded, and the kernels compiled again?"""

from __future__ import annotations

import os
import pickle
import shutil
import stat
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from full_disk import full_disk

from trine.common import _jit, _jit_files

SOURCE = Path(__file__).resolve().parents[3] / "src"


def twice(x: Any) -> Any:
    return 2 * x


def dispatcher(folder: Path) -> Any:
    """Return ``twice`` as a kernel of a new process would be, with its cache in ``folder``."""
    numba = pytest.importorskip("numba")
    from trine.common._jit_cache import KernelCache

    compiled = numba.njit(nogil=True)(twice)
    compiled._cache = KernelCache(twice, folder)
    return compiled


def hits(compiled: Any) -> int:
    return sum(compiled.stats.cache_hits.values())


@pytest.fixture(autouse=True)
def nothing_said(monkeypatch):
    monkeypatch.setattr(_jit_files, "_warnings", [])


@pytest.fixture(scope="module")
def filled(tmp_path_factory) -> Path:
    """A folder with the code of two signatures, written under a umask that lets the group write."""
    before = os.umask(0o002)
    try:
        folder = tmp_path_factory.mktemp("cache") / "trine" / "1"
        assert _jit_files.usable(folder)
        compiled = dispatcher(folder)
        assert (compiled(21), compiled(2.5)) == (42, 5.0)
    finally:
        os.umask(before)
    return folder


@pytest.fixture
def folder(filled, tmp_path) -> Path:
    shutil.copytree(filled, tmp_path / "copy")
    return tmp_path / "copy"


def index_of(folder: Path) -> Path:
    return next(folder.glob("*.nbi"))


def code_of(folder: Path, number: int = 1) -> Path:
    return next(folder.glob(f"*.{number}.nbc"))


def swap(folder: Path) -> None:
    """Give two signatures each other's code."""
    first, second = code_of(folder, 1).read_bytes(), code_of(folder, 2).read_bytes()
    code_of(folder, 1).write_bytes(second)
    code_of(folder, 2).write_bytes(first)


def link(folder: Path) -> None:
    code_of(folder).rename(folder / "elsewhere")
    code_of(folder, 2).with_name(code_of(folder, 2).name.replace(".2.", ".1.")).symlink_to("elsewhere")


NOT_LOADED = "cannot be loaded"
DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "truncated": (lambda folder: code_of(folder).write_bytes(code_of(folder).read_bytes()[:1000]), NOT_LOADED),
    "empty": (lambda folder: code_of(folder).write_bytes(b""), NOT_LOADED),
    "of another program": (lambda folder: code_of(folder).write_bytes(pickle.dumps("foreign")), NOT_LOADED),
    "index truncated": (lambda folder: index_of(folder).write_bytes(index_of(folder).read_bytes()[:-20]), NOT_LOADED),
    "index empty": (lambda folder: index_of(folder).write_bytes(b""), NOT_LOADED),
    "of other arguments": (swap, "is of other arguments"),
    "open to the group": (lambda folder: code_of(folder).chmod(0o664), "can be written by others"),
    "index open to all": (lambda folder: index_of(folder).chmod(0o646), "can be written by others"),
    "a link": (link, "is no regular file"),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_what_is_wrong_is_not_loaded_but_said_once_and_replaced(name, folder):
    damage, reason = DAMAGES[name]
    damage(folder)
    compiled = dispatcher(folder)
    with pytest.warns(_jit_files.CacheWarning) as caught:
        assert compiled(21) == 42
    assert len(caught) == 1
    assert reason in str(caught[0].message)
    assert "compiles the kernel again" in str(caught[0].message)
    assert hits(compiled) == 0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        again = dispatcher(folder)
        assert (again(21), hits(again)) == (42, 1)


def test_intact_files_are_loaded(folder):
    compiled = dispatcher(folder)
    assert (compiled(21), compiled(2.5), hits(compiled)) == (42, 5.0, 2)
    assert not compiled._cache.is_empty()
    assert dispatcher(folder.parent)._cache.is_empty()


def test_files_and_folders_are_open_to_nobody_else_whatever_the_umask(filled):
    assert {stat.S_IMODE(path.stat().st_mode) for path in (filled, filled.parent)} == {0o755}
    assert len(list(filled.iterdir())) == 3
    assert {stat.S_IMODE(path.stat().st_mode) & 0o022 for path in filled.iterdir()} == {0}


def test_a_folder_that_others_can_write_is_not_used(folder):
    folder.chmod(0o777)
    said = (
        f"kernels are compiled anew in each process: {folder} can be written by others: chmod go-w it, or set "
        "NUMBA_CACHE_DIR to another folder"
    )
    with pytest.warns(_jit_files.CacheWarning) as caught:
        assert not _jit_files.usable(folder)
    assert [str(each.message) for each in caught] == [said]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_files_and_folders_of_other_users_are_not_loaded(folder):
    os.chown(code_of(folder), 12345, 0)
    compiled = dispatcher(folder)
    with pytest.warns(_jit_files.CacheWarning, match=r"belongs to another user \(12345\)"):
        assert (compiled(21), hits(compiled)) == (42, 0)
    os.chown(folder, 12345, 0)
    assert not _jit_files.usable(folder)


def test_a_foreign_file_that_cannot_be_removed_is_neither_loaded_nor_replaced(folder, monkeypatch):
    def refuse(path: Path) -> None:
        raise PermissionError(path)

    index_of(folder).chmod(0o666)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    monkeypatch.setattr(Path, "unlink", refuse)
    compiled = dispatcher(folder)
    with pytest.warns(_jit_files.CacheWarning, match="can be written by others"):
        assert (compiled(21), hits(compiled)) == (42, 0)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_a_folder_that_can_only_be_read_is_read(folder, monkeypatch):
    """As in a container with a warmed-up image: no file has to be written, so there is no warning."""
    folder.chmod(0o555)
    monkeypatch.setattr(os, "mkdir", None)
    monkeypatch.setattr(os, "replace", None)
    assert _jit_files.usable(folder)
    compiled = dispatcher(folder)
    assert (compiled(21), hits(compiled)) == (42, 1)


def test_a_full_disk_is_said_and_leaves_nothing(tmp_path):
    compiled = dispatcher(tmp_path)
    with full_disk(1024), pytest.warns(_jit_files.CacheWarning) as caught:
        assert compiled(21) == 42
    assert [str(each.message) for each in caught] == [
        f"kernels are compiled anew in each process: cannot write {tmp_path} (File too large): make room, or let it be "
        "written, or set NUMBA_CACHE_DIR to another folder"
    ]
    assert not list(tmp_path.glob("*.nbc*"))
    again = dispatcher(tmp_path)
    assert (again(21), hits(again)) == (42, 0)  # no warning: no file is damaged


def test_without_a_home_nothing_is_kept_and_that_is_said(tmp_path, monkeypatch):
    numba = pytest.importorskip("numba")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(numba.config, "CACHE_DIR", "")
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setenv("HOME", "not/absolute")
    with pytest.warns(_jit_files.CacheWarning, match="there is no home folder: set NUMBA_CACHE_DIR to a folder"):
        assert _jit.cache_directory.__wrapped__() is None
    assert list(tmp_path.iterdir()) == []


# Several processes

KERNELS = """from trine.common._jit import kernel

@kernel
def twice(x):
    return 2 * x

@kernel
def thrice(x):
    return 3 * x
"""
#: Prints two results, the cache hits of each kernel, and the warnings.
PROGRAM = """
import sys, warnings
sys.path.insert(0, sys.argv[1])
with warnings.catch_warnings(record=True) as found:
    warnings.simplefilter("always")
    import _small
    print(_small.twice(7), _small.thrice(7))
    print(sum(_small.twice.stats.cache_hits.values()), sum(_small.thrice.stats.cache_hits.values()))
print(*(each.message for each in found), sep="\\n")
"""


def start(tmp_path):
    (tmp_path / "_small.py").write_text(KERNELS)
    base = {k: v for k, v in os.environ.items() if not k.startswith(("NUMBA_", "XDG_"))}
    env = {
        **base,
        "PYTHONPATH": str(SOURCE),
        "NUMBA_CACHE_DIR": str(tmp_path / "cache"),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    words = [sys.executable, "-c", PROGRAM, str(tmp_path)]
    return subprocess.Popen(words, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def ended(process) -> tuple[str, list[str]]:
    """Return the cache hits of the two kernels, and the warnings."""
    out, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors
    answers, counts, *said = out.splitlines()
    assert answers == "14 21"
    return counts, [line for line in said if line]


@pytest.mark.slow
def test_two_runs_fill_an_empty_cache_and_a_third_compiles_around_what_is_damaged(tmp_path):
    for process in [start(tmp_path), start(tmp_path)]:
        assert ended(process)[1] == []
    folder = next((tmp_path / "cache" / "trine").iterdir())
    assert sorted(path.suffix for path in folder.iterdir()) == [".nbc", ".nbc", ".nbi", ".nbi"]
    twice_code = next(folder.glob("_small.twice.*.nbc"))
    twice_code.write_bytes(twice_code.read_bytes()[:100])
    counts, said = ended(start(tmp_path))
    assert (counts, len(said)) == ("0 1", 1)
    assert said[0].startswith(f"{folder / '_small.twice'} cannot be loaded")
    assert ended(start(tmp_path)) == ("1 1", [])
