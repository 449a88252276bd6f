"""Reference times for the kernels, transfers and launches of a measured run, from a second run or a prediction.

Kernels are aligned by name and position within their phase; runs with different kernels are aligned by the
times of operators, runs with different operators by the time of the phase. Collectives are aligned by their
position in their group, or by kind, size and number of ranks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from trine.runs.keys import Key, call_keys, kernel_keys
from trine.runs.measured_run import Instance, MeasuredRun
from trine.runs.peers import beside_no_collective, lower_median
from trine.runs.rank_trace import RankTrace
from trine.runs.replay import Replay

#: How a kernel was aligned: by itself, or by the time of its operator or phase.
BY_KERNEL, BY_OPERATOR, BY_PHASE = "kernel", "operator", "phase"


@dataclass(slots=True)
class KernelReference:
    """The reference of one kernel: its time, how it was aligned, and whether it runs beside no collective in both."""

    time_ps: int
    aligned: str
    is_clean: bool


@dataclass(slots=True)
class ReferenceTransfer:
    """The reference of one collective: its transfer in ps and its algorithm, "" if unknown."""

    time_ps: int
    algorithm: str


@dataclass(slots=True)
class RunReference:
    """References for a measured run, by rank and number, or by collective.

    kernels: None for collectives and for kernels without a counterpart. transfers: by collective of several ranks.
    lone_transfers: by (rank, number), of collectives that one rank alone recorded; these include waits. calls, gaps:
    of the CPU calls, or None. launch_ps: idle time of the reference by launches, without calls.
    """

    name: str
    step_ps: int
    kernels: list[list[KernelReference | None]]
    transfers: dict[int, ReferenceTransfer] = field(default_factory=dict)
    lone_transfers: dict[tuple[int, int], ReferenceTransfer] = field(default_factory=dict)
    calls: list[list[int]] | None = None
    gaps: list[list[int]] | None = None
    launch_ps: int | None = None


def reference_from_run(reference: MeasuredRun, run: MeasuredRun, name: str) -> RunReference:
    """Return what ``run`` would need with the durations of another measured run."""
    rows = _matching_rows(reference, run)
    step_ratio = _step_ratio(reference, run)
    kernels = []
    for trace, others in zip(run.ranks, rows, strict=True):
        kernels.append(_kernels_from_traces([reference.ranks[row] for row in others], trace, step_ratio))
    result = RunReference(name, reference.step_ps, kernels)
    replay = Replay(reference)
    _add_transfers(result, _instances_by_key(reference, replay), _means(reference, replay), run)
    _add_calls(result, reference, run, rows)
    return result


def _step_ratio(reference: MeasuredRun, run: MeasuredRun) -> float:
    """Return the ratio of the numbers of steps."""
    return run.num_steps / reference.num_steps


def _matching_rows(reference: MeasuredRun, run: MeasuredRun) -> list[list[int]]:
    """Return, for each rank of the run, the rows of the reference to compare with: the same rank, else all ranks."""
    row_of = {trace.rank: row for row, trace in enumerate(reference.ranks)}
    is_same = set(row_of) == {trace.rank for trace in run.ranks}
    everyone = list(range(len(reference.ranks)))
    return [[row_of[trace.rank]] if is_same else everyone for trace in run.ranks]


class _KernelTime(NamedTuple):
    """Duration of a kernel, and whether it runs beside no collective."""

    time_ps: int
    is_clean: bool


@dataclass(slots=True)
class _TraceTimes:
    """Times of kernels by key, and mean times of operators by phase and name, of one or more traces."""

    kernels: dict[Key, list[_KernelTime]] = field(default_factory=dict)
    operators: dict[tuple[str, str], float] = field(default_factory=dict)


def _times_of(traces: Sequence[RankTrace], step_ratio: float) -> _TraceTimes:
    """Return the times of kernels and operators in traces. step_ratio: multiplies the operators' times."""
    times = _TraceTimes()
    for trace in traces:
        clean = beside_no_collective(trace)
        for number, key in enumerate(kernel_keys(trace)):
            if key is None:
                continue
            activity = trace.activities[number]
            times.kernels.setdefault(key, []).append(_KernelTime(activity.duration_ps, clean[number]))
            name = (activity.phase, activity.operator)
            times.operators[name] = times.operators.get(name, 0) + activity.duration_ps * step_ratio
    for name, total_ps in times.operators.items():
        times.operators[name] = total_ps / len(traces)
    return times


