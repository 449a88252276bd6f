"""Run command lines from a parent, one JSON line each, in one process, and answer with their outcomes.

A question is ``{"argv": [...], "files": {name: base64 | {"fifo": true}}}``. The answer has code, stdout, stderr, the
traceback of an uncaught exception, seconds, and peak resident memory in bytes. ``unread`` is trine's error for a file
that it has written and cannot read.
"""

from __future__ import annotations

import base64
import contextlib
import functools
import gc
import json
import os
import resource
import shutil
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

SHOWN = 20_000


def lay_out(files: dict[str, object], folder: Path) -> None:
    """Create the files of a question."""
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, str):
            path.write_bytes(base64.b64decode(content))
        else:
            os.mkfifo(path)


@functools.cache
def _command() -> Any:
    from trine.cli.main import app

    return app


def run(argv: list[str]) -> tuple[int, str]:
    """Return the exit code of a command line, and the traceback of an uncaught exception."""
    try:
        _command()(argv, prog_name="trine")
    except SystemExit as stop:
        return (stop.code if isinstance(stop.code, int) else 0 if stop.code is None else 1), ""
    except BaseException:
        return -1, traceback.format_exc()
    return 0, ""


#: Command -> the option that names its output file, and the command that reads such a file.
READERS = {
    ("cluster", "import"): ("--yaml", ("cluster", "show")),
    ("cluster", "show"): ("--yaml", ("cluster", "show")),
    ("cluster", "export"): ("-o", ("cluster", "import")),
    ("gpu", "show"): ("--yaml", ("gpu", "show")),
    ("trace", "synthesize"): ("-o", ("trace", "inspect")),
    ("trace", "convert"): ("-o", ("trace", "inspect")),
}


def reader_of(argv: list[str]) -> list[str] | None:
    """Return the command that reads the output file of ``argv``, or None without a file that trine reads."""
    option, words = READERS.get(tuple(argv[:2]), ("", ()))
    if argv[1:2] == ["convert"]:
        target = argv[3] if len(argv) == 4 else None
    else:
        target = argv[argv.index(option) + 1] if option in argv[:-1] else None
    is_file = target is not None and os.path.isfile(target)
    return [*words, os.path.join(".", str(target))] if is_file else None


def unread(argv: list[str]) -> str:
    """Return trine's error on reading a command's output file; "" if it reads the file."""
    reader = reader_of(argv)
    if reader is None:
        return ""
    text, kept = tempfile.TemporaryFile(), os.dup(2)  # noqa: SIM115
    os.dup2(text.fileno(), 2)
    try:
        code, uncaught = run(reader)
        sys.stderr.flush()
    finally:
        os.dup2(kept, 2)
        os.close(kept)
    text.seek(0)
    return f"{' '.join(reader)}: {uncaught or text.read(SHOWN).decode('utf-8', 'replace')}" if code else ""


def peak_bytes() -> int:
    """Return peak resident memory since :func:`forget_peak`, or since the start if the system cannot reset it."""
    try:
        text = Path("/proc/self/status").read_text(encoding="ascii")
        return int(next(line for line in text.splitlines() if line.startswith("VmHWM")).split()[1]) << 10
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def forget_peak() -> None:
    """Reset the peak of resident memory (Linux)."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


def ask(question: dict[str, object]) -> dict[str, object]:
    """Answer one question in a new folder."""
    folder = Path(tempfile.mkdtemp(prefix="fuzz-"))
    texts = [tempfile.TemporaryFile() for _ in range(2)]  # noqa: SIM115
    home, kept = os.getcwd(), [os.dup(1), os.dup(2)]
    lay_out(question["files"], folder)  # type: ignore[arg-type]
    try:
        os.chdir(folder)
        for number, text in enumerate(texts, 1):
            os.dup2(text.fileno(), number)
        forget_peak()
        began, spent = time.perf_counter(), time.process_time()
        code, uncaught = run(list(question["argv"]))  # type: ignore[call-overload]
        seconds, spent = time.perf_counter() - began, time.process_time() - spent
        rejected = unread(list(question["argv"])) if code == 0 else ""  # type: ignore[call-overload]
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
    finally:
        for number, old in enumerate(kept, 1):
            os.dup2(old, number)
            os.close(old)
        os.chdir(home)
        shutil.rmtree(folder, ignore_errors=True)
    answer = {"code": code, "traceback": uncaught, "seconds": seconds, "cpu_seconds": spent, "peak": peak_bytes(),
              "unread": rejected}  # fmt: skip
    for name, text in zip(("stdout", "stderr"), texts, strict=True):
        text.seek(0)
        answer[name] = text.read(SHOWN).decode("utf-8", "replace")
        text.close()
    return answer


def main() -> None:
    """Answer questions until the input ends."""
    questions, answers = os.fdopen(os.dup(0), "r"), os.fdopen(os.dup(1), "w")
    nowhere = os.open(os.devnull, os.O_RDWR)
    for number in range(3):
        os.dup2(nowhere, number)
    import numpy as np  # noqa: F401  # so that the first question is not charged for it

    import trine.cli.main  # noqa: F401

    gc.disable()  # a full collection takes longer than most questions
    for number, line in enumerate(questions, 1):
        if number % 50 == 0:
            gc.collect()
        answers.write(json.dumps(ask(json.loads(line))) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
