"""Are kernel files that are damaged, foreign or writable by others never loaded, and the kernels compiled again?"""

from __future__ import annotations

import os
import pickle
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest
from full_disk import full_disk

from trine.common import _jit, _jit_files

SOURCE = Path(__file__).resolve().parents[3] / "src"
NAME, OTHER, CONTENT = "_small.twice-1", "_small.thrice-1", b"machine code" * 1000


@pytest.fixture(autouse=True)
def nothing_said(monkeypatch):
    monkeypatch.setattr(_jit_files, "_warnings", [])


@pytest.fixture
def folder(tmp_path):
    """Return a cache folder with two kernels, written under a umask that lets the group write."""
    before = os.umask(0o002)
    try:
        folder = tmp_path / "cache" / "trine" / "1"
        assert _jit_files.usable(folder)
        for name in (NAME, OTHER):
            _jit_files.write(folder, name, CONTENT)
            assert _jit_files.read(folder, name) == CONTENT
    finally:
        os.umask(before)
    return folder


def code_of(folder: Path) -> Path:
    return folder / f"{NAME}.nbc"


def digest_of(folder: Path) -> Path:
    return folder / f"{NAME}.sha256"


def flip(folder):
    content = bytearray(code_of(folder).read_bytes())
    content[len(content) // 2] ^= 1
    code_of(folder).write_bytes(content)


def swap(folder):
    """Replace a kernel's file and sum by another kernel's: an intact file under the wrong name."""
    code_of(folder).write_bytes((folder / f"{OTHER}.nbc").read_bytes())
    digest_of(folder).write_bytes((folder / f"{OTHER}.sha256").read_bytes())


def link(folder):
    code_of(folder).rename(folder / "elsewhere")
    code_of(folder).symlink_to("elsewhere")


WRONG_SUM = "does not match its SHA-256"
DAMAGES = {
    "truncated": (lambda folder: code_of(folder).write_bytes(code_of(folder).read_bytes()[:1000]), WRONG_SUM),
    "empty": (lambda folder: code_of(folder).write_bytes(b""), WRONG_SUM),
    "flipped": (flip, WRONG_SUM),
    "foreign": (lambda folder: code_of(folder).write_bytes(pickle.dumps("foreign")), WRONG_SUM),
    "without a sum": (lambda folder: digest_of(folder).unlink(), "has no SHA-256 beside it"),
    "sum empty": (lambda folder: digest_of(folder).write_bytes(b""), WRONG_SUM),
    "of another kernel": (swap, "is of another kernel"),
    "open to the group": (lambda folder: code_of(folder).chmod(0o664), "can be written by others"),
    "sum open to all": (lambda folder: digest_of(folder).chmod(0o646), "can be written by others"),
    "a link": (link, "cannot be read (Too many levels of symbolic links)"),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_what_is_wrong_is_not_read_but_said_once_and_replaced(name, folder):
    damage, reason = DAMAGES[name]
    damage(folder)
    with pytest.warns(_jit_files.CacheWarning) as caught:  # noqa: PT031
        assert _jit_files.read(folder, NAME) is None
        assert _jit_files.read(folder, NAME) is None
    assert [str(each.message) for each in caught] == [
        f"{folder}: {NAME}.nbc {reason}: trine compiles it again and replaces the file if it can; if this "
        "comes again, delete the folder and run 'trine warmup'"
    ]
    assert _jit_files.read(folder, OTHER) == CONTENT
    _jit_files.write(folder, NAME, b"new")
    assert _jit_files.read(folder, NAME) == b"new"


def test_files_and_folders_are_open_to_nobody_else_whatever_the_umask(folder):
    assert {stat.S_IMODE(path.stat().st_mode) for path in (folder, folder.parent)} == {0o755}
    assert {stat.S_IMODE(path.stat().st_mode) & 0o022 for path in folder.iterdir()} == {0}


def test_a_folder_that_others_can_write_is_not_used(folder):
    folder.chmod(0o777)
    said = (
        f"kernels are compiled anew in each process: {folder} can be written by others: chmod go-w it, or set "
        "NUMBA_CACHE_DIR to another folder"
    )
    with pytest.warns(_jit_files.CacheWarning) as caught:  # noqa: PT031
        assert not _jit_files.usable(folder)
        assert _jit_files.read(folder, NAME) is None
    assert [str(each.message) for each in caught] == [said]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
@pytest.mark.parametrize("is_folder", [False, True])
def test_files_and_folders_of_other_users_are_not_read(folder, is_folder):
    os.chown(folder if is_folder else code_of(folder), 12345, 0)
    with pytest.warns(_jit_files.CacheWarning, match=r"belongs to another user \(12345\)"):
        assert _jit_files.read(folder, NAME) is None


def test_a_folder_that_can_only_be_read_is_read(folder, monkeypatch):
    """As in a container with a warmed-up image: no file has to be written, so there is no warning."""
    (folder / ".lock").unlink()
    folder.chmod(0o555)
    monkeypatch.setattr(os, "mkdir", None)
    monkeypatch.setattr(os, "replace", None)
    assert _jit_files.usable(folder)
    assert _jit_files.read(folder, NAME) == CONTENT


def test_a_full_disk_is_said_and_leaves_nothing(folder):
    with full_disk(4096), pytest.warns(_jit_files.CacheWarning) as caught:
        _jit_files.write(folder, "_small.new-1", CONTENT)
    assert [str(each.message) for each in caught] == [
        f"kernels are compiled anew in each process: cannot write {folder} (File too large): make room, or let it be "
        "written, or set NUMBA_CACHE_DIR to another folder"
    ]
    assert not list(folder.glob("*.part"))
    assert not (folder / "_small.new-1.nbc").exists()
    assert _jit_files.read(folder, "_small.new-1") is None  # no warning: no file is damaged


def test_a_process_that_holds_the_lock_for_ever_holds_nobody_up(folder, monkeypatch):
    fcntl = pytest.importorskip("fcntl")
    monkeypatch.setattr(_jit_files, "LOCK_S", 0.05)
    with (folder / ".lock").open("rb+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        began = time.monotonic()
        assert _jit_files.read(folder, NAME) == CONTENT
    assert 0.04 < time.monotonic() - began < 5


def test_without_a_home_nothing_is_kept_and_that_is_said(tmp_path, monkeypatch):
    numba = pytest.importorskip("numba")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(numba.config, "CACHE_DIR", "")
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setenv("HOME", "not/absolute")
    with pytest.warns(_jit_files.CacheWarning, match="there is no home folder: set NUMBA_CACHE_DIR to a folder"):
        assert _jit.cache_directory.__wrapped__() is None
    assert list(tmp_path.iterdir()) == []


WRITER = """
import os, signal, sys
from pathlib import Path
from trine.common import _jit_files
_jit_files.LOCK_S = 60.0  # a busy machine lets the one that writes wait for seconds
if sys.argv[2] == "killed":
    whole = _jit_files.open_whole
    def open_whole(path, mode, follow):
        if path.endswith(".nbc"):
            open(os.path.join(sys.argv[1], ".trine-0.part"), "wb").write(b"half")
            os.kill(os.getpid(), signal.SIGKILL)
        return whole(path, mode, follow=follow)
    _jit_files.open_whole = open_whole
folder = Path(sys.argv[1])
for number in range(100):
    assert _jit_files.usable(folder)
    for kernel in range(5):
        found = _jit_files.read(folder, f"k-{kernel}")
        assert found is None or len(found) == 100_000, "half a file"
        if found is None or number % 10 == 0:
            _jit_files.write(folder, f"k-{kernel}", os.urandom(100_000), is_damaged=found is not None)
"""


def writer(folder: Path, *, killed: bool = False):
    words = [sys.executable, "-W", "error", "-c", WRITER, str(folder), "killed" if killed else ""]
    env = {**os.environ, "PYTHONPATH": str(SOURCE)}
    return subprocess.Popen(words, env=env, stderr=subprocess.PIPE, text=True)


def test_two_processes_write_and_read_at_once(tmp_path):
    """Each process reads the other's files whole or not at all; only whole files remain."""
    folder = tmp_path / "cache" / "trine" / "1"
    for process in [writer(folder), writer(folder)]:
        _, errors = process.communicate(timeout=120)
        assert process.returncode == 0, errors
    assert sorted(path.name for path in folder.iterdir()) == sorted(
        [".lock", *(f"k-{kernel}.{ending}" for kernel in range(5) for ending in ("nbc", "sha256"))]
    )


def test_a_process_that_is_killed_while_it_writes_leaves_nothing_that_is_believed(tmp_path):
    """Killed between a sum and its code, with half a file beside: the next process cleans up without a warning."""
    folder = tmp_path / "cache" / "trine" / "1"
    process = writer(folder, killed=True)
    process.communicate(timeout=120)
    assert process.returncode == -signal.SIGKILL
    assert sorted(path.name for path in folder.iterdir()) == [".lock", ".trine-0.part", "k-0.sha256"]
    assert _jit_files.read(folder, "k-0") is None
    _jit_files.write(folder, "k-0", b"new")
    assert _jit_files.read(folder, "k-0") == b"new"
    assert not list(folder.glob("*.part"))


# With the compiler

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
    answers, hits, *said = out.splitlines()
    assert answers == "14 21"
    return hits, [line for line in said if line]


@pytest.mark.slow
def test_two_runs_fill_an_empty_cache_and_a_third_compiles_around_what_is_damaged(tmp_path):
    for process in [start(tmp_path), start(tmp_path)]:
        assert ended(process)[1] == []
    folder = next((tmp_path / "cache" / "trine").iterdir())
    assert sorted(path.suffix for path in folder.iterdir()) == ["", ".nbc", ".nbc", ".sha256", ".sha256"]
    twice, thrice = (next(folder.glob(f"_small.{name}-*.nbc")) for name in ("twice", "thrice"))
    twice.write_bytes(twice.read_bytes()[:100])
    _jit_files.write(folder, thrice.stem, pickle.dumps(("no code",)), is_damaged=True)  # intact, but no compiled code
    hits, said = ended(start(tmp_path))
    assert (hits, len(said)) == ("0 0", 1)
    assert said[0].startswith(f"{folder}: {twice.name} {WRONG_SUM}")
    assert ended(start(tmp_path)) == ("1 1", [])
