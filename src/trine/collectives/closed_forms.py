"""Times of collectives on an uncontended network, in whole picoseconds.

Every pair of ranks that exchanges data has a separate path with ``latency_ps`` and ``bytes_per_s``; with reducing
switches, every rank has a path to the switch in each direction. All ranks enter at the same time. The simulated
schedules give exactly these times. The formulas use only a schedule's sizes and parameters, not its sends.

A time is the sum of consecutive *rounds* on the critical path, (number, bytes). Each round costs one latency plus the
time of its bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import groupby
from typing import TypeAlias

from trine.collectives.schedule import Schedule
from trine.collectives.schedules.halving import core_size
from trine.collectives.schedules.hierarchical import LevelSends
from trine.collectives.schedules.innetwork import sharp_levels
from trine.collectives.schedules.tree import binary_tree, two_trees
from trine.collectives.sends import log2_ceil
from trine.common.units import transfer_ps
from trine.errors import InputError, nearest

Rounds: TypeAlias = tuple[tuple[int, int], ...]
#: bytes of a message -> ps until its arrival
MessageTime: TypeAlias = Callable[[int], int]


def uncontended_ps(schedule: Schedule, bytes_per_s: int, latency_ps: int) -> int:
    """Return the time from the common entry to the end on the last rank, in ps.

    Raises InputError: the schedule's kind and algorithm have no closed form.
    """
    rounds = critical_rounds(schedule, bytes_per_s, latency_ps)
    return sum(count * (latency_ps + transfer_ps(size, bytes_per_s)) for count, size in rounds)


def critical_rounds(schedule: Schedule, bytes_per_s: int, latency_ps: int) -> Rounds:
    """Return (number of rounds, bytes of each) along the critical path; neighbours differ in bytes.

    Bandwidth and latency matter only if paths of different kinds compete: halving-doubling of reduce_scatter and
    all_gather with a number of ranks that is not a power of two.

    Raises InputError: the schedule's kind and algorithm have no closed form.
    """
    name = (schedule.kind, schedule.algorithm)
    if name not in _FORMS:
        text = " ".join(name)
        raise InputError(f"no closed form for {text!r}{nearest(text, (' '.join(key) for key in _FORMS))}")
    if schedule.num_ranks == 1:
        return ()
    rounds = _FORMS[name](schedule, lambda size: latency_ps + transfer_ps(size, bytes_per_s))
    merged = ((sum(count for count, _ in group), size) for size, group in groupby(rounds, key=lambda one: one[1]))
    return tuple((count, size) for count, size in merged if count)


def has_closed_form(schedule: Schedule) -> bool:
    """Return whether :func:`uncontended_ps` supports the schedule's kind and algorithm."""
    return (schedule.kind, schedule.algorithm) in _FORMS


def _parameter(schedule: Schedule, name: str) -> int:
    value = dict(schedule.parameters)[name]
    assert isinstance(value, int)
    return value


# -- rings, chains and trees -------------------------------------------------------------------------------------------


