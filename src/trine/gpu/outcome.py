"""What an engine of the load-store level answers."""

from __future__ import annotations

from typing import NamedTuple

from trine.gpu.outside import Arrivals
from trine.gpu.records import GpuRecords
from trine.graph.taskgraph import Records


class GpuOutcome(NamedTuple):
    """``finished``: False where the run stopped early (``until_ps``, Ctrl-C, stuck); what had not happened is -1 then.

    arrivals: where the system says ``record``.
    """

    records: Records
    gpu: GpuRecords
    finished: bool
    arrivals: Arrivals | None = None
