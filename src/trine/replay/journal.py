"""Runs of a sweep that have ended, one a line: what a kill leaves, and what the next sweep need not run again."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import fields
from pathlib import Path
from threading import Lock

from trine._version import __version__
from trine.collectives.loadstore.durations import hash_of_sources
from trine.errors import InputError, SpecError
from trine.replay.options import EidolonOptions, time_ps
from trine.replay.origin import origin_of
from trine.replay.workload import Workload
from trine.results.report import Row

#: What decides runs besides the input: a run of other sources is made again.
_SOURCES = ("replay", "gpu", "engine", "graph", "units.py", "collectives/kernels", "cluster")
#: Of a journal: what is beyond is not read.
MAX_BYTES = 64 * 2**20
#: Of its name, after that of the file that is to be written.
ENDING = ".runs.jsonl"
_DIGITS = 32
#: Options that a key names in its own way.
_ELSEWHERE = ("kernel", "wakeup", "stragglers")


class Journal:
    """The file ``path``, which is made with the first run; ``notes``: what went wrong, in sentences.

    A line is ``{"key", "sum", "row"}``: a hash of everything that the run depends on, one of the row, and the row as in
    ``runs`` of docs/reference/eidolon-json.md. Lines that are not whole are passed over, and appended to.

    Raises
    ------
    SpecError: what is there cannot be read.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.notes: list[str] = []
        self.num_taken = 0
        self._lock = Lock()
        self._known = _read(self.path)

    def row(self, key: str) -> Row | None:
        """The row of a run that has ended before, or None."""
        with self._lock:
            row = self._known.get(key)
            self.num_taken += row is not None
        return row

    def add(self, key: str, row: Row) -> None:
        """Keep a run, in one write: a kill leaves all of it or nothing. A note says where that cannot be done."""
        text = json.dumps(row, separators=(",", ":"))
        line = json.dumps({"key": key, "sum": _sum(text), "row": row}, separators=(",", ":")) + "\n"
        with self._lock:
            self._known[key] = row
            try:
                self._append(line.encode())
            except OSError as error:
                if not self.notes:
                    self.notes.append(f"runs are not kept: cannot write {self.path} ({error.strerror or error})")

    def remove(self) -> None:
        """Once what is asked for is written."""
        self.path.unlink(missing_ok=True)

    def _append(self, line: bytes) -> None:
        handle = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o666)
        try:
            size = os.fstat(handle).st_size
            if size and os.pread(handle, 1, size - 1) != b"\n":  # cut short by a kill
                line = b"\n" + line
            if os.write(handle, line) < len(line):
                raise OSError(28, "No space left on device")
        finally:
            os.close(handle)


def workload_key(options: EidolonOptions, work: Workload) -> str:
    """A hash of everything that runs of a workload depend on, but for wake-up times, and of what rows say of it."""
    kernel = options.kernel
    ranks = (work.target,) if options.is_fused_name else range(work.program.num_ranks)  # all do the same in the former
    said = {each.name: str(getattr(options, each.name)) for each in fields(options) if each.name not in _ELSEWHERE}
    parts = {
        "trine": __version__,
        "sources": hash_of_sources(_SOURCES),
        "origin": [origin_of(work.program, rank, work.model, work.cluster) for rank in ranks],
        "kernel": os.fspath(kernel) if isinstance(kernel, str | os.PathLike) else work.program.name,
        "stragglers": sorted((rank, str(late)) for rank, late in options.stragglers.items()),
        "options": said,
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:_DIGITS]


def run_key(workload: str, options: EidolonOptions, wakeup: str | int | None) -> str:
    """The key of a run of the workload of this key."""
    return f"{workload}-{time_ps('wakeup', options.wakeup_time if wakeup is None else wakeup)}"


def check_journal(options: EidolonOptions) -> None:
    """Raise InputError for runs that a key cannot tell apart."""
    if options.source not in ("wakeup", "distribution", "symmetric"):
        raise InputError(f"a journal keeps no runs with {options.source}, which it could not tell from others")


def _sum(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:_DIGITS]


def _read(path: Path) -> dict[str, Row]:
    if not path.exists():
        return {}
    if not path.is_file():
        raise SpecError("cannot be read: it is not a regular file", file=path)
    try:
        with path.open("rb") as file:
            lines = file.read(MAX_BYTES).split(b"\n")
    except OSError as error:
        raise SpecError(f"cannot be read: {error.strerror or error}", file=path) from None
    return dict(filter(None, map(_run, lines)))


def _run(line: bytes) -> tuple[str, Row] | None:
    """Key and row; None where the line is not what :meth:`Journal.add` writes."""
    try:
        data = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(data, dict) or set(data) != {"key", "sum", "row"} or not isinstance(data["key"], str):
        return None
    row = data["row"]
    is_whole = isinstance(row, dict) and _sum(json.dumps(row, separators=(",", ":"))) == data["sum"]
    return (data["key"], row) if is_whole else None
