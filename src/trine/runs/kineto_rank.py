"""The PyTorch profiler's trace of one rank, read event by event.

Names of arguments: torch/csrc/distributed/c10d/ParamCommsUtils.hpp, torch/csrc/profiler/util.h. Names of NCCL's
kernels, with algorithm and protocol: src/device/generate.py of NCCL. Traces before PyTorch 2.2 lack the process group
of a kernel; all collectives of a rank then count as one group, in the order of their launches.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path

from trine.common.units import PS_PER_US
from trine.errors import TraceError
from trine.runs.json_stream import EVENTS
from trine.runs.rank_trace import CollectiveCall, CpuCall, GpuActivity, GroupKey, ProfiledStep, RankTrace
from trine.workload.files import short
from trine.workload.pytorch.communication import (
    UNNAMED,
    is_communication,
    is_communication_kernel,
    message_bytes,
    operation,
)

_CPU = ("cpu_op", "user_annotation")
_RUNTIME = ("cuda_runtime", "cuda_driver", "hip_runtime", "hip_driver")
_GPU = ("kernel", "gpu_memcpy", "gpu_memset")
#: Calls that let a stream wait for another one, before the next launch.
_EVENT_WAITS = ("cudaStreamWaitEvent", "hipStreamWaitEvent")
_AUTOGRAD = "autograd::engine::evaluate_function: "
_OPTIMIZER = "Optimizer.step"
_STEP = re.compile(r"ProfilerStep#?\s*(\d{1,12})")
_ALGORITHM = re.compile(
    r"_((?:RING|TREE|NVLS_TREE|NVLS|COLLNET_DIRECT|COLLNET_CHAIN|PAT)(?:_(?:LL128|LL|SIMPLE))?)(?=[_(<]|$)",
    re.IGNORECASE,
)
#: Group of collectives without a name in the trace.
_UNNAMED_GROUP = "all collectives"
#: Largest rank and world size that a trace may name.
_MAX_RANKS = 2**24
#: Largest time stamp: year 2500 in microseconds since 1970.
_MAX_US = 17 * 10**15
FORWARD, BACKWARD, OPTIMIZER = "forward", "backward", "optimizer"


@dataclass(slots=True)
class _Call:
    """A call or annotation on a CPU thread, with the arguments of a communicating call."""

    name: str
    start_ps: int
    end_ps: int
    is_annotation: bool
    args: Mapping[str, object]
    shapes: object


@dataclass(slots=True)
class _Launch:
    """A runtime call: its thread, times, correlation, and whether it waits for the GPU."""

    thread: str
    start_ps: int
    end_ps: int
    correlation: int | None
    is_wait: bool
    waits_for_event: bool = False


@dataclass(slots=True)
class _Kernel:
    name: str
    stream: object
    start_ps: int
    end_ps: int
    correlation: int | None
    args: Mapping[str, object]
    is_communication: bool
    is_copy: bool


@dataclass(slots=True)
class _Context:
    """What surrounds a launch: its outermost operator, phase and shapes.

    args, calls: arguments and names of the communicating calls, outermost first.
    """

    operator: str = ""
    phase: str = FORWARD
    shapes: object = None
    args: Mapping[str, object] = field(default_factory=dict)
    calls: list[str] = field(default_factory=list)


@dataclass(slots=True)
class _Parts:
    """What one pass over the file collects."""

    header: dict[str, object] = field(default_factory=dict)
    calls: dict[str, list[_Call]] = field(default_factory=dict)
    launches: list[_Launch] = field(default_factory=list)
    kernels: list[_Kernel] = field(default_factory=list)
    steps: dict[int, ProfiledStep] = field(default_factory=dict)
    num_events: int = 0


def rank_from_kineto(path: Path, values: Iterable[tuple[str, object]], default_rank: int | None) -> RankTrace:
    """Return the trace of a rank from the values of its file (:func:`trine.runs.json_stream.read_values`).

    default_rank: for a trace without ``distributedInfo``. Raises TraceError naming the event at fault, or for a trace
    without kernels or without a rank.
    """
    parts = _Parts()
    for key, value in values:
        if key == EVENTS:
            _take_event(path, value, parts)
        else:
            parts.header[key] = value
    if not parts.kernels:
        raise TraceError("records no kernel on a GPU", file=path)
    facts = parts.header.get("distributedInfo")
    facts = facts if isinstance(facts, dict) else {}
    rank = _whole(facts.get("rank"), _MAX_RANKS)
    if rank is None:
        rank = default_rank
    if rank is None:
        raise TraceError("names no rank: neither distributedInfo nor the file's name has one", file=path)
    groups = _process_groups(facts)
    contexts = _contexts(parts)
    calls, place_of = _cpu_calls(parts, contexts)
    activities = _activities(parts, contexts, place_of, groups)
    return RankTrace(
        file=str(path), rank=rank, world_size=_whole(facts.get("world_size"), _MAX_RANKS),
        host=_text(parts.header.get("host_name")), gpu=_gpu_name(parts.header),
        activities=activities, calls=calls, steps=[parts.steps[number] for number in sorted(parts.steps)],
        groups=groups,
    )  # fmt: skip


def _take_event(path: Path, event: object, parts: _Parts) -> None:
    place = f"traceEvents[{parts.num_events}]"
    parts.num_events += 1
    if not isinstance(event, dict):
        raise TraceError(f"must be an object, got {short(event)}", file=path, field=place)
    category = event.get("cat")
    if event.get("ph") != "X" or category not in (*_CPU, *_RUNTIME, *_GPU):
        return
    name, args = event.get("name"), event.get("args", {})
    if not isinstance(name, str) or not isinstance(args, dict):
        raise TraceError("needs a name and an object of arguments", file=path, field=place)
    start_ps = _time(event.get("ts"), path, f"{place}.ts")
    end_ps = start_ps + _time(event.get("dur"), path, f"{place}.dur")
    thread = str(event.get("tid"))
    if category in _CPU:
        found = _STEP.fullmatch(name)
        if found:
            number = int(found[1])
            parts.steps[number] = ProfiledStep(number, start_ps, end_ps)
            return
        kept = args if is_communication(name) else {}
        call = _Call(name[:500], start_ps, end_ps, category != "cpu_op", kept, _hashable(args.get("Input Dims")))
        parts.calls.setdefault(thread, []).append(call)
    elif category in _RUNTIME:
        correlation = _whole(args.get("correlation"), 2**63)
        is_event = name in _EVENT_WAITS
        parts.launches.append(_Launch(thread, start_ps, end_ps, correlation, "Synchronize" in name, is_event))
    else:
        is_comm = category == "kernel" and is_communication_kernel(name)
        kept = args if is_comm else {"grid": args.get("grid"), "bytes": args.get("bytes")}
        parts.kernels.append(
            _Kernel(name[:500], str(args.get("stream", thread)), start_ps, end_ps,
                    _whole(args.get("correlation"), 2**63), kept, is_comm, category == "gpu_memcpy")
        )  # fmt: skip


def _time(value: object, path: Path, place: str) -> int:
    """Return a time in ps from a number of microseconds."""
    if isinstance(value, bool) or not isinstance(value, int | Decimal) or not 0 <= value <= _MAX_US:
        raise TraceError(f"must be a number of microseconds from 0 to {_MAX_US}, got {short(value)}", file=path,
                         field=place)  # fmt: skip
    return round(value * PS_PER_US)


def _whole(value: object, below: int) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < below else None


def _text(value: object) -> str:
    return value[:200] if isinstance(value, str) else ""


def _hashable(value: object) -> object:
    """Return shapes or a grid in a form that compares fast, None if there are none."""
    return None if value in (None, [], [[]]) else hash(json.dumps(value, default=str))


def _gpu_name(header: Mapping[str, object]) -> str:
    devices = header.get("deviceProperties")
    entries = devices if isinstance(devices, list) else []
    names = {_text(each.get("name")) for each in entries if isinstance(each, dict)}
    return names.pop() if len(names) == 1 else ""


def _process_groups(facts: Mapping[str, object]) -> dict[str, tuple[int, ...]]:
    """Return the ranks of each process group by name, from the profiler's ``pg_config``."""
    groups: dict[str, tuple[int, ...]] = {}
    config = facts.get("pg_config")
    for entry in config if isinstance(config, list) else []:
        ranks = entry.get("ranks") if isinstance(entry, dict) else None
        if isinstance(ranks, list) and isinstance(entry.get("pg_name"), str):
            members = [_whole(each, _MAX_RANKS) for each in ranks]
            if None not in members:
                groups[entry["pg_name"]] = tuple(sorted(each for each in members if each is not None))
    return groups


