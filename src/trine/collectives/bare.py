"""Whether a collective runs on links alone, without a library's costs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trine.collectives.options import AUTO, PROTOCOLS, CollectiveOptions
from trine.errors import InputError

if TYPE_CHECKING:
    from trine.cluster.cluster import Cluster


def is_bare(options: CollectiveOptions, cluster: Cluster) -> bool:
    """Return whether only links cost time: for protocol ``none``, links of unknown kind, or circuits."""
    if options.protocol != AUTO:
        if cluster.circuits is not None and options.protocol != "none" and options.protocol in PROTOCOLS:
            raise InputError("the costs of a library's protocols are known on links only", field="protocol")
        return options.protocol == "none"
    return cluster.circuits is not None or not cluster.link_table.has_media
