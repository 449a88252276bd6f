"""The PyTorch profiler's JSON (Kineto): calls of each thread, kernels, and the call that launched each kernel.

Times become picoseconds. Fractions of a microsecond are read exactly; a float would lose them in epoch times.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from functools import cached_property
from itertools import accumulate, pairwise
from pathlib import Path

from trine.common.units import PS_PER_US
from trine.errors import TraceError
from trine.workload.files import read_json, short
from trine.workload.pytorch.communication import from_parents, is_communication_kernel, is_layout

_CPU = ("cpu_op", "user_annotation")
_LAUNCH = (
    "cuda_runtime", "cuda_driver", "hip_runtime", "hip_driver", "xpu_runtime", "xpu_driver", "privateuse1_runtime",
    "privateuse1_driver",
)  # fmt: skip
_KERNEL = ("kernel", "gpu_memcpy", "gpu_memset", "collective_comm")
#: CUPTI's record of a launch that waits for room in the GPU's queue (CUPTI_ACTIVITY_OVERHEAD_COMMAND_BUFFER_FULL).
_OVERHEAD, _QUEUE_IS_FULL = "overhead", "Command Buffer Full"
#: Machine behind a trace without kernels, by the category of its events (libkineto/include/ActivityType.h).
_MACHINES = (
    ("cuda_profiler_range", "a GPU under CUPTI's range profiler, which records no kernel times"),
    ("mtia_", "an MTIA accelerator"),
    ("hpu_", "an HPU (Gaudi accelerator)"),
    ("xpu_", "an XPU whose kernels were not recorded"),
    ("glow_", "a Glow accelerator"),
    ("privateuse1_", "an accelerator of a PyTorch plug-in (PrivateUse1)"),
    ("cuda_runtime", "a GPU whose kernels were not recorded"),
    ("hip_runtime", "a GPU whose kernels were not recorded"),
)
#: Machine of a step on tensors without memory, which has shapes and no times.
META = "meta tensors"
#: Largest time stamp: year 2500 in microseconds since 1970.
_MAX_US = 17 * 10**15


@dataclass(slots=True)
class CpuOp:
    """One call on the CPU. ``parent`` indexes the innermost call around it, ``kernels`` its own kernel launches.

    ``module``: the path of the calling module, "" if unknown.
    """

    event: int
    name: str
    start_ps: int
    end_ps: int
    tid: object
    annotation: bool
    args: Mapping[str, object]
    parent: int | None = None
    kernels: list[int] = field(default_factory=list)
    module: str = ""

    def number(self, name: str) -> int | None:
        value = self.args.get(name)
        return value if isinstance(value, int) and not isinstance(value, bool) else None


@dataclass(slots=True)
class KernelEvent:
    """One kernel, copy or fill on the GPU; ``op`` indexes the innermost call that launched it, None if unknown.

    ``is_launched``: whether the trace has the launch, by any call; True if the kernel names no launch.
    """

    event: int
    name: str
    start_ps: int
    end_ps: int
    device: int
    op: int | None = None
    busy_ps: int = 0
    args: Mapping[str, object] = field(default_factory=dict)
    is_launched: bool = True


@dataclass(frozen=True)
class Kineto:
    """Calls in the order of (start, -end) of each thread, kernels in the order of their start.

    ``communication``: kernels of collectives and of the recorded layout's copies; ``kernels`` are all others.
    ``machine``: device of a trace without kernels, None for a CPU. ``waits``: start and length, by start, of the
    launching threads' waits: for the GPU while a collective ran on it, and for room in its queue. ``kernel_gap_ps``:
    usual idle time of the GPU between two kernels of its queue, None if the trace has too few of them.
    ``launch_call_ps``: median duration of the calls that launched a kernel, None without kernels. ``rank``,
    ``world_size``: of the process in its distributed job, None if the trace does not tell.
    """

    path: Path
    ops: list[CpuOp]
    kernels: list[KernelEvent]
    gpu: str | None
    devices: int
    metadata: Mapping[str, str]
    communication: list[KernelEvent] = field(default_factory=list)
    machine: str | None = None
    waits: list[tuple[int, int]] = field(default_factory=list)
    kernel_gap_ps: int | None = None
    launch_call_ps: int | None = None
    rank: int | None = None
    world_size: int | None = None

    def awake_ps(self, at_ps: int) -> int:
        """Return a time on a CPU clock that stops during ``waits``."""
        index = bisect_left(self.waits, (at_ps,))
        before = self._waited_ps[index - 1] if index else 0
        last = sum(self.waits[index - 1]) if index else 0
        return at_ps - before + max(0, last - at_ps)

    @cached_property
    def _waited_ps(self) -> list[int]:
        """Total length of all waits up to each one."""
        return list(accumulate(length for _, length in self.waits))


def parent_name(ops: list[CpuOp], index: int) -> str:
    """Return the name of the call around ``ops[index]``, "" for an outermost call."""
    parent = ops[index].parent
    return "" if parent is None else ops[parent].name


def read_kineto(path: Path) -> Kineto:
    """Read a profiler file. Raises TraceError naming the event at fault."""
    document = read_json(path)
    if not isinstance(document, dict) or not isinstance(document.get("traceEvents"), list):
        raise TraceError("has no list of traceEvents: not a profiler trace", file=path)
    ops: list[CpuOp] = []
    launches: dict[int, tuple[int, object, int]] = {}
    kernels: list[KernelEvent] = []
    correlations: list[int | None] = []
    categories: set[str] = set()
    waits: list[tuple[int, int]] = []
    full_queue: list[tuple[int, int]] = []
    for index, event in enumerate(document["traceEvents"]):
        if not isinstance(event, dict):
            raise TraceError(f"must be an object, got {short(event)}", file=path, field=f"traceEvents[{index}]")
        if event.get("ph") != "X" or not isinstance(category := event.get("cat"), str):
            continue
        categories.add(category)
        is_full_queue = category == _OVERHEAD and event.get("name") == _QUEUE_IS_FULL
        if category not in (*_CPU, *_LAUNCH, *_KERNEL) and not is_full_queue:
            continue
        field = f"traceEvents[{index}]"
        start, end = _times(event, path, field)
        if is_full_queue:
            full_queue.append((start, end - start))
            continue
        args = event.get("args", {})
        if not isinstance(args, dict):
            raise TraceError(f"must be an object, got {short(args)}", file=path, field=f"{field}.args")
        name = _name(event, path, field)
        if category in _CPU:
            tid = event.get("tid")
            if not isinstance(tid, int | str):
                raise TraceError(f"must be a number or text, got {short(tid)}", file=path, field=f"{field}.tid")
            ops.append(CpuOp(index, name, start, end, tid, category != "cpu_op", args))
        elif category in _LAUNCH:
            if "Synchronize" in name:
                waits.append((start, end))
            correlation = _correlation(args, path, field)
            if correlation is not None:
                launches.setdefault(correlation, (start, event.get("tid"), end))
        else:
            device = args.get("device", 0)
            kernels.append(KernelEvent(index, name, start, end, device if isinstance(device, int) else 0,
                                       args=args))  # fmt: skip
            correlations.append(_correlation(args, path, field))
    ends: dict[int, int] = {}
    calls: dict[int, tuple[int, int]] = {}  # kernel's event -> start and end of its launch call
    for kernel, correlation in zip(kernels, correlations, strict=True):
        if correlation is not None and correlation in launches:
            call_start, _, call_end = launches[correlation]
            calls[kernel.event] = call_start, call_end
        kernel.is_launched = correlation is None or not launches or correlation in launches
        if correlation is not None:
            ends[correlation] = max(kernel.end_ps, ends.get(correlation, 0))
    ops.sort(key=lambda op: (str(op.tid), op.start_ps, -op.end_ps, op.event))
    launches_of_kernels = []
    for c in correlations:
        launches_of_kernels.append(None if c is None else launches.get(c))
    _nest(ops, kernels, launches_of_kernels)
    kernels.sort(key=lambda kernel: (kernel.start_ps, kernel.event))
    kineto = _of_one_device(path, document, ops, kernels, categories, calls)
    busy = [(kernel.start_ps, kernel.end_ps) for kernel in kineto.communication]
    queue_waits = full_queue or _queue_waits(
        [(start, end, ends[c]) for c, (start, _, end) in launches.items() if c in ends]
    )
    for start, end in waits if busy else ():
        waited_ps = sum(max(0, min(end, b) - max(start, a)) for a, b in busy)
        if waited_ps:
            queue_waits.append((start, min(waited_ps, end - start)))
    for start, length in sorted(queue_waits):
        before = sum(kineto.waits[-1]) if kineto.waits else start
        if start + length > before:
            kineto.waits.append((max(start, before), start + length - max(start, before)))
    return kineto


#: A launch this many times longer than usual, with at least this many kernels under way, waits for room in the queue.
_LONG_LAUNCH, _UNDER_WAY = 4, 64


def _queue_waits(launches: list[tuple[int, int, int]]) -> list[tuple[int, int]]:
    """Return start and length of waits in launches, from (start, end, end of the kernels) of each launch."""
    if not launches:
        return []
    starts = sorted(each[0] for each in launches)
    ends = sorted(each[2] for each in launches)
    usual = sorted(end - start for start, end, _ in launches)[len(launches) // 2]
    return [
        (start, end - start - usual)
        for start, end, _ in launches
        if end - start > _LONG_LAUNCH * usual and bisect_left(starts, start) - bisect_right(ends, start) >= _UNDER_WAY
    ]


#: Kernels launched this long before the previous one ends wait in the GPU's queue; minimum number of them for a gap.
_QUEUED_PS, _MIN_QUEUED = 10 * PS_PER_US, 32


def _kernel_gap(kernels: list[KernelEvent], calls: Mapping[int, tuple[int, int]]) -> int | None:
    """Return the median idle time between a kernel and the next one, if that one is in the GPU's queue by then.

    ``kernels``: in the order of their start. ``calls``: kernel's event -> start and end of its launch call. No launch
    delays such a kernel, so the gap is the GPU's own.
    """
    gaps = []
    for before, after in pairwise(kernels):
        if after.event not in calls or after.start_ps < before.end_ps:
            continue
        _, launched_ps = calls[after.event]
        if launched_ps <= before.end_ps - _QUEUED_PS:
            gaps.append(after.start_ps - before.end_ps)
    return _middle(gaps) if len(gaps) >= _MIN_QUEUED else None


def _launch_call(kernels: list[KernelEvent], calls: Mapping[int, tuple[int, int]]) -> int | None:
    """Return the median duration of the calls that launched ``kernels``, without copies and fills."""
    durations = [
        calls[kernel.event][1] - calls[kernel.event][0]
        for kernel in kernels
        if kernel.event in calls and not kernel.name.lower().startswith(("memcpy", "memset"))
    ]
    return _middle(durations) if durations else None


def _middle(values: list[int]) -> int:
    return sorted(values)[len(values) // 2]


def _of_one_device(
    path: Path, document: dict[str, object], ops: list[CpuOp], kernels: list[KernelEvent], categories: set[str],
    calls: Mapping[int, tuple[int, int]],
) -> Kineto:  # fmt: skip
    """Keep the kernels of the device that ran most of them, link them to their calls and measure their busy time.

    A communication kernel hides no other kernel: kernels beside it keep all of their time.
    """
    counts = Counter(kernel.device for kernel in kernels)
    device = max(sorted(counts), key=lambda d: counts[d], default=0)
    parents = [op.parent for op in ops]
    is_communicating = from_parents(
        parents, False, lambda i, above: above or is_layout(ops[i].name, parent_name(ops, i))
    )
    computing: list[KernelEvent] = []
    communication: list[KernelEvent] = []
    for kernel in kernels:
        if kernel.device == device:
            aside = (kernel.op is not None and is_communicating[kernel.op]) or is_communication_kernel(kernel.name)
            (communication if aside else computing).append(kernel)
    busy_until = 0
    for index, kernel in enumerate(computing):
        kernel.busy_ps = max(0, kernel.end_ps - max(kernel.start_ps, busy_until))
        busy_until = max(busy_until, kernel.end_ps)
        if kernel.op is not None:
            ops[kernel.op].kernels.append(index)
    metadata: dict[str, str] = {
        key: str(document[key]) for key in ("schemaVersion", "trace_id", "host_name") if key in document
    }
    gpu = _gpu_name(document, device)
    has_kernels = bool(computing or communication)
    model = gpu if has_kernels else None
    machine = None if has_kernels else _machine(categories, gpu)
    return Kineto(
        path, ops, computing, model, len(counts), metadata, communication, machine,
        kernel_gap_ps=_kernel_gap(computing, calls), launch_call_ps=_launch_call(computing, calls),
        rank=_distributed(document, "rank"), world_size=_distributed(document, "world_size"),
    )  # fmt: skip


def _machine(categories: set[str], gpu: str | None) -> str | None:
    """Return the machine of a trace without kernels, None for a CPU."""
    machines = (words for prefix, words in _MACHINES if any(each.startswith(prefix) for each in categories))
    return next(machines, None if gpu is None else f"{gpu}, whose kernels were not recorded")


def _distributed(document: dict[str, object], key: str) -> int | None:
    """Return a number from the profiler's facts about the distributed job, None if it is absent or not plausible."""
    facts = document.get("distributedInfo")
    value = facts.get(key) if isinstance(facts, dict) else None
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**24 else None


