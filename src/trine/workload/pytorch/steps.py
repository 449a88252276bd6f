"""The step inside a profiler trace: its window, its operators, and the phase of each."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from trine.errors import TraceError
from trine.graph.workload import BACKWARD, FORWARD, OPTIMIZER, RecordedCollective
from trine.workload.pytorch import communication
from trine.workload.pytorch.calls import NO_KERNEL
from trine.workload.pytorch.kineto import META, CpuOp, KernelEvent, Kineto, parent_name
from trine.workload.raw_trace import AUTOGRAD, call_kind


@dataclass(slots=True)
class TracedStep:
    """The traced step: its window on the CPU, its outermost calls by start, the phase of each, and notes."""

    start_ps: int
    end_ps: int
    tops: list[int]
    phases: dict[int, str]
    notes: list[str]


@dataclass(slots=True)
class OperatorRow:
    """An operator under construction: its outermost call (None for kernels without a call), kernels, and phase.

    ``launches``: kernels that a GPU would run for a call recorded without kernels; None if known or 1.
    """

    call: int | None
    kernels: list[int]
    phase: str
    start_ps: int
    launches: int | None = None


def outermost(ops: list[CpuOp]) -> list[int | None]:
    """Return for each call the outermost call around it (or itself), annotations aside; None for outer annotations."""

    def value(index: int, above: int | None) -> int | None:
        return above if above is not None or ops[index].annotation else index

    return communication.from_parents([op.parent for op in ops], None, value)


def find_step(kineto: Kineto, joined: Collection[int] | None = None) -> TracedStep:
    """Return the last complete ProfilerStep, else the whole trace.

    A step is complete if it holds a call that launched a kernel (if the trace has kernels) and, with ``joined``, a call
    that is in the execution trace. Raises TraceError if the trace has no call.
    """
    ops = kineto.ops
    marks = [op for op in ops if op.annotation and op.name.startswith("ProfilerStep#")]
    marks.sort(key=lambda op: op.start_ps)
    notes = []
    if joined is None:
        candidates = ops
    else:
        candidates = [ops[i] for i in joined]
    start = min(op.start_ps for op in candidates)
    end = max(op.end_ps for op in candidates) + 1
    if end > max(op.end_ps for op in ops):
        end = max([end, *(kernel.end_ps + 1 for kernel in kineto.kernels)])
    starts = [
        op.start_ps
        for i, op in enumerate(ops)
        if not op.annotation and (op.kernels or not kineto.kernels) and (joined is None or i in joined)
    ]
    complete = []
    for mark in marks:
        if any(mark.start_ps <= time_ps < mark.end_ps for time_ps in starts):
            complete.append(mark)
    if complete:
        start, end = complete[-1].start_ps, complete[-1].end_ps
        if len(marks) > 1:
            notes.append(f"trine reads the last complete of {len(marks)} steps, {complete[-1].name}")
    else:
        start, end = _last_optimizer_step(ops, start, end, notes)
    tops = [i for i, top in enumerate(outermost(ops)) if top == i and start <= ops[i].start_ps < end]
    tops.sort(key=lambda i: (ops[i].start_ps, ops[i].event))
    if not tops:
        raise TraceError("holds no operator", file=kineto.path)
    return TracedStep(start, end, tops, _phases(ops, tops), notes)


#: Autograd nodes that return a view and may call nothing.
_IDLE_NODES = frozenset(name.replace("_", "") for name in NO_KERNEL)
#: Minimum share of calls that two equal steps have in common.
_ALIKE = 0.8


def _last_optimizer_step(ops: list[CpuOp], start: int, end: int, notes: list[str]) -> tuple[int, int]:
    """Return the last step of a trace without marks: the part between optimizer steps that repeats.

    Alternating optimizers (a generator's and its critic's) make one step together. Without repetition, all is one.
    """
    marks = [op for op in ops if op.annotation and op.name.startswith("Optimizer.step") and start <= op.start_ps < end]
    ends = [start, *sorted(op.end_ps for op in marks)]
    parts = [Counter[str]() for _ in ends[1:]]
    for op in ops:
        place = bisect_right(ends, op.start_ps) - 1
        if 0 <= place < len(parts):
            parts[place][op.name] += 1
    for period in range(1, len(parts) // 2 + 1):
        pairs = zip(parts[-period:], parts[-2 * period : -period], strict=True)
        if all((a & b).total() >= _ALIKE * (a | b).total() for a, b in pairs):
            notes.append(f"no step marks: trine reads the last of {len(parts) // period} optimizer steps")
            return ends[-1 - period], ends[-1]
    return start, end


def find_rows(kineto: Kineto, step: TracedStep) -> tuple[list[OperatorRow], list[str]]:
    """Return operators in the order of their first kernels; without kernels, in the order of the calls."""
    phases = step.phases
    notes: list[str] = []
    if not kineto.kernels and not kineto.communication:
        if kineto.machine == META:
            notes.append(f"it was recorded on {META}, which have shapes and no times")
        else:
            why = "no kernel ran on a GPU" if kineto.machine is None else f"it was recorded on {kineto.machine}"
            notes.append(f"{why}: the recorded time of an operator is the CPU time of its outermost call")
        calls = [i for i in step.tops if not communication.is_exchange(kineto.ops[i].name)]
        launches = _launches(kineto.ops)
        return [
            OperatorRow(i, [], phases[i], kineto.ops[i].start_ps, None if launches[i] == 1 else launches[i])
            for i in calls
        ], notes
    rows: dict[int, OperatorRow] = {}
    orphans: list[OperatorRow] = []
    tops = outermost(kineto.ops)
    for index, kernel in enumerate(kineto.kernels):
        top = None if kernel.op is None else tops[kernel.op]
        if top is not None and top in phases:
            rows.setdefault(top, OperatorRow(top, [], phases[top], kernel.start_ps)).kernels.append(index)
        elif top is None and step.start_ps <= kernel.start_ps < step.end_ps:
            orphans.append(OperatorRow(None, [index], "", kernel.start_ps))
    first = min((row.start_ps for row in rows.values()), default=0)
    early = [row for row in orphans if row.start_ps < first and not kineto.kernels[row.kernels[0]].is_launched]
    orphans = [row for row in orphans if row not in early]
    if early:
        notes.append(f"{len(early)} kernels launched before the trace began: ignored")
    ordered = sorted((*rows.values(), *orphans), key=lambda row: (row.start_ps, row.kernels[0]))
    before = FORWARD
    for row in ordered:
        row.phase = before = row.phase or before
    if orphans:
        notes.append(f"{len(orphans)} kernels have no launching operator: each becomes an operator without tensors")
    if kineto.devices > 1:
        notes.append(f"the trace has kernels of {kineto.devices} GPUs: trine reads the one with most kernels")
    if not ordered:
        raise TraceError("has GPU kernels, but none in the traced step", file=kineto.path)
    return ordered, notes


def _launches(ops: list[CpuOp]) -> dict[int, int]:
    """Return outermost call -> kernels that a GPU would run for it: its innermost computing calls.

    An autograd node without recorded calls inside counts as one kernel, unless it only accumulates or returns a view.
    On meta tensors, a call that PyTorch computes in ``prims`` counts as one.
    """
    tops, outer, references = outermost(ops), set[int | None](), _inside_references(ops)
    computing = [
        i
        for i, op in enumerate(ops)
        if i not in references and _computes(op.name) and not communication.is_layout(op.name, parent_name(ops, i))
    ]
    for i in computing:
        above = ops[i].parent
        while above is not None and above not in outer:
            outer.add(above)
            above = ops[above].parent
    visible = {top for op, top in zip(ops, tops, strict=True) if not _is_node(op.name)}
    counts = {top: int(top not in visible and _hides_work(ops[top].name)) for top in tops if top is not None}
    for i in computing:
        top = tops[i]
        if i not in outer and top is not None:
            counts[top] += 1
    return counts


#: Calls that PyTorch splits into others before it looks at the device (CompositeImplicitAutograd of
#: aten/src/ATen/native/native_functions.yaml), if several of these others may compute.
_SPLIT = frozenset(f"aten::{name}" for name in (
    "batch_norm", "bilinear", "conv1d", "conv2d", "conv3d", "cosine_embedding_loss", "cosine_similarity",
    "cross_entropy_loss", "dropout", "einsum", "group_norm", "gru", "gru_cell", "instance_norm", "kl_div", "l1_loss",
    "layer_norm", "linear", "log_softmax", "lstm", "lstm_cell", "matmul", "nll_loss", "nll_loss2d", "nll_loss_nd",
    "pairwise_distance", "rms_norm", "rnn_relu", "rnn_tanh", "scaled_dot_product_attention", "softmax", "tensordot",
    "triplet_margin_loss", "_batch_norm_impl_index", "_convolution", "_scaled_dot_product_attention_math",
))  # fmt: skip


def _inside_references(ops: list[CpuOp]) -> set[int]:
    """Return the calls inside another call's kernel: calls in PyTorch's Python references, used on meta tensors.

    A reference computes in ``prims``; the outermost call around one that PyTorch does not split is a kernel on a GPU.
    """
    kernels = set[int]()
    for i, op in enumerate(ops):
        if op.name.startswith("prims::"):
            around, above = i, op.parent
            while above is not None and not _is_node(ops[above].name):
                around = around if ops[above].name in _SPLIT else above
                above = ops[above].parent
            kernels.add(around)
    references = set[int]()
    for i, op in enumerate(ops):
        above = op.parent if kernels else None
        while above is not None and above not in kernels:
            above = ops[above].parent
        if above is not None:
            references.add(i)
    return references


def _is_node(name: str) -> bool:
    """Return whether a call is an autograd node, or has no library, and so only calls others that compute."""
    return name.startswith((AUTOGRAD, "torch::autograd::")) or "::" not in name


def _hides_work(name: str) -> bool:
    """Return whether a node of this name computes even if the trace records no call inside it."""
    return not name.endswith("AccumulateGrad") and call_kind(name).removesuffix("'").lower() not in _IDLE_NODES


def _computes(name: str) -> bool:
    """Return whether a call of this name may launch a kernel itself; autograd nodes only call others that do."""
    return not _is_node(name) and call_kind(name) not in NO_KERNEL


@dataclass(frozen=True, slots=True)
class CollectiveRow:
    """A collective of the recorded job: its outermost communicating call (None for a lone kernel) and facts about it.

    ``phase``: of the call, None without one. ``inside``: kind of the outermost operator around it, "" without one.
    ``group_size``: ranks of its process group. Unknown bytes and sizes are None.
    """

    operation: str
    size_bytes: int | None
    time_ps: int
    call: int | None = None
    phase: str | None = None
    inside: str = ""
    group_size: int | None = None


def recorded_collectives(kineto: Kineto, step: TracedStep) -> tuple[RecordedCollective, ...]:
    """Return the recorded job's collectives in the step, by operation."""
    return communication.total([(r.operation, r.size_bytes, r.time_ps) for r in collective_rows(kineto, step)])


