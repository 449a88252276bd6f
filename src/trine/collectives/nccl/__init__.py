"""What NCCL and RCCL would do with a collective on a cluster, how long it takes, and what would be fastest."""

from trine.collectives.nccl.predict import Collectives
from trine.collectives.nccl.repeated import collective_time, predict
from trine.collectives.nccl.topology import CommTopology, comm_topology

__all__ = ["Collectives", "CommTopology", "collective_time", "comm_topology", "predict"]
