"""What NCCL and RCCL would do with a collective on a cluster, how long it takes, and what would be fastest."""

from trine.collectives.nccl.predict import Collectives
from trine.collectives.nccl.repeated import collective_time, predict
from trine.collectives.nccl.view import View, group_view

__all__ = ["Collectives", "View", "collective_time", "group_view", "predict"]
