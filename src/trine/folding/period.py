"""Folding in time: a run of few micro-batches whose state repeats stands for one of many.

A micro-batch's tasks of one rank, step and phase are a *list*. Lists with the same tasks, in order of micro-batch, form
a *sequence*. If all tasks that start in some interval have an equal task one period later, and ready, start and end
differ by exactly the period, then the interval contains a window that the longer run repeats, see
:func:`repeated_windows`.

Why it is exact: the rates of flows depend on the set of flows in progress alone (:mod:`trine.engine`), so a flow's
remaining bytes, a float, follow from the starts and ends of all flows since its start. If these repeat after one
period, the complete state repeats too, bit for bit, and with it the future while the programs continue alike.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from trine.common.arrays import Bool, Int64, distinct
from trine.folding.lists import Lists, Track
from trine.folding.shifts import Compared, Shifts, TasksByStart
from trine.parallel.plan import Plan
from trine.results.repeats import Repeat, Repeats

#: Numbers of micro-batches after which a run may repeat, in the order of trial.
DISTANCES = (*range(1, 13), 16, 24, 32)


#: Numbers of micro-batches that are tried, each twice the one before.
MAX_ATTEMPTS = 4
#: Micro-batches of all attempts, as a part of the step's: what a step that never repeats costs in addition.
MAX_TRIED = 0.75
#: A first attempt with a larger part of the step's micro-batches loses more if it fails than it gains if it repeats.
MAX_FIRST = 0.5
#: Fewer micro-batches than this are all simulated.
MIN_MICRO_BATCHES = 12
#: Ranks that are asked one by one whether they repeat, before all together.
MAX_ASKED = 4
#: Micro-batches that are tried first without a pipeline, and if the launching thread waits for the GPU in each.
FIRST_MICRO_BATCHES, FIRST_IF_WAITING = 6, 4
#: Rounds (one micro-batch per stage) that are tried first with virtual stages. The first rank begins
#: 2 (pp - 1) + (v - 1) pp passes ahead of its first backward pass, which is less than two rounds of v passes for any v;
#: so fill and drain take two rounds together with their neighbours, and two more repeat.
ROUNDS_IF_INTERLEAVED = 4


def first_counts(plan: Plan, total: int, synchronises: str | None = None) -> tuple[int, ...]:
    """Return numbers of micro-batches to simulate, one after the other, until a run repeats and stands for ``total``.

    The first fill the pipeline and drain it, with a few in between. Interleaved schedules need whole rounds.
    synchronises: when the launching thread waits for the GPU (:class:`trine.software.profile.LaunchStyle`), None
    without one; a thread that does not wait in each pass falls into step with the GPU later. Empty if there are too
    few to gain anything, or if gradients are deferred (more micro-batches then need more memory).
    """
    if plan.defer_head_gradient is not None:
        return ()
    is_interleaved = plan.virtual_stages > 1
    if plan.pp == 1:
        count = FIRST_IF_WAITING if synchronises in (None, "forward", "micro-batch") else FIRST_MICRO_BATCHES
    else:
        count = ROUNDS_IF_INTERLEAVED * plan.pp if is_interleaved else plan.pp + 2
        count *= 1 if synchronises in (None, "pass", "forward") else 2
    counts: list[int] = []
    if count > MAX_FIRST * total:
        return ()
    while total >= MIN_MICRO_BATCHES and len(counts) < MAX_ATTEMPTS:
        count += (total - count) % (plan.pp if is_interleaved else 2)
        if sum(counts) + count > MAX_TRIED * total:
            break
        counts.append(count)
        count *= 2
    return tuple(counts)


def find_repeats(tasks: Compared, micro_batches: int, simulated: int, first: int = -1) -> Repeats | None:
    """Return the windows that a run of ``simulated`` micro-batches repeats to stand for ``micro_batches``, or None.

    first: the first micro-batch that may repeat; programs of earlier ones are different.
    If the missing micro-batches are no multiple of the period, the result stands for fewer: the run then needs
    :attr:`Repeats.left_out` more.

    A large run starts with few classes of ranks (:mod:`trine.folding.stages`). Windows before its first stop are found
    among these: their ranks differ only later. All ranks repeat only if one of each of these classes does.
    """
    folded = tasks.run.folded
    if tasks.num_stages is None and folded is not None and len(folded.stages) > 1:
        coarse = Compared(tasks.run, num_stages=1)
        repeats = find_repeats(coarse, micro_batches, simulated, first)
        if repeats is None or _ends_before(repeats, coarse):
            return repeats
    tracks = tasks.tracks
    some_ranks = _SomeRanks(tracks)
    for distance in DISTANCES:
        if 2 * distance > simulated:
            break
        if len(tracks) > MAX_ASKED and not some_ranks.may_repeat(distance, first):
            continue
        windows, keys = repeated_windows(tasks.by_start.shifts(distance, first), distance)
        numbers = repeated_micro_batches(tracks, keys, distance) if windows else ()
        if numbers:
            return Repeats(
                windows=tuple(windows), count=(micro_batches - simulated) // len(numbers), repeated=numbers,
                micro_batches=micro_batches, simulated=simulated,
            )  # fmt: skip
    return None


def _ends_before(repeats: Repeats, tasks: Compared) -> bool:
    """Return whether the windows, and all tasks compared for them, end before ranks of one class begin to differ."""
    until_ps, by_start = tasks.end_ps, tasks.by_start
    for window in repeats.windows:
        behind = int(np.searchsorted(by_start.start, window.end_ps))
        latest_ps = int(by_start.latest_end[behind - 1]) + window.end_ps - window.start_ps
        if until_ps is not None and latest_ps >= until_ps:
            return False
    return True


class _SomeRanks:
    """The tracks of a few single ranks, each of which repeats if all together do. One costs a part of the whole search;
    the first one mostly refuses, or none does.
    """

    def __init__(self, tracks: Sequence[Track]) -> None:
        by_size = sorted(tracks, key=lambda track: len(track.times.start))
        self._tracks = by_size[:: -(-len(by_size) // MAX_ASKED)]
        self._by_start: dict[int, TasksByStart] = {}
        self._order = list(range(len(self._tracks)))

    def may_repeat(self, distance: int, first: int) -> bool:
        """Return whether each of these ranks repeats, all at some common time with the same period.

        The first rank that does not is asked first for the next distance.
        """
        common: list[_Stretch] = []
        starts: list[Int64] = []
        for number in self._order:
            if number not in self._by_start:
                self._by_start[number] = TasksByStart.of([self._tracks[number]])
            table = _Sorted.of(self._by_start[number].shifts(distance, first))
            common = _with_rank(common, starts, table)
            starts.append(table.tasks.start)
            if not common or not _windows(table, distance)[0]:
                self._order.remove(number)
                self._order.insert(0, number)
                return False
        return True


class _Stretch(NamedTuple):
    """A time, in ps, in which all tasks that start have an equal task ``period_ps`` later."""

    begin_ps: int
    end_ps: int
    period_ps: int


def _stretches(table: _Sorted) -> list[_Stretch]:
    """Return the times of a rank's runs of tasks with one shift, from the task before each to the one behind it."""
    start = table.tasks.start
    stretches = []
    for first, last, period in _runs(table):
        begin_ps = int(start[first - 1]) if first else 0
        stretches.append(_Stretch(begin_ps, int(start[min(last, len(start) - 1)]), period))
    return stretches


