"""Collectives with switches that reduce and multicast, at positions after the ranks.

``nvls`` (NVLink SHARP): rank i has shard i of the result. For a reduction it reads the shard from all ranks through the
switch, which adds them up (multimem.ld_reduce). For a gather it writes the shard once, and the switch multicasts it
(multimem.st). So an all-reduce of S bytes puts S (1 + 1/N) on each direction of a rank's link. The buffer is pipelined
in chunks; all data over a link in one round travels as one message.

``sharp``: every rank sends its buffer up once, the switches add up, and the sum comes down once (Graham et al.,
"Scalable hierarchical aggregation protocol (SHArP)", COMHPC 2016). With ``radix`` each leaf switch serves this many
ranks, under one root switch.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt

from trine.collectives.algorithm import Algorithm, MessageTime, Rounds, no_symmetry, whole_parameter
from trine.collectives.schedule import Parameter, Schedule, Sends
from trine.collectives.sends import SendList, cut, pipeline_chunks, positive

#: Maximum number of shards of all ranks: 144 pipeline chunks for 120 ranks, 4 for 720 or more.
MAX_SHARDS = 1 << 21

Chunks = npt.NDArray[np.int64]


@dataclass(frozen=True)
class NvlsSends:
    """Sends of NVLS: in round r a rank offers its shards of chunk r to readers, and writes its shard of sum r - 2.

    The switch delivers the summed shards of chunk r - 1, and multicasts the written ones of chunk r - 3. A
    reduce-scatter does only the first half of this, an all-gather only the second, from round 0 on.
    """

    kind: str
    chunks: int

    def __call__(self, position: int, num_ranks: int, num_chunks: int, root: int) -> Sends:
        sends = SendList()
        if num_ranks == 1:
            return sends.build()
        reads, writes = self.kind != "all_gather", self.kind != "reduce_scatter"
        lag = 2 if reads else 0
        for r in range(self.chunks + 1 + lag):
            if position < num_ranks:
                parts = [(self._all_shards(r, num_ranks), True)] if reads and r < self.chunks else []
                if writes and lag <= r < self.chunks + lag:
                    parts.append((self._shard(r - lag, position, num_ranks), False))
                sends.add(r, num_ranks, parts)
                continue
            for rank in range(num_ranks):
                parts = []
                if reads and 1 <= r < self.chunks + 1:
                    parts.append((self._shard(r - 1, rank, num_ranks), False))
                if writes and lag + 1 <= r:
                    parts.append((self._all_shards(r - 1 - lag, num_ranks), False))
                sends.add(r, rank, parts, channel=rank)
        return sends.build()

    def _shard(self, chunk: int, rank: int, num_ranks: int) -> Chunks:
        """Return the shard of ``rank`` in a pipeline chunk; a rank's shards lie together."""
        return np.array([rank * self.chunks + chunk], dtype=np.int64)

    def _all_shards(self, chunk: int, num_ranks: int) -> Chunks:
        return np.arange(num_ranks, dtype=np.int64) * self.chunks + chunk


