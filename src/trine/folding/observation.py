"""The record of a folded run as seen from some of its ranks (:mod:`trine.folding.observe`)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from trine.graph.memory import MemoryEvents
from trine.graph.taskgraph import Records, TaskGraph

if TYPE_CHECKING:
    from trine.results.ends import Ends


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Observation:
    """Tasks of observed ranks, numbered by row, with their records.

    ends, reasons: as in :class:`trine.results.run.Part`; None if all ranks are shown.
    """

    graph: TaskGraph
    records: Records
    memory: MemoryEvents
    ends: Ends | None
    reasons: Callable[[], npt.NDArray[np.int8]] | None = None
