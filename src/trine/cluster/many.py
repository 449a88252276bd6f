"""Routes and hosts of many devices at once, whatever the cluster is made of."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from trine.arrays import Int32, Int64
from trine.errors import InputError

if TYPE_CHECKING:
    from trine.cluster.bulk import BulkRoutes
    from trine.cluster.routing import Router

#: :meth:`trine.cluster.Cluster.route`.
OneRoute = Callable[[int, int], tuple[int, ...]]


def many_routes(
    num_devices: int, route: OneRoute, bulk: BulkRoutes | None, sources: Int64, targets: Int64
) -> tuple[Int64, Int32]:
    """:meth:`trine.cluster.Cluster.routes`; each pair that ``bulk`` leaves is searched for once."""
    _check(num_devices, sources, targets)
    if bulk is None:
        return _searched(num_devices, route, sources, targets)
    ptr, links, left = bulk.routes(sources, targets)
    if not len(left):
        return ptr, links
    own_ptr, own_links = _searched(num_devices, route, sources[left], targets[left])
    return _merged(ptr, links, left, own_ptr, own_links)


def _check(num_devices: int, sources: Int64, targets: Int64) -> None:
    if sources.ndim != 1 or sources.shape != targets.shape:
        raise InputError(f"as many sources as targets are needed, got {sources.shape} and {targets.shape}")
    for ends in (sources, targets):
        if len(ends) and not 0 <= ends.min() <= ends.max() < num_devices:
            worst = int(ends.min() if ends.min() < 0 else ends.max())
            raise InputError(f"there is no device {worst}, the cluster has {num_devices}")


def _searched(num_devices: int, route: OneRoute, sources: Int64, targets: Int64) -> tuple[Int64, Int32]:
    """Each different pair by ``route``, in the order in which they are asked for."""
    keys, first, which = np.unique(sources * num_devices + targets, return_index=True, return_inverse=True)
    found: list[tuple[int, ...]] = [()] * len(keys)
    for number in np.argsort(first).tolist():
        found[number] = route(*divmod(int(keys[number]), num_devices))
    length = np.array([len(links) for links in found], np.int64)
    flat = np.array([link for links in found for link in links], np.int32)
    start, count = np.cumsum(length) - length, length[which]
    ptr = np.concatenate(([0], np.cumsum(count)))
    return ptr, flat[np.repeat(start[which] - ptr[:-1], count) + np.arange(ptr[-1])]


def _merged(ptr: Int64, links: Int32, rows: Int64, own_ptr: Int64, own_links: Int32) -> tuple[Int64, Int32]:
    """A CSR whose ``rows``, so far empty, get those of another one."""
    count = np.diff(ptr)
    taken = np.ones(len(count), np.bool_)
    taken[rows] = False
    count[rows] = np.diff(own_ptr)
    new_ptr = np.concatenate(([0], np.cumsum(count)))
    of_first = np.repeat(taken, count)
    merged = np.empty(int(new_ptr[-1]), np.int32)
    merged[of_first], merged[~of_first] = links, own_links
    return new_ptr, merged


def many_hosts(bulk: BulkRoutes | None, router: Router, gpus: Int64) -> Int64:
    """int64[m]: the nearest host of each GPU, -1 where it reaches none."""
    known = None if bulk is None else bulk.hosts_of(gpus)
    if known is not None:
        return known
    return np.array([-1 if (host := router.host_of(gpu)) is None else host for gpu in gpus.tolist()], np.int64)