def _kernels_from_traces(
    traces: Sequence[RankTrace], trace: RankTrace, step_ratio: float
) -> list[KernelReference | None]:
    """Return the references of a rank's kernels from the same kernels, operators or phases of other traces."""
    times = _times_of(traces, step_ratio)
    keys = kernel_keys(trace)
    if not _has_same_kernels(times.kernels, keys):
        return references_by_operator(trace, times.operators)
    clean = beside_no_collective(trace)
    references: list[KernelReference | None] = []
    for number, key in enumerate(keys):
        if key is None or key not in times.kernels:
            references.append(None)
            continue
        counterparts = times.kernels[key]
        time_ps = lower_median([each.time_ps for each in counterparts])
        is_clean = clean[number] and all(each.is_clean for each in counterparts)
        references.append(KernelReference(time_ps, BY_KERNEL, is_clean))
    return references


#: Kernels are aligned by name from this share with a counterpart.
_MIN_COMMON = 0.8


def _has_same_kernels(durations: Mapping[Key, object], keys: list[Key | None]) -> bool:
    own = [key for key in keys if key is not None]
    common = sum(key in durations for key in own)
    return common >= _MIN_COMMON * min(len(own), len(durations))


def references_by_operator(
    trace: RankTrace, operators: Mapping[tuple[str, str], float]
) -> list[KernelReference | None]:
    """Return references from times of operators in ps; other operators get the rest of their phase."""
    own: dict[tuple[str, str], int] = {}
    for activity in trace.activities:
        if activity.collective is None:
            name = (activity.phase, activity.operator)
            own[name] = own.get(name, 0) + activity.duration_ps
    rest: dict[str, float] = {}
    own_rest: dict[str, float] = {}
    for (phase, operator), total in operators.items():
        if (phase, operator) not in own:
            rest[phase] = rest.get(phase, 0) + total
    for (phase, operator), total_ps in own.items():
        if (phase, operator) not in operators:
            own_rest[phase] = own_rest.get(phase, 0) + total_ps
    clean = beside_no_collective(trace)
    references: list[KernelReference | None] = []
    for number, activity in enumerate(trace.activities):
        if activity.collective is not None:
            references.append(None)
            continue
        name = (activity.phase, activity.operator)
        if name in operators:
            ratio, aligned = operators[name] / max(1, own[name]), BY_OPERATOR
        else:
            ratio, aligned = rest.get(activity.phase, 0.0) / max(1.0, own_rest[activity.phase]), BY_PHASE
        references.append(KernelReference(round(activity.duration_ps * ratio), aligned, clean[number]))
    return references


_InstanceKey = tuple[str, str, int, int | None]
_ClassKey = tuple[str, int | None, int]


def _instance_key(instance: Instance) -> _InstanceKey:
    group = instance.call.group
    name = str(group.ranks) if group.ranks else group.name
    return instance.call.kind, name, instance.call.number, instance.call.size_bytes


def class_key(instance: Instance) -> _ClassKey:
    """Return the key of comparable collectives: kind, size and number of ranks."""
    size = instance.call.group_size or len(instance.call.group.ranks) or len(instance.members)
    return instance.call.kind, instance.call.size_bytes, size


def transfer_ps(replay: Replay, instance: Instance) -> int:
    """Return the longest transfer time of a collective on any rank."""
    return max(replay.base.kernels[row][place] for row, place in instance.members)


def _instances_by_key(run: MeasuredRun, replay: Replay) -> dict[_InstanceKey, ReferenceTransfer]:
    rows = {}
    for instance in run.instances:
        rows[_instance_key(instance)] = ReferenceTransfer(transfer_ps(replay, instance), instance.call.algorithm)
    return rows