def _gpu_name(document: dict[str, object], device: int) -> str | None:
    """Return the name of the GPU with the number ``device``, or the name that all listed GPUs have.

    ROCm counts the CPUs as devices too, so kernels have other numbers than the list.
    """
    properties = document.get("deviceProperties")
    if isinstance(properties, list):
        entries = [entry for entry in properties if isinstance(entry, dict)]
    else:
        entries = []
    named = [(entry.get("id"), str(entry["name"])) for entry in entries if isinstance(entry.get("name"), str)]
    by_number = next((name for number, name in named if number == device), None)
    names = {name for _, name in named if name.strip()}
    return names.pop() if len(names) == 1 else by_number


def _name(event: dict[str, object], path: Path, field: str) -> str:
    name = event.get("name")
    if not isinstance(name, str) or not name or len(name) > 100_000:
        raise TraceError(f"must be a name, got {short(name)}", file=path, field=f"{field}.name")
    return name


def _correlation(args: dict[str, object], path: Path, field: str) -> int | None:
    value = args.get("correlation")
    if value is not None and (not isinstance(value, int) or isinstance(value, bool)):
        raise TraceError(f"must be a whole number, got {short(value)}", file=path, field=f"{field}.args.correlation")
    return value


def _times(event: dict[str, object], path: Path, field: str) -> tuple[int, int]:
    """Return start and end in picoseconds."""
    result = []
    for key in ("ts", "dur"):
        value = event.get(key)
        if isinstance(value, bool) or not isinstance(value, int | Decimal):
            fault = "is missing" if value is None else f"must be a number of microseconds, got {short(value)}"
            raise TraceError(fault, file=path, field=f"{field}.{key}")
        if not 0 <= value <= _MAX_US if isinstance(value, int) or value.is_finite() else True:
            raise TraceError(f"must be between 0 and {_MAX_US} microseconds, got {short(value)}", file=path,
                             field=f"{field}.{key}")  # fmt: skip
        result.append(value * PS_PER_US if isinstance(value, int) else round(value * PS_PER_US))
    return result[0], result[0] + result[1]


def _nest(ops: list[CpuOp], kernels: list[KernelEvent], launches: list[tuple[int, object, int] | None]) -> None:
    """Set the parent of each call and the launching call of each kernel from containment in time on one thread."""
    by_launcher: dict[str, list[tuple[int, int]]] = {}
    for index, launch in enumerate(launches):
        if launch is not None:
            by_launcher.setdefault(str(launch[1]), []).append((launch[0], index))
    by_thread: dict[str, list[int]] = {}
    for index, op in enumerate(ops):
        by_thread.setdefault(str(op.tid), []).append(index)
    for thread, members in by_thread.items():
        events = [(ops[i].start_ps, 0, place, i) for place, i in enumerate(members)]
        events += [(time, 1, place, i) for place, (time, i) in enumerate(sorted(by_launcher.get(thread, [])))]
        stack: list[int] = []
        for time, is_launch, _, index in sorted(events):
            while stack and (ops[stack[-1]].end_ps < time if is_launch else ops[stack[-1]].end_ps <= time):
                stack.pop()
            if is_launch:
                kernels[index].op = stack[-1] if stack else None
            else:
                ops[index].parent = stack[-1] if stack else None
                stack.append(index)
