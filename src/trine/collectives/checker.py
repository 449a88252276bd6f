"""Does a schedule do what it says? Runs it on symbols: which ranks' data is in each chunk of each rank."""

from __future__ import annotations

import random

import numpy as np
import numpy.typing as npt

from trine.collectives.expand import expand
from trine.errors import InputError, nearest
from trine.model.schedule import ExpandedSchedule, Schedule

#: [ranks, chunks, ranks]: how often the data of each rank is in each chunk of each rank
State = npt.NDArray[np.int64]

KINDS = (
    "all_reduce",
    "reduce_scatter",
    "all_gather",
    "broadcast",
    "reduce",
    "gather",
    "scatter",
    "send_recv",
)


def check_schedule(schedule: Schedule, orders: int = 3) -> None:
    """Prove that every rank ends with the right data, in several orders that the dependencies allow.

    A transfer reads its chunk when it starts and writes it when it ends; ``orders`` - 1 random but reproducible orders
    are run besides the first come, first served one, with many transfers under way at once.

    Raises
    ------
    InputError: the kind is unknown, transfers wait for each other in a circle, or a rank ends with other data.
    """
    if schedule.kind not in KINDS:
        raise InputError(f"cannot check a {schedule.kind!r}{nearest(schedule.kind, KINDS)}")
    expanded = expand(schedule)
    for seed in range(orders):
        _check_final(schedule, _run(schedule, expanded, random.Random(seed) if seed else None))


def _title(schedule: Schedule) -> str:
    return f"{schedule.algorithm} {schedule.kind} of {schedule.num_ranks} ranks"


def _initial(schedule: Schedule) -> State:
    """What each rank holds on entry: everything, its own chunk, or (all but the root) nothing."""
    ranks, chunks = schedule.num_ranks, schedule.num_chunks
    state = np.zeros((ranks, chunks, ranks), dtype=np.int64)
    if schedule.kind in ("all_reduce", "reduce_scatter", "reduce"):
        for rank in range(ranks):
            state[rank, :, rank] = 1
    elif schedule.kind in ("all_gather", "gather"):
        for rank in range(ranks):
            state[rank, rank, rank] = 1
    else:
        state[schedule.root, :, schedule.root] = 1
    return state


def _run(schedule: Schedule, expanded: ExpandedSchedule, order: random.Random | None) -> State:
    """Start and end transfers, each when its predecessors have ended; ``order`` None takes them first come, first."""
    state = _initial(schedule)
    ptr, idx = expanded.predecessor_ptr, expanded.predecessor_idx
    waiting = np.diff(ptr)
    followers: list[list[int]] = [[] for _ in range(expanded.num_transfers)]
    for transfer in range(expanded.num_transfers):
        for before in idx[ptr[transfer] : ptr[transfer + 1]]:
            followers[before].append(transfer)
    under_way: list[tuple[int, npt.NDArray[np.int64]]] = []

    def start(transfer: int) -> None:
        under_way.append((transfer, state[expanded.src[transfer], expanded.chunk[transfer]].copy()))

    for transfer in np.flatnonzero(waiting == 0).tolist():
        start(transfer)
    ended = 0
    while under_way:
        ending, data = under_way.pop(0 if order is None else order.randrange(len(under_way)))
        ended += 1
        target = state[expanded.dst[ending], expanded.chunk[ending]]
        target[:] = target + data if expanded.reduce[ending] else data
        for follower in followers[ending]:
            waiting[follower] -= 1
            if waiting[follower] == 0:
                start(follower)
    if ended < expanded.num_transfers:
        raise InputError(f"{_title(schedule)}: {expanded.num_transfers - ended} transfers wait for each other")
    return state


def _check_final(schedule: Schedule, state: State) -> None:
    """Compare the chunks that each rank must have with what they should hold, each contribution exactly once."""
    everyone = np.ones(schedule.num_ranks, dtype=np.int64)
    one = np.eye(schedule.num_ranks, dtype=np.int64)
    for rank in range(schedule.num_ranks):
        for chunk in _owned(schedule, rank):
            if schedule.kind in ("all_reduce", "reduce_scatter", "reduce"):
                wanted = everyone
            elif schedule.kind in ("all_gather", "gather"):
                wanted = one[chunk]
            else:
                wanted = one[schedule.root]
            if (state[rank, chunk] != wanted).any():
                raise InputError(
                    f"{_title(schedule)}: chunk {chunk} of rank {rank} ends with the data of ranks "
                    f"{_contents(state[rank, chunk])}, not {_contents(wanted)}"
                )


def _contents(counts: npt.NDArray[np.int64]) -> str:
    present = [f"{rank}" if counts[rank] == 1 else f"{rank} x {counts[rank]}" for rank in np.flatnonzero(counts)]
    return ", ".join(present) or "none"


def _owned(schedule: Schedule, rank: int) -> range:
    """The chunks that must be right on ``rank`` at the end."""
    if schedule.kind in ("reduce_scatter", "scatter"):
        return range(rank, rank + 1)
    if schedule.kind in ("reduce", "gather") and rank != schedule.root:
        return range(0)
    return range(schedule.num_chunks)
