"""Collectives in two levels: within groups of neighbouring ranks (nodes, rows of a torus) and across them.

An all-reduce is a reduce-scatter within the group, an all-reduce of each rank's part with its peers in other groups,
and an all-gather within the group (Jia et al., "Highly scalable deep learning training system with mixed-precision",
2018; on a torus Mikami et al., "Massively distributed SGD: ImageNet/ResNet-50 training in a flash", 2018). Position ``g
x size + l`` is member l of group g.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from math import isqrt

import numpy as np
import numpy.typing as npt

from trine.collectives.algorithm import Algorithm, MessageTime, Rounds, all_but_own, twice_all_but_own
from trine.collectives.registry import make_schedule, rounds_of
from trine.collectives.schedule import Parameter, Schedule, Sends, SendsOf, symmetry_of
from trine.collectives.sends import SendList, cut, positive
from trine.common.arrays import spans
from trine.errors import InputError, nearest

#: Phases of each kind, level by level: (kind, whether within the group).
PHASES = {
    "all_reduce": (("reduce_scatter", True), ("all_reduce", False), ("all_gather", True)),
    "reduce_scatter": (("reduce_scatter", True), ("reduce_scatter", False)),
    "all_gather": (("all_gather", False), ("all_gather", True)),
}
#: Algorithms with all ranks of a group ending together, as the level after them needs.
INNER = ("ring", "direct", "halving-doubling", "pat")


@dataclass(frozen=True)
class LevelSends:
    """Sends of all levels. ``phases``: (schedule among the members of a level, is inner, its first step)."""

    kind: str
    group_size: int
    phases: tuple[tuple[Schedule, bool, int], ...]

    def __call__(self, position: int, num_ranks: int, num_chunks: int, root: int) -> Sends:
        group, member = divmod(position, self.group_size)
        num_groups = num_ranks // self.group_size
        sends = SendList()
        for schedule, inner, first_step in self.phases:
            index, fixed = (member, group) if inner else (group, member)
            part = schedule.sends_of(index, schedule.num_ranks, schedule.num_chunks, schedule.root)
            ranks = np.arange(schedule.num_ranks)
            peers = fixed * self.group_size + ranks if inner else ranks * self.group_size + fixed
            self._add(sends, part, first_step, peers, self._chunks(schedule, inner, member, num_groups, num_chunks))
        return sends.build()

    def _chunks(
        self, schedule: Schedule, inner: bool, member: int, num_groups: int, num_chunks: int
    ) -> npt.NDArray[np.int64]:
        """Return the chunks of the whole collective for each chunk of the level: [chunks of the level, chunks each]."""
        size = self.group_size
        if self.kind == "all_reduce":
            width = num_chunks // size
            return np.arange(num_chunks).reshape(size, width) if inner else (member * width + np.arange(width))[:, None]
        # Part b * size + a of the whole belongs to member a of group b.
        table = np.arange(num_groups * size).reshape(num_groups, size)
        return table.T if inner else table[:, member : member + 1]

    def _add(
        self, sends: SendList, part: Sends, first_step: int, peers: npt.NDArray[np.int64], chunks: npt.NDArray[np.int64]
    ) -> None:
        """Add one level's sends, numbered for the whole collective."""
        count = np.ones_like(part.chunk) if part.count is None else part.count
        message = np.arange(len(part.step)) if part.message is None else part.message
        is_run = chunks.shape[1] == 1 or bool((np.diff(chunks, axis=1) == 1).all())
        starts = chunks[:, :1] if is_run else chunks
        # Chunks of the level, then the corresponding runs of chunks of the whole.
        unit = np.repeat(np.arange(len(count)), count)
        chunk_row = spans(part.chunk, count) % len(chunks)
        row = np.repeat(unit, starts.shape[1])
        sends.add_raw(
            first_step + part.step[row], peers[part.peer[row]], starts[chunk_row].ravel(), reduce=part.reduce[row],
            channel=part.channel[row], count=chunks.shape[1] if is_run else 1, message=message[row],
        )  # fmt: skip


@lru_cache(maxsize=64)
def _num_steps(sends_of: SendsOf, num_ranks: int, num_chunks: int, is_symmetric: bool) -> int:
    """Return the number of steps of a schedule without a root."""
    positions = range(1 if is_symmetric else num_ranks)
    return 1 + max(int(sends_of(position, num_ranks, num_chunks, 0).step.max(initial=-1)) for position in positions)


