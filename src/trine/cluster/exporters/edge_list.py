"""Clusters as a list of links in CSV, which :mod:`trine.cluster.importers.edge_list` reads."""

from __future__ import annotations

import csv
import io

from trine.cluster.cluster import Cluster
from trine.cluster.exporters.pairs import refuse_circuits
from trine.cluster.written import exact_bandwidth, exact_time

_COLUMNS = (
    "source", "target", "bandwidth", "latency", "class", "medium", "duplex",
    "source_kind", "target_kind", "source_node", "target_node",
)  # fmt: skip


def edge_list_text(cluster: Cluster) -> str:
    """CSV with a row a link, both directions apart. It has no GPU models, rails, sources and notes.

    Raises
    ------
    SpecError: a cluster with circuits.
    """
    refuse_circuits(cluster, "a list of links")
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(_COLUMNS)
    for link in cluster.links:
        source, target = cluster.devices[link.source], cluster.devices[link.target]
        writer.writerow(
            (
                source.name,
                target.name,
                exact_bandwidth(link.bytes_per_s),
                exact_time(link.latency_ps),
                link.link_class,
                link.medium or "",
                "false",
                source.kind,
                target.kind,
                source.node or "",
                target.node or "",
            )
        )
    return out.getvalue()
