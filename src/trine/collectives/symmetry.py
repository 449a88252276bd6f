"""Symmetries of schedules: positions as digits, to each of which anything may be added modulo its number of values."""

from __future__ import annotations

from math import prod

import numpy as np
import numpy.typing as npt

from trine.arrays import Int32, Int64
from trine.collectives.schedule import Schedule
from trine.errors import InputError

Positions = npt.NDArray[np.integer]


def symmetry_of(schedule: Schedule) -> tuple[int, ...] | None:
    """Values of each digit, the least significant first; None where the schedule states no symmetry that can hold.

    Raises
    ------
    InputError: ``symmetry`` does not multiply to the number of ranks, has a digit without values, or is stated of
        a schedule with switches or besides ``shift_symmetric``.
    """
    n, stated = schedule.num_ranks, schedule.symmetry
    if stated is not None:
        if schedule.shift_symmetric:
            raise InputError("states both symmetry and shift_symmetric, which is (n,)", field="symmetry")
        if schedule.num_agents:
            raise InputError("is stated of ranks only, but this schedule has switches", field="symmetry")
        if any(values < 1 for values in stated):
            raise InputError(f"a digit of {stated} has fewer than 1 value", field="symmetry")
        if prod(stated) != n:
            raise InputError(f"the digits {stated} are {prod(stated)} positions, not {n} ranks", field="symmetry")
        return stated
    if schedule.num_agents or (n > 1 and not is_shifted(schedule)):
        return None
    return (n,)


def is_shifted(schedule: Schedule) -> bool:
    """Whether it states that every rank does as rank 0, and has equally many chunks for each."""
    return schedule.shift_symmetric and not schedule.num_agents and schedule.num_chunks % schedule.num_ranks == 0


def moved(positions: Positions, by: Positions, symmetry: tuple[int, ...]) -> Int32:
    """``positions`` with the digits of ``by`` added; arguments broadcast."""
    positions, by = positions.astype(np.int32), by.astype(np.int32)
    if set(symmetry) <= {2}:
        return positions ^ by
    total, weight = np.zeros(np.broadcast_shapes(positions.shape, by.shape), dtype=np.int32), 1
    for values in symmetry:
        digit = positions // weight % values + by // weight % values
        np.subtract(digit, values, out=digit, where=digit >= values)
        digit *= weight
        total += digit
        weight *= values
    return total


def opposite(positions: Positions, symmetry: tuple[int, ...]) -> Int64:
    """What leads back to position 0 when added to ``positions``."""
    total, weight = np.zeros(positions.shape, dtype=np.int64), 1
    for values in symmetry:
        total += -(positions.astype(np.int64) // weight) % values * weight
        weight *= values
    return total
