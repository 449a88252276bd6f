"""What the kernels, CPU calls and transfers of a rank take on its peers: the reference for an unusual rank.

The reference is the lower median over the ranks that have the same kernel or call, so that up to half of the ranks
may be slow. Peers do equal work if the grid, the shapes or the tokens received are equal.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence

from trine.runs.keys import Key, call_keys, kernel_keys
from trine.runs.measured_run import MeasuredRun
from trine.runs.rank_trace import RankTrace

#: Numbers of tokens that differ by less count as equal work.
_EQUAL_TOKENS = 0.05
#: An operator has other work if its slowdown differs by this factor from the rank's usual one. Assumed.
_UNEVEN = 1.1


class Peers:
    """References of a run.

    kernel_ps: reference of each activity, by rank; None for collectives and for kernels that no other rank has.
    is_clean: whether the activity runs beside no collective, on this rank and on its peers. A collective's kernel
    takes part of the GPU, also while it waits for a late rank, so only clean kernels show the speed of a rank.
    peers_of: rank and number of the same activity on all ranks that have it. is_same_work: whether the activity does
    the same work as its peers. call_ps, gap_ps: of each CPU call, by rank; the own value if no other rank has it.
    """

    def __init__(self, run: MeasuredRun) -> None:
        self._run = run
        self.kernel_ps: list[list[int | None]] = [[None] * len(trace.activities) for trace in run.ranks]
        self.is_same_work: list[list[bool]] = [[True] * len(trace.activities) for trace in run.ranks]
        self.is_clean: list[list[bool]] = [beside_no_collective(trace) for trace in run.ranks]
        self.peers_of: list[list[list[tuple[int, int]]]] = [[[] for _ in trace.activities] for trace in run.ranks]
        self.call_ps: list[list[int]] = []
        self.gap_ps: list[list[int]] = []
        self._compare_kernels()
        for row in range(len(run.ranks)):
            self._separate_uneven_operators(row)
        self._compare_calls()

    def _compare_kernels(self) -> None:
        works = _works(self._run)
        for places in _by_key([kernel_keys(trace) for trace in self._run.ranks]).values():
            if len(places) < 2:
                row, number = places[0]
                self.is_same_work[row][number] = False
                continue
            durations = [self._run.ranks[row].activities[number].duration_ps for row, number in places]
            usual = Counter(works[row][number] for row, number in places).most_common(1)[0][0]
            reference = lower_median(durations)
            is_clean = all(self.is_clean[row][number] for row, number in places)
            for row, number in places:
                self.is_clean[row][number] = is_clean
                self.peers_of[row][number] = places
                self.kernel_ps[row][number] = reference
                self.is_same_work[row][number] = _is_equal(works[row][number], usual)

    def _separate_uneven_operators(self, row: int) -> None:
        """Mark operators whose slowdown differs from most of the rank's time as other work, if the trace tells no work.

        A slow GPU slows all of its kernels down; more tokens lengthen the kernels of an expert alone.
        """
        times: dict[str, list[int]] = {}
        activities = self._run.ranks[row].activities
        for number, activity in enumerate(activities):
            reference = self.kernel_ps[row][number]
            if reference is not None and activity.work is None and self.is_clean[row][number]:
                sums = times.setdefault(activity.name, [0, 0])
                sums[0] += activity.duration_ps
                sums[1] += reference
        ratios = sorted((own / max(1, reference), own) for own, reference in times.values())
        half = sum(own for _, own in ratios) / 2
        usual = 1.0
        for ratio, own in ratios:
            half -= own
            if half <= 0:
                usual = ratio
                break
        uneven = set()
        for name, (own, reference) in times.items():
            if own > _UNEVEN * usual * reference or _UNEVEN * own < min(1.0, usual) * reference:
                uneven.add(name)
        for number, activity in enumerate(activities):
            if activity.name in uneven and activity.work is None:
                self.is_same_work[row][number] = False

    def factor(self, row: int) -> float:
        """Return the slowdown of a rank's clean kernels against its peers; 1 if it has none."""
        own_ps = reference_ps = 0
        for number, activity in enumerate(self._run.ranks[row].activities):
            reference = self.kernel_ps[row][number]
            if reference is not None and self.is_clean[row][number] and self.is_same_work[row][number]:
                own_ps += activity.duration_ps
                reference_ps += reference
        return own_ps / reference_ps if reference_ps else 1.0

    def _compare_calls(self) -> None:
        for trace in self._run.ranks:
            before_ps = self._run.start_ps
            gaps = []
            for call in trace.calls:
                gaps.append(call.start_ps - before_ps)
                before_ps = call.end_ps
            self.gap_ps.append(gaps)
            self.call_ps.append([call.end_ps - call.start_ps for call in trace.calls])
        for places in _by_key([[*call_keys(trace)] for trace in self._run.ranks]).values():
            if len(places) > 1:
                for values in (self.call_ps, self.gap_ps):
                    reference = lower_median([values[row][number] for row, number in places])
                    for row, number in places:
                        values[row][number] = reference


