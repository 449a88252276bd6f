"""Collectives: schedules of sends, dependencies of their transfers, closed forms and predictions."""

from trine.collectives.expand import expand
from trine.collectives.local import local_structures, rank_sends
from trine.collectives.registry import known_algorithms, known_kinds, make_schedule

__all__ = ["expand", "known_algorithms", "known_kinds", "local_structures", "make_schedule", "rank_sends"]
