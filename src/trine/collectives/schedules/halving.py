"""Recursive halving and doubling, for any number of ranks.

P is the largest power of two up to the number of ranks. In a reduce-scatter, two ranks at distance P/2, P/4, ..., 1
exchange halves of their remaining data; an all-gather doubles it again at distances 1, 2, ..., P/2 (Thakur,
Rabenseifner and Gropp, "Optimization of collective communication operations in MPICH", IJHPCA 2005). Each rank p
beyond P first sends its data to rank p - P, and finally receives its result from there.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from trine.collectives.algorithm import Algorithm, MessageTime, Rounds, twice_all_but_own
from trine.collectives.schedule import Schedule, Sends
from trine.collectives.sends import SendList, cut


def core_size(num_ranks: int) -> int:
    """Return the largest power of two that is at most ``num_ranks``."""
    return 1 << (num_ranks.bit_length() - 1)


def _bits(num_ranks: int) -> tuple[int, ...] | None:
    """Return the symmetry of a power of two (flip any bits on all ranks); None if there are ranks beyond the core."""
    core = core_size(num_ranks)
    return (2,) * (core.bit_length() - 1) if core == num_ranks else None


def all_reduce_sends(position: int, num_ranks: int, num_chunks: int, root: int) -> Sends:
    """Return the sends of a rank. Chunks are the parts of the P core ranks; a rank beyond sends and gets all."""
    core = num_chunks
    rounds = core.bit_length() - 1
    sends = SendList()
    if position >= core:
        sends.add_all(0, position - core, 0, reduce=True, count=core)
        return sends.build()
    for step in range(1, rounds + 1):
        width = core >> step
        peer = position ^ width
        sends.add_all(step, peer, peer // width * width, reduce=True, count=width)
    for step in range(rounds + 1, 2 * rounds + 1):
        width = 1 << (step - rounds - 1)
        sends.add_all(step, position ^ width, position // width * width, count=width)
    if core + position < num_ranks:
        sends.add_all(2 * rounds + 1, core + position, 0, count=core)
    return sends.build()


@dataclass(frozen=True)
class PartSends:
    """The sends of reduce_scatter and all_gather: rank p of the core also carries the part of rank P + p."""

    kind: str

    def __call__(self, position: int, num_ranks: int, num_chunks: int, root: int) -> Sends:
        core = core_size(num_ranks)
        rounds = core.bit_length() - 1
        gather = self.kind == "all_gather"
        sends = SendList()
        if position >= core:
            if gather:
                sends.add_all(0, position - core, position)
            else:
                sends.add_all(0, position - core, 0, reduce=True, count=num_ranks)
            return sends.build()
        for step in range(1, rounds + 1):
            width = 1 << (step - 1) if gather else core >> step
            owner = position if gather else position ^ width
            self._block(sends, step, position ^ width, owner // width * width, width, num_ranks)
        extra = core + position
        if extra < num_ranks:
            first, count = ((extra + 1) % num_ranks, num_ranks - 1) if gather else (extra, 1)
            sends.add_all(rounds + 1, extra, first, count=count)
        return sends.build()

    def _block(self, sends: SendList, step: int, peer: int, first: int, width: int, num_ranks: int) -> None:
        """Send the parts of core ranks first to first + width - 1, and of their partners beyond the core."""
        core = core_size(num_ranks)
        partners = range(core + first, min(core + first + width, num_ranks))
        sends.add(step, peer, [([*range(first, first + width), *partners], self.kind != "all_gather")])


def _all_reduce(num_ranks: int, size_bytes: int, root: int = -1) -> Schedule:
    """Build an all_reduce: every rank ends with the sum of all buffers. ``size_bytes``: the buffer."""
    return cut(
        "all_reduce", "halving-doubling", num_ranks, size_bytes, core_size(num_ranks), all_reduce_sends,
        symmetry=_bits(num_ranks),
    )  # fmt: skip


def _parts(kind: str, num_ranks: int, size_bytes: int, root: int = -1) -> Schedule:
    """Build a reduce_scatter or an all_gather."""
    return cut(kind, "halving-doubling", num_ranks, size_bytes, num_ranks, PartSends(kind), symmetry=_bits(num_ranks))


def _all_reduce_rounds(schedule: Schedule, time: MessageTime) -> Rounds:
    """Return halving and doubling among P ranks; further ranks add the whole buffer before and after."""
    core = core_size(schedule.num_ranks)
    halves = [(1, (core >> k) * schedule.chunk_bytes) for k in range(1, core.bit_length())]
    buffer_round = [(1, core * schedule.chunk_bytes)] if schedule.num_ranks > core else []
    return (*buffer_round, *halves, *reversed(halves), *buffer_round)


def _part_rounds(schedule: Schedule, time: MessageTime) -> Rounds:
    """Return the rounds of the slowest rank in the exchanges of the P core ranks (reduce-scatter or all-gather).

    Powers of two take log2 N rounds with 1, 2, ..., N/2 parts. Otherwise ranks beyond the core make messages unequal,
    and both ranks of an exchange continue when both messages have arrived.
    """
    num_ranks, part = schedule.num_ranks, schedule.chunk_bytes
    gather = schedule.kind == "all_gather"
    core = core_size(num_ranks)
    extra = num_ranks - core

    def carried_bytes(rank: int, width: int) -> int:
        """Return the bytes of the ``width`` core ranks around ``rank`` and of the extra ranks attached to them."""
        first = rank // width * width
        return (width + max(0, min(first + width, extra) - first)) * part

    def extend(path: tuple[int, Rounds], size: int) -> tuple[int, Rounds]:
        return path[0] + time(size), (*path[1], (1, size))

    widths = [1 << k for k in range(core.bit_length() - 1)]
    first_bytes, last_bytes = (part, (num_ranks - 1) * part) if gather else (num_ranks * part, part)
    start: tuple[int, Rounds] = (0, ())
    ready = []
    for core_rank in range(core):
        ready.append(extend(start, first_bytes) if core_rank < extra else start)
    for width in widths if gather else reversed(widths):
        paths = [extend(ready[rank], carried_bytes(rank if gather else rank ^ width, width)) for rank in range(core)]
        ready = [max(paths[rank], paths[rank ^ width]) for rank in range(core)]
    return max([*ready, *(extend(ready[rank], last_bytes) for rank in range(extra))])[1]


def _scattered_bytes(num_ranks: int, payload_bytes: int) -> float:
    """Return the bytes of a reduce-scatter; ranks beyond the core get their part from it once more."""
    extra = num_ranks - core_size(num_ranks)
    return (num_ranks - 1) * payload_bytes + extra * payload_bytes / num_ranks


def _gathered_bytes(num_ranks: int, payload_bytes: int) -> int:
    """Return the bytes of an all-gather among the core; ranks beyond send their part and get all the others."""
    core = core_size(num_ranks)
    return (core - 1) * payload_bytes + (num_ranks - core) * payload_bytes


_SOURCE = "Thakur, Rabenseifner and Gropp 2005"
all_reduce = Algorithm(
    kind="all_reduce", name="halving-doubling", make=_all_reduce, rounds=_all_reduce_rounds,
    total_bytes=twice_all_but_own, symmetry=_bits, source=_SOURCE,
)  # fmt: skip
reduce_scatter, all_gather = (
    Algorithm(
        kind=kind, name="halving-doubling", make=partial(_parts, kind), rounds=_part_rounds, total_bytes=total_bytes,
        symmetry=_bits, source=_SOURCE,
    )
    for kind, total_bytes in (("reduce_scatter", _scattered_bytes), ("all_gather", _gathered_bytes))
)  # fmt: skip
