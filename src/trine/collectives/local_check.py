"""Is what each position is said to send and wait for what the whole schedule says? Finds false symmetries."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from trine.arrays import Int64
from trine.collectives.local import local_structures, rank_sends
from trine.collectives.schedule import ExpandedSchedule, RankSends, Schedule
from trine.errors import InputError


def check_local(schedule: Schedule, expanded: ExpandedSchedule) -> None:
    """Compare :func:`rank_sends` of every position, and its structure, with ``expanded``, all transfers.

    Raises
    ------
    InputError: a position sends or waits for something else. ``expanded`` rests on no stated symmetry, so that
        it is the symmetry that does not hold.
    """
    title = f"{schedule.algorithm} {schedule.kind} of {schedule.num_ranks} ranks"
    num_positions = schedule.num_ranks + schedule.num_agents
    base = np.searchsorted(expanded.src, np.arange(num_positions + 1)).astype(np.int64)
    structures = local_structures(schedule)
    for position in range(num_positions):
        one = rank_sends(schedule, position)
        difference = _difference(one, expanded, base, position, schedule.num_ranks)
        shared = structures.structures[structures.structure_of[position]]
        if not difference and shared.structure_key != one.structure_key:
            difference = "structure"
        if not difference and not np.array_equal(structures.peers_of([position])[0], one.peers):
            difference = "peers"
        if difference:
            stated = "shift_symmetric" if schedule.shift_symmetric else f"symmetry {schedule.symmetry}"
            raise InputError(
                f"{title}: with {stated}, the {difference} of rank {position} would not be what the sends of all ranks "
                "make it"
            )


def _difference(one: RankSends, expanded: ExpandedSchedule, base: Int64, position: int, num_ranks: int) -> str:
    """What differs, by name; "" if nothing does."""
    rows = slice(base[position], base[position + 1])
    pairs: dict[str, tuple[npt.NDArray[np.generic], npt.NDArray[np.generic]]] = {}
    if one.num_sends != rows.stop - rows.start:
        return "number of sends"
    pairs["receivers"] = one.peers[one.receiver], expanded.dst[rows]
    for name in ("step", "size_bytes", "entry_src", "entry_dst"):
        pairs[name] = getattr(one, name), getattr(expanded, name)[rows]
    ptr = expanded.predecessor_ptr[rows.start : rows.stop + 1]
    pairs["number of predecessors"] = np.diff(one.predecessor_ptr), np.diff(ptr)
    for name, (mine, theirs) in pairs.items():
        if not np.array_equal(mine, theirs):
            return name
    user = np.repeat(np.arange(one.num_sends), np.diff(ptr))
    waits = _transfers(one, base, position, one.predecessor_who, one.predecessor_number)
    if not _same_sets(user, waits, expanded.predecessor_idx[ptr[0] : ptr[-1]]):
        return "predecessors"
    ended = _transfers(one, base, position, one.completion_who, one.completion_number)
    wanted = expanded.completion_idx[:0]
    if position < num_ranks:
        wanted = expanded.completion_idx[expanded.completion_ptr[position] : expanded.completion_ptr[position + 1]]
    return "" if np.array_equal(np.sort(ended), np.sort(wanted)) else "completion"


def _transfers(
    one: RankSends, base: Int64, position: int, who: npt.NDArray[np.int32], number: npt.NDArray[np.int32]
) -> Int64:
    """The transfers of the whole schedule that (who, number) are; -1 where there is no such send."""
    whose = np.append(one.peers, position)[who]
    transfer = base[whose] + number
    return np.where(transfer < base[whose + 1], transfer, -1)


def _same_sets(row: Int64, mine: Int64, theirs: npt.NDArray[np.int32]) -> bool:
    """Whether each row has the same entries, in whatever order."""
    return np.array_equal(mine[np.lexsort((mine, row))], theirs[np.lexsort((theirs, row))])
