"""A note if the bandwidth of single collectives between nodes decides the order of the first two layouts."""

from __future__ import annotations

from collections.abc import Sequence

from trine.cluster.cluster import Cluster
from trine.cluster.parts import SCALE_OUT
from trine.collectives.nccl import Collectives
from trine.collectives.nccl.topology import domains_of
from trine.common.units import format_time
from trine.errors import InputError
from trine.search.ranked import Ranked
from trine.search.space import Layout
from trine.search.ties import exposed_between

#: A large message, for the likely range of a collective's time.
_SIZE_BYTES = 2**28


def fabric_note(cluster: Cluster, ranked: Sequence[Ranked]) -> str:
    """Return the role of bandwidths per collective in a ranking; "" inside one node, or if they decide nothing.

    ranked: simulated layouts, the best first. Without bandwidths per collective in the cluster file, all collectives
    follow the links. The note appears if the likely error of a collective between nodes exceeds the lead of the first
    layout.
    """
    links = cluster.link_table
    if not links.of_class(SCALE_OUT).any() or cluster.library is None:
        return ""
    given = cluster.collective_bandwidth
    if given is not None:
        bandwidths = f"bus bandwidths of the cluster file ({given.evidence}): {given.words()}"
        return f"{bandwidths}; other collectives follow the links"
    if len(ranked) < 2:
        return ""
    domains = domains_of(cluster, sorted(cluster.gpus))
    if len(domains) < 2:
        return ""
    domain = max(map(len, domains))
    first, second = ranked[0], ranked[1]
    error = fabric_error(cluster)
    exposed = [exposed_between(each, domain) for each in (first, second)]
    ops = [ops_between(each.layout, domain) for each in (first, second)]
    lead_ps = second.outcome.step_ps - first.outcome.step_ps
    doubt_ps = round(error * (abs(exposed[0] - exposed[1]) if ops[0] == ops[1] else max(exposed)))
    if doubt_ps <= lead_ps:
        return ""
    names = " and ".join(" + ".join(each) or "none" for each in ops)
    return (
        f"one bandwidth of the fabric for all collectives decides between the first two ({names} between nodes): "
        f"{error:.0%} more time of one collective is {format_time(doubt_ps)}, and the first leads by "
        f"{format_time(lead_ps)}; give collective_bandwidth in the cluster file (trine help your-cluster)"
    )


def ops_between(layout: Layout, domain: int) -> tuple[str, ...]:
    """Return the collectives of a layout that cross nodes of ``domain`` GPUs, replicas before stages."""
    ops: list[str] = []
    inner = layout.tp * layout.cp
    if layout.cp > 1 and inner > domain:
        ops.append("send_recv")
    if layout.ep > 1 and inner * layout.ep > domain:
        ops.append("all_to_all")
    if layout.dp > 1 and inner * layout.dp > domain:
        ops += ["all_reduce"] if layout.sharding == "none" else ["reduce_scatter", "all_gather"]
    if layout.pp > 1 and inner * layout.dp * layout.pp > domain:
        ops.append("send_recv")
    return tuple(dict.fromkeys(ops))


def fabric_error(cluster: Cluster) -> float:
    """Return by how much an all_gather between two nodes may exceed its prediction, as a share: its likely range.

    0 inside one node, without a library, and with measured bandwidths per collective.
    """
    if cluster.library is None or cluster.collective_bandwidth is not None:
        return 0.0
    if not cluster.link_table.of_class(SCALE_OUT).any():
        return 0.0
    domains = domains_of(cluster, sorted(cluster.gpus))[:2]
    if len(domains) < 2:
        return 0.0
    rank_of = {gpu: rank for rank, gpu in enumerate(cluster.gpus)}
    group = [rank_of[gpu] for domain in domains for gpu in domain]
    try:
        answer = Collectives(cluster, group).predict("all_gather", _SIZE_BYTES)
    except InputError:
        return 0.0
    return answer.high_ps / answer.time_ps - 1
