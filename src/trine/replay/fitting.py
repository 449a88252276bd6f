"""Does what peers send fit the program: addresses inside its buffers, flags that its waits take?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from trine.arrays import Int64
from trine.errors import InputError
from trine.gpu.program import GpuProgram
from trine.replay.flags import Places, flag_places, gives_of, takes_of, waiting_workgroup

#: Flags, buffers and places that a message names; of the rest it says how many they are.
SHOWN = 8


def covered(program: GpuProgram) -> tuple[Int64, Int64]:
    """Where the buffers begin and end, those that touch or overlap as one; int64 each."""
    merged: list[list[int]] = []
    for base, end in sorted((buffer.base, buffer.base + buffer.size_bytes) for buffer in program.buffers):
        if merged and base <= merged[-1][1]:
            merged[-1][1] = max(merged[-1][1], end)
        else:
            merged.append([base, end])
    ranges = np.array(merged, np.int64).reshape(-1, 2)
    return ranges[:, 0], ranges[:, 1]


def outside_buffers(program: GpuProgram, address: Int64, size: Int64 | int) -> npt.NDArray[np.bool_]:
    """Which of some bytes are not, all of them, in buffers that the program names."""
    starts, ends = covered(program)
    within = np.searchsorted(starts, address, "right") - 1
    return (within < 0) | (address + size > np.append(ends, 0)[within])


def buffer_list(program: GpuProgram) -> str:
    """``: input 0x0 to 0x1000, ...``, behind "outside the buffers"."""
    if not program.buffers:
        return ", which the program does not name any of"
    shown = [f"{b.name} 0x{b.base:x} to 0x{b.base + b.size_bytes:x}" for b in program.buffers[:SHOWN]]
    return f": {', '.join(shown)}{', ...' if len(program.buffers) > SHOWN else ''}"


def check_flags(
    program: GpuProgram, target: int, semaphore: Int64, value: Int64, places: Places | None = None
) -> tuple[str, ...]:
    """What peers add to the semaphores of ``target``, against what its waits take; warnings about what they do not.

    Raises
    ------
    InputError: waits that nothing satisfies; names flags, what they lack and who waits.
    """
    places = flag_places(program, target) if places is None else places
    given = np.zeros(program.semaphores.shape[1], np.int64)
    np.add.at(given, semaphore, value)
    takes = takes_of(program, target)
    has = given + gives_of(program, target) + program.semaphores[target]
    _check_waits(program, target, takes, has, places)
    return tuple(_unwaited(program, target, takes, has, places, np.unique(semaphore)))


def flag_name(program: GpuProgram, places: Places, semaphore: int) -> str:
    """``sem 5 at flags+0x140``."""
    at = np.flatnonzero(places.semaphore == semaphore)
    if not len(at):
        return f"sem {semaphore}"
    return f"sem {semaphore} at {place_name(program, int(places.address[at[0]]))}"


def place_name(program: GpuProgram, address: int) -> str:
    """``flags+0x140``, or the number where no buffer is."""
    for buffer in program.buffers:
        if buffer.base <= address < buffer.base + buffer.size_bytes:
            return f"{buffer.name}+0x{address - buffer.base:x}"
    return f"0x{address:x}"


def listed(names: Sequence[str], number: int) -> str:
    """The first of them, and how many more there are."""
    return ", ".join(names[:SHOWN]) + (f" and {number - SHOWN} more" if number > SHOWN else "")


def flag_count(number: int) -> str:
    return "1 flag" if number == 1 else f"{number} flags"


def _check_waits(program: GpuProgram, target: int, takes: Int64, has: Int64, places: Places) -> None:
    short = np.flatnonzero(takes > has)
    if not len(short):
        return
    named = [
        f"{flag_name(program, places, s)} lacks {takes[s] - has[s]} of {takes[s]}{_waiter(program, target, s)}"
        for s in short[:SHOWN].tolist()
    ]
    raise InputError(
        f"rank {target} waits for {flag_count(len(short))} that no write satisfies: {listed(named, len(short))}",
        field="writes",
    )


def _waiter(program: GpuProgram, target: int, semaphore: int) -> str:
    who = waiting_workgroup(program, target, semaphore)
    return f" ({who} waits)" if who else ""


def _unwaited(
    program: GpuProgram, target: int, takes: Int64, has: Int64, places: Places, written: Int64
) -> Iterator[str]:
    idle = written[takes[written] == 0]
    extra = written[(takes[written] > 0) & (has[written] > takes[written])]
    if len(idle):
        names = [flag_name(program, places, s) for s in idle[:SHOWN].tolist()]
        yield f"rank {target} never waits for {flag_count(len(idle))} that peers write: {listed(names, len(idle))}"
    if len(extra):
        names = [flag_name(program, places, s) for s in extra[:SHOWN].tolist()]
        extra_flags = flag_count(len(extra))
        yield f"more comes to {extra_flags} than the waits of rank {target} take: {listed(names, len(extra))}"
