"""A predicted time and what it rests on."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Duration:
    """``ps``: picoseconds on the GPU. ``evidence``: 'measured', 'interpolated', 'modelled' or 'assumed'."""

    ps: int
    evidence: str
