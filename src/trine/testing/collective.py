"""The check of collective algorithms."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields

from trine.collectives import expand
from trine.collectives.registry import ROOTED, Algorithm
from trine.collectives.schedule import Schedule, Sends
from trine.errors import TrineError
from trine.testing import schedule_proof
from trine.testing.require import require

SIZES = (0, 1, 10, 4096, 1_000_003, 64 * 2**20)


def check_collective(kind: str, make: Algorithm, *, ranks: Iterable[int] | None = None) -> None:
    """Prove that ``make`` implements the collective ``kind``, by running its schedules on symbols.

    For 1 to 9 ranks (send_recv: 2; ``ranks`` names others, where an algorithm needs a power of two, say), every root
    and several sizes: every rank ends with the right data, each contribution once, in any order that the dependencies
    allow; the chunks make up the payload and no more; the schedule says what it was asked for; it is the same each
    time; and ``shift_symmetric`` and ``symmetry`` are claimed only where they hold.
    """
    require(kind in schedule_proof.KINDS, f"the collective {kind!r} is not one of {', '.join(schedule_proof.KINDS)}")
    for num_ranks in ranks if ranks is not None else (2,) if kind == "send_recv" else range(1, 10):
        proven: set[tuple[int, int]] = set()
        for size, root in [(s, r) for s in SIZES for r in (range(num_ranks) if kind in ROOTED else (-1,))]:
            where = f"{kind} of {num_ranks} ranks, {size} bytes" + ("" if root < 0 else f", root {root}")
            try:
                schedule = make(num_ranks, size, root)
                _require_as_asked(schedule, kind, num_ranks, size, root, where)
                if (schedule.num_chunks, root) not in proven:
                    _require_sends(schedule, where)
                    schedule_proof.check_schedule(schedule)
                    proven.add((schedule.num_chunks, root))
                moved = expand(schedule).size_bytes.sum()
            except TrineError as error:
                raise AssertionError(f"{where}: {error}") from error
            require(num_ranks == 1 or size == 0 or moved > 0, f"{where}: moves no bytes")


def _require_as_asked(schedule: Schedule, kind: str, num_ranks: int, size: int, root: int, where: str) -> None:
    """The schedule's own account of itself, and its chunks."""
    asked = {"kind": kind, "num_ranks": num_ranks, "size_bytes": size} | ({"root": root} if root >= 0 else {})
    for name, value in asked.items():
        require(getattr(schedule, name) == value, f"{where}: the schedule says {name} {getattr(schedule, name)!r}")
    chunks, chunk_bytes = schedule.num_chunks, schedule.chunk_bytes
    require(chunks >= 1 and chunk_bytes >= 0, f"{where}: {chunks} chunks of {chunk_bytes} bytes")
    # Of the blocks of all pairs of ranks, those that one rank sends are its payload; of a shift, its own buffer.
    own = num_ranks if kind in schedule_proof.BLOCKED else chunks // num_ranks if kind == "shift" else chunks
    require(
        size <= own * chunk_bytes < size + own,
        f"{where}: {own} chunks of {chunk_bytes} bytes are {own * chunk_bytes}; equal chunks, rounded up, would "
        f"have {-(-size // own)} bytes each",
    )
    if kind in schedule_proof.PARTED:
        require(chunks % num_ranks == 0, f"{where}: {chunks} chunks; this collective has as many of them for each rank")


def _require_sends(schedule: Schedule, where: str) -> None:
    """The sends of each rank and switch: well formed, repeatable, and symmetric if the schedule says so."""
    shape = schedule.num_ranks, schedule.num_chunks, schedule.root
    first = schedule.sends_of(0, *shape)
    for position in range(schedule.num_ranks + schedule.num_switches):
        sends = schedule.sends_of(position, *shape)
        columns = {field.name: getattr(sends, field.name) for field in fields(Sends)}
        lengths = {name: len(column) for name, column in columns.items() if column is not None}
        require(len(set(lengths.values())) == 1, f"{where}: columns of rank {position} have the lengths {lengths}")
        require(
            schedule_proof.equal_sends(sends, schedule.sends_of(position, *shape)),
            f"{where}: the sends of rank {position} differ from call to call",
        )
        if schedule.shift_symmetric and position < schedule.num_ranks:
            require(
                schedule_proof.equal_sends(sends, schedule_proof.shifted_sends(schedule, first, position)),
                f"{where}: says that it is shift_symmetric, but the sends of rank {position} are not those of rank 0 "
                "shifted",
            )
