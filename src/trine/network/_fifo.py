"""Store and forward: a link carries one message at a time; the readable form is StoreAndForward in models.py."""

from __future__ import annotations

import numpy as np

from trine._jit import Int, inlined
from trine.network._flows import drain_ps
from trine.network._limits import MAX_PS
from trine.network._state import Links

U = np.uint64


@inlined
def pass_link(links: Links, link: Int, size_bytes: Int, now: Int) -> tuple[Int, Int]:
    """Serve one message after all that the link has taken before; returns when it begins, and when its last byte is
    through (more than MAX_PS: too late).
    """
    begin_ps = max(np.int64(now), links.free_ps[U(link)])
    busy_ps = drain_ps(np.float64(size_bytes), links.capacity[U(link)])
    if busy_ps > MAX_PS - begin_ps:
        return begin_ps, np.int64(MAX_PS + 1)
    links.free_ps[U(link)] = begin_ps + busy_ps
    return begin_ps, begin_ps + busy_ps
