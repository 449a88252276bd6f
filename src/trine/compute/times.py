"""A predicted time and what it rests on."""

from __future__ import annotations

from dataclasses import dataclass

MEASURED, INTERPOLATED, MODELLED, ASSUMED = "measured", "interpolated", "modelled", "assumed"
#: Where a duration may come from.
EVIDENCE = (MEASURED, INTERPOLATED, MODELLED, ASSUMED)


@dataclass(frozen=True, slots=True)
class Duration:
    """``ps``: picoseconds on the GPU. ``evidence``: 'measured', 'interpolated', 'modelled' or 'assumed'."""

    ps: int
    evidence: str
