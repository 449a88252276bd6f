"""Bottleneck of a load-store run: a resource, limit, latency or wait, in one sentence with its numbers.

The first rule that holds decides. Most of the run lies before the first workgroup or after the last. A resource is busy
for at least BUSY of the time between these. Otherwise the longest state of the wavefronts is the bottleneck. If that
state is memory, the bottleneck is the limit on requests in flight (at FULL of the slots of waiting wavefronts) or the
latency of a request.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from trine.common.arrays import members, row_of
from trine.common.units import format_time
from trine.gpu.program import DATA_OPS, READ, READ_FLAGGED, READ_SUM
from trine.gpu.results import run
from trine.gpu.results.resources import KIND_NAMES, KindUse, ResourceUses

#: A resource is the bottleneck if it is busy for BUSY of the kernel time; request slots are if FULL of them are in use.
BUSY, FULL = 0.7, 0.8
#: The busiest resource is a hot spot if its busy time exceeds this multiple of the mean of its kind.
HOT = 2.0
_WAITS = {"semaphore": "acquire", "barrier": "barrier", "compute": "reduce"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Bottleneck:
    """Bottleneck of a run. ``what``: ``nothing ran``, ``outside of kernels``, ``resource``, ``issue``, ``limit``,
    ``latency``, ``semaphore``, ``barrier`` or ``compute``.

    name: name of the resource, else "". share: busy share of the kernel time (for ``outside of kernels``, share of the
    whole run), or the share of wavefront time spent in the wait. hot_spot: whether the resource is far busier than the
    rest of its kind.
    """

    what: str
    name: str
    share: float
    sentence: str
    hot_spot: bool = False


def find_bottleneck(result: ResourceUses) -> Bottleneck:
    """Return the bottleneck of a run."""
    start, end = result.window_ps
    duration = end - start
    if duration <= 0:
        return Bottleneck(what="nothing ran", name="", share=0.0, sentence="no workgroup ran")
    outside = result.time_ps - duration
    if 2 * outside > result.time_ps:
        return _outside(result, start, outside)
    busiest = max(result.kinds, key=lambda use: use.busiest_ps)
    issue = issue_share(result, duration)
    if max(busiest.busiest_ps / duration, issue) >= BUSY:
        return _issue(result, issue) if issue > busiest.busiest_ps / duration else _resource(result, busiest, duration)
    return _stall(result, busiest, duration)


def issue_share(result: ResourceUses, duration_ps: int) -> float:
    """Return the share of time that occupied CUs spend on issuing requests: mean over CUs, on the busiest GPU."""
    each_ps = result.model.issue_cycles * result.model.cycle_ps
    return max(
        (gpu.requests * each_ps / (gpu.occupied_cus * duration_ps) for gpu in result.gpus if gpu.occupied_cus),
        default=0.0,
    )


def _outside(result: ResourceUses, start_ps: int, outside_ps: int) -> Bottleneck:
    share = outside_ps / result.time_ps
    sentence = (
        f"launches: {_percent(share)} of the {format_time(result.time_ps)} is outside kernels: {format_time(start_ps)} "
        f"before the first workgroup (a launch takes {format_time(result.model.launch_ps)})"
    )
    if outside_ps > start_ps:
        sentence += f", {format_time(outside_ps - start_ps)} after the last"
    return Bottleneck(what="outside of kernels", name="", share=share, sentence=sentence)


def _resource(result: ResourceUses, use: KindUse, duration_ps: int) -> Bottleneck:
    share, mean = use.busiest_ps / duration_ps, use.busy_ps / use.count / duration_ps
    hot = use.count > 1 and use.busiest_ps * use.count > HOT * use.busy_ps
    owner = f" of rank {use.busiest_rank}" if use.busiest_rank >= 0 else ""
    sentence = (
        f"{KIND_NAMES[use.kind]}: {use.busiest}{owner} is busy {_percent(share)} of the kernel time "
        f"({format_time(duration_ps)})"
    )
    if use.count > 1:
        sentence += f"; mean of all {use.count}: {_percent(mean)}"
    sentence += "; hot spot" if hot else ""
    return Bottleneck(what="resource", name=use.busiest, share=share, sentence=sentence, hot_spot=hot)


def _issue(result: ResourceUses, share: float) -> Bottleneck:
    cycles = result.model.issue_cycles
    sentence = (
        f"issue bound: CUs issue requests {_percent(share)} of the kernel time, one every {_count(cycles, 'cycle')}; "
        "more workgroups on more CUs issue faster"
    )
    return Bottleneck(what="issue", name="", share=share, sentence=sentence)


def _stall(result: ResourceUses, busiest: KindUse, duration_ps: int) -> Bottleneck:
    times = run.state_times(result)
    state = max(times, key=lambda name: times[name])
    share = times[state] / max(1, sum(times.values()))
    quiet = f"nothing is above {_percent(busiest.busiest_ps / duration_ps)} busy ({busiest.busiest})"
    if state == "memory":
        return _memory(result, share, quiet)
    spent = {
        "semaphore": "wait for a semaphore that another workgroup or GPU sets",
        "barrier": "wait at a barrier for the other wavefronts of their workgroup",
        "compute": "compute or wait for the ALU",
        "issue": "wait for a turn to issue a request",
    }[state]
    sentence = f"{state} bound: wavefronts {spent}, {_percent(share)} of the time; {quiet}{_longest(result, state)}"
    return Bottleneck(what=state, name="", share=share, sentence=sentence)


def _memory(result: ResourceUses, share: float, quiet: str) -> Bottleneck:
    """Return the limit on requests in flight as bottleneck if most slots are in use, else the latency of a request."""
    loads = sum(gpu.loads for gpu in result.gpus)
    memory_share = f"wavefronts wait for memory {_percent(share)} of the time; {quiet}"
    if not loads:
        sentence = f"latency bound: {memory_share}; they wait for their stores"
        return Bottleneck(what="latency", name="", share=share, sentence=sentence)
    mean_ps = sum(gpu.load_latency_ps for gpu in result.gpus) / loads
    room = run.places(result, ("memory", "issue"))
    latency_ps = sum(g.load_latency_ps for g in result.gpus)
    occupied_ps = sum(g.occupied_ps for g in result.gpus)
    under_way = latency_ps / max(1, occupied_ps)
    full = under_way >= FULL * room
    bound = "limited by requests in flight" if full else "latency bound"
    flights = f"{under_way:.1f} of at most {room:.1f} loads in flight per CU{_limit(result, room) if full else ''}"
    sentence = f"{bound}: {memory_share}; {flights}; a load takes {format_time(mean_ps)}{_wires(result)}"
    return Bottleneck(what="limit" if full else "latency", name="", share=share, sentence=sentence)


def _limit(result: ResourceUses, room: float) -> str:
    """Return the name of the limit on requests in flight that the run reaches."""
    max_outstanding = result.model.max_outstanding
    if room >= max_outstanding:
        return f" (max-outstanding {max_outstanding})"
    return f" (unroll {run.unroll(result)}; a CU has room for {max_outstanding})"


def _wires(result: ResourceUses) -> str:
    """Return the part of a load's latency that links cause, as text."""
    wires = load_wires_ps(result)
    return f", {format_time(wires)} of it link latency" if wires else ""


