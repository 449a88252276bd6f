"""A trace description for people."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trine.graph.workload import GPU_KERNELS
from trine.units import format_bytes, format_time

if TYPE_CHECKING:
    from trine.workload import Difference, TraceDescription
    from trine.workload.inspect import Total


def description_text(trace: TraceDescription, top: int = 12) -> str:
    """What is in a trace, what is missing, and what was assumed in its place."""
    on_cpu = GPU_KERNELS in trace.missing
    clock = "CPU time" if on_cpu else "GPU time"
    device = "a CPU" if on_cpu else trace.gpu or "a GPU that the trace does not name"
    lines = [
        f"{trace.name}: a {'training' if trace.is_training else 'inference'} step at batch {trace.batch} on {device}",
        f"read from {trace.source} ({trace.format})",
        f"{trace.num_operators} operators, {format_time(trace.gpu_time_ps)} of {clock}, {trace.kernels} kernels, "
        f"{trace.launches} CPU launches",
    ]
    if trace.unprofiled_step_ps is not None:
        lines.append(f"a step without the profiler took {format_time(trace.unprofiled_step_ps)}")
    lines += ["", f"{'phase':34} {'operators':>9} {clock:>11} {'share':>7}"]
    lines += [_row(total.name, total) for total in trace.phases]
    lines += ["", f"{'operator':34} {'count':>9} {clock:>11} {'share':>7}"]
    lines += [
        _row(total.name.removeprefix("autograd::engine::evaluate_function: "), total) for total in trace.operators[:top]
    ]
    if len(trace.operators) > top:
        rest = trace.operators[top:]
        time = sum(total.gpu_time_ps for total in rest)
        lines.append(f"and {len(rest)} more names, {format_time(time)}")
    lines += ["", f"{'tensors':18} {'tensors':>8} {'storages':>9} {'bytes':>11} {'with the batch':>15}"]
    lines += [
        f"{role.role:18} {role.tensors:8} {role.storages:9} {format_bytes(role.size_bytes):>11} {role.scaling:15}"
        for role in trace.roles
    ]
    lines += [
        "",
        f"{trace.num_parameters} parameters, {trace.parameter_bytes} bytes; gradients {trace.gradient_bytes} bytes",
    ]
    if trace.without_gradient:
        lines.append(f"{trace.without_gradient} parameters get no gradient")
    shown = ", ".join(f"{pattern} ({count})" for pattern, count in trace.scaling[:8])
    lines.append(f"dimensions that scale with the batch B: {shown or 'none'}")
    lines += [f"missing: {text}" for text in trace.missing] + [f"assumed: {text}" for text in trace.assumptions]
    return "\n".join(lines)


def difference_text(difference: Difference) -> str:
    """One difference between two traces."""
    where = difference.name if difference.operator is None else f"operator {difference.operator} ({difference.name})"
    return f"{where}: {difference.what}: {difference.first} against {difference.second}"


def _row(name: str, total: Total) -> str:
    share = f"{100 * total.share:5.1f} %"
    return f"{name[:34]:34} {total.count:9} {format_time(total.gpu_time_ps):>11} {share:>7}"
