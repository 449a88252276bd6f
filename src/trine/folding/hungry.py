"""Which ranks hold most memory at a time.

What overlaps depends on when things arrive, so that ranks of one program may differ.
"""

from __future__ import annotations

import numpy as np

from trine.arrays import Int64
from trine.folding.episodes import FoldedRun
from trine.folding.observe import rank_memory
from trine.folding.sketch import Sketch
from trine.graph.taskgraph import Records
from trine.results.memory import memory_timeline

#: Classes with more tasks than this in all are not looked at one by one (about 1 s).
MOST_TASKS = 4_000_000


def hungry_ranks(run: FoldedRun) -> list[int]:
    """Of each sketch the rank with the highest peak, of several the lowest, where the last classes differ in it.

    Sketches of one class are left out: its ranks are alike. Where classes have more than MOST_TASKS tasks: none.
    """
    found = []
    left = MOST_TASKS
    for sketch in run.job.sketches:
        ranks = one_of_each_class(run, sketch.ranks)
        left -= len(ranks) * sketch.num_tasks
        if left < 0:
            return []
        if len(ranks) > 1:
            peaks = _peaks(run, sketch, ranks)
            found.append(int(ranks[np.argmax(peaks)]))
    return found


def one_of_each_class(run: FoldedRun, ranks: Int64) -> Int64:
    """The lowest of the given ``ranks`` of each class in which a rank ends."""
    last, count = np.full(len(ranks), -1, np.int64), 0
    for episode in run.episodes:
        number = episode.partition.class_of[ranks]
        last[number >= 0] = count + number[number >= 0]
        count += episode.partition.num_classes
    return ranks[np.sort(np.unique(last, return_index=True)[1])]


def _peaks(run: FoldedRun, sketch: Sketch, ranks: Int64) -> list[int]:
    """Bytes that each of the ranks, which follow one sketch, holds at most."""
    memory = rank_memory(run, [sketch], np.zeros(1, np.int64))
    peaks = []
    for rank in ranks.tolist():
        ready, start, end = run.times(rank)
        records = Records(ready_ps=ready, start_ps=start, end_ps=end, num_events=0, engine="", network="")
        peaks.append(int(memory_timeline(memory, records).total_bytes.max(initial=0)))
    return peaks