@dataclass(frozen=True)
class BlockLevelSends:
    """Sends of all_to_all: to each member of the group the blocks for its position in any group, then to peers."""

    group_size: int

    def __call__(self, position: int, num_ranks: int, num_chunks: int, root: int) -> Sends:
        size, num_groups = self.group_size, num_ranks // self.group_size
        group, member = divmod(position, size)
        sends = SendList()
        groups, members = np.arange(num_groups), np.arange(size)
        for i in range(1, size):
            peer = (member + i) % size
            sends.add(0, group * size + peer, [(position * num_ranks + groups * size + peer, False)], channel=i)
        for i in range(1, num_groups):
            peer = (group + i) % num_groups
            sources = group * size + members
            sends.add(1, peer * size + member, [(sources * num_ranks + peer * size + member, False)], channel=size + i)
        return sends.build()


def group_shape(num_ranks: int, shape: tuple[int, ...] | None) -> tuple[int, int]:
    """Return the checked ``shape`` (groups, ranks of a group); by default the shape nearest to a square.

    Raises InputError: the shape is not two positive numbers whose product is the number of ranks.
    """
    if shape is None:
        size = next(d for d in range(isqrt(num_ranks), 0, -1) if num_ranks % d == 0)
        return size, num_ranks // size
    if not isinstance(shape, tuple) or len(shape) != 2:
        raise InputError(f"must be groups x ranks, such as 2x8, got {shape!r}", field="shape")
    groups, size = (positive("shape", number) for number in shape)
    if groups * size != num_ranks:
        raise InputError(f"{groups}x{size} is {groups * size} ranks, but there are {num_ranks}", field="shape")
    return groups, size


def _levels(
    kind: str, algorithm: str, num_ranks: int, size_bytes: int, *,
    shape: tuple[int, ...] | None, inner: str, outer: str,
) -> Schedule:  # fmt: skip
    """Build the schedule of all levels. ``shape``: (groups, ranks of a group)."""
    groups, size = group_shape(num_ranks, shape)
    phases: list[tuple[Schedule, bool, int]] = []
    first_step = 0
    for step, is_inner in PHASES[kind]:
        schedule = _phase(step, is_inner, (groups, size), size_bytes, inner if is_inner else outer)
        phases.append((schedule, is_inner, first_step))
        is_symmetric = symmetry_of(schedule) is not None
        first_step += _num_steps(schedule.sends_of, schedule.num_ranks, schedule.num_chunks, is_symmetric)
    num_chunks = num_ranks
    if kind == "all_reduce":
        num_chunks = size * next(schedule.num_chunks for schedule, is_inner, _ in phases if not is_inner)
    parameters: tuple[tuple[str, Parameter], ...] = (("shape", (groups, size)), ("inner", inner), ("outer", outer))
    sends_of = LevelSends(kind, size, tuple(phases))
    return cut(
        kind, algorithm, num_ranks, size_bytes, num_chunks, sends_of,
        parameters=parameters, symmetry=_symmetry(phases),
    )  # fmt: skip


def _symmetry(phases: list[tuple[Schedule, bool, int]]) -> tuple[int, ...] | None:
    """Return the digits of the member, then of the group, if all schedules of a level have the same digits."""
    inner, outer = ({symmetry_of(one) for one, is_inner, _ in phases if is_inner is level} for level in (True, False))
    if len(inner) > 1 or len(outer) > 1:
        return None
    (member_digits,), (group_digits,) = inner, outer
    return None if member_digits is None or group_digits is None else member_digits + group_digits


