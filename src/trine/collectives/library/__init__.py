"""What NCCL and RCCL would do with a collective on a cluster, how long it takes, and what would be fastest."""

from trine.collectives.library.predict import Collectives
from trine.collectives.library.repeated import collective_time, predict
from trine.collectives.library.view import View, group_view

__all__ = ["Collectives", "View", "collective_time", "group_view", "predict"]
