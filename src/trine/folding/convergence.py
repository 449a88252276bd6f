"""An estimate of how many micro-batches a run needs until it repeats, from a run of fewer that does not repeat yet.

The time between the ends of successive backward passes of a rank is its *pace*. Where stages share links or have unlike
work, the paces approach the one of the slowest stage, mostly by a constant factor for each micro-batch, so the
deviations of few micro-batches tell when less than a picosecond will be left. A wrong estimate costs time and never
changes a result: whether a run repeats is decided by its tasks alone (:mod:`trine.folding.period`).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, log
from typing import NamedTuple

import numpy as np

from trine.common.arrays import Int64
from trine.folding.lists import PASS_KINDS, Track, tracks_of
from trine.folding.run import JobRun
from trine.graph.program import Phase

#: Deviations below this part of the largest one say nothing about the factor: other, smaller effects cover it.
SMALLEST_PART = 1e-3
#: Paces with a larger factor from one micro-batch to the next count as paces that do not converge.
MAX_FACTOR = 0.95
#: Fewer deviations prove no lack of convergence: paces may alternate, and repeat with a longer period.
MIN_APART = 4
#: The estimate has this many micro-batches for two periods of up to two micro-batches each,
IN_WINDOWS = 4
#: and this part more until the deviations vanish.
MARGIN = 0.1
#: An estimate above this part of the last count is that count: a try just below it would gain little.
NEAR_LAST = 0.75
#: A planned count behind an estimate that failed must be this much larger to be worth a try.
NEXT_RATIO = 1.5


class Paces(NamedTuple):
    """The paces of a run before its pipeline drains.

    deviations: int64[n], ps, the largest of all ranks for each micro-batch. fill: micro-batches without a pace.
    """

    deviations: Int64
    fill: int


def counts_after(counts: Sequence[int], run: JobRun, distance: int) -> list[int]:
    """Return the numbers of micro-batches to try after a ``run`` that does not repeat.

    counts: the numbers planned next, ascending; all are multiples of ``distance`` apart. Below the estimate or just
    above it only the last one is tried, because it may repeat nearly (:mod:`trine.folding.bounded`); so it is if the
    paces do not converge. An estimate takes the place of a count, so all tries together take at most about as long as
    planned.
    """
    if not counts:
        return []
    paces = paces_of(tracks_of(run), distance)
    if stay_apart(paces):
        return [counts[-1]]
    estimate = estimated_count(paces)
    if estimate is None or estimate <= counts[0]:
        return list(counts)
    estimate += (counts[-1] - estimate) % max(2, distance)
    later = [count for count in counts[:-1] if count >= NEXT_RATIO * estimate]
    wanted = [estimate] if estimate <= NEAR_LAST * counts[-1] else []
    return [*wanted, *later, counts[-1]]


def paces_of(tracks: Sequence[Track], distance: int) -> Paces:
    """Return the paces of a run, from each micro-batch to the one ``distance`` later."""
    ends = [_pass_ends(track) for track in tracks]
    # Behind the first rank's last forward pass the pipeline drains: fewer messages share the links.
    drains_ps = min((last_ps for _, last_ps in ends if last_ps), default=0)
    all_paces = [backward[distance:] - backward[:-distance] for backward, _ in ends if len(backward) > distance]
    if not all_paces:
        return Paces(np.zeros(0, np.int64), 0)
    pace = int(np.median(np.concatenate(all_paces)))
    in_time = min(int(np.searchsorted(backward, drains_ps, "right")) for backward, _ in ends) + 1
    steady = max(0, in_time - distance)
    deviations = np.zeros(steady, np.int64)
    for paces in all_paces:
        tail = np.zeros(max(0, steady - len(paces)), np.int64)
        deviations = np.maximum(deviations, np.abs(np.concatenate([paces[:steady] - pace, tail])))
    return Paces(deviations, max(len(backward) for backward, _ in ends) - steady)


def _pass_ends(track: Track) -> tuple[Int64, int]:
    """Return the ends of the first step's backward passes, by micro-batch, and the end of its last forward pass."""
    lists, end = track.lists, track.times.end
    if not len(lists.begin):
        return np.zeros(0, np.int64), 0
    ends = np.maximum.reduceat(end[lists.tasks], lists.begin)
    step, phase = np.divmod(lists.passes, PASS_KINDS)
    is_first = step == step.min()
    backward = np.flatnonzero(is_first & (phase - 1 == Phase.BACKWARD))
    forward = ends[is_first & (phase - 1 == Phase.FORWARD)]
    return ends[backward[np.argsort(lists.microbatch[backward], kind="stable")]], int(forward.max(initial=0))


def estimated_count(paces: Paces) -> int | None:
    """Return the micro-batches of which a run probably repeats, or None if the paces do not converge."""
    deviations = paces.deviations
    significant = _last_significant(deviations)
    if significant == 0:
        return None
    largest = int(np.argmax(deviations))
    factor = _factor(deviations, significant)
    if factor > MAX_FACTOR:
        return None
    vanishes = largest + ceil((1 + MARGIN) * log(2 * deviations[largest]) / -log(factor))
    return paces.fill + vanishes + IN_WINDOWS


def stay_apart(paces: Paces) -> bool:
    """Return whether enough paces differ from each other, without convergence."""
    significant = _last_significant(paces.deviations)
    return significant + 1 >= MIN_APART and _factor(paces.deviations, significant) > MAX_FACTOR


def _last_significant(deviations: Int64) -> int:
    """Return the micro-batches from the largest deviation to the last one that counts for the factor."""
    if not deviations.any():
        return 0
    largest = int(np.argmax(deviations))
    return int(np.flatnonzero(deviations[largest:] >= SMALLEST_PART * deviations[largest])[-1])


def _factor(deviations: Int64, significant: int) -> float:
    """Return the mean factor of the deviations from one micro-batch to the next, behind the largest one."""
    largest = int(np.argmax(deviations))
    return float((deviations[largest + significant] / deviations[largest]) ** (1 / significant))
