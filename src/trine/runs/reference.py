"""What a second run, or a prediction, would need for the kernels, transfers and launches of a measured run.

Kernels are aligned by name and position within their phase; where two runs have different kernels, by the times of
operators, and where they have different operators, by the time of the phase. Collectives are aligned by their
position in their group, or by kind, size and number of ranks.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

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
    of the CPU calls, None if the reference has none. launch_ps: idle time of the reference that launches cause, if
    calls is None.
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
    kernels = []
    for trace, others in zip(run.ranks, rows, strict=True):
        kernels.append(
            _kernels_from_traces([reference.ranks[row] for row in others], trace, _step_ratio(reference, run))
        )
    result = RunReference(name, reference.step_ps, kernels)
    replay = Replay(reference)
    _add_transfers(result, _instances_by_key(reference, replay), _means(reference, replay), run)
    _add_calls(result, reference, run, rows)
    return result


def _step_ratio(reference: MeasuredRun, run: MeasuredRun) -> float:
    """Return by how much longer ``run`` is because it has more steps."""
    return run.num_steps / reference.num_steps


def _matching_rows(reference: MeasuredRun, run: MeasuredRun) -> list[list[int]]:
    """Return, for each rank of the run, the rows of the reference to compare with: the same rank, else all ranks."""
    row_of = {trace.rank: row for row, trace in enumerate(reference.ranks)}
    is_same = set(row_of) == {trace.rank for trace in run.ranks}
    everyone = list(range(len(reference.ranks)))
    return [[row_of[trace.rank]] if is_same else everyone for trace in run.ranks]


def _kernels_from_traces(
    traces: Iterable[RankTrace], trace: RankTrace, step_ratio: float
) -> list[KernelReference | None]:
    """Return the references of a rank's kernels from the same kernels, operators or phases of other traces."""
    durations: dict[Key, list[tuple[int, bool]]] = {}
    operators: dict[tuple[str, str], float] = {}
    num_traces = 0
    for other in traces:
        num_traces += 1
        clean = beside_no_collective(other)
        for number, key in enumerate(kernel_keys(other)):
            if key is not None:
                activity = other.activities[number]
                durations.setdefault(key, []).append((activity.duration_ps, clean[number]))
                name = (activity.phase, activity.operator)
                operators[name] = operators.get(name, 0) + activity.duration_ps * step_ratio
    operators = {name: total / num_traces for name, total in operators.items()}
    clean = beside_no_collective(trace)
    keys = kernel_keys(trace)
    references: list[KernelReference | None] = [None] * len(keys)
    if not _has_same_kernels(durations, keys):
        return references_by_operator(trace, operators)
    for number, key in enumerate(keys):
        if key is not None and key in durations:
            values = durations[key]
            is_clean = clean[number] and all(each for _, each in values)
            references[number] = KernelReference(lower_median([ps for ps, _ in values]), BY_KERNEL, is_clean)
    return references


#: Share of kernels with a counterpart from which on kernels are aligned by name.
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
    """Return what makes collectives comparable: kind, size and number of ranks."""
    size = instance.call.group_size or len(instance.call.group.ranks) or len(instance.members)
    return instance.call.kind, instance.call.size_bytes, size


def transfer_ps(replay: Replay, instance: Instance) -> int:
    """Return the transfer time of a collective: on the rank where it takes longest."""
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


def _add_calls(result: RunReference, reference: MeasuredRun, run: MeasuredRun, rows: list[list[int]]) -> None:
    """Add the CPU calls of the reference; if the runs launch other kernels, in proportion to the CPU time of both."""
    result.calls, result.gaps = [], []
    known = [_call_times(trace, reference.start_ps) for trace in reference.ranks]
    for trace, others in zip(run.ranks, rows, strict=True):
        own = _call_times(trace, run.start_ps)
        found = {key: [known[row][key] for row in others if key in known[row]] for key in own}
        num_found = sum(bool(each) for each in found.values())
        if num_found >= _MIN_COMMON * len(own):
            calls = [lower_median([each[0] for each in found[key]]) if found[key] else own[key][0] for key in own]
            gaps = [lower_median([each[1] for each in found[key]]) if found[key] else own[key][1] for key in own]
        else:
            busy_ps = sum(_busy_ps(reference.ranks[row], known[row]) for row in others) / len(others)
            ratio = busy_ps * _step_ratio(reference, run) / max(1, _busy_ps(trace, own))
            calls = [round(call_ps * ratio) for call_ps, _ in own.values()]
            gaps = [round(gap_ps * ratio) if number else gap_ps for number, (_, gap_ps) in enumerate(own.values())]
        result.calls.append(calls)
        result.gaps.append(gaps)


def _call_times(trace: RankTrace, start_ps: int) -> dict[Key, tuple[int, int]]:
    """Return the duration of each CPU call and the gap before it, in their order."""
    times: dict[Key, tuple[int, int]] = {}
    before_ps = start_ps
    for key, call in zip(call_keys(trace), trace.calls, strict=True):
        times[key] = (call.end_ps - call.start_ps, call.start_ps - before_ps)
        before_ps = call.end_ps
    return times


def _busy_ps(trace: RankTrace, times: Mapping[Key, tuple[int, int]]) -> int:
    """Return the time of the launching threads without waits for the GPU, from the first call on."""
    busy_ps = 0
    for number, (call, (call_ps, gap_ps)) in enumerate(zip(trace.calls, times.values(), strict=True)):
        busy_ps += (0 if call.is_wait else call_ps) + (gap_ps if number else 0)
    return busy_ps
