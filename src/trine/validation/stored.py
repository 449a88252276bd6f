"""Stored reports: the predictions of all rows of ``trine validate training``, ``layouts`` and ``memory``.

``benchmarks/store_reports.py`` writes them to ``presets/stored``. A report is loaded by putting the stored predictions
beside the bundled rows again; tables, pages and JSON then come from the same code as after a replay.
"""

from __future__ import annotations

import gzip
import hashlib
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from typing import Any

from trine.common.inputs import PRESETS, read_bytes

FOLDER = PRESETS / "stored"
#: Files that move no prediction: the command line, texts, and tables that are written from predictions.
_LEFT_OUT = (
    "cli/", "gpu/cli/", "decentralised/cli.py", "validation/cli.py", "validation/cases/cli.py", "docs/",
    "presets/stored/", "presets/pages/", "presets/measured/left_out.csv", "presets/measured/training/bands.yaml",
    "common/_version.py",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class Origin:
    """The trine version that stored a report, the hash of its data and code, and the CPU time of the replay in seconds.

    is_current: whether the installed data and code have the same hash.
    """

    version: str
    hash: str
    cpu_s: float
    is_current: bool

    @property
    def line(self) -> str:
        """The first line of the printed report."""
        changed = "" if self.is_current else "; data or code changed since"
        minutes = max(1, round(self.cpu_s / 60))
        return f"stored report of trine {self.version}{changed}: --again replays all rows ({minutes} CPU min)"


@cache
def hash_inputs() -> str:
    """Return SHA-256 of the installed data and code: names and bytes of all Python files and presets.

    Names are sorted. Files that move no prediction are left out: ``cli``, ``docs``, the stored reports, pages, trine's
    version, and files written from predictions (``bands.yaml``, ``left_out.csv``).
    """
    root, found = PRESETS.parent, hashlib.sha256()
    files = {path.relative_to(root).as_posix(): path for path in (*root.rglob("*.py"), *PRESETS.rglob("*.*"))}
    for name, path in sorted(files.items()):
        if path.is_file() and not name.startswith(_LEFT_OUT):
            found.update(f"{name}\0".encode() + hashlib.sha256(path.read_bytes()).digest())
    return found.hexdigest()


def read_stored(name: str) -> tuple[Origin, dict[str, Any]]:
    """Return the origin and the content of a stored report: ``training``, ``layouts`` or ``memory``."""
    content = json.loads(gzip.decompress(read_bytes(FOLDER / f"{name}.json.gz")))
    made = content.pop("made")
    return Origin(**made, is_current=made["hash"] == hash_inputs()), content


class ReplayProgress:
    """Milliseconds of CPU time of finished rows and of all rows, as stored with each row.

    A row without a stored time counts as the mean row.
    """

    def __init__(self, report: str, rows: Iterable[str], progress: Callable[[int, int], None] | None) -> None:
        self._costs = _row_costs(report)
        self._mean = max(1, sum(self._costs.values()) // max(1, len(self._costs)))
        self._done, self._total, self._progress = 0, sum(map(self._cost, rows)), progress

    def __call__(self, row: str) -> None:
        """Count a row as done."""
        self._done = min(self._done + self._cost(row), self._total)
        if self._progress is not None:
            self._progress(self._done, self._total)

    def _cost(self, row: str) -> int:
        return self._costs.get(row, self._mean)


def _row_costs(report: str) -> dict[str, int]:
    """Return milliseconds of CPU time by row; empty without a stored report."""
    if not (FOLDER / f"{report}.json.gz").is_file():
        return {}
    rows = read_stored(report)[1]["rows"]
    return {row["row"]: 1 + round(1000 * row["cpu_s"]) for row in rows}
