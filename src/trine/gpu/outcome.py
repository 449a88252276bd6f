"""What an engine of the load-store level answers."""

from __future__ import annotations

from typing import NamedTuple

from trine.model.gpurecords import GpuRecords
from trine.model.outside import Arrivals
from trine.model.taskgraph import Records


class GpuOutcome(NamedTuple):
    """``finished``: False where the run stopped early (``until_ps``, Ctrl-C, stuck); what had not happened is -1 then.

    arrivals: where the system says ``record``.
    """

    records: Records
    gpu: GpuRecords
    finished: bool
    arrivals: Arrivals | None = None
