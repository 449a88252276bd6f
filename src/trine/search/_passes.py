"""The compiled recurrence over the passes of a pipeline."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from trine.common._jit import Int, kernel
from trine.common.arrays import Int64


class PassTables(NamedTuple):
    """The order of passes, and the way between ranks.

    starts: first pass of each rank, and the end. kinds, chunks, micro_batches: of each pass. message_ps: time of a
    message from each rank to the next one; of the last rank, to the first. wait_ps: the part of it for which the
    sender waits before its next pass.
    """

    starts: Int64
    kinds: Int64
    chunks: Int64
    micro_batches: Int64
    message_ps: Int64
    wait_ps: Int64


class PassState(NamedTuple):
    """Times in ps and progress.

    durations: by kind and chunk; of kind 4, what follows the gradients of weights; of kinds 5 to 7, the further time of
    the first forward pass, of the last backward pass, and of the first backward pass of the last round. ends: of
    forward and input-gradient passes by chunk and micro-batch, -1 if open. free: when each rank can begin its next
    pass. place: each rank's next pass.
    """

    durations: Int64
    ends: Int64
    free: Int64
    place: Int64


@kernel
def run_passes(tables: PassTables, state: PassState, last_chunk: Int) -> Int:
    """Run all passes in the order of each rank; return 0, or 1 if the ranks wait for each other.

    A forward pass waits for the chunk before, a backward pass for the chunk behind; the last one for its forward pass.
    """
    num_ranks = len(state.free)
    last_batch = state.ends.shape[2] - 1
    left = len(tables.kinds)
    while left > 0:
        before = left
        for rank in range(num_ranks):
            while state.place[rank] < tables.starts[rank + 1]:
                i = state.place[rank]
                kind, chunk, batch = tables.kinds[i], tables.chunks[i], tables.micro_batches[i]
                start = state.free[rank]
                if kind == 0 and chunk > 0:
                    arrival = state.ends[0, chunk - 1, batch]
                    if arrival < 0:
                        break
                    start = max(start, arrival + tables.message_ps[(chunk - 1) % num_ranks])
                if kind == 1 or kind == 2:
                    if chunk < last_chunk:
                        arrival = state.ends[1, chunk + 1, batch]
                        way = tables.message_ps[chunk % num_ranks]
                    else:
                        arrival = state.ends[0, chunk, batch]
                        way = np.int64(0)
                    if arrival < 0:
                        break
                    start = max(start, arrival + way)
                end = start + state.durations[kind, chunk]
                if kind == 0 and batch == 0:
                    end += state.durations[5, chunk]
                if (kind == 1 or kind == 3) and batch == last_batch:
                    end += state.durations[6, chunk]
                if kind == 1 and batch == last_batch + 1 - num_ranks:
                    end += state.durations[7, chunk]
                if kind == 0:
                    state.ends[0, chunk, batch] = end
                elif kind < 3:
                    state.ends[1, chunk, batch] = end
                busy = waiting = end
                if kind == 1 or kind == 3:
                    busy += state.durations[4, chunk]
                if kind == 0 and chunk < last_chunk:
                    waiting += tables.wait_ps[chunk % num_ranks]
                if (kind == 1 or kind == 2) and chunk > 0:
                    waiting += tables.wait_ps[(chunk - 1) % num_ranks]
                state.free[rank] = max(busy, waiting)
                state.place[rank] += 1
                left -= 1
        if left == before:
            return np.int64(1)
    return np.int64(0)