def collective_rows(kineto: Kineto, step: TracedStep) -> list[CollectiveRow]:
    """Return the recorded job's collectives in the step.

    A collective is an outermost communicating call with its kernels, or a kernel without a known call. Calls without a
    kernel and without an operation's name (waits) are skipped.
    """
    ops, tops = kineto.ops, outermost(kineto.ops)

    def value(index: int, above: int | None) -> int | None:
        is_inner = above is not None or not communication.is_layout(ops[index].name, parent_name(ops, index))
        return above if is_inner else index

    around = communication.from_parents([op.parent for op in ops], None, value)
    inner: dict[int, list[int]] = {}
    for i, call in enumerate(around):
        if call is not None and (tops[call] in step.phases or ops[call].annotation):
            inner.setdefault(call, []).append(i)
    kernels: dict[int, list[KernelEvent]] = {}
    rows: list[CollectiveRow] = []
    for kernel in kineto.communication:
        call = None if kernel.op is None else around[kernel.op]
        if call is not None:
            kernels.setdefault(call, []).append(kernel)
        elif step.start_ps <= kernel.start_ps < step.end_ps:
            rows.append(_collective([kernel.name], [kernel.args], [kernel], 0))
    has_kernels = bool(kineto.kernels or kineto.communication)
    for call, members in sorted(inner.items()):
        own_kernels = kernels.get(call, [])
        if not step.start_ps <= ops[call].start_ps < step.end_ps:
            continue
        owner = communication.layout_copies(ops[call].name, parent_name(ops, call))
        if owner is not None and not any(communication.is_communication(ops[i].name) for i in members):
            rows += [CollectiveRow(owner, None, kernel.end_ps - kernel.start_ps) for kernel in own_kernels]
            continue
        names = [ops[i].name for i in members if communication.is_communication(ops[i].name)]
        args = [*(kernel.args for kernel in own_kernels), *(ops[i].args for i in members)]
        row = _collective(names, args, own_kernels, 0 if has_kernels else ops[call].end_ps - ops[call].start_ps)
        if own_kernels or row.operation != communication.UNNAMED:
            top = tops[call]
            inside = "" if top is None else call_kind(ops[top].name)
            phase = None if top is None else step.phases.get(top)
            rows.append(replace(row, call=call, phase=phase, inside=inside))
    return rows


