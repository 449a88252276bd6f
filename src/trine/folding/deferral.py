"""Axes whose exchanges a folded run defers: until a stop, ranks that differ along them are one class."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from trine.common.arrays import Bool
from trine.folding.classes import ClassSearch, RankClasses
from trine.folding.neighbourhood import PatternPart
from trine.folding.pattern import HOSTS
from trine.graph.taskgraph import COMPUTE, TRANSFER

#: Axes are deferred while more tasks than this would be simulated, and deferring one more at least halves them.
MANY_TASKS = 2_000_000
WORTH_A_STOP = 0.5
#: Of the axes that leave up to this many times the fewest tasks, the one used last is deferred.
ABOUT_AS_FEW = 2
#: A stop activates all axes if the necessary ones alone already need this share of the tasks.
WORTH_WAITING = 0.9
#: Ranks without interaction are divided into runs of about this many tasks.
RUN_TASKS = 6_000_000


def defer_axes(search: ClassSearch, classes: RankClasses) -> RankClasses:
    """Defer axes at the beginning, while there are many tasks and one more axis at least halves them."""
    parts = classes.parts
    axes = {axis for part in parts for axis in part.pattern.role_axes}
    while classes.partition.num_classes > len(parts) and classes.num_tasks > MANY_TASKS:
        deferred = classes.parts[0].deferred
        coarser = {axis: search.classes(deferring(parts, deferred | {axis})) for axis in sorted(axes - deferred)}
        best = _axis_to_defer(coarser)
        if best is None or coarser[best].num_tasks > WORTH_A_STOP * classes.num_tasks:
            break
        classes = coarser[best]
    return classes


def _axis_to_defer(coarser: dict[str, RankClasses]) -> str | None:
    """Return the axis to defer next; ``coarser``: the classes with each axis deferred.

    If deferring some axes leaves few tasks, choose the one used last; otherwise the one used last of those that leave
    about the fewest tasks: the run stops at the first use.
    """
    num_tasks = {axis: classes.num_tasks for axis, classes in coarser.items()}
    enough = max(MANY_TASKS, ABOUT_AS_FEW * min(num_tasks.values(), default=0))
    sufficient = [axis for axis in coarser if num_tasks[axis] <= enough]
    first_use_ps = {axis: _first_use_ps(coarser[axis].parts, axis) for axis in sufficient}
    return min(sufficient, key=lambda axis: (-first_use_ps[axis], num_tasks[axis], axis), default=None)


def deferring(parts: Sequence[PatternPart], axes: frozenset[str] = frozenset()) -> list[PatternPart]:
    """Return the same parts with exactly ``axes`` deferred."""
    return [replace(part, deferred=axes) for part in parts]


def _first_use_ps(parts: Sequence[PatternPart], axis: str) -> int:
    """Return the minimum compute time before any rank begins an exchange along ``axis``."""
    first_ps = []
    for part in parts:
        begins = np.flatnonzero(begins_exchange(replace(part, deferred=frozenset({axis}))))
        if len(begins):
            before = part.tasks[: begins[0]]
            is_compute = part.pattern.kind[before] == COMPUTE
            first_ps.append(int(part.pattern.duration_ps[before[is_compute]].sum()))
    return min(first_ps, default=0)


def begins_exchange(part: PatternPart) -> Bool:
    """Return bool[remaining tasks]: entries into collectives, and messages, along deferred axes."""
    pattern, deferred = part.pattern, part.deferred
    begins = np.zeros(pattern.num_tasks, np.bool_)
    if deferred:
        is_deferred = np.array([axis in deferred for axis in pattern.role_axes] + [False] * (1 + len(HOSTS)))
        begins[(pattern.kind == TRANSFER) & is_deferred[pattern.role]] = True
        for key in pattern.algorithm_of:
            if pattern.key_axes[key] in deferred:
                begins[pattern.entered[key]] = True
    return begins[part.tasks]
