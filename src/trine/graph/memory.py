"""When memory is taken and given back, in terms of tasks. Frozen data."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from trine.shown import OneLine

#: Categories of memory, in the order in which summaries list them.
MEMORY_CATEGORIES = ("weights", "gradients", "optimizer_state", "buckets", "activations", "inputs", "workspaces")
#: Categories that summaries and documents leave out where nothing is in them.
SELDOM = frozenset({"workspaces"})
#: Blocks of stream n have numbers from n times this on; stream 0 runs the operators.
BLOCKS_PER_STREAM = 2**40
_MAX_STREAMS = 256


def stream_of(block: int) -> int:
    """Return the number of the stream that allocates ``block``."""
    return block // BLOCKS_PER_STREAM % _MAX_STREAMS


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class MemoryEvents(OneLine):
    """Changes of a rank's memory, each at the start or the end of a task.

    task: int32[m], index into the task graph. at_end: int8[m], 1 if it happens when the task ends, 0 when it starts.
    rank: int32[m]. delta_bytes: int64[m], negative when memory is given back. category: int8[m], index into
    MEMORY_CATEGORIES. resident_bytes: int64[ranks, categories], held from the beginning to the end. block: int64[m],
    the same number where a block of a rank is taken and given back, -1 for bytes that are none; None where not known.
    held: int64[m, 4], where blocks that collectives use are held for them: tasks of the clock of the launching thread
    (:class:`trine.graph.program.LaunchClock`: launch, ps, behind) and the task that uses a block given back; -1 for no
    task; None where nothing is held.
    """

    task: npt.NDArray[np.int32]
    at_end: npt.NDArray[np.int8]
    rank: npt.NDArray[np.int32]
    delta_bytes: npt.NDArray[np.int64]
    category: npt.NDArray[np.int8]
    resident_bytes: npt.NDArray[np.int64]
    block: npt.NDArray[np.int64] | None = None
    held: npt.NDArray[np.int64] | None = None
