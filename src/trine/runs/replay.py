"""A measured run as a graph of dependencies, which can be replayed with other durations.

A kernel starts after the kernel before it on its stream, after its launch, and after kernels of other streams: those
that its stream waits for by events, and the one that ended last before it, if it would otherwise have started
earlier. A collective's kernel also waits for the computation launched before it, and ends on all ranks a transfer
time after the last of them has entered. The launching thread runs one call after the other; a call that waits for the
GPU ends after the kernel that ended last. What remains between the latest dependency and a start is kept as a fixed
delay. So a replay with the measured durations gives the measured times exactly.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass

from trine.common.units import PS_PER_US
from trine.runs.measured_run import MeasuredRun
from trine.runs.rank_trace import CpuCall, RankTrace

#: A kernel that starts later than this after its launch and its stream's last kernel waits for another stream.
_QUEUE_DELAY_PS = 3 * PS_PER_US
_GPU, _CPU = 0, 1


@dataclass(slots=True)
class Durations:
    """Durations that a replay may change, in ps, one list per rank.

    kernels: of each activity; of a collective, its transfer: from the last rank's entry to its end. calls: of each CPU
    call that does not wait. gaps: between the end of the CPU call before and the start of each call.
    """

    kernels: list[list[int]]
    calls: list[list[int]]
    gaps: list[list[int]]

    def copy(self) -> Durations:
        """Return durations that can be changed."""
        kernels = [list(each) for each in self.kernels]
        calls = [list(each) for each in self.calls]
        gaps = [list(each) for each in self.gaps]
        return Durations(kernels, calls, gaps)


@dataclass(slots=True)
class _Node:
    """A kernel or CPU call in the order of the replay.

    number: in its rank's list. stream: the node's predecessor on its stream or thread, -1 for the first. launch: the
    call that launched it, -1 if unknown. cross: kernels of other streams that it waits for. launch_lag_ps: from the
    end of the launch to the earliest start. delay_ps: from the latest dependency to the start; of a waiting call,
    from the end of the kernel to its own. instance: of a collective on several ranks, -1 if none. is_last: last
    member in this order.
    """

    kind: int
    rank: int
    number: int
    stream: int = -1
    launch: int = -1
    launch_lag_ps: int = 0
    cross: tuple[int, ...] = ()
    delay_ps: int = 0
    instance: int = -1
    is_last: bool = False


class Replay:
    """The dependencies of a measured run. base: its measured durations. entries_ps: last entry of each instance."""

    def __init__(self, run: MeasuredRun) -> None:
        self._run = run
        self._start_ps = run.start_ps
        self._instance_of: list[dict[int, int]] = [{} for _ in run.ranks]
        for index, instance in enumerate(run.instances):
            if len(instance.members) > 1:
                for row, place in instance.members:
                    self._instance_of[row][place] = index
        self.entries_ps = self._last_entries()
        self._nodes: list[_Node] = []
        for row in range(len(run.ranks)):
            self._add_rank(row)
        self._nodes.sort(key=self._order)
        self._mark_last_members()
        self.base = self._measured_durations()
        self._set_delays()

    def _last_entries(self) -> dict[int, int]:
        """Return when the last rank enters each collective of several ranks."""
        entries = {}
        for index, instance in enumerate(self._run.instances):
            if len(instance.members) > 1:
                starts = [self._run.ranks[row].activities[place].start_ps for row, place in instance.members]
                ends = [self._run.ranks[row].activities[place].end_ps for row, place in instance.members]
                entries[index] = min(max(starts), min(ends))
        return entries

    def instance_of(self, row: int, place: int) -> int:
        """Return the collective of several ranks that a kernel belongs to, -1 for all other kernels."""
        return self._instance_of[row].get(place, -1)

    def _order(self, node: _Node) -> tuple[int, int, int, int, int]:
        """Return a sort key that puts each node after those it depends on."""
        rank = self._run.ranks[node.rank]
        if node.kind == _GPU:
            activity = rank.activities[node.number]
            return activity.start_ps, 1, activity.end_ps, node.rank, node.number
        call = rank.calls[node.number]
        return call.end_ps if call.is_wait else call.start_ps, 0, node.number, node.rank, 0

    def _add_rank(self, row: int) -> None:
        """Add the nodes of one rank with their dependencies."""
        trace = self._run.ranks[row]
        for number in range(len(trace.calls)):
            self._nodes.append(_Node(_CPU, row, number, stream=number - 1))
        ends = sorted((activity.end_ps, number) for number, activity in enumerate(trace.activities))
        before_on: dict[object, int] = {}
        event_waits = _event_waits(trace)
        for number, activity in enumerate(trace.activities):
            node = _Node(_GPU, row, number, stream=before_on.get(activity.stream, -1), launch=activity.launch)
            before_on[activity.stream] = number
            node.instance = self.instance_of(row, number)
            base_ps = self._start_ps
            if node.stream >= 0:
                base_ps = trace.activities[node.stream].end_ps
            if node.launch >= 0:
                launched_ps = _launch_ps(trace.calls[node.launch])
                if trace.calls[node.launch].start_ps > activity.start_ps:
                    node.launch = -1  # the clocks of CPU and GPU disagree
                else:
                    base_ps = max(base_ps, min(launched_ps, activity.start_ps))
            node.cross = event_waits.get(number, ())
            if activity.start_ps - base_ps > _QUEUE_DELAY_PS:
                other = _last_ended(trace, ends, activity.start_ps, number)
                if other >= 0 and trace.activities[other].end_ps > base_ps and other not in node.cross:
                    node.cross = (*node.cross, other)
            self._nodes.append(node)

    def _mark_last_members(self) -> None:
        seen: dict[int, _Node] = {}
        for node in self._nodes:
            if node.instance >= 0:
                seen[node.instance] = node
        for node in seen.values():
            node.is_last = True

    def _measured_durations(self) -> Durations:
        kernels, calls, gaps = [], [], []
        for row, trace in enumerate(self._run.ranks):
            durations = []
            for number, activity in enumerate(trace.activities):
                instance = self.instance_of(row, number)
                start_ps = activity.start_ps if instance < 0 else self.entries_ps[instance]
                durations.append(activity.end_ps - start_ps)
            kernels.append(durations)
            calls.append([call.end_ps - call.start_ps for call in trace.calls])
            before_ps, own_gaps = self._start_ps, []
            for call in trace.calls:
                own_gaps.append(call.start_ps - before_ps)
                before_ps = call.end_ps
            gaps.append(own_gaps)
        return Durations(kernels, calls, gaps)

    def _set_delays(self) -> None:
        """Set the delay of each node, so that the replay of the measured durations gives the measured times."""
        known_at = self._places()
        waiting_on = [_Waits(trace) for trace in self._run.ranks]
        for index, node in enumerate(self._nodes):
            trace = self._run.ranks[node.rank]
            if node.kind == _CPU:
                if trace.calls[node.number].is_wait:
                    kernel = waiting_on[node.rank].kernel_before(node.number)
                    if kernel >= 0 and known_at[_GPU, node.rank, kernel] <= index:
                        node.cross = (kernel,)
                        node.delay_ps = trace.calls[node.number].end_ps - trace.activities[kernel].end_ps
                continue
            if node.stream >= 0 and known_at[_GPU, node.rank, node.stream] > index:
                node.stream = -1
            if node.launch >= 0 and not self._is_launched_before(node, known_at, index):
                node.launch = -1
            node.cross = tuple(number for number in node.cross if known_at[_GPU, node.rank, number] <= index)
            activity = trace.activities[node.number]
            latest_ps = self._start_ps
            for number in (node.stream, *node.cross):
                if number >= 0:
                    latest_ps = max(latest_ps, trace.activities[number].end_ps)
            if node.launch >= 0:
                launched_ps = _launch_ps(trace.calls[node.launch])
                if launched_ps >= latest_ps:
                    node.launch_lag_ps = activity.start_ps - launched_ps
                    node.delay_ps = 0
                    if node.launch_lag_ps >= 0 or launched_ps + node.launch_lag_ps >= latest_ps:
                        continue
                node.launch_lag_ps = min(0, activity.start_ps - launched_ps)
            node.delay_ps = activity.start_ps - latest_ps

    def _is_launched_before(self, node: _Node, known_at: dict[tuple[int, int, int], int], index: int) -> bool:
        """Return whether the launch of a node, or the call before a launch that waits, has a place before ``index``."""
        call = node.launch
        if self._run.ranks[node.rank].calls[call].is_wait:
            call -= 1
        return call < 0 or known_at[_CPU, node.rank, call] <= index

    def _places(self) -> dict[tuple[int, int, int], int]:
        """Return from which place in the order each node's end is known: of a collective, that of its last member."""
        places = {(node.kind, node.rank, node.number): index for index, node in enumerate(self._nodes)}
        for node in self._nodes:
            if node.instance >= 0 and node.is_last:
                last = places[_GPU, node.rank, node.number]
                for row, number in self._run.instances[node.instance].members:
                    places[_GPU, row, number] = last
        return places

    def time_ps(self, durations: Durations) -> int:
        """Return the time of the run with other durations, in ps."""
        run, start_ps = self._run, self._start_ps
        kernel_ends = [[start_ps] * len(trace.activities) for trace in run.ranks]
        call_ends = [[start_ps] * len(trace.calls) for trace in run.ranks]
        entries: dict[int, int] = {}
        for node in self._nodes:
            row, number = node.rank, node.number
            if node.kind == _CPU:
                ends = call_ends[row]
                begin_ps = (ends[node.stream] if node.stream >= 0 else start_ps) + durations.gaps[row][number]
                if node.cross:
                    ends[number] = max(begin_ps, kernel_ends[row][node.cross[0]] + node.delay_ps)
                else:
                    ends[number] = begin_ps + durations.calls[row][number]
                continue
            ends = kernel_ends[row]
            ready_ps = start_ps
            if node.stream >= 0:
                ready_ps = ends[node.stream]
            for other in node.cross:
                if ends[other] > ready_ps:
                    ready_ps = ends[other]
            ready_ps += node.delay_ps
            if node.launch >= 0:
                launched_ps = node.launch_lag_ps
                if run.ranks[row].calls[node.launch].is_wait:
                    launched_ps += call_ends[row][node.launch - 1] if node.launch else start_ps
                    launched_ps += durations.gaps[row][node.launch]
                else:
                    launched_ps += call_ends[row][node.launch]
                if launched_ps > ready_ps:
                    ready_ps = launched_ps
            if node.instance < 0:
                ends[number] = ready_ps + durations.kernels[row][number]
                continue
            entry_ps = max(entries.get(node.instance, ready_ps), ready_ps)
            entries[node.instance] = entry_ps
            if node.is_last:
                for member, place in run.instances[node.instance].members:
                    kernel_ends[member][place] = entry_ps + durations.kernels[member][place]
        return max(max(ends, default=start_ps) for ends in kernel_ends) - start_ps


