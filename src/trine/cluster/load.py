"""Loading of clusters by name (presets/clusters/*.yaml) or file path, scaled to a number of nodes or GPUs."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import nullcontext
from functools import cache

from trine.cluster.cluster import FILES, Cluster
from trine.cluster.planes import spread_over_planes
from trine.cluster.presets import is_file_name, known_clusters, preset_path
from trine.cluster.scale import scaled
from trine.cluster.select import Slowness, slow_down, take_down
from trine.common.arguments import named_arguments
from trine.common.inputs import is_file
from trine.errors import InputError, SpecError, about, as_known, nearest


@named_arguments
def load_cluster(
    name_or_path: str | os.PathLike[str],
    *,
    nodes: int | None = None,
    gpus: int | None = None,
    gpus_per_node: int | None = None,
    fabric: str | None = None,
    slow_links: Sequence[tuple[str, Slowness]] = (),
    links_down: Sequence[str] = (),
    routing: str | None = None,
) -> Cluster:
    """Return a preset by its name, or read a cluster file; then scale, degrade and route it on request.

    Anything with a path separator or one of the suffixes .yaml, .yml, .json, .xml, .csv and .txt is a file.

    Parameters
    ----------
    nodes: the number of copies, joined by their usual fabric (which the notes name).
    gpus: the number of GPUs, filling the nodes in order; without ``nodes``, the number of nodes follows from it. If
        filling in order would leave nodes empty, the GPUs are spread evenly.
    gpus_per_node: the number of GPUs used per node.
    fabric: ``KIND[:OVERSUBSCRIPTION][@LINK]`` in place of the usual one: ``switch``, ``rail``, ``fat-tree:2``,
        ``clos``, ``dragonfly``, ``none``; ``rail@ib-xdr``.
    slow_links: names of links with a factor or a bandwidth; see :func:`trine.cluster.select.slow_down`.
    links_down: names of links to leave out.
    routing: the policy, see :mod:`trine.cluster.routing.router`.

    Raises
    ------
    SpecError: unknown name (names the nearest), an unreadable file, or contradictory arguments.
    """
    if isinstance(name_or_path, str):
        name_or_path = as_known(name_or_path, known_clusters())
    cluster = _load(name_or_path)
    with nullcontext() if name_or_path in known_clusters() else about(os.fspath(name_or_path)):
        cluster = scaled(cluster, nodes=nodes, gpus=gpus, gpus_per_node=gpus_per_node, fabric=fabric)
        cluster = take_down(slow_down(cluster, slow_links), links_down)
        return cluster if routing is None else cluster.routed(routing, "asked for")


def as_cluster(cluster: Cluster | str | os.PathLike[str]) -> Cluster:
    """Return ``cluster``, or the preset or file that it names, with messages spread over all parallel switches.

    Raises InputError: neither a cluster nor a name. SpecError: as in :func:`load_cluster`.
    """
    if isinstance(cluster, Cluster):
        return spread_over_planes(cluster)
    if not isinstance(cluster, str | os.PathLike):
        raise InputError(f"must be a cluster, or the name of one, got {cluster!r:.80}", field="cluster")
    return spread_over_planes(load_cluster(cluster))


def _load(name_or_path: str | os.PathLike[str]) -> Cluster:
    name = os.fspath(name_or_path)
    if isinstance(name_or_path, str) and name in known_clusters():
        return _preset(name)
    if is_file_name(name) or is_file(name):
        cluster: Cluster = FILES.get("read_any")(name)
        return cluster
    raise SpecError(f"unknown cluster {name!r}{nearest(name, known_clusters())} (or give the path of a file)")


@cache
def _preset(name: str) -> Cluster:
    return Cluster.from_yaml(preset_path(name))