def beside_no_collective(trace: RankTrace) -> list[bool]:
    """Return which activities overlap with no collective of their rank."""
    collectives = sorted((each.start_ps, each.end_ps) for each in trace.activities if each.collective is not None)
    merged: list[list[int]] = []
    for start_ps, end_ps in collectives:
        if merged and start_ps <= merged[-1][1]:
            merged[-1][1] = max(merged[-1][1], end_ps)
        else:
            merged.append([start_ps, end_ps])
    ends = [end_ps for _, end_ps in merged]
    clean = []
    for activity in trace.activities:
        place = bisect_right(ends, activity.start_ps)
        clean.append(place == len(merged) or merged[place][0] >= activity.end_ps)
    return clean


def lower_median(values: Sequence[int]) -> int:
    """Return the median, of an even number of values the lower of the middle two."""
    return sorted(values)[(len(values) - 1) // 2]


def _by_key(keys_of_ranks: Sequence[Sequence[Key | None]]) -> dict[Key, list[tuple[int, int]]]:
    """Return where each key is: rows and positions."""
    places: dict[Key, list[tuple[int, int]]] = {}
    for row, keys in enumerate(keys_of_ranks):
        for number, key in enumerate(keys):
            if key is not None:
                places.setdefault(key, []).append((row, number))
    return places


def _works(run: MeasuredRun) -> list[list[object]]:
    """Return the work of each activity: as recorded, else the tokens of the last uneven all-to-all."""
    uneven = _uneven_exchanges(run)
    works = []
    for row, trace in enumerate(run.ranks):
        tokens: int | None = None
        own: list[object] = []
        for number, activity in enumerate(trace.activities):
            if (row, number) in uneven:
                tokens = uneven[row, number]
            elif activity.collective is not None and activity.collective.kind == "all_to_all":
                tokens = None
            own.append(activity.work if activity.work is not None else tokens)
        works.append(own)
    return works


def _uneven_exchanges(run: MeasuredRun) -> dict[tuple[int, int], int]:
    """Return the elements that each rank gets in all-to-alls whose ranks get different numbers."""
    uneven: dict[tuple[int, int], int] = {}
    for instance in run.instances:
        if instance.call.kind != "all_to_all":
            continue
        elements = []
        for row, place in instance.members:
            call = run.ranks[row].activities[place].collective
            elements.append(-1 if call is None or call.out_elements is None else call.out_elements)
        if min(elements) >= 0 and max(elements) > (1 + _EQUAL_TOKENS) * min(elements):
            uneven.update(zip(instance.members, elements, strict=True))
    return uneven


def _is_equal(work: object, usual: object) -> bool:
    if work == usual:
        return True
    if isinstance(work, int) and isinstance(usual, int) and 0 < work < 2**48 and 0 < usual < 2**48:
        return abs(work - usual) <= _EQUAL_TOKENS * usual
    return False
