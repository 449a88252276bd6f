"""How long a collective takes on an uncontended network, in whole picoseconds.

Every pair of ranks that exchanges data has a path of its own with ``latency_ps`` and ``bytes_per_s``; all ranks enter
at the same time. The simulated schedules give exactly these times.
"""

from __future__ import annotations

from trine.errors import InputError, nearest
from trine.model.schedule import Schedule
from trine.units import transfer_ps


def num_rounds(schedule: Schedule) -> int:
    """Rounds that follow each other: each costs one latency and the time of one chunk.

    Ring all-reduce 2(N - 1), reduce-scatter and all-gather N - 1; a chain of N ranks with m chunks N - 2 + m (the first
    chunk needs N - 1 rounds to arrive, each other chunk follows one round later); direct collectives 1.

    Raises
    ------
    InputError: the schedule's kind and algorithm have no closed form.
    """
    if schedule.num_ranks == 1:
        return 0
    hops = schedule.num_ranks - 1
    rounds = {
        ("all_reduce", "ring"): 2 * hops,
        ("reduce_scatter", "ring"): hops,
        ("all_gather", "ring"): hops,
        ("broadcast", "ring"): hops - 1 + schedule.num_chunks,
        ("reduce", "ring"): hops - 1 + schedule.num_chunks,
        ("gather", "direct"): 1,
        ("scatter", "direct"): 1,
        ("send_recv", "direct"): 1,
    }
    name = (schedule.kind, schedule.algorithm)
    if name not in rounds:
        text = " ".join(name)
        raise InputError(f"no closed form for {text!r}{nearest(text, (' '.join(key) for key in rounds))}")
    return rounds[name]


def uncontended_ps(schedule: Schedule, bytes_per_s: int, latency_ps: int) -> int:
    """Time from the common entry to the end on the last rank: rounds x (ceil(chunk / bandwidth) + latency)."""
    return num_rounds(schedule) * (transfer_ps(schedule.chunk_bytes, bytes_per_s) + latency_ps)