def _with_rank(common: Sequence[_Stretch], starts: Sequence[Int64], table: _Sorted) -> list[_Stretch]:
    """Return the times in which some ranks and a further one repeat with one period; all but one of them may idle.

    common: the times of the ranks before; starts: of their tasks. table: the tasks of the further rank.
    """
    own = _stretches(table)
    alone = list(own)
    for start in starts:
        alone = _common(alone, (), start) if alone else []
    return _largest([*_common(common, own, table.tasks.start), *alone])


def _common(common: Sequence[_Stretch], own: Sequence[_Stretch], start: Int64) -> list[_Stretch]:
    """Return the parts of ``common`` that are long enough for their period, and in which a rank repeats or idles.

    own: the rank's stretches. start: of its tasks, ascending, int64[tasks], ps.
    """
    parts: set[_Stretch] = set()
    for stretch in common:
        same = [other for other in own if other.period_ps == stretch.period_ps]
        for other in (*same, *_idle_times(stretch, start)):
            begin_ps, end_ps = max(other.begin_ps, stretch.begin_ps), min(other.end_ps, stretch.end_ps)
            if end_ps - begin_ps >= stretch.period_ps:
                parts.add(_Stretch(begin_ps, end_ps, stretch.period_ps))
    return _largest(parts)


def _idle_times(stretch: _Stretch, start: Int64) -> list[_Stretch]:
    """Return the times of at least a period, in a stretch, between two starts of a rank's tasks."""
    first, last = np.searchsorted(start, [stretch.begin_ps, stretch.end_ps], side="right").tolist()
    inside = np.concatenate([[stretch.begin_ps], start[first:last], [stretch.end_ps]])
    idle = []
    for number in np.flatnonzero(np.diff(inside) >= stretch.period_ps).tolist():
        idle.append(_Stretch(int(inside[number]), int(inside[number + 1]), stretch.period_ps))
    return idle


