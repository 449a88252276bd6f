"""The ranks of one measured run, with their collectives matched and their clocks aligned.

A collective of a process group has the same position in that group's order on each of its ranks. Its ranks leave it
together, so the differences of its ends between two ranks are the differences of their clocks.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, pairwise
from statistics import median

from trine.common.units import PS_PER_US
from trine.errors import InputError, one_line
from trine.runs.rank_trace import CollectiveCall, GpuActivity, GroupKey, RankTrace

#: Ends of collectives on two ranks whose typical difference is smaller belong to one clock.
MIN_OFFSET_PS = 20 * PS_PER_US
_MIN_COMMON = 3
_WORDS = 40


@dataclass(frozen=True, slots=True)
class Instance:
    """One collective on the ranks that have a trace.

    members: index of the rank in the run, and index of the kernel in its activities. is_whole: whether all ranks of its
    group are there, as far as the traces tell.
    """

    call: CollectiveCall
    members: tuple[tuple[int, int], ...]
    is_whole: bool


@dataclass(frozen=True, slots=True)
class MeasuredRun:
    """Traces by rank, on one clock. offsets_ps: what was added to each rank's clock. num_steps: profiled steps."""

    ranks: tuple[RankTrace, ...]
    instances: tuple[Instance, ...]
    offsets_ps: tuple[int, ...]
    num_steps: int
    notes: tuple[str, ...] = ()

    @property
    def start_ps(self) -> int:
        """The first moment of any rank."""
        return min(rank.start_ps for rank in self.ranks)

    @property
    def time_ps(self) -> int:
        """The time from the first moment of any rank to the last on a GPU."""
        return max(rank.end_ps for rank in self.ranks) - self.start_ps

    @property
    def step_ps(self) -> int:
        """The time of one step."""
        return self.time_ps // self.num_steps


def measured_run(traces: Iterable[RankTrace]) -> MeasuredRun:
    """Return the run of the traces of some or all of its ranks, whose times it changes.

    Raises InputError for traces of different jobs, and for a rank with two traces.
    """
    ranks = sorted(traces, key=lambda trace: trace.rank)
    _check_one_job(ranks)
    notes = []
    num_steps = _keep_common_steps(ranks)
    if len(ranks) < (ranks[0].world_size or 0):
        notes.append(
            f"{len(ranks)} of {ranks[0].world_size} ranks have a trace: waits for the others count as transfer"
        )
    instances, odd = _match(ranks)
    for kind in odd:
        notes.append(f"{kind} differ in number between ranks: their times count as this rank's own")
    offsets = _clock_offsets(ranks, instances)
    for trace, offset_ps in zip(ranks, offsets, strict=True):
        if offset_ps:
            trace.shift(offset_ps)
    return MeasuredRun(tuple(ranks), tuple(instances), tuple(offsets), num_steps, tuple(notes))


def _check_one_job(ranks: Sequence[RankTrace]) -> None:
    first = ranks[0]
    for before, trace in pairwise(ranks):
        if trace.rank == before.rank:
            raise InputError(f"is a second trace of rank {trace.rank}, besides {before.file}", file=trace.file)
    for trace in ranks:
        if trace.world_size != first.world_size:
            size = trace.world_size or "an unknown number of"
            words = f"is of another job: it has {size} ranks, and {first.file} is of one with {first.world_size}"
            raise InputError(words, file=trace.file)
        if trace.world_size is not None and trace.rank >= trace.world_size:
            raise InputError(f"is of rank {trace.rank}, in a job of {trace.world_size} ranks", file=trace.file)
        if trace.gpu and first.gpu and trace.gpu != first.gpu and not _common_collectives(trace, first):
            raise InputError(f"is of another job: a {trace.gpu}, and {first.file} of a {first.gpu}", file=trace.file)
    for name in {name for trace in ranks for name in trace.groups}:
        stated = {trace.groups[name] for trace in ranks if name in trace.groups}
        rows = sorted(stated)
        if len(rows) > 1 and any(set(one) & set(other) for one in rows for other in rows if one != other):
            odd = next(trace for trace in ranks if trace.groups.get(name) not in (None, first.groups.get(name)))
            raise InputError(f"is of another job: process group {one_line(name, _WORDS)!r} has other ranks than in "
                             f"{first.file}", file=odd.file)  # fmt: skip
    if len(ranks) > 1 and not any(_common_collectives(one, other) for one, other in combinations(ranks, 2)):
        words = f"has no collective in common with {first.file}: traces of different jobs, or of other steps"
        raise InputError(words, file=ranks[1].file)


