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

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from trine.common.arrays import Bool, Int64
from trine.folding.observe import rank_memory
from trine.folding.run import JobRun, one_of_each_class
from trine.graph.memory import MemoryEvents
from trine.graph.program import Phase
from trine.parallel.instantiate import LABEL_FIELDS
from trine.parallel.plan import Plan
from trine.results.repeats import Repeat, Repeats

PHASE, MICROBATCH, STEP = (LABEL_FIELDS.index(name) for name in ("phase", "microbatch", "step"))
#: Passes in the backward direction are one list, with the operators that they recompute.
_SAME_LIST = {int(Phase.RECOMPUTE): int(Phase.BACKWARD), int(Phase.OPTIMIZER): int(Phase.BACKWARD)}
PASS_KINDS = len(Phase) + 1
#: Numbers of micro-batches after which a run may repeat, in the order of trial.
DISTANCES = (*range(1, 13), 16, 24, 32)


#: Numbers of micro-batches that are tried, each twice the one before.
MAX_ATTEMPTS = 4
#: Micro-batches of all attempts, as a part of the step's: what a step that never repeats costs in addition.
MAX_TRIED = 0.75
#: Fewer micro-batches than this are all simulated.
MIN_MICRO_BATCHES = 12
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
    while total >= MIN_MICRO_BATCHES and len(counts) < MAX_ATTEMPTS:
        count += (total - count) % (plan.pp if is_interleaved else 2)
        if sum(counts) + count > MAX_TRIED * total:
            break
        counts.append(count)
        count *= 2
    return tuple(counts)


class Tasks(NamedTuple):
    """Tasks whose times are compared. columns: int64[facts, n], equal for equal tasks; labels: int32[fields, n]."""

    owner: Int64
    labels: npt.NDArray[np.int32]
    columns: Int64


class Times(NamedTuple):
    """Ready, start and end of tasks, in ps: int64[n]; -1 if not simulated."""

    ready: Int64
    start: Int64
    end: Int64


@dataclass(frozen=True, slots=True, eq=False)
class Lists:
    """The lists of some tasks, sorted by owner, step, phase, content and micro-batch.

    tasks: int64, the tasks of all lists, one list after the other; position: of each in its list; of_task: the list
    of each entry; keys: its place in its sequence. sequence, passes, microbatch, begin: of each list; passes numbers
    (owner, step, phase). first_key, length: of each sequence.
    """

    tasks: Int64
    position: Int64
    of_task: Int64
    sequence: Int64
    passes: Int64
    microbatch: Int64
    begin: Int64
    first_key: Int64
    length: Int64

    @staticmethod
    def of(tasks: Tasks) -> Lists:
        """Divide tasks into lists; leaves out copies of inputs, which run ahead of the micro-batches."""
        labels = tasks.labels.astype(np.int64)
        phase = labels[PHASE].copy()
        for other, same in _SAME_LIST.items():
            phase[labels[PHASE] == other] = same
        listed = np.flatnonzero((labels[MICROBATCH] >= 0) & (phase != Phase.INPUT))
        owner, step, microbatch = tasks.owner[listed], labels[STEP][listed], labels[MICROBATCH][listed]
        phase = phase[listed]
        passes = (owner * (step.max(initial=-1) + 2) + step + 1) * PASS_KINDS + phase + 1
        order = np.lexsort((listed, microbatch, passes))
        listed, passes, microbatch = listed[order], passes[order], microbatch[order]
        is_first = np.ones(len(listed), np.bool_)
        is_first[1:] = (passes[1:] != passes[:-1]) | (microbatch[1:] != microbatch[:-1])
        begin = np.flatnonzero(is_first)
        of_task = np.cumsum(is_first) - 1
        position = np.arange(len(listed)) - begin[of_task]
        content = _content(tasks.columns[:, listed], position, begin)
        _, first, sequence = np.unique(
            np.stack([passes[begin].astype(np.uint64), content]), axis=1, return_index=True, return_inverse=True
        )
        length = np.diff(np.append(begin, len(listed)))[first]
        return Lists(
            tasks=listed, position=position, of_task=of_task, sequence=sequence.ravel().astype(np.int64),
            passes=passes[begin], microbatch=microbatch[begin], begin=begin, first_key=np.cumsum(length) - length,
            length=length,
        )  # fmt: skip

    @property
    def keys(self) -> Int64:
        keys: Int64 = self.first_key[self.sequence[self.of_task]] + self.position
        return keys

    @property
    def num_keys(self) -> int:
        return int(self.length.sum())

    def later(self, period: int) -> Int64:
        """Return for each list the one ``period`` places later in its sequence, or -1: int64[lists]."""
        order = np.lexsort((self.microbatch, self.sequence))
        later = np.full(len(order), -1, np.int64)
        if len(order) > period:
            same = self.sequence[order[period:]] == self.sequence[order[:-period]]
            later[order[:-period][same]] = order[period:][same]
        return later


