"""Asks workers, watches over their time and memory, and judges what they did."""

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
#: Computing time after which a worker that does not answer is ended: kernels compiled for the first time take 40 s.
PATIENCE_S = 90.0
#: What a worker may have grown to before another takes its place.
STALE_BYTES = 780 * 2**20
#: Begins a line that is no error: what it says holds once on a machine.
COMPILES = "compiling kernels ("
WORKER = Path(__file__).with_name("fuzz_worker.py")
_FRAME = re.compile(r'File "[^"]*?(trine/[\w/]+\.py|[\w/.-]+\.py)", line (\d+), in (\w+)')


@dataclass(frozen=True)
class Case:
    """A command line with its files (bytes; None: a FIFO). at_fault: the file that an error has to name."""

    argv: tuple[str, ...]
    files: Mapping[str, bytes | None] = field(default_factory=dict)
    at_fault: str | None = None

    def question(self) -> dict[str, Any]:
        """As JSON."""
        files = {n: {"fifo": True} if c is None else base64.b64encode(c).decode() for n, c in self.files.items()}
        return {"argv": list(self.argv), "files": files, "at_fault": self.at_fault}

    @classmethod
    def of(cls, question: Mapping[str, Any]) -> Case:
        """The reverse of :meth:`question`."""
        files = {n: base64.b64decode(c) if isinstance(c, str) else None for n, c in question["files"].items()}
        return cls(tuple(question["argv"]), files, question.get("at_fault"))


class Worker:
    """A process that answers one case after the other."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None

    def ask(self, case: Case) -> dict[str, Any]:
        """What the case did; ``{"hang": seconds}`` or ``{"memory": bytes}`` of one that had to be ended."""
        process = self._started()
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps(case.question()) + "\n")
        process.stdin.flush()
        began, spent, asleep_s = time.monotonic(), cpu_seconds(process.pid), 0.0
        while not select.select([process.stdout], [], [], 0.25)[0]:
            taken, now = cpu_seconds(process.pid) - spent, resident_bytes(process.pid)
            asleep_s = asleep_s + 0.25 if is_asleep(process.pid) else 0.0  # not only kept from a processor by others
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
        """End the process, if there is one."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None


def resident_bytes(pid: int) -> int:
    """Memory of a process now; 0 where the system does not tell."""
    with contextlib.suppress(OSError, ValueError):
        return int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return 0


def cpu_seconds(pid: int) -> float:
    """What a process has computed so far; where the system does not tell, how long this one has run."""
    with contextlib.suppress(OSError, ValueError):
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return time.monotonic()


def is_asleep(pid: int) -> bool:
    """Whether a process waits for something; False where the system does not tell."""
    with contextlib.suppress(OSError):
        text = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
        return text.rpartition(")")[2].split()[0] == "S"
    return False


def judge(case: Case, worker: Worker) -> str | None:
    """What is wrong with what the case did, None: nothing.

    A slow run may have compiled kernels, a large one have had a worker that others had left large: it is repeated.
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
    """What is wrong with an answer of a worker, in one line that begins with its kind; None: nothing."""
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
    """Errors are one line, of bounded length, on stderr alone, and name the file."""
    code, lines = answer["code"], [line for line in answer["stderr"].splitlines() if not line.startswith(COMPILES)]
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
    if "cannot write" in answer["stderr"]:  # what could be written beside it is said, too
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
    """Faults that are one: numbers and quoted values do not tell them apart."""
    kind, _, rest = found.partition(": ")
    return (
        f"{kind}: "
        + re.sub(r"'[^']*'|\"[^\"]*\"|[^\x20-\x7e]+|\d+|a{9,}|A{9,}|0{9,}|9{9,}", "*", rest)[
            : 60 if kind == "message" else 160
        ]
    )


def save(case: Case, found: str, folder: Path) -> Path:
    """Keep a case that failed; :func:`load` gives it back."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{hashlib.sha256(signature(found).encode()).hexdigest()[:12]}.json"
    path.write_text(json.dumps({"found": found, **case.question()}, indent=1) + "\n", encoding="utf-8")
    return path


def load(path: Path) -> Case:
    """A case that :func:`save` kept."""
    return Case.of(json.loads(path.read_text(encoding="utf-8")))
