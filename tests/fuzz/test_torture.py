"""Does trine end in one line, and keep files whole, when one system call or allocation fails? (curl's torture tests)

Each command runs once to count its calls of a kind, and then again with one of them failing.
"""

from __future__ import annotations

import builtins
import io
import json
import os
import shlex
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from errno import EIO, ENOSPC
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from click.testing import CliRunner
from full_disk import full_disk
from fuzz_commands import BASES, files

from trine.cli.main import app

# A call that fails between os.open and os.fdopen leaves a file open in a process that ends then.
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")

#: Calls that may fail, by kind: the names to patch, and the error to raise.
CALLS: dict[str, tuple[tuple[tuple[object, str], ...], Callable[[], BaseException]]] = {
    "open": (((builtins, "open"), (io, "open"), (os, "open"), (os, "fdopen")), lambda: OSError(EIO, os.strerror(EIO))),
    "stat": (((os, "stat"), (os, "fstat"), (os, "listdir")), lambda: OSError(EIO, os.strerror(EIO))),
    "rename": (((os, "replace"), (os, "rename"), (os, "unlink")), lambda: OSError(EIO, os.strerror(EIO))),
    "fsync": (((os, "fsync"),), lambda: OSError(ENOSPC, os.strerror(ENOSPC))),
    "make": (((os, "mkdir"), (os, "chmod"), (os, "fchmod")), lambda: OSError(EIO, os.strerror(EIO))),
    "allocate": (
        tuple((np, name) for name in ("empty", "zeros", "ones", "full", "arange", "array", "concatenate", "repeat")),
        lambda: MemoryError("Unable to allocate an array"),
    ),
}
#: Number of calls of each kind that fail in turn, evenly spread.
MOST = 3
OLD = "what was there before\n"
#: Beginnings of further command lines: each reads or writes files in a different way.
_TORTURED = (
    "software show", "run g.json", "calibrate", "collective all_to_all_v", "check", "hop", "trace inspect",
    "trace convert", "trace synthesize", "chakra inspect", "cluster show dgx", "cluster import", "cluster export",
    "gpu show ./m.yaml", "eidolon writes-from r.csv", "kernel show plan",
)  # fmt: skip
OUTPUTS = ("out.json", "out.csv", "out.yaml", "p.pftrace", "memory.pickle")
#: Commands that succeed and write files. A machine that names its GPUs refuses a trace without a named GPU.
COMMANDS = (
    "train m.trine.json --gpus 2 --parallel ddp --cluster dgx-h100 --trace-gpu h100-sxm --memory-snapshot memory.pickle"
    " --json out.json --perfetto p.pftrace",
    "train model:gpt-2,layers=2,batch=1 --dp 2 --tp 2 --cluster dgx-a100 --sharding zero1",
    *(words for words in BASES if words.startswith(_TORTURED)),
)
#: Commands that ``make test`` runs; make test-slow runs all.
QUICK = ("cluster show dgx-h100 --nodes 2 --links --yaml out.yaml", "gpu show ./m.yaml --yaml out.yaml")


class Failure:
    """Call counter that makes call number ``at`` fail; None: no call."""

    def __init__(self, error: Callable[[], BaseException], at: int | None) -> None:
        self.error, self.at, self.count = error, at, 0

    def wrap(self, call: Callable[..., object]) -> Callable[..., object]:
        def counted(*arguments: object, **options: object) -> object:
            self.count += 1
            if self.count - 1 == self.at:
                raise self.error()
            return call(*arguments, **options)

        return counted


@contextmanager
def failing(kind: str, at: int | None) -> Iterator[Failure]:
    places, error = CALLS[kind]
    failure = Failure(error, at)
    with ExitStack() as stack:
        for owner, name in places:
            stack.enter_context(mock.patch.object(owner, name, failure.wrap(getattr(owner, name))))
        yield failure


@pytest.fixture
def folder(tmp_path, monkeypatch):
    for name, content in files().items():
        if content is not None:
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_bytes(content)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path


def ask(words: str, kind: str = "open", at: int | None = None):
    """Run a command over old outputs; return its answer and its number of calls of the kind."""
    for name in OUTPUTS:
        Path(name).write_text(OLD, encoding="utf-8")
    with failing(kind, at) as calls:
        done = CliRunner().invoke(app, shlex.split(words))
    return done, calls.count


def check_answer(done, words: str, kind: str, at: int | None) -> None:
    what = f"{words}: {kind} {at}"
    assert done.exception is None or isinstance(done.exception, SystemExit), (what, done.exception)
    assert done.exit_code in (0, 1, 2), what
    assert "Traceback" not in done.stderr, what
    if done.exit_code:
        errors = [line for line in done.stderr.splitlines() if line.startswith("error:")]
        assert errors, (what, done.stderr)
    for name in OUTPUTS:
        content = Path(name).read_bytes() if Path(name).exists() else OLD.encode()
        assert content == OLD.encode() or is_whole(name, content), (what, name, content[-80:])


def is_whole(name: str, content: bytes) -> bool:
    if name.endswith(".json"):
        return bool(json.loads(content))
    return bool(content) and (content.endswith(b"\n") or not name.endswith((".csv", ".yaml")))


def numbers(count: int) -> list[int]:
    """Return at most MOST of ``count`` call numbers, evenly spread from the first to the last."""
    return sorted({round(i * (count - 1) / max(1, min(MOST, count) - 1)) for i in range(min(MOST, count))})


@pytest.mark.parametrize(
    "words", [pytest.param(words, marks=() if words in QUICK else pytest.mark.slow) for words in COMMANDS]
)
def test_one_failure_is_one_line_and_damages_nothing(words, folder):
    for kind in CALLS:
        whole, count = ask(words, kind)
        assert whole.exit_code == 0, whole.output
        for at in numbers(count):
            check_answer(ask(words, kind, at)[0], words, kind, at)
    for left in (0, 30, 3000):
        for name in OUTPUTS:
            Path(name).write_text(OLD, encoding="utf-8")
        with full_disk(left):
            done = CliRunner().invoke(app, shlex.split(words))
        check_answer(done, words, "write", left)


def test_a_failure_is_met():
    """The harness works: the call with the number fails, and no other."""
    with failing("open", 1):
        with open(os.devnull):
            pass
        with pytest.raises(OSError, match="Input/output"), open(os.devnull):
            pass
        with open(os.devnull):
            pass
