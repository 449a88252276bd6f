"""Collectives: schedules of sends, dependencies of their transfers, closed forms and predictions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trine.common._lazy import lazy

if TYPE_CHECKING:
    from trine.collectives.local import local_structures, rank_sends
    from trine.collectives.registry import known_algorithms, known_kinds, make_schedule

__all__ = ["known_algorithms", "known_kinds", "local_structures", "make_schedule", "rank_sends"]

_HOMES = {
    "known_algorithms": "trine.collectives.registry",
    "known_kinds": "trine.collectives.registry",
    "local_structures": "trine.collectives.local",
    "make_schedule": "trine.collectives.registry",
    "rank_sends": "trine.collectives.local",
}

if not TYPE_CHECKING:  # or type checkers would take any name for one of the package's
    __getattr__ = lazy(__name__, _HOMES)