def _contexts(parts: _Parts) -> list[_Context]:
    """Return the surroundings of each launch, from containment in time on its thread."""
    contexts = [_Context() for _ in parts.launches]
    by_thread: dict[str, list[int]] = {}
    for index, launch in enumerate(parts.launches):
        by_thread.setdefault(launch.thread, []).append(index)
    for thread, indices in by_thread.items():
        calls = sorted(parts.calls.get(thread, ()), key=lambda call: (call.start_ps, -call.end_ps))
        stack: list[_Call] = []
        place = 0
        for index in sorted(indices, key=lambda each: parts.launches[each].start_ps):
            now_ps = parts.launches[index].start_ps
            while place < len(calls) and calls[place].start_ps <= now_ps:
                _leave(stack, calls[place].start_ps)
                stack.append(calls[place])
                place += 1
            while stack and stack[-1].end_ps < now_ps:
                stack.pop()
            contexts[index] = _context([call for call in stack if call.end_ps >= now_ps])
    return contexts


def _leave(stack: list[_Call], now_ps: int) -> None:
    while stack and stack[-1].end_ps <= now_ps:
        stack.pop()


def _context(stack: list[_Call]) -> _Context:
    """Return the surroundings of a launch inside the calls of ``stack``, outermost first."""
    context = _Context()
    for call in stack:
        if call.is_annotation:
            if call.name.startswith(_OPTIMIZER):
                context.phase = OPTIMIZER
        elif call.name.startswith(_AUTOGRAD):
            context.phase = BACKWARD
        elif not context.operator:
            context.operator, context.shapes = call.name, call.shapes
        if is_communication(call.name):
            context.args = {**context.args, **call.args}
            context.calls.append(call.name)
    return context


