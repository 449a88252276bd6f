"""Times of collectives on an uncontended network, in whole picoseconds.

Every pair of ranks that exchanges data has a separate path with ``latency_ps`` and ``bytes_per_s``; with reducing
switches, every rank has a path to the switch in each direction. All ranks enter at the same time. The simulated
schedules give exactly these times. The formulas use only a schedule's sizes and parameters, not its sends.

A time is the sum of consecutive *rounds* on the critical path, (number, bytes). Each round costs one latency plus the
time of its bytes. The record of each algorithm (:class:`trine.collectives.algorithm.Algorithm`) has its rounds.
"""

from __future__ import annotations

from itertools import groupby

from trine.collectives.algorithm import Rounds
from trine.collectives.registry import record_of, rounds_of
from trine.collectives.schedule import Schedule
from trine.common.units import transfer_ps


def uncontended_ps(schedule: Schedule, bytes_per_s: int, latency_ps: int) -> int:
    """Return the time from the common entry to the end on the last rank, in ps.

    Raises InputError: the schedule's kind and algorithm have no closed form.
    """
    rounds = critical_rounds(schedule, bytes_per_s, latency_ps)
    return sum(count * (latency_ps + transfer_ps(size, bytes_per_s)) for count, size in rounds)


def critical_rounds(schedule: Schedule, bytes_per_s: int, latency_ps: int) -> Rounds:
    """Return (number of rounds, bytes of each) along the critical path; neighbours differ in bytes.

    Bandwidth and latency matter only if paths of different kinds compete: halving-doubling of reduce_scatter and
    all_gather with a number of ranks that is not a power of two.

    Raises InputError: the schedule's kind and algorithm have no closed form.
    """
    if schedule.num_ranks == 1 and has_closed_form(schedule):
        return ()
    rounds = rounds_of(schedule, lambda size: latency_ps + transfer_ps(size, bytes_per_s))
    merged = ((sum(count for count, _ in group), size) for size, group in groupby(rounds, key=lambda one: one[1]))
    return tuple((count, size) for count, size in merged if count)


def has_closed_form(schedule: Schedule) -> bool:
    """Return whether :func:`uncontended_ps` supports the schedule's kind and algorithm."""
    return record_of(schedule) is not None
