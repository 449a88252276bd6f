"""Content of a job's traces, as plain data and as text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from trine.common.units import PS_PER_S, format_bytes, format_time
from trine.formats.chakra.job import trace_job
from trine.formats.chakra.trace import ChakraTrace
from trine.graph.program import Collective, Compute, HostCopy, Send, Step


def description(trace: ChakraTrace) -> dict[str, Any]:
    """Count nodes over all ranks, groups, and ranks that share a program.

    ``kinds``: node kind -> count, bytes (of a collective the payload, on each of its ranks), and seconds.
    """
    counts, sizes, times = Counter[str](), Counter[str](), Counter[str]()
    uses = Counter(trace.program_of)
    for number, program in enumerate(trace.programs):
        for step in program.steps:
            kind = _kind(step)
            counts[kind] += uses[number]
            sizes[kind] += uses[number] * getattr(step, "size_bytes", 0)
            times[kind] += uses[number] * getattr(step, "duration_ps", 0)
    job, reason = trace_job(trace)
    kinds = {
        kind: {"nodes": count, "bytes": sizes[kind], "time_s": times[kind] / PS_PER_S}
        for kind, count in counts.most_common()
    }
    group_sizes = Counter(len(ranks) for ranks in trace.groups.values())
    if job is None:
        grid = None
    else:
        grid = [list(axis) for axis in job.axes]
    num_programs = None if job is None else len(job.programs)
    return {
        "prefix": trace.prefix,
        "ranks": trace.num_ranks,
        "nodes": trace.num_nodes,
        "kinds": kinds,
        "groups": sorted(group_sizes.items()),
        "grid": grid,
        "programs": num_programs,
        "why_no_grid": reason,
        "notes": list(trace.notes),
    }


def description_text(found: Mapping[str, Any]) -> str:
    """Format the result of :func:`description` as text."""
    lines = [f"{found['prefix']}: {found['ranks']} ranks, {found['nodes']} nodes", f"  {'':16} {'nodes':>9}"]
    for kind, row in found["kinds"].items():
        size = format_bytes(row["bytes"]) if row["bytes"] else ""
        time = format_time(row["time_s"] * PS_PER_S) if row["time_s"] else ""
        lines.append(f"  {kind:16} {row['nodes']:>9}  {size or time}".rstrip())
    for size, count in found["groups"]:
        lines.append(f"process groups of {size} ranks: {count}")
    if found["grid"] is None:
        lines.append(f"no rank grid: {found['why_no_grid']}")
    else:
        grid = " x ".join(f"{name} {size}" for name, size in found["grid"] if size > 1) or "one rank"
        lines.append(f"rank grid: {grid}; distinct programs: {found['programs']}")
    return "\n".join([*lines, *(f"note: {note}" for note in found["notes"])])


def _kind(step: Step) -> str:
    if isinstance(step, Collective):
        return step.kind
    if isinstance(step, HostCopy):
        return "memory store" if step.to_host else "memory load"
    names = {Compute: "compute", Send: "send"}
    return names.get(type(step), "receive")
