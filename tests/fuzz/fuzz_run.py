"""Send cases to workers, watch their time and memory, and judge the outcomes."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import os
import re
import select
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HANG_S, PEAK_BYTES, LINE = 10.0, 2**30, 400
#: CPU time after which an unresponsive worker is killed; compiling kernels for the first time takes 40 s.
PATIENCE_S = 90.0
#: Resident memory above which another worker replaces this one.
STALE_BYTES = 780 * 2**20
#: Start of a line that is not an error; trine prints it once per machine.
COMPILES = "compiling kernels ("
#: The address of a live page, before the command begins.
LIVE = "live at http://127.0.0.1:"
WORKER = Path(__file__).with_name("fuzz_worker.py")
_FRAME = re.compile(r'File "[^"]*?(trine/[\w/]+\.py|[\w/.-]+\.py)", line (\d+), in (\w+)')


@dataclass(frozen=True)
class Case:
    """Command line with its files (bytes; None: a FIFO). at_fault: the file that an error must name."""

    argv: tuple[str, ...]
    files: Mapping[str, bytes | None] = field(default_factory=dict)
    at_fault: str | None = None

    def question(self) -> dict[str, Any]:
        """Return the case as JSON."""
        files = {n: {"fifo": True} if c is None else base64.b64encode(c).decode() for n, c in self.files.items()}
        return {"argv": list(self.argv), "files": files, "at_fault": self.at_fault}

    @classmethod
    def of(cls, question: Mapping[str, Any]) -> Case:
        """Return the case from a result of :meth:`question`."""
        files = {n: base64.b64decode(c) if isinstance(c, str) else None for n, c in question["files"].items()}
        return cls(tuple(question["argv"]), files, question.get("at_fault"))


class Worker:
    """Process that answers one case after another."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None

    def ask(self, case: Case) -> dict[str, Any]:
        """Return a case's outcome; ``{"hang": seconds}`` or ``{"memory": bytes}`` if the worker was killed."""
        process = self._started()
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps(case.question()) + "\n")
        process.stdin.flush()
        began, spent, asleep_s = time.monotonic(), cpu_seconds(process.pid), 0.0
        while not select.select([process.stdout], [], [], 0.25)[0]:
            taken, now = cpu_seconds(process.pid) - spent, resident_bytes(process.pid)
            asleep_s = asleep_s + 0.25 if is_asleep(process.pid) else 0.0  # not merely waiting for a CPU
            if taken > PATIENCE_S or asleep_s > HANG_S or now > 2 * PEAK_BYTES:
                self.end()
                return {"memory": now} if now > 2 * PEAK_BYTES else {"hang": time.monotonic() - began}
        line = process.stdout.readline()
        if not line:
            code = process.wait()
            self._process = None
            return {"died": code}
        answer: dict[str, Any] = json.loads(line)
        if resident_bytes(process.pid) > STALE_BYTES:
            self.end()
        return answer

    def _started(self) -> subprocess.Popen[str]:
        if self._process is None:
            self._process = subprocess.Popen(
                [sys.executable, str(WORKER)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                env={**os.environ, "COLUMNS": "100", "NO_COLOR": "1", "MPLBACKEND": "agg"},
            )  # fmt: skip
        return self._process

    def end(self) -> None:
        """Kill the process if it runs."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None


def resident_bytes(pid: int) -> int:
    """Return the memory of a process now, or 0 if the system does not report it."""
    with contextlib.suppress(OSError, ValueError):
        return int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return 0


def cpu_seconds(pid: int) -> float:
    """Return the CPU time of a process up to now, or the wall clock if the system does not report it."""
    with contextlib.suppress(OSError, ValueError):
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return time.monotonic()


def is_asleep(pid: int) -> bool:
    """Return whether a process is asleep; False if the system does not report it."""
    with contextlib.suppress(OSError):
        text = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
        return text.rpartition(")")[2].split()[0] == "S"
    return False


def judge(case: Case, worker: Worker) -> str | None:
    """Return the fault in a case's outcome, or None.

    Slow and large runs are repeated: the worker may have compiled kernels, or earlier cases may have left it large.
    """
    answer = worker.ask(case)
    is_large = answer.get("memory", answer.get("peak", 0)) > PEAK_BYTES
    if is_large:
        worker.end()
    if is_large or ("hang" not in answer and _is_slow(answer)):
        answer = worker.ask(case)
    return fault(case, answer)


def _is_slow(answer: Mapping[str, Any]) -> bool:
    return "hang" in answer or answer.get("cpu_seconds", 0) > HANG_S


def fault(case: Case, answer: Mapping[str, Any]) -> str | None:
    """Return the fault in a worker's answer, as one line that begins with its kind, or None."""
    if "died" in answer:
        return f"died: the process ended with {answer['died']}"
    if "memory" in answer or answer.get("peak", 0) > PEAK_BYTES:
        return f"memory: {answer.get('memory', answer.get('peak', 0)) >> 20} MiB"
    if _is_slow(answer):
        return f"hang: {answer.get('hang', answer.get('cpu_seconds')):.0f} s"
    if answer["traceback"]:
        frames = [
            f"{file}:{name}" for file, _, name in _FRAME.findall(answer["traceback"]) if file.startswith("trine/")
        ]
        last = answer["traceback"].strip().splitlines()[-1]
        return f"traceback: {' < '.join(reversed(frames[-2:]))}: {last[:200]}"
    return _message_fault(case, answer)


def _message_fault(case: Case, answer: Mapping[str, Any]) -> str | None:
    """Return the fault in an answer's messages: errors are one short line, only on stderr, and name the file."""
    told = (COMPILES, LIVE)
    code, lines = answer["code"], [line for line in answer["stderr"].splitlines() if not line.startswith(told)]
    if code not in (0, 1, 2):
        return f"code: {code}"
    if "Traceback (most recent call last)" in answer["stderr"]:
        return f"traceback: on stderr: {lines[-1][:200]}"
    if answer.get("unread"):
        return f"unread: {answer['unread'].strip().splitlines()[-1][:300]}"
    if code != 2:
        return None
    if answer["stdout"] and "cannot write" not in answer["stderr"]:
        return f"message: stdout before an error: {answer['stdout'][:80]!r}; {''.join(lines[-1:])[:80]}"
    if "cannot write" in answer["stderr"]:  # files that could be written are reported, too
        lines = [line for line in lines if " written to " not in line]
    if len(lines) != 1:
        return f"message: {len(lines)} lines: {lines[:1]}"
    if len(lines[0]) > LINE:
        return f"message: {len(lines[0])} characters: {lines[0][:120]}"
    if not lines[0].isprintable():
        return f"message: not printable: {lines[0]!r:.200}"
    named = (*(Path(name).name for name in case.files), *(f"error: {word}:" for word in case.argv))  # or its folder
    if case.at_fault is not None and not any(name in lines[0] for name in named):
        return f"message: does not name {case.at_fault}: {lines[0][:200]}"
    return None


def signature(found: str) -> str:
    """Return the identity of a fault: its text without numbers and quoted values."""
    kind, _, rest = found.partition(": ")
    return (
        f"{kind}: "
        + re.sub(r"'[^']*'|\"[^\"]*\"|[^\x20-\x7e]+|\d+|a{9,}|A{9,}|0{9,}|9{9,}", "*", rest)[
            : 60 if kind == "message" else 160
        ]
    )


def save(case: Case, found: str, folder: Path) -> Path:
    """Save a failed case for :func:`load`."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{hashlib.sha256(signature(found).encode()).hexdigest()[:12]}.json"
    path.write_text(json.dumps({"found": found, **case.question()}, indent=1) + "\n", encoding="utf-8")
    return path


def load(path: Path) -> Case:
    """Load a case saved by :func:`save`."""
    return Case.of(json.loads(path.read_text(encoding="utf-8")))
