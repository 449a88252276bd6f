"""Reader of ``collective_bandwidth`` in cluster files."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from trine.cluster.cluster import Cluster
from trine.cluster.collective_bandwidth import BANDWIDTH_OPS, USUAL_SIZE_BYTES, CollectiveBandwidth
from trine.errors import SpecError

if TYPE_CHECKING:
    from trine.cluster.schema import CollectiveBandwidthSpec


def given_bandwidth(
    spec: CollectiveBandwidthSpec | None, cluster: Cluster, library: str | None, file: str
) -> CollectiveBandwidth | None:
    """Return the bandwidths per collective of a file, by default those of ``cluster``, which its other fields build.

    Raises SpecError for an empty field, and for a cluster without a collective library.
    """
    if spec is None:
        return cluster.collective_bandwidth
    field = "collective_bandwidth"
    given = []
    for op in BANDWIDTH_OPS:
        if (curve := getattr(spec, op)) is not None:
            given.append((op, curve))
    curves = tuple(given)
    if not curves:
        raise SpecError(f"gives no bandwidth: name one of {', '.join(BANDWIDTH_OPS)}", file=file, field=field)
    if library is None:
        raise SpecError("needs 'library: nccl' or 'rccl', whose collectives it describes", file=file, field=field)
    _, gpus = np.unique(cluster.scale_up_components[list(cluster.gpus)], return_counts=True)
    return CollectiveBandwidth(
        curves=curves, size_bytes=spec.size or USUAL_SIZE_BYTES,
        gpus_per_node=spec.gpus_per_node or int(gpus.max()), evidence=spec.evidence,
    )  # fmt: skip
