"""The best published MFU (presets/measured/training/mfu.csv), and the warning about an MFU above it.

trine counts all attention scores (``full``); tools that count half of them for a causal mask print a lower MFU for the
same step. GPUs with an equal dense peak in a precision, such as H100 and H200, share the best of their values.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from functools import cache

from trine.common.inputs import PRESETS, read_text
from trine.compute.origin import known_gpu

TABLE = PRESETS / "measured" / "training" / "mfu.csv"
#: The definition that trine's FLOPs follow.
FULL = "full"


@dataclass(frozen=True, slots=True)
class PublishedMfu:
    """A published MFU. definition: ``full`` or ``causal`` attention; precision: of most GEMMs."""

    gpu: str
    precision: str
    definition: str
    mfu: float
    job: str
    source: str


@cache
def published_mfus() -> tuple[PublishedMfu, ...]:
    """Return all rows of the table."""
    lines = (line for line in read_text(TABLE).splitlines() if not line.startswith("#"))
    return tuple(
        PublishedMfu(
            gpu=row["gpu"], precision=row["precision"], definition=row["definition"], mfu=float(row["mfu"]),
            job=row["job"], source=row["source"],
        )
        for row in csv.DictReader(lines)
    )  # fmt: skip


def best_public_mfu(gpu: str | None, precision: str | None, definition: str = FULL) -> PublishedMfu | None:
    """Return the largest published MFU on this GPU, or on one with an equal peak, or None without any."""
    peak = _peak(gpu, precision)
    rows = [row for row in published_mfus() if (row.precision, row.definition) == (precision, definition)]
    rows = [row for row in rows if row.gpu == gpu or (peak and _peak(row.gpu, precision) == peak)]
    return max(rows, key=lambda row: row.mfu, default=None)


def _peak(gpu: str | None, precision: str | None) -> int | None:
    spec = None if gpu is None else known_gpu(gpu)
    return None if spec is None or precision is None else spec.flop_per_s.get(precision)


def mfu_warning(gpu: str | None, precision: str | None, reached: float | None) -> str:
    """Return a warning if an MFU is above all published ones on this GPU and in this precision, else an empty text."""
    best = best_public_mfu(gpu, precision)
    if reached is None or best is None or reached <= best.mfu:
        return ""
    return (
        f"MFU {reached:.1%} is above the best published one on this GPU in {precision} ({best.mfu:.1%} with full "
        f"attention: {best.job}, {best.source}); the likely range includes that speed"
    )
