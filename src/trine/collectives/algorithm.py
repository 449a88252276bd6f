"""The record of a collective algorithm: how it is made, and what its source says about time, bytes and symmetry."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from trine.collectives.schedule import Parameter, Schedule

#: (number of rounds, bytes of each) along the critical path
Rounds: TypeAlias = tuple[tuple[int, int], ...]
#: bytes of a message -> ps until its arrival
MessageTime: TypeAlias = Callable[[int], int]
#: number of ranks -> radices of the symmetry as in :class:`Schedule`; None: ranks are not alike
Symmetry: TypeAlias = Callable[[int], tuple[int, ...] | None]
#: (number of ranks, payload in bytes, root or -1, algorithm-specific keyword-only parameters with defaults) -> schedule
MakeSchedule: TypeAlias = Callable[..., Schedule]


@dataclass(frozen=True, slots=True, kw_only=True)
class Algorithm:
    """One algorithm of one collective. Calling it makes the schedule.

    make: builds the schedule, with its sends. rounds: the closed form, the rounds of the critical path of a schedule of
    two or more ranks on an uncontended network (:mod:`trine.collectives.closed_forms`). total_bytes: bytes that all
    ranks and switches send, from the number of ranks and the bytes of the padded payload. symmetry: with default
    parameters. source: the paper or program that defines it.

    Tests hold every record to its schedules: ``tests/closed_form/test_collectives_closed_form.py`` and
    ``tests/property/test_collectives_semantics.py``.
    """

    kind: str
    name: str
    make: MakeSchedule
    rounds: Callable[[Schedule, MessageTime], Rounds]
    total_bytes: Callable[[int, int], float]
    symmetry: Symmetry
    source: str

    def __call__(self, num_ranks: int, size_bytes: int, root: int = -1, **parameters: Parameter) -> Schedule:
        return self.make(num_ranks, size_bytes, root, **parameters)


def whole_parameter(schedule: Schedule, name: str) -> int:
    """Return a schedule's parameter that is a whole number, such as its channels."""
    value = dict(schedule.parameters)[name]
    assert isinstance(value, int)
    return value


def shifts(num_ranks: int) -> tuple[int, ...]:
    """Return the symmetry of ranks that are alike at any distance around a ring."""
    return (num_ranks,)


def no_symmetry(num_ranks: int) -> None:
    """Return None: ranks have different roles, as in a tree or with a root."""
    del num_ranks


def all_but_own(num_ranks: int, payload_bytes: int) -> int:
    """Return the bytes if each rank gets every part but its own, or one buffer gets to every other rank."""
    return (num_ranks - 1) * payload_bytes


def twice_all_but_own(num_ranks: int, payload_bytes: int) -> int:
    """Return the bytes of a reduction and a distribution of all parts."""
    return 2 * (num_ranks - 1) * payload_bytes