def _content(columns: Int64, position: Int64, begin: Int64) -> npt.NDArray[np.uint64]:
    """Return a 64-bit hash of each list's tasks, in order; equal lists have equal hashes."""
    mixed = np.zeros(columns.shape[1], np.uint64)
    for column in columns:
        mixed = _mix(mixed ^ column.astype(np.uint64))
    mixed *= _mix(position.astype(np.uint64) + np.uint64(1)) | np.uint64(1)
    return np.add.reduceat(mixed, begin) if len(begin) else mixed


def _mix(values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Return the finaliser of splitmix64 (Steele, Lea and Flood, OOPSLA 2014) of each value."""
    values = values + np.uint64(0x9E3779B97F4A7C15)
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


#: A function that returns other labels of the same tasks: int32[fields, n].
Relabel: TypeAlias = Callable[[npt.NDArray[np.int32]], npt.NDArray[np.int32]]


def as_labelled(labels: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
    return labels


class Track(NamedTuple):
    """The tasks of one rank (or of all, in a complete graph): their lists, and their times."""

    lists: Lists
    times: Times


def tracks_of(run: JobRun, relabel: Relabel = as_labelled) -> list[Track]:
    """Return the simulated tasks of a run: of one rank of each class, or of all ranks if none was folded.

    relabel: returns labels of the tasks, which divide them into lists.
    """
    if run.folded is None:
        graph, records = run.graph, run.records
        labels = np.stack([getattr(graph.labels, name) for name in LABEL_FIELDS]).astype(np.int32)
        columns = columns_of(labels, graph.kind, graph.size_bytes, *_memory_of_tasks(run.memory, graph.num_tasks))
        tasks = Tasks(graph.rank.astype(np.int64), relabel(labels), columns)
        return [Track(Lists.of(tasks), Times(records.ready_ps, records.start_ps, records.end_ps))]
    tracks = []
    for pattern in run.folded.job.patterns:
        owner = np.zeros(pattern.num_tasks, np.int64)
        memory = _memory_of_tasks(rank_memory(run.folded, [pattern], np.zeros(1, np.int64)), pattern.num_tasks)
        columns = columns_of(pattern.labels, pattern.kind, pattern.size_bytes, *memory)
        lists = Lists.of(Tasks(owner, relabel(pattern.labels), columns))
        ranks = one_of_each_class(run.folded, pattern.ranks)
        tracks += [Track(lists, Times(*run.folded.times(rank))) for rank in ranks.tolist()]
    return tracks


def _memory_of_tasks(memory: MemoryEvents, num_tasks: int) -> Int64:
    """Return the bytes that each task allocates and frees: int64[2, tasks].

    Micro-batches with equal tasks may differ in them: the first one allocates the gradients.
    """
    changes = np.zeros((2, num_tasks), np.int64)
    np.add.at(changes, ((memory.delta_bytes < 0).astype(np.int64), memory.task), memory.delta_bytes)
    return changes


def columns_of(labels: npt.NDArray[np.int32], *columns: npt.NDArray[np.integer]) -> Int64:
    rows = [row for field, row in enumerate(labels) if field not in (MICROBATCH, STEP)]
    return np.stack([*rows, *columns]).astype(np.int64)


class Shifts(NamedTuple):
    """All simulated tasks in order of start, and their shifts to the equal task one period later.

    start, end: ps. ready_shift, start_shift, end_shift: ps; later_ready: when the later task is ready; -1 without one.
    key: number of the task's place in its sequence; phase: of its list; -1 outside lists.
    """

    start: Int64
    end: Int64
    ready_shift: Int64
    start_shift: Int64
    end_shift: Int64
    later_ready: Int64
    key: Int64
    phase: Int64


class _Sorted(NamedTuple):
    """All tasks in order of start, for one length of the period. start, end: ps.

    shift: ps to the equal task one period later, -1 without one or if start and end shift differently.
    ready: when the later task is ready, if the shift of ready differs, so that both wait for their stream; else -1.
    key: number of the task's place in its sequence, -1 outside lists. phase: of its list, -1 outside lists.
    """

    start: Int64
    end: Int64
    shift: Int64
    ready: Int64
    key: Int64
    phase: Int64


def find_repeats(run: JobRun, micro_batches: int, simulated: int, first: int = -1) -> Repeats | None:
    """Return the windows that a run of ``simulated`` micro-batches repeats to stand for ``micro_batches``, or None.

    first: the first micro-batch that may repeat; programs of earlier ones are different.
    If the missing micro-batches are no multiple of the period, the result stands for fewer: the run then needs
    :attr:`Repeats.left_out` more.
    """
    tracks = tracks_of(run)
    shortest = min(tracks, key=lambda track: len(track.times.start))
    for distance in DISTANCES:
        if 2 * distance > simulated:
            break
        if len(tracks) > 1 and not _may_repeat(shortest, distance, first):
            continue
        table = sorted_tasks(tracks, distance, first)
        windows, keys = repeated_windows(table, distance)
        numbers = repeated_micro_batches(tracks, keys, distance) if windows else ()
        if numbers:
            return Repeats(
                windows=tuple(windows), count=(micro_batches - simulated) // len(numbers), repeated=numbers,
                micro_batches=micro_batches, simulated=simulated,
            )  # fmt: skip
    return None


def _may_repeat(track: Track, distance: int, first: int) -> bool:
    """Return whether one rank's tasks repeat, as they do if those of all ranks do; it costs a part of that search."""
    return bool(repeated_windows(sorted_tasks([track], distance, first), distance)[0])


def shifts_of(tracks: Sequence[Track], distance: int, first: int = -1) -> Shifts:
    """Return the shifts of all simulated tasks to the equal ones ``distance`` places later, in order of start.

    first: the first micro-batch whose tasks have shifts.
    """
    parts, keys = [], 0
    for lists, times in tracks:
        later = np.where(lists.microbatch < first, -1, lists.later(distance))[lists.of_task]
        has_later = np.flatnonzero(later >= 0)
        now = lists.tasks[has_later]
        then = lists.tasks[lists.begin[later[has_later]] + lists.position[has_later]]
        columns = np.full((6, len(times.start)), -1)
        columns[:4, now] = *(column[then] - column[now] for column in times), times.ready[then]
        columns[4, lists.tasks] = keys + lists.keys
        columns[5, lists.tasks] = lists.passes[lists.of_task] % PASS_KINDS - 1
        keys += lists.num_keys
        done = np.flatnonzero(times.start >= 0)
        parts.append([column[done] for column in (times.start, times.end, *columns)])
    rows = [np.concatenate(row) for row in zip(*parts, strict=True)]
    parts.clear()
    order = np.argsort(rows[0], kind="stable")
    return Shifts(*(row[order] for row in rows))


def sorted_tasks(tracks: Sequence[Track], distance: int, first: int = -1) -> _Sorted:
    each = shifts_of(tracks, distance, first)
    shift = np.where(each.start_shift == each.end_shift, each.start_shift, -1)
    ready = np.where(each.ready_shift == each.start_shift, -1, each.later_ready)
    return _Sorted(each.start, each.end, shift, ready, each.key, each.phase)


def repeated_windows(table: _Sorted, distance: int) -> tuple[list[Repeat], Int64]:
    """Return windows that cover each place of a sequence ``distance`` times or not at all, and their keys.

    A window ends at the task that stops repeating, and is one period long. Let h be the start of the earliest task that
    runs when it begins. Every task that starts, or still runs, from h on is one that repeats; one period later, no
    further task starts, or runs when the window ends.
    """
    latest_end = np.maximum.accumulate(table.end)
    covered: set[int] = set()
    windows, keys = [], []
    for first, last, period in _runs(table):
        end_ps = int(table.start[last]) if last < len(table.start) else int(table.start[-1]) + 1
        start_ps = end_ps - period
        begins, ends = np.searchsorted(table.start, [start_ps, end_ps])
        first = int(np.searchsorted(table.start, table.start[first - 1], "right")) if first else 0
        if begins < first or ends <= begins:
            continue
        running = np.flatnonzero(table.end[:begins] > start_ps)
        oldest_ps = int(table.start[running[0]]) if len(running) else start_ps
        if (first and latest_end[first - 1] > oldest_ps) or table.ready[first:last].max() > oldest_ps:
            continue
        before = np.searchsorted(table.start, [oldest_ps, oldest_ps + period])
        if begins - before[0] != ends - before[1] or np.count_nonzero(table.end[:ends] > end_ps) != len(running):
            continue  # the end of the window has tasks that its beginning has not
        places, counts = np.unique(table.key[begins:ends], return_counts=True)
        if (counts != distance).any() or not covered.isdisjoint(places.tolist()):
            continue
        covered.update(places.tolist())
        keys.append(places)
        windows.append(Repeat(start_ps, end_ps, frozenset(table.phase[begins:ends].tolist())))
    return sorted(windows), np.concatenate(keys) if keys else np.zeros(0, np.int64)


def _runs(table: _Sorted) -> Iterator[tuple[int, int, int]]:
    """Yield stretches of tasks (first, behind the last) with one shift, and the shift; the longest first.

    Shorter ones than a period are left out.
    """
    bounds = np.flatnonzero(np.diff(table.shift)) + 1
    first, last = np.append(0, bounds), np.append(bounds, len(table.shift))
    begin_ps, end_ps = table.start[np.maximum(first - 1, 0)], table.start[np.minimum(last, len(table.start) - 1)]
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
        wanted += len(np.unique(lists.passes))
        for passes in np.unique(lists.passes):
            of_pass = inside & (lists.passes == passes)
            column = np.zeros(total, np.int64)
            column[lists.microbatch[of_pass]] = 1 + lists.sequence[of_pass]
            path = np.unique(np.stack([path, column]), axis=1, return_inverse=True)[1].ravel()
    chosen: list[int] = []
    whole = np.flatnonzero(seen == wanted)
    for number in np.unique(path[whole]).tolist():
        members = whole[path[whole] == number]
        if len(members) >= distance:
            chosen += members[len(members) - distance :].tolist()
    return tuple(sorted(chosen)) if len(chosen) == paths * distance else ()
