"""The log of a run as the record of what came to one GPU (gpu/peers.py)."""

from __future__ import annotations

import numpy as np

import trine.gpu._state as S
from trine._records import Record, RecordArray
from trine.arrays import Int64
from trine.gpu._state import LoopTables
from trine.gpu.peers import PUT, STORE, Arrivals
from trine.gpu.system import GpuSystem


def arrivals_of(log: RecordArray, system: GpuSystem, waves: int) -> Arrivals:
    """The record of the GPU ``system.record``. log: records LOG_ROW; waves: places of a CU, as keys have them.

    In a folded run requests of others are mirror images of those of GPUs that stand for them: whose they are follows
    from how far away they come from.
    """
    target = int(system.ranks[system.record])
    # label 0: what a switch brings back of the GPU's own
    come = log[(log["what"] == S.HAS_COME) & (log["label"] > 0)]
    rank_at = np.full(system.num_ranks, -1, np.int64)
    for rank in range(system.num_ranks):
        rank_at[system.distance(rank, target)] = rank
    rank = rank_at[come["label"] - 1]
    place, number = _place(come["key"], system, waves), _number(come["key"])
    if isinstance(system.outside, Arrivals):  # keys of what is replayed have places as records do
        place = _place(come["key"], system, system.model.wavefronts_per_cu)
    order = np.lexsort((rank, number, place, come["label"], come["kind"] == S.IS_FLOW, come["time_ps"]))
    come, rank, place, number = come[order], rank[order], place[order], number[order]
    semaphore = come["semaphore"] - system.record * system.program.semaphores.shape[1]
    has_semaphore = come["semaphore"] >= 0
    gone, back = log[log["what"] == S.SETS_OUT], log[log["what"] == S.IS_BACK]
    # The k-th answer to a key is that to the k-th request with it: keys of a place come again after 2^14 requests only.
    number_of_gone = _count_before(_place(gone["key"], system, waves))
    by_key = np.argsort(gone["key"], kind="stable")
    gone, number_of_gone = gone[by_key], number_of_gone[by_key]
    back = back[np.argsort(back["key"], kind="stable")]
    refused = (back["semaphore"] >= 0) & (back["amount"] > 0) & (back["kind"] == S.IS_LOAD)
    answer_place = _place(back["key"], system, waves)
    return Arrivals(
        target=target,
        num_ranks=system.num_ranks,
        time_ps=come["time_ps"].copy(),
        rank=rank.astype(np.int32),
        place=place.astype(np.int32),
        number=number.astype(np.int32),
        kind=np.select([come["kind"] == S.IS_FLOW, come["kind"] == S.IS_ADD], [PUT, STORE], come["kind"]).astype(
            np.int8
        ),
        address=come["address"].copy(),
        semaphore=np.where(has_semaphore, semaphore, -1).astype(np.int32),
        amount=np.where(has_semaphore, come["amount"], 0),
        answer_place=answer_place.astype(np.int32),
        answer_number=number_of_gone[: len(back)].astype(np.int32),
        answer_ps=back["time_ps"].copy(),
        answer_refused=refused.astype(np.int8),
    )


def _place(key: Int64, system: GpuSystem, waves: int) -> Int64:
    """CU * wavefronts_per_cu + slot."""
    cu, slot = np.divmod((key >> S.SHIFT_WAVE) & (S.MAX_WAVES - 1), waves)
    return cu * system.model.wavefronts_per_cu + slot


def _number(key: Int64) -> Int64:
    return (key >> S.SHIFT_SEQUENCE) & ((1 << (S.SHIFT_WAVE - S.SHIFT_SEQUENCE)) - 1)


def _count_before(values: Int64) -> Int64:
    """Of each value the number of equal ones before it."""
    order = np.argsort(values, kind="stable")
    first = np.searchsorted(values[order], values[order])
    count = np.empty(len(values), np.int64)
    count[order] = np.arange(len(values)) - first
    return count


def answer_fault(tables: LoopTables, clock: Record, model: Record, system: GpuSystem) -> str:
    """Why the request ``clock.unrecorded`` gets no answer from the record that is replayed."""
    event = tables.entities.events[clock.unrecorded]
    place = int(event["wave"])
    cu, slot = divmod(place, int(model.waves))
    of_whom = f"for place {cu * system.model.wavefronts_per_cu + slot} of rank {system.ranks[0]}"
    answers = tables.peers.answers_of[place]
    answer = int(tables.entities.answer[clock.unrecorded])
    if answer < 0:
        missing = int(answers["end"] - answers["first"])
        return f"the record has no answer {missing} {of_whom}: it is of another program or model"
    answer_ps = int(tables.peers.answers[answer]["time_ps"])
    return (
        f"answer {answer - int(answers['first'])} {of_whom} comes at {answer_ps} ps, before the request left at "
        f"{int(event['time_ps'])} ps: the record is of another program or model"
    )
