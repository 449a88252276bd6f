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
#: Files without effect on a prediction: the command line, texts, and tables that are written from predictions.
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

    Names are sorted. Files without effect on a prediction do not count: ``cli``, ``docs``, the stored reports, pages,
    trine's version, and files written from predictions (``bands.yaml``, ``left_out.csv``).
    """
    root, digest = PRESETS.parent, hashlib.sha256()
    files = {path.relative_to(root).as_posix(): path for path in (*root.rglob("*.py"), *PRESETS.rglob("*.*"))}
    for name, path in sorted(files.items()):
        if path.is_file() and not name.startswith(_LEFT_OUT):
            digest.update(f"{name}\0".encode() + hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


def read_stored(name: str) -> tuple[Origin, dict[str, Any]]:
    """Return the origin and the content of a stored report: ``training``, ``layouts`` or ``memory``."""
    content = json.loads(gzip.decompress(read_bytes(FOLDER / f"{name}.json.gz")))
    origin = content.pop("made")
    return Origin(**origin, is_current=origin["hash"] == hash_inputs()), content


class ReplayProgress:
    """Milliseconds of CPU time of finished rows and of all rows, as stored with each row.

    A row without a stored time counts as the mean row.
    """

    def __init__(self, report: str, rows: Iterable[str], progress: Callable[[int, int], None] | None) -> None:
        self._costs_ms = _row_costs(report)
        self._mean_ms = max(1, sum(self._costs_ms.values()) // max(1, len(self._costs_ms)))
        self._done_ms, self._total_ms, self._progress = 0, sum(map(self._cost_ms, rows)), progress

    def __call__(self, row: str) -> None:
        """Count a row as done."""
        self._done_ms = min(self._done_ms + self._cost_ms(row), self._total_ms)
        if self._progress is not None:
            self._progress(self._done_ms, self._total_ms)

    def _cost_ms(self, row: str) -> int:
        return self._costs_ms.get(row, self._mean_ms)


def _row_costs(report: str) -> dict[str, int]:
    """Return milliseconds of CPU time by row; empty without a stored report."""
    if not (FOLDER / f"{report}.json.gz").is_file():
        return {}
    rows = read_stored(report)[1]["rows"]
    return {row["row"]: 1 + round(1000 * row["cpu_s"]) for row in rows}
