"""Whether a run is one of those that picoseconds can move: contended, and not symmetric.

Flows that share a link in lock-step are an unstable equilibrium of max-min and of equal sharing: a picosecond between
them grows until they take turns. Flows of one class are alike whatever happens; flows of several are not.
"""

from __future__ import annotations

import numpy as np

from trine.arrays import Int32, Int64
from trine.folding.episodes import FoldedRun
from trine.folding.partition import Partition
from trine.folding.sight import RouteTable
from trine.folding.sketch import HOSTS, Sketch
from trine.folding.sketching import JobSketch
from trine.graph.placement import Placement
from trine.graph.taskgraph import TRANSFER
from trine.units import PS_PER_S

#: Links must carry for several classes, and classes be apart, for this share of the run: less cannot move it by more.
WORTH_A_WORD = 2e-3


def sensitivity_warning(run: FoldedRun, placement: Placement) -> str:
    """A sentence for runs in which ranks that run one program are told apart and share links; "" for others.

    It says what may be: such ranks need not send at the same time.
    """
    programs = len(run.job.job.programs)
    finest = max((episode.partition for episode in run.episodes), key=lambda partition: partition.num_classes)
    least_ps = WORTH_A_WORD * int(run.step_ends()[-1])
    if finest.num_classes <= programs or apart_ps(run) < least_ps:
        return ""
    if shared_s(run.job, placement, finest) * PS_PER_S < least_ps:
        return ""
    kinds = "one program" if programs == 1 else f"{programs} programs"
    return (
        f"ranks of {finest.num_classes} classes, which run {kinds}, share links: such contention can be sensitive to "
        "picoseconds; --repeat 5 gives the spread"
    )


def apart_ps(run: FoldedRun) -> int:
    """How far classes that run one program are apart: the most, over steps of programs, between their ends."""
    ends: dict[int, tuple[Int64, Int64]] = {}
    for episode in run.episodes:
        for number, at in enumerate(episode.part_of.tolist()):
            part = episode.parts[at]
            own = len(run.job.templates[part.sketch.program].kind)
            if part.sketch.program not in ends:
                ends[part.sketch.program] = np.full(own, np.iinfo(np.int64).max), np.full(own, -1)
            first, last = ends[part.sketch.program]
            end_ps = episode.end_ps[episode.tasks_of(number)]
            over = (part.tasks < own) & (end_ps >= 0)
            first[part.tasks[over]] = np.minimum(first[part.tasks[over]], end_ps[over])
            last[part.tasks[over]] = np.maximum(last[part.tasks[over]], end_ps[over])
    return max((int((last - first)[last >= 0].max(initial=0)) for first, last in ends.values()), default=0)


def shared_s(job: JobSketch, placement: Placement, partition: Partition) -> float:
    """The most seconds that a link takes for what several classes send over it to several, in collectives of one kind.

    What all goes to one rank is left out, as it waits for all of it in any order, and so are copies to and from the
    host, which are short.
    """
    crossing: dict[object, _Crossing] = {}
    table = RouteTable(placement.routes)
    for sketch in job.sketches:
        for (kind, role), size_bytes in _sent(job, sketch).items():
            if kind not in crossing:
                crossing[kind] = _Crossing(len(placement.link_bytes_per_s), partition.num_classes)
            ptr, links = table.of_role(sketch, role)
            senders, receivers = partition.class_of[sketch.ranks], partition.class_of[sketch.peers[:, role]]
            counts = np.diff(ptr)
            crossing[kind].add(np.repeat(senders, counts), np.repeat(receivers, counts), links, size_bytes)
    return max((one.shared_s(placement.link_bytes_per_s) for one in crossing.values()), default=0.0)


class _Crossing:
    """Of each link, the bytes and the least and the greatest class of who sends and who receives: int64[links] each."""

    def __init__(self, num_links: int, num_classes: int) -> None:
        self.least, self.most = np.full((2, num_links), num_classes), np.full((2, num_links), -1)
        self.carried = np.zeros(num_links, np.int64)

    def add(self, senders: Int32, receivers: Int32, links: Int32, size_bytes: int) -> None:
        known = (senders >= 0) & (receivers >= 0)
        for least, most, classes in zip(self.least, self.most, (senders, receivers), strict=True):
            np.minimum.at(least, links[known], classes[known])
            np.maximum.at(most, links[known], classes[known])
        np.add.at(self.carried, links, size_bytes)

    def shared_s(self, bytes_per_s: Int64) -> float:
        shared = (self.most > self.least).all(axis=0)
        return float((self.carried[shared] / bytes_per_s[shared]).max(initial=0.0))


def _sent(job: JobSketch, sketch: Sketch) -> dict[tuple[object, int], int]:
    """Bytes that a rank sends to each role: in collectives of one axis and algorithm, and in messages of one axis."""
    sends = (sketch.kind == TRANSFER) & ~np.isin(sketch.role, HOSTS)
    pairs, which = np.unique(np.stack([sketch.key[sends], sketch.role[sends]]), axis=1, return_inverse=True)
    sizes = np.zeros(pairs.shape[1], np.int64)
    np.add.at(sizes, which.ravel(), sketch.size_bytes[sends])
    found: dict[tuple[object, int], int] = {}
    for (key, role), size_bytes in zip(pairs.T.tolist(), sizes.tolist(), strict=True):
        kind = (job.keys[key][0], sketch.algorithm_of[key]) if key >= 0 else sketch.role_axes[role]
        found[kind, role] = found.get((kind, role), 0) + size_bytes
    return found
