"""Time of one collective in a single call, for use in loops: clusters and groups are cached."""

from __future__ import annotations

import operator
from collections import OrderedDict
from collections.abc import Iterable, Sequence, Sized
from typing import SupportsIndex

from trine.cluster import load_cluster
from trine.cluster.cluster import Cluster
from trine.collectives.nccl.predict import Collectives
from trine.collectives.options import CollectiveOptions, CollectiveTime
from trine.collectives.sizes import parse_size
from trine.common.arguments import named_arguments
from trine.errors import InputError

_Key = tuple[int, object, CollectiveOptions]
_collectives_cache: OrderedDict[_Key, tuple[Cluster, Collectives]] = OrderedDict()
_preset_cache: dict[tuple[str, int | None], Cluster] = {}
_CACHE_SIZE = 256


def predict(
    op: str, size_bytes: int, cluster: Cluster, group: Sequence[int] | None = None,
    options: CollectiveOptions | None = None,
) -> CollectiveTime:  # fmt: skip
    """Return :meth:`Collectives.predict` for a group, from a cache of recent groups."""
    return _cached_collectives(cluster, group, options or CollectiveOptions()).predict(op, size_bytes)


@named_arguments
def collective_time(
    op: str,
    nbytes: SupportsIndex | str,
    group: Sequence[int] | SupportsIndex | None,
    cluster: Cluster | str,
    options: CollectiveOptions | None = None,
) -> CollectiveTime:
    """Predict the time of one collective; about 0.1 ms per call once the cluster and the group are cached.

    Parameters
    ----------
    op: ``all_reduce``, ``all_gather``, ``reduce_scatter``, ``broadcast``, ``reduce``, ``all_to_all``, ``gather``,
        ``scatter``, ``send_recv`` or ``barrier``.
    nbytes: size as nccl-tests counts it, in bytes or as text (``"64 MiB"``, ``"64M"``).
    group: the ranks of the group, the number of its first ranks, or None for all.
    cluster: a cluster, or the name of a preset (looked up once, with enough nodes for a number of ranks).

    Returns the answer with its band and evidence; ``float(answer)`` is in seconds, and answers compare by time.

    Raises InputError: an unknown op, a group outside the cluster, or an option that does not fit.
    """
    size = _size(nbytes)
    ranks = _ranks(group)
    if isinstance(cluster, str):
        cluster = _preset_cluster(cluster, len(ranks) if isinstance(ranks, range) else None)
    return _cached_collectives(cluster, ranks, options or CollectiveOptions()).predict(op, size)


def _ranks(group: Sequence[int] | SupportsIndex | None) -> Sequence[int] | None:
    """Return the ranks of a group: a number n means the first n ranks, anything with a length lists them."""
    if group is None or isinstance(group, range):
        return group
    if isinstance(group, Sized) and isinstance(group, Iterable):
        return [operator.index(rank) for rank in group]
    return range(operator.index(group))


def _size(nbytes: SupportsIndex | str) -> int:
    if isinstance(nbytes, str):
        return parse_size(nbytes, "the size")
    if isinstance(nbytes, bool) or not isinstance(nbytes, SupportsIndex):
        raise InputError(f"must be a whole number of bytes or text such as '64 MiB', got {nbytes!r}", field="nbytes")
    return operator.index(nbytes)


def _cached_collectives(cluster: Cluster, group: Sequence[int] | None, options: CollectiveOptions) -> Collectives:
    """Return the cached collectives; the cache also holds the cluster, so that its id is not reused."""
    key = (id(cluster), group if group is None or isinstance(group, range) else tuple(group), options)
    if key not in _collectives_cache:
        _collectives_cache[key] = cluster, Collectives(cluster, group, options)
        if len(_collectives_cache) > _CACHE_SIZE:
            _collectives_cache.popitem(last=False)
    _collectives_cache.move_to_end(key)
    return _collectives_cache[key][1]


def _preset_cluster(name: str, num_gpus: int | None) -> Cluster:
    """Return the preset, with enough nodes for the GPUs."""
    if (name, None) not in _preset_cache:
        _preset_cache[name, None] = load_cluster(name)
    preset = _preset_cache[name, None]
    if num_gpus is None or num_gpus <= len(preset.gpus):
        return preset
    if (name, num_gpus) not in _preset_cache:
        _preset_cache[name, num_gpus] = load_cluster(name, gpus=num_gpus)
    return _preset_cache[name, num_gpus]
