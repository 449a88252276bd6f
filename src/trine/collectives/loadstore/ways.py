"""How all GPUs of a machine reach each other, in a form that can be compared with that of another machine."""

from __future__ import annotations

from trine.cluster.cluster import Cluster
from trine.collectives.loadstore.options import LoadStoreOptions, model_for
from trine.gpu.fabric import Fabric

#: Of each pair of GPUs, of each of its ways: ports, and name, lane, rate and latency of each link
Ways = tuple[tuple[object, ...], ...]


def all_ways(cluster: Cluster, options: LoadStoreOptions) -> Ways:
    """The ways between any two GPUs of ``cluster``.

    Raises
    ------
    InputError: two that only NICs or hosts join. SpecError: two that nothing joins.
    """
    gpus = list(cluster.gpus)
    fabric = Fabric(cluster, gpus, model_for(options, cluster, gpus))
    names = cluster.link_names
    return tuple(
        (way.port_out, way.port_in, *((names[hop.link], *hop[1:]) for hop in way.hops))
        for here in range(len(gpus))
        for there in range(len(gpus))
        if here != there
        for way in fabric.paths(here, there)
    )
