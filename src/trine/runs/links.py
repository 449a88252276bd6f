"""Transfers of comparable process groups, compared with each other: slow groups, and the rank they share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from trine.common.units import PS_PER_US
from trine.runs.measured_run import MeasuredRun
from trine.runs.peers import lower_median
from trine.runs.rank_trace import GroupKey
from trine.runs.replay import Durations, Replay

#: A group is slow if its transfers take this many times the reference.
SLOW_RATIO = 1.15
#: Slow groups that lose less than this share of the slowest one's loss, and are not this many times slower than others,
#: are noise of small transfers. Assumed.
_MIN_LOSS, _STRONG_RATIO = 0.1, 2.0
#: Part of a message's time that it may share with other transfers. Assumed.
_MAX_SHARED = 0.2
#: Collectives that began longer before a message do not count as its neighbours.
_LOOK_BACK_PS = 100_000 * PS_PER_US
_Class = tuple[str, int | None, int]


@dataclass(frozen=True, slots=True)
class SlowGroups:
    """Slow process groups: their instances with the reference in ps, the ranks to suspect, and the slowdown.

    ranks: the ranks that all slow groups have in common and that no healthy comparable group has; if none is left, all
    ranks of the slow groups. kind: of the collective that loses most. group: of that collective.
    """

    transfers_ps: Mapping[int, int]
    ranks: tuple[int, ...]
    slowdown: float
    kind: str
    group: GroupKey


def slow_groups(run: MeasuredRun, replay: Replay) -> SlowGroups | None:
    """Return the slow groups of a run, None if all transfers are alike or have nothing to compare with."""
    transfers = _transfers(run, replay)
    references: dict[_Class, int] = {}
    is_slow: dict[tuple[_Class, GroupKey], bool] = {}
    lost: dict[tuple[_Class, GroupKey], int] = {}
    for kind, groups in transfers.items():
        if len(groups) < 2:
            continue
        means = {group: sum(rows.values()) // len(rows) for group, rows in groups.items()}
        references[kind] = lower_median(list(means.values()))
        for group, rows in groups.items():
            is_slow[kind, group] = means[group] > SLOW_RATIO * references[kind]
            lost[kind, group] = sum(rows.values()) - references[kind] * len(rows)
    most_ps = max((lost[each] for each, value in is_slow.items() if value), default=0)
    slow: dict[int, int] = {}
    for kind, group in is_slow:
        rows = transfers[kind][group]
        is_strong = sum(rows.values()) >= _STRONG_RATIO * references[kind] * len(rows)
        if lost[kind, group] < _MIN_LOSS * most_ps and not is_strong:
            is_slow[kind, group] = False
        if is_slow[kind, group]:
            slow.update(dict.fromkeys(transfers[kind][group], references[kind]))
    if not slow:
        return None
    worst = max((each for each, value in is_slow.items() if value), key=lambda each: lost[each])
    measured = sum(transfers[kind][group][index] for kind, group in is_slow for index in transfers[kind][group]
                   if index in slow)  # fmt: skip
    return SlowGroups(
        slow, _suspects(run, is_slow), measured / max(1, sum(slow.values())), worst[0][0], worst[1]
    )  # fmt: skip


def repaired(base: Durations, run: MeasuredRun, slow: SlowGroups) -> Durations:
    """Return the durations with the slow transfers at their reference."""
    durations = base.copy()
    for index, reference_ps in slow.transfers_ps.items():
        for row, place in run.instances[index].members:
            durations.kernels[row][place] = min(durations.kernels[row][place], reference_ps)
    return durations


def _transfers(run: MeasuredRun, replay: Replay) -> dict[_Class, dict[GroupKey, dict[int, int]]]:
    """Return the transfer time of each collective that all of its ranks recorded, by class and group."""
    transfers: dict[_Class, dict[GroupKey, dict[int, int]]] = {}
    for index, instance in enumerate(run.instances):
        if index not in replay.entries_ps or not instance.is_whole:
            continue
        if instance.call.kind == "send_recv" and _shares_links(run, replay, index):
            continue
        call = instance.call
        kind = (call.kind, call.size_bytes, len(instance.members))
        time_ps = max(replay.base.kernels[row][place] for row, place in instance.members)
        transfers.setdefault(kind, {}).setdefault(call.group, {})[index] = time_ps
    return transfers


def _shares_links(run: MeasuredRun, replay: Replay, index: int) -> bool:
    """Return whether a message shares its time with other transfers of its ranks: then it shows no link's rate."""
    begin_ps = replay.entries_ps[index]
    for row, place in run.instances[index].members:
        activities = run.ranks[row].activities
        end_ps = activities[place].end_ps
        for other in range(place - 1, -1, -1):
            if activities[other].start_ps < begin_ps - _LOOK_BACK_PS:
                break
            if _overlap_ps(run, replay, row, other, begin_ps, end_ps) > _MAX_SHARED * (end_ps - begin_ps):
                return True
        for other in range(place + 1, len(activities)):
            if activities[other].start_ps >= end_ps:
                break
            if _overlap_ps(run, replay, row, other, begin_ps, end_ps) > _MAX_SHARED * (end_ps - begin_ps):
                return True
    return False


def _overlap_ps(run: MeasuredRun, replay: Replay, row: int, place: int, begin_ps: int, end_ps: int) -> int:
    """Return the time that a collective's transfer has in common with an interval; 0 for other activities."""
    activity = run.ranks[row].activities[place]
    if activity.collective is None:
        return 0
    entry_ps = replay.entries_ps.get(replay.instance_of(row, place), activity.start_ps)
    return min(end_ps, activity.end_ps) - max(begin_ps, entry_ps)


def _suspects(run: MeasuredRun, is_slow: Mapping[tuple[_Class, GroupKey], bool]) -> tuple[int, ...]:
    """Return the ranks in the most slow groups and the fewest healthy ones."""
    members: dict[GroupKey, set[int]] = {}
    for instance in run.instances:
        members.setdefault(instance.call.group, set()).update(run.ranks[row].rank for row, _ in instance.members)
    score: dict[int, int] = {}
    in_slow: set[int] = set()
    for (_, group), slow in is_slow.items():
        for rank in members[group]:
            score[rank] = score.get(rank, 0) + (1 if slow else -1)
            if slow:
                in_slow.add(rank)
    best = max(score[rank] for rank in in_slow)
    return tuple(sorted(rank for rank in in_slow if score[rank] == best))