def _cpu_calls(parts: _Parts, contexts: list[_Context]) -> tuple[list[CpuCall], dict[int, int]]:
    """Return launches and waits by start, and the place of each launch by its correlation.

    A call that copies and returns after the end of the copy waits for it, as copies to pageable memory do.
    """
    launching = {kernel.correlation for kernel in parts.kernels if kernel.correlation is not None}
    copy_ends = {kernel.correlation: kernel.end_ps for kernel in parts.kernels if kernel.is_copy}
    kept = []
    for index, launch in enumerate(parts.launches):
        if launch.is_wait or launch.waits_for_event or launch.correlation in launching:
            kept.append(index)
    kept.sort(key=lambda index: (parts.launches[index].start_ps, parts.launches[index].end_ps))
    calls: list[CpuCall] = []
    place_of: dict[int, int] = {}
    event_waits: dict[str, int] = {}
    for index in kept:
        launch = parts.launches[index]
        if launch.waits_for_event:
            event_waits[launch.thread] = event_waits.get(launch.thread, 0) + 1
            continue
        if launch.correlation is not None and launch.correlation in launching:
            place_of.setdefault(launch.correlation, len(calls))
        is_wait = launch.is_wait or launch.end_ps >= copy_ends.get(launch.correlation, launch.end_ps + 1)
        waits = 0 if launch.is_wait else event_waits.pop(launch.thread, 0)
        calls.append(CpuCall(launch.start_ps, launch.end_ps, is_wait, contexts[index].operator, waits))
    return calls, place_of


