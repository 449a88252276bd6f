"""Loading of clusters by name (presets/clusters/*.yaml) or file path, scaled to a number of nodes or GPUs."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any

from trine.cluster.cluster import FILES, Cluster
from trine.cluster.parts import Link
from trine.cluster.planes import spread_over_planes
from trine.cluster.presets import is_file_name, known_clusters, preset_path
from trine.common.arguments import named_arguments
from trine.common.inputs import is_file
from trine.errors import InputError, SpecError, about, as_known, nearest

if TYPE_CHECKING:
    from trine.cluster.select import Slowness


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
    sharp: bool = False,
    segment: int | None = None,
) -> Cluster:
    """Return a preset by its name, or read a cluster file; then scale, degrade and route it on request.

    Anything with a path separator or one of the suffixes .yaml, .yml, .json, .xml, .csv and .txt is a file.

    nodes: the number of copies, joined by their usual fabric (which the notes name).
    gpus: the number of GPUs, filling the nodes in order; without ``nodes``, the number of nodes follows from it. If
        filling in order would leave nodes empty, the GPUs are spread evenly.
    gpus_per_node: the number of GPUs used per node.
    fabric: ``KIND[:OVERSUBSCRIPTION][@LINK]`` in place of the usual one: ``switch``, ``rail``, ``fat-tree:2``,
        ``clos``, ``dragonfly``, ``none``; ``rail@ib-xdr``.
    slow_links: names of links with a factor or a bandwidth; see :func:`trine.cluster.select.slow_down`.
    links_down: names of links to leave out.
    routing: the policy, see :mod:`trine.cluster.routing.router`.
    sharp: whether the fabric's switches reduce (SHARP); needs InfiniBand from HDR on, and several nodes.
    segment: hosts of a segment, the part of the job that one rack holds (Slurm's ``--segment``). By default the
        cluster's, else the largest divisor of the job's hosts up to a rack; see :mod:`trine.cluster.segments`.

    Raises SpecError: unknown name (names the nearest), an unreadable file, or contradictory arguments.
    """
    if isinstance(name_or_path, str):
        name_or_path = as_known(name_or_path, known_clusters())
    cluster = _load(name_or_path)
    with nullcontext() if name_or_path in known_clusters() else about(os.fspath(name_or_path)):
        if sharp or any(each is not None for each in (nodes, gpus, gpus_per_node, fabric, segment)):
            from trine.cluster.copies import scaled, with_sharp

            if sharp:
                cluster, fabric = with_sharp(cluster, fabric), None
            cluster = scaled(
                cluster, nodes=nodes, gpus=gpus, gpus_per_node=gpus_per_node, fabric=fabric, segment=segment
            )
        if sharp and not cluster.has_fabric:
            raise SpecError("SHARP needs several nodes: add --nodes N")
        if slow_links or links_down:
            from trine.cluster.select import slow_down, take_down

            cluster = take_down(slow_down(cluster, slow_links), links_down)
        return cluster if routing is None else cluster.routed(routing, "asked for")


def spans_copies(cluster: Cluster, gpus: int) -> bool:
    """Return whether ``gpus`` GPUs span copies of ``cluster``, one node or rack, joined by its usual fabric."""
    if gpus <= len(cluster.gpus) or cluster.fabric is None:
        return False
    from trine.cluster.copies import joined_nodes

    return not joined_nodes(cluster)


def rescaled(cluster: Cluster, factors: Mapping[str, Mapping[str, float]]) -> Cluster:
    """Return the cluster with fields of its links multiplied; the data sheet's bandwidth is at least the new one.

    factors: link class -> field of :class:`Link` (``bytes_per_s`` or ``latency_ps``) -> factor.
    """

    def change(link: Link) -> Link:
        values = {name: getattr(link, name) for name in factors.get(link.link_class, ())}
        changes: Any = {}
        for name, value in values.items():
            changes[name] = max(1, round(value * factors[link.link_class][name])) if value else 0
        new = replace(link, **changes)
        peak = new.peak_bytes_per_s
        return replace(new, peak_bytes_per_s=new.bytes_per_s) if peak is not None and new.bytes_per_s > peak else new

    table = cluster.link_table
    return replace(cluster, links=replace(table, numbers=tuple(map(change, table.numbers))))


def as_cluster(cluster: Cluster | str | os.PathLike[str], gpus: int | None = None) -> Cluster:
    """Return ``cluster``, or the preset or file that it names, with messages spread over all parallel switches.

    gpus: GPUs of the job. If a named node or rack has fewer, and a usual fabric, copies of it are joined.

    Raises InputError: neither a cluster nor a name. SpecError: as in :func:`load_cluster`.
    """
    if isinstance(cluster, Cluster):
        return spread_over_planes(cluster)
    if not isinstance(cluster, str | os.PathLike):
        raise InputError(f"must be a cluster, or the name of one, got {cluster!r:.80}", field="cluster")
    named = load_cluster(cluster)
    if gpus is not None and spans_copies(named, gpus):
        named = load_cluster(cluster, gpus=gpus)
    return spread_over_planes(named)


def _load(name_or_path: str | os.PathLike[str]) -> Cluster:
    name = os.fspath(name_or_path)
    if isinstance(name_or_path, str) and name in known_clusters():
        return _preset(name)
    if is_file_name(name) or is_file(name):
        cluster: Cluster = FILES.get("read_any")(name)
        return cluster
    hint = nearest(name, known_clusters(), command="trine cluster list")
    raise SpecError(f"unknown cluster {name!r}{hint} (or give the path of a file)")


@cache
def _preset(name: str) -> Cluster:
    return Cluster.from_yaml(preset_path(name))