def load_wires_ps(result: ResourceUses) -> float:
    """Return the mean round-trip link latency of loaded lines, in ps; loads from the same GPU count as 0."""
    program, ops = result.program, result.shown.op
    issuer = program.kernel_rank[result.shown.workgroup_kernel[result.shown.op_row]].astype(np.int64)
    operand, ptr = members(program.operand_ptr, ops)
    row = row_of(ptr)
    role = program.operand_role[operand]
    loads = np.isin(role, (READ, READ_FLAGGED, READ_SUM)) & np.isin(program.op_kind[ops[row]], DATA_OPS)
    operand, row, is_sum = operand[loads], row[loads], role[loads] == READ_SUM
    # a switch reduces data from all members, so its latency is like a load from a remote member
    operand += is_sum & (program.operand_rank[operand] == issuer[row])
    lines = program.op_amount[ops[row]]
    key = issuer[row] * program.num_ranks + program.operand_rank[operand]
    pairs, group = np.unique(key, return_inverse=True)
    weight = np.zeros(len(pairs), np.int64)
    np.add.at(weight, group, lines)
    total = int(weight.sum())
    there_and_back = [_round_trip_ps(result, *divmod(int(pair), program.num_ranks)) for pair in pairs.tolist()]
    if total:
        return sum(t * w for t, w in zip(there_and_back, weight.tolist(), strict=True)) / total
    return 0.0


def _round_trip_ps(result: ResourceUses, rank: int, peer: int) -> int:
    if rank == peer:
        return 0
    source, target = int(result.group[rank]), int(result.group[peer])
    cluster = result.cluster
    routes = cluster.paths(source, target)[0][0], cluster.paths(target, source)[0][0]
    return sum(cluster.seen_by_messages(link)[1] for route in routes for link in route)


def _longest(result: ResourceUses, state: str) -> str:
    """Return the operations that cause most of a wait, as text."""
    kind = _WAITS.get(state)
    use = next((use for use in result.operations if use.kind == kind), None)
    if use is None:
        return ""
    name = f"{use.kind} {use.label!r}" if use.label else use.kind
    return f"; {_count(use.count, 'operation')} {name}, {format_time(use.time_ps / use.count)} each"


def _count(number: int, word: str) -> str:
    return f"{number:,} {word}" if number == 1 else f"{number:,} {word}s"


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"