def _common_collectives(one: RankTrace, other: RankTrace) -> bool:
    """Return whether both ranks have a collective of the same kind, group and size."""

    def keys(trace: RankTrace) -> set[tuple[object, ...]]:
        calls = [activity.collective for activity in trace.activities if activity.collective is not None]
        return {(call.kind, call.group, call.size_bytes) for call in calls if trace.rank in call.group.ranks or not
                call.group.ranks}  # fmt: skip

    return bool(keys(one) & keys(other))


def _keep_common_steps(ranks: Sequence[RankTrace]) -> int:
    """Drop what lies outside the steps that all ranks profiled, and return the number of steps.

    Activities belong to the step in which they were launched. Without steps, or if all have the same, nothing changes.
    """
    numbers = [{step.number for step in trace.steps} for trace in ranks]
    common = set.intersection(*numbers)
    if not common or all(each == common for each in numbers):
        return max(1, len(common))
    for trace in ranks:
        spans = [(step.start_ps, step.end_ps) for step in trace.steps if step.number in common]
        low, high = min(span[0] for span in spans), max(span[1] for span in spans)
        kept_calls = [place for place, call in enumerate(trace.calls) if low <= call.start_ps < high]
        new_place = {old: new for new, old in enumerate(kept_calls)}
        activities = []
        for activity in trace.activities:
            if activity.launch in new_place:
                activities.append(replace(activity, launch=new_place[activity.launch]))
        trace.calls = [trace.calls[place] for place in kept_calls]
        trace.activities = _renumbered(activities)
        trace.steps = [step for step in trace.steps if step.number in common]
    return len(common)


def _renumbered(activities: list[GpuActivity]) -> list[GpuActivity]:
    """Return the activities with their collectives numbered from 0 in each group."""
    counts: dict[GroupKey, int] = {}
    calls = [each for each in activities if each.collective is not None]
    for activity in sorted(calls, key=lambda each: each.collective.number if each.collective else 0):
        assert activity.collective is not None
        group = activity.collective.group
        number = counts.get(group, 0)
        activity.collective = replace(activity.collective, number=number)
        counts[group] = number + 1
    return activities


def _match(ranks: Sequence[RankTrace]) -> tuple[list[Instance], list[str]]:
    """Return the collectives that several ranks have in common, and words for groups whose counts differ."""
    kernels: dict[GroupKey, dict[int, list[int]]] = {}
    for row, trace in enumerate(ranks):
        ordered: dict[GroupKey, list[tuple[int, int]]] = {}
        for place, activity in enumerate(trace.activities):
            if activity.collective is not None:
                ordered.setdefault(activity.collective.group, []).append((activity.collective.number, place))
        for group, entries in ordered.items():
            kernels.setdefault(group, {})[row] = [place for _, place in sorted(entries)]
    rows_of = {trace.rank: row for row, trace in enumerate(ranks)}
    instances, odd = [], []
    for group, places in kernels.items():
        counts = Counter(len(each) for each in places.values())
        if len(counts) > 1:
            odd.append(f"collectives of process group {one_line(group.name, _WORDS)!r}")
            continue
        for number in range(next(iter(counts))):
            members = tuple((row, each[number]) for row, each in sorted(places.items()))
            call = ranks[members[0][0]].activities[members[0][1]].collective
            assert call is not None
            expected = len(group.ranks) or call.group_size or ranks[0].world_size or len(ranks)
            is_known = not group.ranks or all(rank in rows_of for rank in group.ranks)
            instances.append(Instance(call, members, is_known and len(members) == expected))
    return instances, odd


def _clock_offsets(ranks: Sequence[RankTrace], instances: Sequence[Instance]) -> list[int]:
    """Return what to add to each rank's clock, in ps, so that collectives end together.

    Ranks of one host share a clock. Hosts are reached from the first one over collectives in common.
    """
    hosts = [trace.host or f"rank {trace.rank}" for trace in ranks]
    differences: dict[tuple[str, str], list[int]] = {}
    for instance in instances:
        row, place = instance.members[0]
        first_ps = ranks[row].activities[place].end_ps
        for other, other_place in instance.members[1:]:
            if hosts[other] != hosts[row]:
                end_ps = ranks[other].activities[other_place].end_ps
                differences.setdefault((hosts[row], hosts[other]), []).append(first_ps - end_ps)
    edges: dict[str, list[tuple[str, int]]] = {}
    for (near, far), values in differences.items():
        if len(values) >= _MIN_COMMON:
            offset = int(median(values))
            edges.setdefault(near, []).append((far, offset))
            edges.setdefault(far, []).append((near, -offset))
    offset_of = {hosts[0]: 0}
    queue = deque([hosts[0]])
    while queue:
        host = queue.popleft()
        for neighbour, offset in sorted(edges.get(host, [])):
            if neighbour not in offset_of:
                offset_of[neighbour] = offset_of[host] + (offset if abs(offset) >= MIN_OFFSET_PS else 0)
                queue.append(neighbour)
    return [offset_of.get(host, 0) for host in hosts]