def _ring(schedule: Schedule, time: MessageTime) -> Rounds:
    """Return N - 1 rounds (all-reduce: twice); half of the channels share a link to a neighbour, all if N = 2."""
    channels = _parameter(schedule, "channels")
    sharing = channels if schedule.num_ranks == 2 else -(-channels // 2)
    hops = schedule.num_ranks - 1
    return ((2 * hops if schedule.kind == "all_reduce" else hops, sharing * schedule.chunk_bytes),)


def _chain(schedule: Schedule, time: MessageTime) -> Rounds:
    """Return the rounds of a chain: the first chunk takes N - 1 rounds, and each other chunk follows a round later."""
    return ((schedule.num_ranks - 2 + schedule.num_chunks, schedule.chunk_bytes),)


def _tree(schedule: Schedule, time: MessageTime) -> Rounds:
    """Return the rounds of a chain as long as the first chunk's path: up, down, or up and down."""
    height = binary_tree(schedule.num_ranks).height
    stages = 2 * height if schedule.kind == "all_reduce" else height
    return ((stages - 1 + schedule.num_chunks, schedule.chunk_bytes),)


def _double_tree(schedule: Schedule, time: MessageTime) -> Rounds:
    """Return the rounds of one of the two trees, which have the same height and share no link."""
    height = two_trees(schedule.num_ranks)[0].height
    return ((2 * height - 1 + _parameter(schedule, "chunks"), schedule.chunk_bytes),)


# -- rounds with growing or shrinking messages -------------------------------------------------------------------------


def _halving_doubling(schedule: Schedule, time: MessageTime) -> Rounds:
    """Return halving and doubling among P ranks; further ranks add the whole buffer before and after."""
    core = core_size(schedule.num_ranks)
    halves = [(1, (core >> k) * schedule.chunk_bytes) for k in range(1, core.bit_length())]
    buffer_round = [(1, core * schedule.chunk_bytes)] if schedule.num_ranks > core else []
    return (*buffer_round, *halves, *reversed(halves), *buffer_round)


def _halving_parts(schedule: Schedule, time: MessageTime) -> Rounds:
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


def _bruck_gather(schedule: Schedule, time: MessageTime) -> Rounds:
    """Return rounds of 1, 2, 4, ... parts, and a last round of the missing parts."""
    n = schedule.num_ranks
    return tuple((1, min(1 << k, n - (1 << k)) * schedule.chunk_bytes) for k in range(log2_ceil(n)))


def _bruck_blocks(schedule: Schedule, time: MessageTime) -> Rounds:
    """Return rounds k with the blocks whose distance has bit k: about half of all blocks."""
    n = schedule.num_ranks
    blocks = (sum(way >> k & 1 for way in range(n)) for k in range(log2_ceil(n)))
    return tuple((1, number * schedule.chunk_bytes) for number in blocks)


def _pat(schedule: Schedule, time: MessageTime) -> Rounds:
    """Return rounds at distance d with the parts whose last hop has this distance: d, 3d, 5d, ... below N."""
    n = schedule.num_ranks
    distances = [1 << k for k in range(log2_ceil(n))]
    rounds = [(1, -(-(n - d) // (2 * d)) * schedule.chunk_bytes) for d in distances]
    return tuple(reversed(rounds) if schedule.kind == "all_gather" else rounds)


# -- direct ------------------------------------------------------------------------------------------------------------


def _direct(schedule: Schedule, time: MessageTime) -> Rounds:
    return ((1, schedule.chunk_bytes),)


def _two_shots(schedule: Schedule, time: MessageTime) -> Rounds:
    return ((2, schedule.chunk_bytes),)


def _blocks(schedule: Schedule, time: MessageTime) -> Rounds:
    """Return one round of the largest block between two ranks, or no round if all blocks are empty."""
    n, sizes = schedule.num_ranks, schedule.chunk_sizes or ()
    largest = max(size for i, size in enumerate(sizes) if i // n != i % n)
    return ((1, largest),) if largest else ()


def _dissemination(schedule: Schedule, time: MessageTime) -> Rounds:
    return ((log2_ceil(schedule.num_ranks), schedule.chunk_bytes),)


# -- levels and switches -----------------------------------------------------------------------------------------------


def _levels(schedule: Schedule, time: MessageTime) -> Rounds:
    """Return the rounds of one level after the other; a chunk of an inner level is several chunks of the whole."""
    assert isinstance(schedule.sends_of, LevelSends)
    groups = schedule.num_ranks // schedule.sends_of.group_size
    multiple = schedule.num_chunks // schedule.sends_of.group_size if schedule.kind == "all_reduce" else groups
    rounds: list[tuple[int, int]] = []
    for level, inner, _ in schedule.sends_of.phases:
        if level.num_ranks > 1:
            sized = replace(level, chunk_bytes=schedule.chunk_bytes * (multiple if inner else 1))
            rounds += _FORMS[level.kind, level.algorithm](sized, time)
    return tuple(rounds)


def _level_blocks(schedule: Schedule, time: MessageTime) -> Rounds:
    """Return a round within the group, with one block per group in each message, and a round between groups."""
    shape = dict(schedule.parameters)["shape"]
    assert isinstance(shape, tuple)
    groups, size = shape
    inner = [(1, groups * schedule.chunk_bytes)] if size > 1 else []
    outer = [(1, size * schedule.chunk_bytes)] if groups > 1 else []
    return (*inner, *outer)


def _nvls_one_way(schedule: Schedule, time: MessageTime) -> Rounds:
    """Return one round per chunk between the switch and all of a rank's shards, and one for a shard before or after."""
    chunk = schedule.num_ranks * schedule.chunk_bytes
    return ((1, schedule.chunk_bytes), (_parameter(schedule, "chunks"), chunk))


def _nvls_all_reduce(schedule: Schedule, time: MessageTime) -> Rounds:
    """Return four rounds per chunk: read, deliver the sum, write, multicast; the next chunk follows a round later.

    In one round a link carries the chunk being read (or multicast) and the shard of another chunk.
    """
    chunks, shard = _parameter(schedule, "chunks"), schedule.chunk_bytes
    chunk = schedule.num_ranks * shard
    rounds = []
    for r in range(chunks + 3):
        up = chunk * (r < chunks) + shard * (2 <= r < chunks + 2)
        down = shard * (1 <= r < chunks + 1) + chunk * (r >= 3)
        rounds.append((1, max(up, down)))
    return tuple(rounds)


def _sharp(schedule: Schedule, time: MessageTime) -> Rounds:
    radix = dict(schedule.parameters)["radix"]
    assert radix is None or isinstance(radix, int)
    stages = 2 * sharp_levels(schedule.num_ranks, radix)
    return ((stages - 1 + schedule.num_chunks, schedule.chunk_bytes),)


#: (kind, algorithm) -> its formula.
_FORMS: dict[tuple[str, str], Callable[[Schedule, MessageTime], Rounds]] = {
    (kind, algorithm): form
    for form, algorithm, kinds in (
        (_ring, "ring", "all_reduce reduce_scatter all_gather"),
        (_chain, "ring", "broadcast reduce"),
        (_tree, "tree", "all_reduce broadcast reduce"),
        (_double_tree, "double-binary-tree", "all_reduce"),
        (_halving_doubling, "halving-doubling", "all_reduce"),
        (_halving_parts, "halving-doubling", "reduce_scatter all_gather"),
        (_two_shots, "direct", "all_reduce"),
        (_direct, "direct", "reduce_scatter all_gather broadcast all_to_all gather scatter send_recv shift"),
        (_direct, "one-shot", "all_reduce"),
        (_blocks, "direct", "all_to_all_v"),
        (_bruck_gather, "bruck", "all_gather"),
        (_bruck_blocks, "bruck", "all_to_all"),
        (_pat, "pat", "reduce_scatter all_gather"),
        (_levels, "hierarchical", "all_reduce reduce_scatter all_gather"),
        (_levels, "torus", "all_reduce reduce_scatter all_gather"),
        (_level_blocks, "hierarchical", "all_to_all"),
        (_nvls_all_reduce, "nvls", "all_reduce"),
        (_nvls_one_way, "nvls", "reduce_scatter all_gather"),
        (_sharp, "sharp", "all_reduce"),
        (_dissemination, "dissemination", "barrier"),
    )
    for kind in kinds.split()
}
