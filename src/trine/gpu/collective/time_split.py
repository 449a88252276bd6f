"""Breakdown of a run's time: the same program on GPUs with one kind of limit removed after the other.

Starting from the real GPU, trine removes the bandwidth limits inside it (NoC, L2, memory), then the CUs' issue and add
time, then the limits on requests in flight. The last run moves one cache line per workgroup and peer. Each step's
saving is one part, so the parts sum to the time. A part can be slightly below 0, because a delay elsewhere can shorten
a queue here.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise

from trine.common.units import format_bytes, format_time
from trine.gpu.collective.runs import LoadStoreRow, LoadStoreRuns
from trine.gpu.model import GpuModel
from trine.gpu.program import GpuProgram

LAUNCH, LATENCY, LINKS, REQUESTS, CUS, INSIDE = "launch", "latency", "links", "requests", "CUs", "inside"
#: Rates so high that a message takes a picosecond, and request limits so high that no latency reaches them.
_RATE, _REDUCE, _UNROLL, _OUTSTANDING = 10**15, 1 << 20, 1 << 12, 1 << 14


@dataclass(frozen=True, kw_only=True, slots=True)
class TimeSplit:
    """Parts (name, ps, reason) that sum to the time of a row; empty if a run was stopped (not finished)."""

    parts: tuple[tuple[str, int, str], ...]
    finished: bool


def split(runs: LoadStoreRuns, row: LoadStoreRow) -> TimeSplit:
    """Return the parts of a row of :meth:`LoadStoreRuns.row` that still has its result; needs four more runs."""
    name, size = row.time.algorithm, row.time.size_bytes
    program = runs.programs.program(name, size)
    model = runs.model
    no_bandwidth = without_bandwidth(model)
    no_work = without_work(no_bandwidth)
    no_limits = without_limits(no_work)
    min_bytes = runs.programs.smallest_bytes(name, size)
    small = program if min_bytes == size else runs.programs.program(name, min_bytes)
    plans = (
        (_own_unroll(small), no_limits, ", one line each"),
        (_own_unroll(program), no_limits, ", no limits"),
        (program, no_work, ", CUs that take no time"),
        (program, no_bandwidth, ", NoC and memory that take no time"),
    )
    times, finished = [model.launch_ps], True
    for code, gpu, note in plans:
        run = runs.run(code, gpu, what=note)
        finished &= run.finished
        times.append(run.end_ps)
        if not finished:
            return TimeSplit(parts=(), finished=False)
    times.append(row.time.time_ps)
    ends = [0, *times]
    steps = [after - before for before, after in pairwise(ends)]
    whys = _whys(row, min_bytes, model)
    return TimeSplit(
        parts=tuple(zip((LAUNCH, LATENCY, LINKS, REQUESTS, CUS, INSIDE), steps, whys, strict=True)), finished=True
    )


def without_bandwidth(model: GpuModel) -> GpuModel:
    """Return the GPU with only latencies in NoC, L2 and memory."""
    return replace(
        model,
        noc=replace(model.noc, bytes_per_s=_RATE),
        memory=replace(model.memory, bytes_per_s=_RATE),
        l2=None if model.l2 is None else replace(model.l2, bytes_per_s=_RATE),
    )


def without_work(model: GpuModel) -> GpuModel:
    """Return the GPU with CUs that issue and add in no time (a picosecond)."""
    return replace(model, cycle_ps=1, issue_cycles=1, reduce_bytes_per_cycle=_REDUCE)


def without_limits(model: GpuModel) -> GpuModel:
    """Return the GPU with practically unlimited requests in flight."""
    return replace(model, unroll=_UNROLL, max_outstanding=_OUTSTANDING)


def _own_unroll(program: GpuProgram) -> GpuProgram:
    return replace(program, op_unroll=program.op_unroll * 0)


def _whys(row: LoadStoreRow, min_bytes: int, model: GpuModel) -> tuple[str, ...]:
    """Return a text for each part that explains its length."""
    assert row.result is not None
    busiest = max(row.result.links, key=lambda link: link.busiest_ps, default=None)
    wire = "no links"
    if busiest is not None:
        lane_bytes = (busiest.data_bytes + busiest.control_bytes) // busiest.lanes
        wire = (
            f"the busiest lane, of {busiest.name}, is busy for {format_time(busiest.busiest_ps)} "
            f"(its {busiest.lanes} carry {format_bytes(lane_bytes)} each on average, with headers)"
        )
    kinds = [f"busiest {use.kind}: {format_time(use.busiest_ps)}" for use in row.result.kinds if use.kind != "lane"]
    smallest = "the whole message" if min_bytes == row.time.size_bytes else format_bytes(min_bytes)
    return (
        "before the first workgroup",
        f"hops and synchronisation: {smallest}, one cache line for each workgroup and peer",
        f"bytes over the links between GPUs; {wire}",
        f"unroll {model.unroll}, {model.max_outstanding} requests a CU",
        f"issue every {format_time(model.issue_cycles * model.cycle_ps)}, additions",
        f"NoC and memory ({', '.join(kinds)})",
    )