def _collective(
    names: list[str], args: Sequence[Mapping[str, object]], kernels: list[KernelEvent], cpu_ps: int
) -> CollectiveRow:
    """Return one collective without its call."""
    stated = [str(each["Collective name"]) for each in args if "Collective name" in each]
    operations = map(communication.operation, (*stated, *names, *(kernel.name for kernel in kernels)))
    known_names = (each for each in operations if each != communication.UNNAMED)
    sizes = (size for each in args if (size := communication.message_bytes(each)) is not None)
    time = sum(kernel.end_ps - kernel.start_ps for kernel in kernels)
    groups = []
    for each in args:
        if isinstance(group := each.get("Group size"), int):
            groups.append(group)
    return CollectiveRow(
        next(known_names, communication.UNNAMED), next(sizes, None), time or cpu_ps,
        group_size=max(groups, default=None),
    )  # fmt: skip


def _phases(ops: list[CpuOp], tops: list[int]) -> dict[int, str]:
    """Return the phase of each outermost call.

    Optimizer: inside an ``Optimizer.step`` annotation, or on the main thread after backward (clipping, unscaling).
    Backward: autograd nodes, and calls between them on their thread. Else forward.
    """
    engine = [i for i in tops if ops[i].name.startswith(AUTOGRAD)]
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    for i in engine:
        first.setdefault(str(ops[i].tid), ops[i].start_ps)
        last[str(ops[i].tid)] = ops[i].start_ps
    end = max((ops[i].start_ps for i in engine), default=None)
    optimizer = _inside_optimizer(ops)
    phases = {}
    for i in tops:
        thread, start = str(ops[i].tid), ops[i].start_ps
        if optimizer[i]:
            phases[i] = OPTIMIZER
        elif thread in first and first[thread] <= start <= last[thread]:
            phases[i] = BACKWARD
        else:
            phases[i] = OPTIMIZER if end is not None and start > end else FORWARD
    return phases


def _inside_optimizer(ops: list[CpuOp]) -> list[bool]:
    """Return for each call whether an annotation around it names an optimizer's step."""

    def value(index: int, above: bool) -> bool:
        return above or (ops[index].annotation and ops[index].name.startswith("Optimizer.step"))

    return communication.from_parents([op.parent for op in ops], False, value)
