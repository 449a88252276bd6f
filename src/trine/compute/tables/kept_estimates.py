"""Estimates of a table, kept by shape: the jobs of a search or a sweep ask for the same shapes again and again."""

from __future__ import annotations

from collections.abc import Callable

from trine.common.arrays import Float64
from trine.compute.tables.machine import Machine

#: Most estimates that a table keeps, and most shapes of one: larger questions come from studies that ask once.
MAX_KEPT, MAX_SHAPES = 4096, 64


class KeptEstimates:
    """The latest estimates of one table, which never changes."""

    def __init__(self) -> None:
        self._known: dict[tuple[bytes, tuple[int, ...], Machine], Float64] = {}

    def of(self, shapes: Float64, machine: Machine, estimate: Callable[[], Float64]) -> Float64:
        """Return the microseconds of ``shapes`` on ``machine``: kept ones, else those of ``estimate``; read-only."""
        if len(shapes) > MAX_SHAPES:
            return estimate()
        key = shapes.tobytes(), shapes.shape, machine
        if key not in self._known:
            if len(self._known) >= MAX_KEPT:
                self._known.clear()
            self._known[key] = estimate()
            self._known[key].setflags(write=False)
        return self._known[key]