def _launch_ps(call: CpuCall) -> int:
    """Return when a call launches: at its end, unless it waits for its own copy."""
    return call.start_ps if call.is_wait else call.end_ps


class _Waits:
    """Which kernel each waiting CPU call of a rank waits for."""

    def __init__(self, trace: RankTrace) -> None:
        self._trace = trace
        self._ends = sorted((activity.end_ps, number) for number, activity in enumerate(trace.activities))

    def kernel_before(self, number: int) -> int:
        """Return the kernel that ended last during the call, -1 if none did: then the call did not wait."""
        call = self._trace.calls[number]
        place = bisect_right(self._ends, (call.end_ps, len(self._ends))) - 1
        if place < 0 or self._ends[place][0] < call.start_ps:
            return -1
        return self._ends[place][1]


def _event_waits(trace: RankTrace) -> dict[int, tuple[int, ...]]:
    """Return the kernels that each kernel's stream waits for by events, as far as they had ended by its start.

    A collective waits for the computation launched last. A computation whose thread let its stream wait n times waits
    for the n collectives launched last: PyTorch's traces do not tell for which.
    """
    order = sorted(
        (activity.launch, number) for number, activity in enumerate(trace.activities) if activity.launch >= 0
    )
    waits: dict[int, tuple[int, ...]] = {}
    last_compute = -1
    collectives: list[int] = []
    for launch, number in order:
        activity = trace.activities[number]
        if activity.collective is None:
            last_compute = number
            count = trace.calls[launch].event_waits
            awaited = collectives[-count:] if count else []
        else:
            collectives.append(number)
            awaited = [last_compute] if last_compute >= 0 else []
        ended = tuple(other for other in awaited if trace.activities[other].end_ps <= activity.start_ps)
        if ended:
            waits[number] = ended
    return waits


def _last_ended(trace: RankTrace, ends: list[tuple[int, int]], at_ps: int, number: int) -> int:
    """Return the kernel of another stream that ended last at ``at_ps`` or before, -1 if there is none."""
    stream = trace.activities[number].stream
    place = bisect_right(ends, (at_ps, len(ends))) - 1
    for _ in range(8):
        if place < 0:
            return -1
        other = ends[place][1]
        if trace.activities[other].stream != stream and other != number:
            return other
        place -= 1
    return -1
