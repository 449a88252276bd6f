"""Which part of a profiler trace is the step, which calls in it are operators, and the phase of each."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import TypeVar

from trine.errors import TraceError
from trine.graph.workload import BACKWARD, FORWARD, OPTIMIZER
from trine.workload.pytorch.kineto import CpuOp, Kineto
from trine.workload.raw_trace import AUTOGRAD

T = TypeVar("T")


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
    """An operator in the making: its outermost call (None for kernels without one), kernels, and phase."""

    call: int | None
    kernels: list[int]
    phase: str
    start_ps: int


def outermost(ops: list[CpuOp]) -> list[int | None]:
    """For each call the outermost call around it (or itself) that is no annotation; None for an outer annotation."""

    def value(index: int, above: int | None) -> int | None:
        return above if above is not None or ops[index].annotation else index

    return _from_parents(ops, None, value)


def _from_parents(ops: list[CpuOp], root: T, value: Callable[[int, T], T]) -> list[T]:
    """``value(index, value of its parent)`` of each call, ``root`` standing for the parent of an outermost one.

    Calls are in no order, so each is reached by climbing to the first ancestor that is known.
    """
    found: dict[int, T] = {}
    for start in range(len(ops)):
        path: list[int] = []
        index: int | None = start
        while index is not None and index not in found:
            path.append(index)
            index = ops[index].parent
        above = root if index is None else found[index]
        for inner in reversed(path):
            above = found[inner] = value(inner, above)
    return [found[index] for index in range(len(ops))]


def find_step(kineto: Kineto, joined: Collection[int] | None = None) -> TracedStep:
    """The last complete ProfilerStep, else the whole trace.

    A step is complete if it holds a call that launched a kernel (where the trace has kernels) and, with ``joined``, one
    that is in the execution trace. Raises TraceError if there is no call.
    """
    ops = kineto.ops
    marks = [op for op in ops if op.annotation and op.name.startswith("ProfilerStep#")]
    marks.sort(key=lambda op: op.start_ps)
    notes = []
    start, end = min(op.start_ps for op in ops), max(op.end_ps for op in ops) + 1
    end = max([end, *(kernel.end_ps + 1 for kernel in kineto.kernels)])
    telling = [
        op.start_ps
        for i, op in enumerate(ops)
        if not op.annotation and (op.kernels or not kineto.kernels) and (joined is None or i in joined)
    ]
    inside = [mark for mark in marks if any(mark.start_ps <= at < mark.end_ps for at in telling)]
    if inside:
        start, end = inside[-1].start_ps, inside[-1].end_ps
        if len(marks) > 1:
            notes.append(f"of {len(marks)} steps the last complete one was taken, {inside[-1].name}")
    tops = [i for i, top in enumerate(outermost(ops)) if top == i and start <= ops[i].start_ps < end]
    tops.sort(key=lambda i: (ops[i].start_ps, ops[i].event))
    if not tops:
        raise TraceError("holds no operator", file=kineto.path)
    return TracedStep(start, end, tops, _phases(ops, tops), notes)


def find_rows(kineto: Kineto, step: TracedStep) -> tuple[list[OperatorRow], list[str]]:
    """Operators in the order in which their first kernels ran; without any kernel, in the order of the calls."""
    phases = step.phases
    notes: list[str] = []
    if not kineto.kernels:
        notes.append("no kernel ran on a GPU: what was recorded of an operator is the CPU time of its outermost call")
        return [OperatorRow(i, [], phases[i], kineto.ops[i].start_ps) for i in step.tops], notes
    rows: dict[int, OperatorRow] = {}
    orphans: list[OperatorRow] = []
    tops = outermost(kineto.ops)
    for index, kernel in enumerate(kineto.kernels):
        top = None if kernel.op is None else tops[kernel.op]
        if top is not None and top in phases:
            rows.setdefault(top, OperatorRow(top, [], phases[top], kernel.start_ps)).kernels.append(index)
        elif top is None and step.start_ps <= kernel.start_ps < step.end_ps:
            orphans.append(OperatorRow(None, [index], "", kernel.start_ps))
    ordered = sorted((*rows.values(), *orphans), key=lambda row: (row.start_ps, row.kernels[0]))
    before = FORWARD
    for row in ordered:
        row.phase = before = row.phase or before
    if orphans:
        notes.append(f"{len(orphans)} kernels have no launching operator: each is an operator of its own, no tensors")
    if kineto.devices > 1:
        notes.append(f"the trace has kernels of {kineto.devices} GPUs: the one with most kernels was taken")
    if not ordered:
        raise TraceError("has GPU kernels, but none in the traced step", file=kineto.path)
    return ordered, notes


def _phases(ops: list[CpuOp], tops: list[int]) -> dict[int, str]:
    """Phase of each outermost call.

    Optimizer: inside an ``Optimizer.step`` annotation, or on the main thread after backward (clipping, unscaling).
    Backward: nodes of autograd and what runs between them on their thread. Else forward.
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
    """For each call whether an annotation around it names an optimizer's step."""

    def value(index: int, above: bool) -> bool:
        return above or (ops[index].annotation and ops[index].name.startswith("Optimizer.step"))

    return _from_parents(ops, False, value)