def _phase(kind: str, is_inner: bool, shape: tuple[int, int], size_bytes: int, algorithm: str) -> Schedule:
    """Build the schedule of one level without bytes: only its structure counts."""
    groups, size = shape
    members = size if is_inner else groups
    if is_inner and algorithm not in INNER:
        raise InputError(f"no algorithm within a group is {algorithm!r}{nearest(algorithm, INNER)}", field="inner")
    if is_inner and algorithm == "halving-doubling" and size & (size - 1):
        raise InputError(f"halving-doubling within a group needs a power of two, not {size} ranks", field="inner")
    schedule = make_schedule(kind, members, -(-size_bytes // size) if kind == "all_reduce" else size_bytes, algorithm)
    if schedule.num_switches or schedule.staged or (kind != "all_reduce" and schedule.num_chunks != members):
        raise InputError(f"{kind} by {algorithm!r} cannot be a level", field="inner" if is_inner else "outer")
    return replace(schedule, chunk_bytes=0, size_bytes=0)


def _all_to_all(
    num_ranks: int, size_bytes: int, root: int = -1, *, shape: tuple[int, ...] | None = None
) -> Schedule:  # fmt: skip
    """Build an all_to_all: rank d ends with block d of every rank. ``shape``: (groups, ranks of a group)."""
    groups, size = group_shape(num_ranks, shape)
    schedule = cut(
        "all_to_all", "hierarchical", num_ranks, size_bytes, num_ranks, BlockLevelSends(size),
        parameters=(("shape", (groups, size)),), symmetry=(size, groups),
    )  # fmt: skip
    return replace(schedule, num_chunks=num_ranks * num_ranks)


def _hierarchical(
    kind: str, num_ranks: int, size_bytes: int, root: int = -1, *,
    shape: tuple[int, ...] | None = None, inner: str = "direct", outer: str = "ring",
) -> Schedule:  # fmt: skip
    """Build any algorithms within the groups and between them. ``shape``: (groups, ranks of a group)."""
    return _levels(kind, "hierarchical", num_ranks, size_bytes, shape=shape, inner=inner, outer=outer)


def _torus(
    kind: str, num_ranks: int, size_bytes: int, root: int = -1, *, shape: tuple[int, ...] | None = None
) -> Schedule:
    """Build rings along the rows and the columns, an all-reduce along the rows again. ``shape``: (rows, columns)."""
    return _levels(kind, "torus", num_ranks, size_bytes, shape=shape, inner="ring", outer="ring")


def _level_rounds(schedule: Schedule, time: MessageTime) -> Rounds:
    """Return the rounds of one level after the other; a chunk of an inner level is several chunks of the whole."""
    assert isinstance(schedule.sends_of, LevelSends)
    groups = schedule.num_ranks // schedule.sends_of.group_size
    multiple = schedule.num_chunks // schedule.sends_of.group_size if schedule.kind == "all_reduce" else groups
    rounds: list[tuple[int, int]] = []
    for level, inner, _ in schedule.sends_of.phases:
        if level.num_ranks > 1:
            sized = replace(level, chunk_bytes=schedule.chunk_bytes * (multiple if inner else 1))
            rounds += rounds_of(sized, time)
    return tuple(rounds)


def _block_rounds(schedule: Schedule, time: MessageTime) -> Rounds:
    """Return a round within the group, with one block per group in each message, and a round between groups."""
    shape = dict(schedule.parameters)["shape"]
    assert isinstance(shape, tuple)
    groups, size = shape
    inner = [(1, groups * schedule.chunk_bytes)] if size > 1 else []
    outer = [(1, size * schedule.chunk_bytes)] if groups > 1 else []
    return (*inner, *outer)


def _block_bytes(num_ranks: int, payload_bytes: int) -> int:
    """Return the bytes of an all-to-all: a block is sent within a group, between groups, or both."""
    groups, size = group_shape(num_ranks, None)
    return ((size - 1) * groups + (groups - 1) * size) * payload_bytes


def _digits(num_ranks: int) -> tuple[int, int]:
    """Return the digits of the member and of the group."""
    groups, size = group_shape(num_ranks, None)
    return size, groups


def _in_levels(name: str, make: Callable[..., Schedule], source: str) -> tuple[Algorithm, ...]:
    """Return the records of an all_reduce, a reduce_scatter and an all_gather by levels."""
    return tuple(
        Algorithm(
            kind=kind, name=name, make=partial(make, kind), rounds=_level_rounds,
            total_bytes=twice_all_but_own if kind == "all_reduce" else all_but_own, symmetry=_digits, source=source,
        )
        for kind in PHASES
    )  # fmt: skip


all_reduce, reduce_scatter, all_gather = _in_levels("hierarchical", _hierarchical, "Jia et al. 2018")
torus_all_reduce, torus_reduce_scatter, torus_all_gather = _in_levels("torus", _torus, "Mikami et al. 2018")
all_to_all = Algorithm(
    kind="all_to_all", name="hierarchical", make=_all_to_all, rounds=_block_rounds, total_bytes=_block_bytes,
    symmetry=_digits, source="within the group, then between groups",
)  # fmt: skip
