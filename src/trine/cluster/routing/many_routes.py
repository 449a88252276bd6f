"""Routes of many pairs at once, as CSR."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from trine.common.arrays import Int32, Int64, pointers, spans
from trine.errors import InputError

if TYPE_CHECKING:
    from trine.cluster.routing.batch_routing import BatchRoutes

#: The signature of :meth:`trine.cluster.Cluster.route`.
OneRoute = Callable[[int, int], tuple[int, ...]]


def many_routes(
    num_devices: int, route: OneRoute, bulk: BatchRoutes | None, sources: Int64, targets: Int64
) -> tuple[Int64, Int32]:
    """Implement :meth:`trine.cluster.Cluster.routes`; each distinct pair that ``bulk`` leaves is searched once."""
    if sources.ndim != 1 or sources.shape != targets.shape:
        raise InputError(f"sources and targets must have one shape, got {sources.shape} and {targets.shape}")
    for ends in (sources, targets):
        if len(ends) and not 0 <= ends.min() <= ends.max() < num_devices:
            outside = int(ends.min() if ends.min() < 0 else ends.max())
            raise InputError(f"there is no device {outside}, the cluster has {num_devices}")
    if bulk is None:
        return _searched(num_devices, route, sources, targets)
    ptr, links, left = bulk.routes(sources, targets)
    if not len(left):
        return ptr, links
    own_ptr, own_links = _searched(num_devices, route, sources[left], targets[left])
    return _merged(ptr, links, left, own_ptr, own_links)


def _searched(num_devices: int, route: OneRoute, sources: Int64, targets: Int64) -> tuple[Int64, Int32]:
    """Return the CSR of all routes, calling ``route`` once per distinct pair, in order of first occurrence."""
    keys, first, inverse = np.unique(sources * num_devices + targets, return_index=True, return_inverse=True)
    routes: list[tuple[int, ...]] = [()] * len(keys)
    for number in np.argsort(first).tolist():
        routes[number] = route(*divmod(int(keys[number]), num_devices))
    length = np.array([len(links) for links in routes], np.int64)
    flat = np.array([link for links in routes for link in links], np.int32)
    start, count = np.cumsum(length) - length, length[inverse]
    return pointers(count), flat[spans(start[inverse], count)]


def _merged(ptr: Int64, links: Int32, rows: Int64, row_ptr: Int64, row_links: Int32) -> tuple[Int64, Int32]:
    """Return the CSR with its empty ``rows`` filled from another CSR."""
    count = np.diff(ptr)
    is_filled = np.ones(len(count), np.bool_)
    is_filled[rows] = False
    count[rows] = np.diff(row_ptr)
    new_ptr = pointers(count)
    of_first = np.repeat(is_filled, count)
    merged = np.empty(int(new_ptr[-1]), np.int32)
    merged[of_first], merged[~of_first] = links, row_links
    return new_ptr, merged