def _activities(
    parts: _Parts, contexts: list[_Context], place_of: Mapping[int, int], groups: Mapping[str, tuple[int, ...]]
) -> list[GpuActivity]:
    """Return the kernels and copies by start, with collectives numbered in the order of their launches."""
    context_of: dict[int, _Context] = {}
    for launch, context in zip(parts.launches, contexts, strict=True):
        if launch.correlation is not None:
            context_of.setdefault(launch.correlation, context)
    activities = []
    for kernel in parts.kernels:
        correlation = -1 if kernel.correlation is None else kernel.correlation
        context = context_of.get(correlation, _Context())
        activity = GpuActivity(
            kernel.name, kernel.stream, kernel.start_ps, kernel.end_ps, context.operator or kernel.name, context.phase,
            launch=place_of.get(correlation, -1),
        )  # fmt: skip
        if kernel.is_communication:
            activity.collective = _collective(kernel, context, groups)
        else:
            activity.work = _hashable(kernel.args.get("grid")) or context.shapes or kernel.args.get("bytes")
        activities.append(activity)
    activities.sort(key=lambda each: (each.start_ps, each.end_ps))
    _number_collectives(activities)
    return activities


def _collective(kernel: _Kernel, context: _Context, groups: Mapping[str, tuple[int, ...]]) -> CollectiveCall:
    args = {**context.args, **kernel.args}
    stated = args.get("Collective name")
    names = [stated if isinstance(stated, str) else "", *context.calls, kernel.name]
    kind = next((found for found in map(operation, names) if found != UNNAMED), UNNAMED)
    size = message_bytes(args)
    name = args.get("Process Group Name")
    ranks = _ranks(args.get("Process Group Ranks"))
    group = GroupKey(_UNNAMED_GROUP, ())
    if isinstance(name, str):
        group = GroupKey(name[:100], groups.get(name) or ranks)
    if kind in ("send", "recv"):
        source, target = _whole(args.get("Src Rank"), _MAX_RANKS), _whole(args.get("Dst Rank"), _MAX_RANKS)
        if source is not None and target is not None:
            group = GroupKey(f"{source}->{target}", tuple(sorted((source, target))))
            kind = "send_recv"
    found = _ALGORITHM.search(kernel.name)
    return CollectiveCall(
        kind=kind, group=group, number=-1, size_bytes=size, out_elements=_whole(args.get("Out msg nelems"), 2**62),
        group_size=_whole(args.get("Group size"), _MAX_RANKS), algorithm="" if found is None else found[1].upper(),
    )  # fmt: skip


def _ranks(value: object) -> tuple[int, ...]:
    """Return the ranks of a text such as ``[0, 1]``; () for a text that PyTorch has shortened (30 ranks or more)."""
    if not isinstance(value, str) or not re.fullmatch(r"\[[\d, ]*\]", value):
        return ()
    return tuple(sorted(int(each) for each in re.findall(r"\d{1,9}", value)))


def _number_collectives(activities: list[GpuActivity]) -> None:
    """Set the numbers of the collectives of each group, in the order of their launches."""
    collectives = [activity for activity in activities if activity.collective is not None]
    collectives.sort(key=lambda each: (each.launch if each.launch >= 0 else 2**62, each.start_ps))
    if any(each.launch < 0 for each in collectives):
        collectives.sort(key=lambda each: each.start_ps)
    counts: dict[GroupKey, int] = {}
    for activity in collectives:
        call = activity.collective
        assert call is not None
        number = counts.get(call.group, 0)
        counts[call.group] = number + 1
        activity.collective = CollectiveCall(
            call.kind, call.group, number, call.size_bytes, call.out_elements, call.group_size, call.algorithm
        )
