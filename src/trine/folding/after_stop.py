"""A folded run after a stop: the ranks that may be affected, their remaining tasks, and the state that continues."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from trine.common.arrays import Bool, Int64
from trine.engine import carry_over
from trine.folding import deferral
from trine.folding.classes import ClassSearch
from trine.folding.colors import join_components
from trine.folding.deferral import begins_exchange, deferring
from trine.folding.neighbourhood import PatternPart
from trine.folding.pattern import SELF, Edges, JobPatterns, Pattern
from trine.folding.quotient import Quotient
from trine.graph.taskgraph import Snapshot


def activated(
    job: JobPatterns,
    quotient: Quotient,
    snapshot: Snapshot,
    hold: Bool,
    readers: Callable[[str], dict[int, set[int]]],
) -> dict[str, set[int]]:
    """Return the axes of ready held tasks -> the programs whose ranks may be affected."""
    active: dict[str, set[int]] = {}
    ready = np.flatnonzero(hold & (snapshot.ready_ps >= 0) & (snapshot.start_ps < 0))
    of_class = np.searchsorted(quotient.base, ready, side="right") - 1
    for task, number in zip(ready.tolist(), of_class.tolist(), strict=True):
        part = quotient.parts[quotient.part_of[number]]
        local = int(part.tasks[task - int(quotient.base[number])])
        active.setdefault(_axis_of(job, part.pattern, local), set()).add(part.pattern.program)
    for axis, programs in active.items():
        new = programs
        while new:  # programs that wait for these, and so on
            new = {reader for program in new for reader in readers(axis).get(program, ())} - programs
            programs |= new
    return active


def readers_along(job: JobPatterns, axis: str) -> dict[int, set[int]]:
    """Return program -> programs whose ranks wait for tasks of its ranks along ``axis``."""
    program_of = np.array([pattern.program for pattern in job.patterns])[job.pattern_of]
    readers: dict[int, set[int]] = {}
    for pattern in job.patterns:
        for role in np.unique(pattern.edges.role).tolist():
            if role >= 0 and pattern.role_axes[role] == axis:
                for program in np.unique(program_of[pattern.peers[:, role]]).tolist():
                    readers.setdefault(program, set()).add(pattern.program)
    return readers


def remaining_parts(
    search: ClassSearch, quotient: Quotient, snapshot: Snapshot, active: dict[str, set[int]] | None
) -> list[PatternPart]:
    """Return the ranks of each class with their remaining tasks.

    active: axis -> the programs that activate it now; None: all axes for all programs.
    """
    parts = []
    trimmed: dict[
        tuple[int, bytes], PatternPart
    ] = {}  # part, remaining tasks -> the fields that do not depend on ranks
    for number in range(quotient.partition.num_classes):
        part = quotient.parts[quotient.part_of[number]]
        remains = snapshot.end_ps[quotient.tasks_of(number)] < 0
        if remains.any():
            key = (id(part), np.packbits(remains).tobytes())
            if key not in trimmed:
                trimmed[key] = _trimmed(part, remains)
            in_class = quotient.partition.class_of[part.ranks] == number
            axes = (axis for axis in part.deferred if active is not None and _is_deferred(part, axis, active))
            parts.append(replace(
                trimmed[key], number=number, ranks=part.ranks[in_class], rows=part.rows[in_class], before=number,
                deferred=frozenset(axes),
            ))  # fmt: skip
    if any(part.deferred for part in parts):
        # Activate all axes if that costs little more than activating the necessary ones.
        partly, wholly = search.classes(parts).num_tasks, search.classes(deferring(parts)).num_tasks
        if partly >= (deferral.WORTH_A_STOP if wholly <= deferral.RUN_TASKS else deferral.WORTH_WAITING) * wholly:
            return deferring(parts)
    return parts


def independent_runs(search: ClassSearch, parts: Sequence[PatternPart]) -> list[list[PatternPart]]:
    """Divide parts into runs: one for all that may stop again, the others with about RUN_TASKS tasks each."""
    # Later exchanges along deferred axes may cross links that other ranks use now, so they join ranks too.
    neighbourhood = search.classes(deferring(parts)).neighbourhood
    ranks = np.sort(np.concatenate([part.ranks for part in parts]))
    component = join_components(neighbourhood.ptr, neighbourhood.items, len(neighbourhood.links))
    of_rank = np.zeros(search.placement.num_ranks, np.int64)
    of_rank[ranks] = component[: len(ranks)]
    may_stop = np.zeros(len(component), np.bool_)
    size = np.zeros(len(component), np.int64)
    for part in parts:
        may_stop[of_rank[part.ranks]] |= bool(part.deferred)
        np.add.at(size, of_rank[part.ranks], len(part.tasks))
    free = np.flatnonzero((size > 0) & ~may_stop)
    run_of = np.full(len(component), -1, np.int64)  # -1: the run that may stop
    run_of[free] = np.cumsum(size[free]) // deferral.RUN_TASKS
    if len(free) and search.classes(parts).num_tasks <= deferral.RUN_TASKS:  # all that cannot stop folds well
        run_of[free] = 0
    runs: dict[int, list[PatternPart]] = {}
    for part in parts:
        run_numbers = run_of[of_rank[part.ranks]]
        for number in np.unique(run_numbers).tolist():
            in_run = run_numbers == number
            runs.setdefault(number, []).append(replace(part, ranks=part.ranks[in_run], rows=part.rows[in_run]))
    return [runs[number] for number in sorted(runs)]


def _is_deferred(part: PatternPart, axis: str, active: dict[str, set[int]]) -> bool:
    return part.pattern.program not in active.get(axis, ())


def held_tasks(quotient: Quotient) -> Bool:
    """Return which tasks begin an exchange along an axis that is deferred for their part."""
    begins = [begins_exchange(part) for part in quotient.parts]
    hold = np.zeros(quotient.graph.num_tasks, np.bool_)
    for number, part_number in enumerate(quotient.part_of.tolist()):
        hold[quotient.tasks_of(number)] = begins[part_number]
    return hold


def _axis_of(job: JobPatterns, pattern: Pattern, task: int) -> str:
    """Return the axis of the exchange that a held task begins."""
    if pattern.key[task] >= 0:
        return job.keys[int(pattern.key[task])][0]
    return pattern.role_axes[int(pattern.role[task])]


def _trimmed(part: PatternPart, remains: Bool) -> PatternPart:
    pattern, edges = part.pattern, part.edges
    tasks = part.tasks[remains]
    number_of = np.full(pattern.num_tasks, -1, np.int32)
    number_of[tasks] = np.arange(len(tasks), dtype=np.int32)
    keep = number_of[edges.task] >= 0
    local = edges.role == SELF
    keep[local] &= number_of[edges.key[local]] >= 0
    remaining_edges = Edges(
        task=edges.task[keep],
        role=edges.role[keep],
        kind=edges.kind[keep],
        key=edges.key[keep],
        number=edges.number[keep],
    )
    return replace(part, tasks=tasks, number_of=number_of, edges=remaining_edges)


def taken_over(coarse: Quotient, snapshot: Snapshot, fine: Quotient) -> Snapshot:
    """Return a snapshot that gives each finer class the state of its former class."""
    origin = np.empty(fine.graph.num_tasks, np.int32)
    remaining: dict[int, Int64] = {}
    for number in range(fine.partition.num_classes):
        before = fine.parts[fine.part_of[number]].before
        if before not in remaining:
            is_remaining = snapshot.end_ps[coarse.tasks_of(before)] < 0
            remaining[before] = np.flatnonzero(is_remaining) + int(coarse.base[before])
        origin[fine.tasks_of(number)] = remaining[before]
    num_streams = len(fine.graph.stream_names) // max(1, fine.partition.num_classes)
    former = np.array([fine.parts[number].before for number in fine.part_of.tolist()], np.int64)
    streams = former[:, None] * num_streams + np.arange(num_streams)
    return replace(carry_over(snapshot, origin, streams.ravel()), num_events=0)