def _largest(parts: Iterable[_Stretch]) -> list[_Stretch]:
    """Return the stretches without those inside another stretch of the same period."""
    largest: list[_Stretch] = []
    latest_ps: dict[int, int] = {}
    for part in sorted(parts, key=lambda part: (part.begin_ps, -part.end_ps, part.period_ps)):
        if part.end_ps > latest_ps.get(part.period_ps, -1):
            latest_ps[part.period_ps] = part.end_ps
            largest.append(part)
    return largest


class _Sorted(NamedTuple):
    """All tasks in order of start, for one length of the period.

    shift: ps to the equal task one period later, -1 without one or if start and end shift differently.
    ready: when the later task is ready, if the shift of ready differs, so that both wait for their stream; else -1.
    """

    tasks: TasksByStart
    shift: Int64
    ready: Int64

    @staticmethod
    def of(each: Shifts) -> _Sorted:
        start_shift = each.start_shift
        shift = np.where(start_shift == each.end_shift, start_shift, -1)
        ready = np.where(each.ready_shift == start_shift, -1, each.later_ready)
        return _Sorted(each.tasks, each.by_start(shift), each.by_start(ready))


def repeated_windows(shifts: Shifts, distance: int) -> tuple[list[Repeat], Int64]:
    """Return windows that cover each place of a sequence ``distance`` times or not at all, and their keys.

    A window ends at the task that stops repeating, and is one period long. Let h be the start of the earliest task that
    runs when it begins. Every task that starts, or still runs, from h on is one that repeats; one period later, no
    further task starts, or runs when the window ends.
    """
    return _windows(_Sorted.of(shifts), distance)


def _windows(table: _Sorted, distance: int) -> tuple[list[Repeat], Int64]:
    tasks = table.tasks
    start, end, latest_end = tasks.start, tasks.end, tasks.latest_end
    covered: set[int] = set()
    windows, keys = [], []
    for first, last, period in _runs(table):
        end_ps = int(start[last]) if last < len(start) else int(start[-1]) + 1
        start_ps = end_ps - period
        begins, ends = np.searchsorted(start, [start_ps, end_ps])
        first = int(np.searchsorted(start, start[first - 1], "right")) if first else 0
        if begins < first or ends <= begins:
            continue
        running = np.flatnonzero(end[:begins] > start_ps)
        oldest_ps = int(start[running[0]]) if len(running) else start_ps
        if (first and latest_end[first - 1] > oldest_ps) or table.ready[first:last].max() > oldest_ps:
            continue
        before = np.searchsorted(start, [oldest_ps, oldest_ps + period])
        if begins - before[0] != ends - before[1] or np.count_nonzero(end[:ends] > end_ps) != len(running):
            continue  # the end of the window has tasks that its beginning has not
        places, counts = np.unique(tasks.key[begins:ends], return_counts=True)
        if (counts != distance).any() or not covered.isdisjoint(places.tolist()):
            continue
        covered.update(places.tolist())
        keys.append(places)
        windows.append(Repeat(start_ps, end_ps, frozenset(tasks.phase[begins:ends].tolist())))
    return sorted(windows), np.concatenate(keys) if keys else np.zeros(0, np.int64)


