"""What decides the time of a load-store run: a resource, a limit, a latency or a wait; one sentence with its numbers.

The rules, first that holds: most of the run lies before the first workgroup or after the last; a resource is busy for
at least BUSY of the time between these; else what wavefronts spend most of their time in, and where that is memory,
whether a limit on requests in flight is reached (FULL of the places of wavefronts that wait) or the latency of a
request decides.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from trine.arrays import members, row_of
from trine.gpu.program import DATA_OPS, READ, READ_FLAGGED, READ_SUM
from trine.results.gpu import run
from trine.results.gpu.resources import KIND_NAMES, KindUse, ResourceUses
from trine.units import format_time

#: A resource decides if it is busy for this part of the time in which kernels run; places do if so many are taken.
BUSY, FULL = 0.7, 0.8
#: The busiest resource is a hot spot if it is busy so many times as long as the mean of its kind.
HOT = 2.0
_WAITS = {"semaphore": "acquire", "barrier": "barrier", "compute": "reduce"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Bottleneck:
    """What decides. ``what``: ``nothing ran``, ``outside of kernels``, ``resource``, ``issue``, ``limit``, ``latency``,
    ``semaphore``, ``barrier`` or ``compute``.

    name: of the resource, else "". share: of the time in which kernels run (of the whole run: ``outside of kernels``)
    in which the resource is busy, or of wavefront time that goes into it. hot_spot: it is far busier than others of its
    kind.
    """

    what: str
    name: str
    share: float
    sentence: str
    hot_spot: bool = False


def find_bottleneck(result: ResourceUses) -> Bottleneck:
    """Return what decides the time of a run."""
    start, end = result.window_ps
    duration = end - start
    if duration <= 0:
        return Bottleneck(what="nothing ran", name="", share=0.0, sentence="No workgroup ran.")
    outside = result.time_ps - duration
    if 2 * outside > result.time_ps:
        return _outside(result, start, outside)
    busiest = max(result.kinds, key=lambda use: use.busiest_ps)
    issue = issue_share(result, duration)
    if max(busiest.busiest_ps / duration, issue) >= BUSY:
        return _issue(result, issue) if issue > busiest.busiest_ps / duration else _resource(result, busiest, duration)
    return _stall(result, busiest, duration)


def issue_share(result: ResourceUses, duration_ps: int) -> float:
    """Return the part of the time for which CUs with work issue requests, on their mean, of the busiest GPU."""
    each_ps = result.model.issue_cycles * result.model.cycle_ps
    return max(
        (gpu.requests * each_ps / (gpu.occupied_cus * duration_ps) for gpu in result.gpus if gpu.occupied_cus),
        default=0.0,
    )


def _outside(result: ResourceUses, start_ps: int, outside_ps: int) -> Bottleneck:
    share = outside_ps / result.time_ps
    sentence = (
        f"{_percent(share)} of the {format_time(result.time_ps)} lie outside of kernels: {format_time(start_ps)} "
        f"before the first workgroup begins (a launch takes {format_time(result.model.launch_ps)})"
    )
    if outside_ps > start_ps:
        sentence += f", {format_time(outside_ps - start_ps)} after the last ends"
    return Bottleneck(what="outside of kernels", name="", share=share, sentence=f"{sentence}.")


def _resource(result: ResourceUses, use: KindUse, duration_ps: int) -> Bottleneck:
    share, mean = use.busiest_ps / duration_ps, use.busy_ps / use.count / duration_ps
    hot = use.count > 1 and use.busiest_ps * use.count > HOT * use.busy_ps
    owner = f" of rank {use.busiest_rank}" if use.busiest_rank >= 0 else ""
    sentence = (
        f"{KIND_NAMES[use.kind]}: {use.busiest}{owner} is busy for {_percent(share)} of the "
        f"{format_time(duration_ps)} in which kernels run"
    )
    if use.count > 1:
        sentence += f", the {use.count} of its kind {_percent(mean)} on average"
    sentence += "; it is a hot spot." if hot else "."
    return Bottleneck(what="resource", name=use.busiest, share=share, sentence=sentence, hot_spot=hot)


def _issue(result: ResourceUses, share: float) -> Bottleneck:
    cycles = result.model.issue_cycles
    sentence = (
        f"CUs issue requests for {_percent(share)} of the time in which kernels run, one every "
        f"{_count(cycles, 'cycle')}: more CUs, so more workgroups, would issue faster."
    )
    return Bottleneck(what="issue", name="", share=share, sentence=sentence)


def _stall(result: ResourceUses, busiest: KindUse, duration_ps: int) -> Bottleneck:
    times = run.state_times(result)
    what = max(times, key=lambda name: times[name])
    share = times[what] / max(1, sum(times.values()))
    quiet = f"No resource is busy for more than {_percent(busiest.busiest_ps / duration_ps)} ({busiest.busiest})"
    if what == "memory":
        return _memory(result, share, quiet)
    spent = {
        "semaphore": "wait for a semaphore, so for another workgroup or GPU,",
        "barrier": "wait at a barrier for others of their workgroup",
        "compute": "compute or wait for the ALU",
        "issue": "wait for their turn to issue a request",
    }[what]
    sentence = f"{quiet}; wavefronts {spent} for {_percent(share)} of their time{_longest(result, what)}."
    return Bottleneck(what=what, name="", share=share, sentence=sentence)


def _memory(result: ResourceUses, share: float, quiet: str) -> Bottleneck:
    """Waits for memory: the places are full, or there is not more to ask for, and the latency decides."""
    loads = sum(gpu.loads for gpu in result.gpus)
    words = f"{quiet}; wavefronts wait for memory for {_percent(share)} of their time"
    if not loads:
        return Bottleneck(what="latency", name="", share=share, sentence=f"{words}: for the way of their stores.")
    mean_ps = sum(gpu.load_latency_ps for gpu in result.gpus) / loads
    room = run.waiting_places(result)
    under_way = sum(g.load_latency_ps for g in result.gpus) / max(1, sum(g.occupied_ps for g in result.gpus))
    latency = f"a load takes {format_time(mean_ps)} on average{_wires(result)}"
    flights = f"an occupied CU has {under_way:.1f} loads under way on average, where its waiting wavefronts"
    full = under_way >= FULL * room
    sentence = f"{words}: {latency}; {flights} {_limit(result, room, full)}."
    return Bottleneck(what="limit" if full else "latency", name="", share=share, sentence=sentence)


def _limit(result: ResourceUses, room: float, full: bool) -> str:
    """Say how many requests there may be, and of a limit that is reached which one it is."""
    may = f"may have {room:.1f}"
    most = result.model.max_outstanding
    if not full:
        return may
    if room >= most:
        return f"{may}: the limit of a CU (max-outstanding {most}) decides"
    return f"{may}: the limit of each (unroll {run.unroll(result)}) decides, a CU has room for {most}"


def _wires(result: ResourceUses) -> str:
    """Say how much of the latency of loads is that of links."""
    wires = load_wires_ps(result)
    return f", {format_time(wires)} of that the latency of links there and back" if wires else ""


def load_wires_ps(result: ResourceUses) -> float:
    """Return the latency of links, there and back, of the mean line that is loaded; loads of the own GPU have none."""
    program, ops = result.program, result.shown.op
    own = program.kernel_rank[result.shown.workgroup_kernel[result.shown.op_row]].astype(np.int64)
    operand, ptr = members(program.operand_ptr, ops)
    row = row_of(ptr)
    role = program.operand_role[operand]
    loads = np.isin(role, (READ, READ_FLAGGED, READ_SUM)) & np.isin(program.op_kind[ops[row]], DATA_OPS)
    operand, row, is_sum = operand[loads], row[loads], role[loads] == READ_SUM
    # what a switch adds up comes from all members, as far away as another one
    operand += is_sum & (program.operand_rank[operand] == own[row])
    lines = program.op_amount[ops[row]]
    key = own[row] * program.num_ranks + program.operand_rank[operand]
    pairs, group = np.unique(key, return_inverse=True)
    weight = np.zeros(len(pairs), np.int64)
    np.add.at(weight, group, lines)
    total = int(weight.sum())
    there_and_back = [_round_trip_ps(result, *divmod(int(pair), program.num_ranks)) for pair in pairs.tolist()]
    return sum(t * w for t, w in zip(there_and_back, weight.tolist(), strict=True)) / total if total else 0.0


def _round_trip_ps(result: ResourceUses, rank: int, peer: int) -> int:
    if rank == peer:
        return 0
    here, there = int(result.group[rank]), int(result.group[peer])
    cluster = result.cluster
    ways = cluster.paths(here, there)[0][0], cluster.paths(there, here)[0][0]
    return sum(cluster.seen_by_messages(link)[1] for way in ways for link in way)


def _longest(result: ResourceUses, what: str) -> str:
    """Name the operations in which most of such a wait is."""
    kind = _WAITS.get(what)
    use = next((use for use in result.operations if use.kind == kind), None)
    if use is None:
        return ""
    name = f"{use.kind} {use.label!r}" if use.label else use.kind
    return f"; {_count(use.count, 'operation')} {name} take {format_time(use.time_ps / use.count)} on average"


def _count(number: int, word: str) -> str:
    return f"{number:,} {word}" if number == 1 else f"{number:,} {word}s"


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"