def _means(run: MeasuredRun, replay: Replay) -> dict[_ClassKey, ReferenceTransfer]:
    """Return the mean transfer of each class, with the algorithm of its first collective."""
    times: dict[_ClassKey, list[int]] = {}
    algorithm: dict[_ClassKey, str] = {}
    for instance in run.instances:
        key = class_key(instance)
        times.setdefault(key, []).append(transfer_ps(replay, instance))
        algorithm.setdefault(key, instance.call.algorithm)
    return {key: ReferenceTransfer(sum(values) // len(values), algorithm[key]) for key, values in times.items()}


def _add_transfers(
    result: RunReference,
    by_key: Mapping[_InstanceKey, ReferenceTransfer],
    means: Mapping[_ClassKey, ReferenceTransfer],
    run: MeasuredRun,
) -> None:
    for index, instance in enumerate(run.instances):
        transfer = by_key.get(_instance_key(instance)) or means.get(class_key(instance))
        if transfer is None:
            continue
        if len(instance.members) > 1:
            result.transfers[index] = transfer
        else:
            result.lone_transfers[instance.members[0]] = transfer


def add_class_transfers(result: RunReference, means: Mapping[_ClassKey, ReferenceTransfer], run: MeasuredRun) -> None:
    """Add references of collectives by kind, size and number of ranks."""
    _add_transfers(result, {}, means, run)


class _CallTime(NamedTuple):
    """Duration of a CPU call, and the gap before it."""

    call_ps: int
    gap_ps: int


def _add_calls(result: RunReference, reference: MeasuredRun, run: MeasuredRun, rows: list[list[int]]) -> None:
    """Add the CPU calls of the reference; if the runs launch other kernels, in proportion to the CPU time of both."""
    result.calls, result.gaps = [], []
    known = [_call_times(trace, reference.start_ps) for trace in reference.ranks]
    for trace, others in zip(run.ranks, rows, strict=True):
        own = _call_times(trace, run.start_ps)
        calls = _matched_calls(own, [known[row] for row in others])
        if calls is None:
            busy_ps = sum(_busy_ps(reference.ranks[row], known[row]) for row in others) / len(others)
            ratio = busy_ps * _step_ratio(reference, run) / max(1, _busy_ps(trace, own))
            calls = _scaled_calls(own, ratio)
        result.calls.append([each.call_ps for each in calls])
        result.gaps.append([each.gap_ps for each in calls])


def _matched_calls(
    own: Mapping[Key, _CallTime], references: Sequence[Mapping[Key, _CallTime]]
) -> list[_CallTime] | None:
    """Return the medians of the same calls in the references; None if too few calls have a counterpart there.

    A call without a counterpart keeps its own times.
    """
    calls = []
    num_found = 0
    for key, time in own.items():
        found = [times[key] for times in references if key in times]
        if not found:
            calls.append(time)
            continue
        num_found += 1
        call_ps = lower_median([each.call_ps for each in found])
        calls.append(_CallTime(call_ps, lower_median([each.gap_ps for each in found])))
    return calls if num_found >= _MIN_COMMON * len(own) else None


def _scaled_calls(own: Mapping[Key, _CallTime], ratio: float) -> list[_CallTime]:
    """Return calls and gaps times ``ratio``; the gap before the first call is a start-up, and stays."""
    calls: list[_CallTime] = []
    for time in own.values():
        gap_ps = round(time.gap_ps * ratio) if calls else time.gap_ps
        calls.append(_CallTime(round(time.call_ps * ratio), gap_ps))
    return calls


def _call_times(trace: RankTrace, start_ps: int) -> dict[Key, _CallTime]:
    """Return the times of each CPU call, in their order."""
    times: dict[Key, _CallTime] = {}
    before_ps = start_ps
    for key, call in zip(call_keys(trace), trace.calls, strict=True):
        times[key] = _CallTime(call.end_ps - call.start_ps, call.start_ps - before_ps)
        before_ps = call.end_ps
    return times


def _busy_ps(trace: RankTrace, times: Mapping[Key, _CallTime]) -> int:
    """Return the time of the launching threads without waits for the GPU, from the first call on."""
    busy_ps = 0
    for number, (call, time) in enumerate(zip(trace.calls, times.values(), strict=True)):
        if not call.is_wait:
            busy_ps += time.call_ps
        if number:
            busy_ps += time.gap_ps
    return busy_ps
