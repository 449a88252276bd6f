"""What NCCL and RCCL would do with a collective on a cluster, how long it takes, and what would be fastest."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trine.common._lazy import lazy

if TYPE_CHECKING:
    from trine.collectives.nccl.predict import Collectives
    from trine.collectives.nccl.repeated import collective_time
    from trine.collectives.nccl.topology import CommTopology, comm_topology

__all__ = ["Collectives", "CommTopology", "collective_time", "comm_topology"]

_HOMES = {
    "CommTopology": "trine.collectives.nccl.topology",
    "Collectives": "trine.collectives.nccl.predict",
    "collective_time": "trine.collectives.nccl.repeated",
    "comm_topology": "trine.collectives.nccl.topology",
}

if not TYPE_CHECKING:  # or type checkers would take any name for one of the package's
    __getattr__ = lazy(__name__, _HOMES)
