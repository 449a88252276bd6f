"""Memory allocations and frees, each tied to a task. Frozen data."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from trine.common.shown import OneLine

#: Memory categories, in the order of summaries.
MEMORY_CATEGORIES = ("weights", "gradients", "optimizer_state", "buckets", "activations", "inputs", "workspaces")
#: Categories that summaries and documents omit when empty.
SELDOM = frozenset({"workspaces"})
#: Block numbers of stream n start at n times this; stream 0 runs the operators.
BLOCKS_PER_STREAM = 2**40
_MAX_STREAMS = 256
Number = TypeVar("Number", int, npt.NDArray[np.int64])


def stream_of(block: Number) -> Number:
    """Return the number of the stream that allocates ``block``, or each of an array of blocks."""
    return block // BLOCKS_PER_STREAM % _MAX_STREAMS


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class MemoryEvents(OneLine):
    """Changes of a rank's memory, each at the start or the end of a task.

    task: int32[m], index into the task graph. at_end: int8[m], 1 if it happens when the task ends, 0 when it starts.
    rank: int32[m]. delta_bytes: int64[m], negative for frees. category: int8[m], index into MEMORY_CATEGORIES.
    resident_bytes: int64[ranks, categories], allocated for the whole run. block: int64[m], the same number for the
    allocation and the free of a block, -1 for bytes outside blocks; None if blocks are unknown.
    held: int64[m, 4], for blocks kept while collectives use them: the launching thread's clock
    (:class:`trine.graph.program.LaunchClock`: launch, ps, behind) and the task that uses the freed block; -1 for no
    task; None if no block is kept.
    """

    task: npt.NDArray[np.int32]
    at_end: npt.NDArray[np.int8]
    rank: npt.NDArray[np.int32]
    delta_bytes: npt.NDArray[np.int64]
    category: npt.NDArray[np.int8]
    resident_bytes: npt.NDArray[np.int64]
    block: npt.NDArray[np.int64] | None = None
    held: npt.NDArray[np.int64] | None = None

    def only(self, is_kept: npt.NDArray[np.bool_]) -> MemoryEvents:
        """Return the changes where ``is_kept`` is True: bool[m]."""
        columns = {name: getattr(self, name) for name in ("task", "at_end", "rank", "delta_bytes", "category")}
        held_columns = {}
        for name in ("block", "held"):
            if (column := getattr(self, name)) is not None:
                held_columns[name] = column
        columns |= held_columns
        return replace(self, **{name: column[is_kept] for name, column in columns.items()})