@dataclass(frozen=True)
class SharpSends:
    """Chunk k goes up a level and down a level in each step. ``radix``: ranks below a switch of the lower level."""

    radix: int | None

    def __call__(self, position: int, num_ranks: int, num_chunks: int, root: int) -> Sends:
        sends = SendList()
        if num_ranks == 1:
            return sends.build()
        chunks = np.arange(num_chunks)
        levels = sharp_levels(num_ranks, self.radix)
        leaves = 0 if levels == 1 else -(-num_ranks // (self.radix or num_ranks))
        top = num_ranks + leaves
        if position < num_ranks:
            height = 0
        elif position < top:
            height = 1
        else:
            height = levels
        if position < top:
            parent = top if levels == 1 or height else num_ranks + position // (self.radix or num_ranks)
            sends.add_all(height + chunks, parent, chunks, reduce=True)
        for i, child in enumerate(self._children(position, num_ranks, top, levels)):
            sends.add_all(2 * levels - height + chunks, child, chunks, channel=1 + i)
        return sends.build()

    def _children(self, position: int, num_ranks: int, top: int, levels: int) -> Iterable[int]:
        if position < num_ranks:
            return ()
        if position == top:
            return range(num_ranks) if levels == 1 else range(num_ranks, top)
        first = (position - num_ranks) * (self.radix or num_ranks)
        return range(first, min(first + (self.radix or num_ranks), num_ranks))


def sharp_levels(num_ranks: int, radix: int | None) -> int:
    """Return the levels of switches: 1 if a single switch has room for all ranks, else 2."""
    return 1 if radix is None or radix >= num_ranks else 2


def _nvls(kind: str, num_ranks: int, size_bytes: int, root: int = -1, *, chunks: int | None = None) -> Schedule:
    number = pipeline_chunks(size_bytes, num_ranks, 4 if kind == "all_reduce" else 2, chunks)
    if chunks is None:
        number = min(number, max(4, MAX_SHARDS // num_ranks**2))
    parameters: tuple[tuple[str, Parameter], ...] = (("chunks", number),)
    sends_of = NvlsSends(kind, number)
    return cut(kind, "nvls", num_ranks, size_bytes, number * num_ranks, sends_of, num_switches=1, parameters=parameters)


def _sharp(
    num_ranks: int, size_bytes: int, root: int = -1, *, radix: int | None = None, chunks: int | None = None
) -> Schedule:
    """Build an all_reduce in a switch tree. ``size_bytes``: the buffer; ``radix``: ranks below a switch."""
    if radix is not None:
        positive("radix", radix)
    levels = sharp_levels(num_ranks, radix)
    number = pipeline_chunks(size_bytes, num_ranks, 2 * levels, chunks)
    reducing_switches = 1 if levels == 1 else 1 + -(-num_ranks // (radix or num_ranks))
    return cut(
        "all_reduce", "sharp", num_ranks, size_bytes, number, SharpSends(radix), num_switches=reducing_switches,
        parameters=(("radix", radix), ("chunks", number)),
    )  # fmt: skip


def _nvls_one_way_rounds(schedule: Schedule, time: MessageTime) -> Rounds:
    """Return one round per chunk between the switch and all of a rank's shards, and one for a shard before or after."""
    chunk = schedule.num_ranks * schedule.chunk_bytes
    return ((1, schedule.chunk_bytes), (whole_parameter(schedule, "chunks"), chunk))


def _nvls_all_reduce_rounds(schedule: Schedule, time: MessageTime) -> Rounds:
    """Return four rounds per chunk: read, deliver the sum, write, multicast; the next chunk follows a round later.

    In one round a link carries the chunk being read (or multicast) and the shard of another chunk.
    """
    chunks, shard = whole_parameter(schedule, "chunks"), schedule.chunk_bytes
    chunk = schedule.num_ranks * shard
    rounds = []
    for r in range(chunks + 3):
        up = chunk * (r < chunks) + shard * (2 <= r < chunks + 2)
        down = shard * (1 <= r < chunks + 1) + chunk * (r >= 3)
        rounds.append((1, max(up, down)))
    return tuple(rounds)


def _sharp_rounds(schedule: Schedule, time: MessageTime) -> Rounds:
    radix = dict(schedule.parameters)["radix"]
    assert radix is None or isinstance(radix, int)
    stages = 2 * sharp_levels(schedule.num_ranks, radix)
    return ((stages - 1 + schedule.num_chunks, schedule.chunk_bytes),)


def _one_way_bytes(num_ranks: int, payload_bytes: int) -> int:
    """Return the bytes between all ranks and the switch, and of the shards before or after."""
    return (num_ranks + 1) * payload_bytes


def _both_ways_bytes(num_ranks: int, payload_bytes: int) -> int:
    return 2 * (num_ranks + 1) * payload_bytes


def _tree_bytes(num_ranks: int, payload_bytes: int) -> int:
    """Return the bytes of each rank's buffer, once up and once down, below one switch."""
    return 2 * num_ranks * payload_bytes


nvls_all_reduce = Algorithm(
    kind="all_reduce", name="nvls", make=partial(_nvls, "all_reduce"), rounds=_nvls_all_reduce_rounds,
    total_bytes=_both_ways_bytes, symmetry=no_symmetry, source="NVLink SHARP (NCCL 2.17)",
)  # fmt: skip
nvls_reduce_scatter, nvls_all_gather = (
    Algorithm(
        kind=kind, name="nvls", make=partial(_nvls, kind), rounds=_nvls_one_way_rounds, total_bytes=_one_way_bytes,
        symmetry=no_symmetry, source="NVLink SHARP (NCCL 2.17)",
    )
    for kind in ("reduce_scatter", "all_gather")
)  # fmt: skip
sharp_all_reduce = Algorithm(
    kind="all_reduce", name="sharp", make=_sharp, rounds=_sharp_rounds, total_bytes=_tree_bytes, symmetry=no_symmetry,
    source="Graham et al. 2016",
)  # fmt: skip
