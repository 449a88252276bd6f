"""Where runs fold on networks that serve messages one after the other: where each link carries one route's messages.

Messages of one rank come in the same order folded and unfolded; messages of several, at one instant, come in the order
of their task numbers, which folding does not keep.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from trine.arrays import Int64
from trine.folding.sight import RouteTable
from trine.folding.sketch import HOSTS, Sketch

#: The place of a link that several routes cross.
SHARED = -2


def link_places(sketches: Sequence[Sketch], table: RouteTable, num_links: int) -> Int64:
    """int64[links]: the how manieth link each is on the only route that crosses it, -1 on none, SHARED on several."""
    place, times = np.full(num_links, -1, np.int64), np.zeros(num_links, np.int64)
    for sketch in sketches:
        for role in np.unique(sketch.role).tolist():
            if role >= 0 or role in HOSTS:
                ptr, links = table.of_role(sketch, role)
                place[links] = np.arange(len(links)) - np.repeat(ptr[:-1], np.diff(ptr))
                times += np.bincount(links, minlength=num_links)
    place[times > 1] = SHARED
    return place
