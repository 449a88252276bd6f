"""Whether a run is one of those that picoseconds can move: contended, and not symmetric.

Flows that share a link in lock-step are an unstable equilibrium of max-min and of equal sharing: a picosecond between
them grows until they take turns. Flows of one class are alike whatever happens; flows of several are not.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from trine.folding.episodes import FoldedRun
from trine.folding.partition import Partition
from trine.folding.sight import RouteTable
from trine.folding.site import Site
from trine.folding.sketch import HOSTS, Sketch
from trine.folding.sketching import JobSketch
from trine.model.taskgraph import TRANSFER

Int64 = npt.NDArray[np.int64]


def sensitivity_warning(run: FoldedRun, site: Site) -> str:
    """A sentence for runs in which ranks that run one program are told apart and share links; "" for others.

    It says what may be, from structure alone: such ranks need not send at the same time.
    """
    programs = len(run.job.job.programs)
    finest = max((episode.partition for episode in run.episodes), key=lambda partition: partition.num_classes)
    if finest.num_classes <= programs or not shares_links(run.job, site, finest):
        return ""
    kinds = "one program" if programs == 1 else f"{programs} programs"
    return (
        f"ranks of {finest.num_classes} classes, which run {kinds}, share links: such contention can be sensitive to "
        "picoseconds; --repeat 5 gives the spread"
    )


def shares_links(job: JobSketch, site: Site, partition: Partition) -> bool:
    """Whether ranks of several classes send over some link in collectives of one kind, or in messages of one axis."""
    table, num_links = RouteTable(site.routes), len(site.link_bytes_per_s)
    crossing: dict[object, tuple[Int64, Int64]] = {}
    for sketch in job.sketches:
        for kind, role in _sends(job, sketch):
            if kind not in crossing:
                crossing[kind] = np.full(num_links, partition.num_classes), np.full(num_links, -1)
            least, most = crossing[kind]
            ptr, links = table.of_role(sketch, role)
            classes = np.repeat(partition.class_of[sketch.ranks].astype(np.int64), np.diff(ptr))
            known = classes >= 0
            np.minimum.at(least, links[known], classes[known])
            np.maximum.at(most, links[known], classes[known])
    return any((most > least).any() for least, most in crossing.values())


def _sends(job: JobSketch, sketch: Sketch) -> set[tuple[object, int]]:
    """What a sketch sends, and to which roles: (axis, algorithm) of collectives, the axis of messages.

    Copies to and from the host are left out: each is short, and nothing that comes later hangs on their order.
    """
    sends = (sketch.kind == TRANSFER) & ~np.isin(sketch.role, HOSTS)
    pairs = np.unique(np.stack([sketch.key[sends], sketch.role[sends]], axis=1), axis=0)
    return {
        ((job.keys[key][0], sketch.algorithm_of[key]) if key >= 0 else sketch.role_axes[role], role)
        for key, role in pairs.tolist()
    }
