"""Measured operator times shipped with trine (presets/operators), loaded on first use."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from trine.common.evidence import EVIDENCE
from trine.common.inputs import PRESETS

FOLDER = PRESETS / "operators"
#: Marker of an unmeasured grid entry.
NONE = -32768
_SCALE = 1000.0


@dataclass(frozen=True, slots=True)
class TableTime:
    """An operator's time in microseconds, its evidence (trine.common.evidence), and the source of its measurements."""

    us: float
    evidence: str
    source: str = "float32 tables"


@cache
def known_tables() -> frozenset[str]:
    """Return the names of the GPUs that have a measured table."""
    return frozenset(path.stem for path in FOLDER.glob("*.npz")) - {"memory", "in_step"}


@cache
def read_arrays(name: str) -> Mapping[str, NDArray[np.generic]]:
    """Load the arrays of one file; each is unpacked on first access, without pickle."""
    return np.load(FOLDER / f"{name}.npz", allow_pickle=False)  # type: ignore[no-any-return]


def log_us(packed: NDArray[np.generic]) -> NDArray[np.float64]:
    """Return the natural logarithm of microseconds, NaN for unmeasured entries."""
    logs = np.asarray(packed, dtype=np.float64) / _SCALE
    logs[np.asarray(packed) == NONE] = np.nan
    return logs


def summed(parts: list[TableTime | None]) -> TableTime | None:
    """Return the sum of the times, with the weakest evidence, or None if any time is unknown."""
    known = [part for part in parts if part is not None]
    if not known or len(known) < len(parts):
        return None
    least = max(known, key=lambda part: EVIDENCE.index(part.evidence))
    return TableTime(sum(part.us for part in known), least.evidence, least.source)
