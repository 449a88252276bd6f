"""Which devices a message can get to."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from trine.cluster.tables import Wiring


def reached(cluster: Wiring, start: int) -> npt.NDArray[np.bool_]:
    """bool[devices]: those that a message from ``start`` can get to, itself among them."""
    devices, links = cluster.device_table, cluster.link_table
    forwards = np.array([what.forwards for what in devices.kinds], np.bool_)[devices.kind]
    ptr, order = links.by_source
    ptr = np.concatenate((ptr, np.full(len(devices) + 1 - len(ptr), ptr[-1])))
    found = np.zeros(len(devices), np.bool_)
    found[start] = True
    edge = np.array([start])
    while len(edge):
        first, count = ptr[edge], ptr[edge + 1] - ptr[edge]
        place = np.repeat(first - (np.cumsum(count) - count), count) + np.arange(count.sum())
        fresh = np.zeros(len(devices), np.bool_)
        fresh[links.target[order[place]]] = True
        fresh &= ~found
        found |= fresh
        edge = np.flatnonzero(fresh & forwards)
    return found