def _runs(table: _Sorted) -> Iterator[tuple[int, int, int]]:
    """Yield stretches of tasks (first, behind the last) with one shift, and the shift; the longest first.

    Shorter ones than a period are left out.
    """
    bounds = np.flatnonzero(np.diff(table.shift)) + 1
    first, last = np.append(0, bounds), np.append(bounds, len(table.shift))
    start = table.tasks.start
    begin_ps, end_ps = start[np.maximum(first - 1, 0)], start[np.minimum(last, len(start) - 1)]
    is_long = (table.shift[first] > 0) & (end_ps - begin_ps >= table.shift[first])
    first, last = first[is_long], last[is_long]
    for i in np.argsort(first - last, kind="stable").tolist():
        yield int(first[i]), int(last[i]), int(table.shift[first[i]])


def repeated_micro_batches(tracks: Sequence[Track], keys: Int64, distance: int) -> tuple[int, ...]:
    """Return the micro-batches that windows with these keys repeat, or () if they are not whole micro-batches.

    Each rank must repeat the same number of lists of each kind. A micro-batch belongs to the repeated sequences of all
    its lists.
    """
    is_covered = np.zeros(sum(track.lists.num_keys for track in tracks), np.bool_)
    is_covered[keys[keys >= 0]] = True
    base, rows = 0, []
    for lists, times in tracks:
        of_sequence, is_simulated = is_covered[base : base + lists.num_keys], np.zeros(lists.num_keys, np.int64)
        base += lists.num_keys
        is_simulated[lists.keys[times.start[lists.tasks] >= 0]] = 1  # others are signals that the first one stands for
        covered = np.add.reduceat(of_sequence.astype(np.int64), lists.first_key)
        if ((covered != 0) & (covered != np.add.reduceat(is_simulated, lists.first_key))).any():
            return ()
        rows.append((lists, covered > 0))
    paths = {_paths(lists, repeats) for lists, repeats in rows}
    if len(paths) != 1 or len(next(iter(paths))) != 1:
        return ()
    number = next(iter(next(iter(paths))))
    return _micro_batches(rows, number, distance) if number else ()


def _paths(lists: Lists, repeats: Bool) -> frozenset[int]:
    """Return the numbers of repeated sequences, over all passes of a rank."""
    first = np.unique(lists.sequence, return_index=True)[1]
    passes, number = np.unique(lists.passes[first], return_inverse=True)
    return frozenset(np.bincount(number.ravel(), weights=repeats, minlength=len(passes)).astype(int).tolist())


def _micro_batches(rows: Sequence[tuple[Lists, Bool]], paths: int, distance: int) -> tuple[int, ...]:
    """Return the last ``distance`` micro-batches of each path, a set with the same repeated sequences."""
    total = 1 + max(int(lists.microbatch.max()) for lists, _ in rows)
    seen = np.zeros(total, np.int64)
    wanted, path = 0, np.zeros(total, np.int64)
    for lists, repeats in rows:
        inside = repeats[lists.sequence]
        np.add.at(seen, lists.microbatch[inside], 1)
        wanted += len(distinct(lists.passes))
        for passes in distinct(lists.passes):
            of_pass = inside & (lists.passes == passes)
            column = np.zeros(total, np.int64)
            column[lists.microbatch[of_pass]] = 1 + lists.sequence[of_pass]
            path = np.unique(np.stack([path, column]), axis=1, return_inverse=True)[1].ravel()
    chosen: list[int] = []
    whole = np.flatnonzero(seen == wanted)
    for number in distinct(path[whole]).tolist():
        members = whole[path[whole] == number]
        if len(members) >= distance:
            chosen += members[len(members) - distance :].tolist()
    return tuple(sorted(chosen)) if len(chosen) == paths * distance else ()
