"""The log of a run as the record of what came to one GPU (model/outside.py)."""

from __future__ import annotations

import numpy as np

import trine.gpu._state as S
from trine.arrays import Int64
from trine.gpu._state import Entities, Outside
from trine.gpu.outside import Arrivals
from trine.gpu.system import GpuSystem


def arrivals_of(log: Int64, system: GpuSystem, waves: int) -> Arrivals:
    """The record of the GPU ``system.record``. log: int64[rows, 8]; waves: places of a CU, as keys have them.

    In a folded run requests of others are mirror images of those of GPUs that stand for them: whose they are follows
    from how far away they come from.
    """
    target = int(system.ranks[system.record])
    come = log[log[:, S.LOG_WHAT] == S.HAS_COME]
    rank_at = np.full(system.num_ranks, -1, np.int64)
    for rank in range(system.num_ranks):
        rank_at[system.distance(rank, target)] = rank
    rank = rank_at[come[:, S.LOG_LABEL] - 1]
    place, number = _place(come[:, S.LOG_KEY], system, waves), _number(come[:, S.LOG_KEY])
    if isinstance(system.outside, Arrivals):  # keys of what is replayed have places as records do
        place = _place(come[:, S.LOG_KEY], system, system.model.wavefronts_per_cu)
    order = np.lexsort((rank, number, place, come[:, S.LOG_LABEL], come[:, S.LOG_TIME_PS]))
    come, rank, place, number = come[order], rank[order], place[order], number[order]
    semaphore = come[:, S.LOG_SEMAPHORE] - system.record * system.program.semaphores.shape[1]
    has_semaphore = come[:, S.LOG_SEMAPHORE] >= 0
    gone, back = log[log[:, S.LOG_WHAT] == S.SETS_OUT], log[log[:, S.LOG_WHAT] == S.IS_BACK]
    # The k-th answer to a key is that to the k-th request with it: keys of a place come again after 2^14 requests only.
    gone = np.column_stack([gone, _how_manieth(_place(gone[:, S.LOG_KEY], system, waves))])
    gone, back = (
        gone[np.argsort(gone[:, S.LOG_KEY], kind="stable")],
        back[np.argsort(back[:, S.LOG_KEY], kind="stable")],
    )
    refused = (back[:, S.LOG_SEMAPHORE] >= 0) & (back[:, S.LOG_AMOUNT] > 0) & (back[:, S.LOG_KIND] == S.KIND_LOAD)
    answer_place = _place(back[:, S.LOG_KEY], system, waves)
    return Arrivals(
        target=target,
        num_ranks=system.num_ranks,
        time_ps=come[:, S.LOG_TIME_PS].copy(),
        rank=rank.astype(np.int32),
        place=place.astype(np.int32),
        number=number.astype(np.int32),
        kind=come[:, S.LOG_KIND].astype(np.int8),
        address=come[:, S.LOG_ADDRESS].copy(),
        semaphore=np.where(has_semaphore, semaphore, -1).astype(np.int32),
        amount=np.where(has_semaphore, come[:, S.LOG_AMOUNT], 0),
        answer_place=answer_place.astype(np.int32),
        answer_number=gone[: len(back), S.LOG_WORDS].astype(np.int32),
        answer_ps=back[:, S.LOG_TIME_PS].copy(),
        answer_refused=refused.astype(np.int8),
    )


def _place(key: Int64, system: GpuSystem, waves: int) -> Int64:
    """CU * wavefronts_per_cu + slot."""
    cu, slot = np.divmod((key >> S.SHIFT_WAVE) & (S.MAX_WAVES - 1), waves)
    return cu * system.model.wavefronts_per_cu + slot


def _number(key: Int64) -> Int64:
    return (key >> S.SHIFT_SEQ) & ((1 << (S.SHIFT_WAVE - S.SHIFT_SEQ)) - 1)


def _how_manieth(values: Int64) -> Int64:
    """How many equal values stand before each."""
    order = np.argsort(values, kind="stable")
    first = np.searchsorted(values[order], values[order])
    manieth = np.empty(len(values), np.int64)
    manieth[order] = np.arange(len(values)) - first
    return manieth


def answer_fault(entities: Entities, outside: Outside, scalars: Int64, numbers: Int64, system: GpuSystem) -> str:
    """Why the request UNRECORDED gets no answer from the record that is replayed."""
    r = int(scalars[S.UNRECORDED])
    internal = int(entities.half[S.ENTITY_HALVES * r + S.WAVE])
    cu, slot = divmod(internal, int(numbers[S.N_WAVES]))
    place = cu * system.model.wavefronts_per_cu + slot
    row = int(entities.cold[S.COLD * (r - numbers[S.N_FIRST_REQUEST]) + S.ISSUED_PS])
    of_whom = f"for place {place} of rank {system.ranks[0]}"
    first = int(outside.answer_ptr[internal])
    if row < 0:
        missing = int(outside.answer_ptr[internal + 1]) - first
        return f"the record has no answer {missing} {of_whom}: it is of another program or model"
    left_ps = int(entities.word[S.ENTITY_WORDS * r + S.TIME_PS])
    return (
        f"answer {row - first} {of_whom} comes at {int(outside.answer_ps[row])} ps, before the request left at "
        f"{left_ps} ps: the record is of another program or model"
    )
