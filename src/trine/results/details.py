"""A result for people: aligned text, the largest bottlenecks first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from trine.results import headline
from trine.results.metrics import Share
from trine.results.run import TaskRun
from trine.results.text import aligned, behaviour, wrapped
from trine.results.traffic import LinkUse
from trine.results.waits import RANK_REASONS
from trine.software.profile import NO_SOFTWARE
from trine.units import format_bandwidth, format_bytes, format_energy, format_power, format_time

if TYPE_CHECKING:
    from trine.results.headline import StepWork

_NAME = 44
#: Tiers of links that are shown, the hottest first.
MAX_TIERS = 6
_HIDDEN_FACTS = (
    "source", "cluster_fingerprint", "is_training", "num_steps", "num_ranks", "routing", "routing_reason",
)  # fmt: skip


def summary(result: TaskRun) -> str:
    """Return a text of at most about 45 lines of 100 columns."""
    blocks = (
        _head(result),
        _times(result),
        _top_shares("operators", result.operators, result.step_time_ps, 5),
        _top_shares("layers", result.layers, result.step_time_ps, 3),
        _collectives(result),
        _links(result),
        _memory(result),
        _energy(result),
        _notes(result),
    )
    return "\n".join("\n".join(line.rstrip() for line in block) for block in blocks if block)


def _head(result: TaskRun) -> list[str]:
    is_model = str(result.plan.get("source", "")).startswith("model:")
    hidden = (*_HIDDEN_FACTS, *(("trace_gpu", "trace_batch") if is_model else ()))
    shown = {key: value for key, value in result.plan.items() if key not in hidden}
    plain = {key: value for key, value in shown.items() if isinstance(value, str | int | float) and value != ""}
    facts = ", ".join(f"{key.replace('_', ' ')} {_fact(value)}" for key, value in plain.items())
    lines = [f"step time  {format_time(result.step_time_ps)}{profile_words(result)}"]
    if result.num_steps > 1:
        lines[0] += f"  (step {result.num_steps} of {result.num_steps}, from the end of the one before)"
    lines += _numbers(result)
    for sentence in result.warnings:
        lines += wrapped("warning", sentence)
    return [*lines, *wrapped("plan", facts)]


def profile_words(result: TaskRun) -> str:
    """Return ``" with megatron-core"``, the software profile that an answer is for; empty without one."""
    name = result.plan.get("software")
    return f" with {name}" if name not in (None, NO_SOFTWARE) else ""


def _numbers(result: TaskRun) -> list[str]:
    """Return the band, throughput and utilisation."""
    ends, work, lines = headline.ends_ps(result), result.work, []
    if ends is not None and result.band is not None:
        lines += wrapped(f"{format_time(ends[0])} to {format_time(ends[1])}", result.band.words)
    if work is None or not result.step_time_ps:
        return lines
    rates, used = _throughput(work, result.step_time_ps), headline.numbers(result)
    if work.model_flops:
        rates.append(f"{_tera(used['model_flops_per_s_per_gpu'])} TFLOP/s a GPU")
        if work.hardware_flops > work.model_flops:
            rates.append(f"{_tera(used['hardware_flops_per_s_per_gpu'])} with recomputation")
    if used["mfu"] is not None:
        low, high = used["mfu_low"], used["mfu_high"]
        between = "" if low is None or ends == (result.step_time_ps,) * 2 else f" ({low:.1%} to {high:.1%})"
        rates.append(f"MFU {used['mfu']:.1%}{between} of {work.dtype}")
    return [*lines, *wrapped("throughput", ", ".join(rates))]


def rates_in_brief(result: TaskRun) -> list[str]:
    """Tokens a second, else samples, and the MFU, of those that are known."""
    if result.work is None or not result.step_time_ps:
        return []
    used = headline.mfu(result)
    return _throughput(result.work, result.step_time_ps)[-1:] + ([] if used is None else [f"MFU {used:.1%}"])


def _throughput(work: StepWork, step_ps: int) -> list[str]:
    """Return samples and tokens a second: five digits, or all before the point where there are more."""
    counts = ((what, getattr(work, what)) for what in ("samples", "tokens"))
    found = ((what, headline.per_second(count, step_ps)) for what, count in counts if count)
    return [f"{per_s:,.0f} {what}/s" if per_s >= 1e4 else f"{per_s:,.5g} {what}/s" for what, per_s in found]


def _tera(flop_per_s: object) -> str:
    return f"{float(str(flop_per_s)) / 1e12:,.4g}"


def _times(result: TaskRun) -> list[str]:
    """Return how the slowest rank spends the step, longest first, and what it waited for."""
    times, rank, step = result.rank_times, result.slowest_row, result.step_time_ps
    parts = [
        ("compute", int(times.compute[rank])),
        ("exposed communication", int(times.exposed[rank])),
        ("pipeline bubble", int(times.bubble[rank])),
        ("idle", int(times.idle[rank])),
    ]
    parts.sort(key=lambda part: -part[1])
    waits = sorted(zip(times.waits[rank].tolist(), RANK_REASONS, strict=True), reverse=True)
    waited = ", ".join(f"{reason} {format_time(ps)}" for ps, reason in waits if ps)
    path = sorted(((ps, name) for name, ps in result.critical_path_times.items() if ps), reverse=True)
    rows = [(name, format_time(ps), _percent(ps, step)) for name, ps in parts if ps or name == "compute"]
    hidden = int(times.communication[rank] - times.exposed[rank])
    if hidden:
        rows.append(("(communication hidden behind compute)", format_time(hidden), _percent(hidden, step)))
    return [
        f"time of rank {result.slowest_rank}, {_place(result)}",
        *_table(rows),
        *wrapped("waited for", waited),
        *wrapped("critical path", ", ".join(f"{name} {_percent(ps, step).strip()}" for ps, name in path)),
    ]


def _place(result: TaskRun) -> str:
    """Return whether the slowest of the ranks that are shown is the slowest of all."""
    own = result.records.end_ps[result.graph.rank == result.slowest_row]
    early = result.end_time_ps - int(own.max(initial=0))
    if early and len(result.shown_ranks) < result.num_ranks:
        return f"which ends {format_time(early)} before the last of {result.num_ranks}"
    return f"the slowest of {result.num_ranks}"


def _top_shares(what: str, shares: Sequence[Share], step_ps: int, shown: int) -> list[str]:
    ranked = sorted(shares, key=lambda share: -(share.compute_ps + share.communication_ps))
    rows = [("", "compute", "", "communication", "")]
    for share in ranked[:shown]:
        rows.append(
            (
                _short(share.name),
                format_time(share.compute_ps),
                _percent(share.compute_ps, step_ps),
                format_time(share.communication_ps) if share.communication_ps else "",
                _percent(share.communication_ps, step_ps) if share.communication_ps else "",
            )
        )
    return [f"top {what}{_of(len(ranked), shown)}", *_table(rows)] if ranked else []


def _collectives(result: TaskRun) -> list[str]:
    uses = result.collectives
    rows = [
        (
            _short(use.kind),
            f"{use.count} x {format_bytes(use.size_bytes)}",
            f"{use.group_size} ranks",
            format_time(use.transfer_ps),
            f"+ {format_time(use.waiting_ps)} waiting for late ranks" if use.waiting_ps else "",
        )
        for use in uses[:4]
    ]
    return [f"collectives of a rank{_of(len(uses), 4)}", *_table(rows)] if uses else []


def _links(result: TaskRun) -> list[str]:
    """Return the hottest link of each tier, and how many links of the tier carry something."""
    used = sorted((use for use in result.links if use.size_bytes), key=lambda use: (-use.utilisation, use.link))
    tiers: dict[str, list[LinkUse]] = {}
    for use in used:
        tiers.setdefault(use.tier or use.name, []).append(use)
    rows = [
        (
            _short(uses[0].name),
            _tier(uses),
            format_bytes(uses[0].size_bytes),
            f"of {format_bandwidth(uses[0].bytes_per_s)}",
            f"{100 * uses[0].utilisation:.1f} %",
        )
        for uses in list(tiers.values())[:MAX_TIERS]
    ]
    return [f"busiest link of each tier{_of(len(tiers), MAX_TIERS)}", *_table(rows)] if used else []


def _tier(uses: Sequence[LinkUse]) -> str:
    """``leaf-spine, 256 links``: those that carry something; "" where tiers are not known."""
    count = sum(use.count for use in uses)
    return f"{uses[0].tier}, {count} link{'s' if count > 1 else ''}" if uses[0].tier else ""


def memory_needed(result: TaskRun) -> str:
    """Return the memory of the rank with the least headroom, and whether it fits; empty if memory was not followed."""
    return "" if not result.memory_peaks else _needed(result)


def _needed(result: TaskRun) -> str:
    use = result.memory_uses[result.fullest_row]
    is_known = use.margin_bytes is not None
    of = f" of {format_bytes(use.capacity_bytes)}" if is_known else ""
    shown = use.verdict.upper() if is_known else use.verdict
    return f"{format_bytes(use.needed_bytes)}{of} (rank {result.fullest_rank}): {shown}"


def _memory(result: TaskRun) -> list[str]:
    if not result.memory_peaks:
        return []
    row, head = result.fullest_row, _needed(result)
    peak, use = result.memory_peaks[row], result.memory_uses[row]
    if use.margin_bytes is not None:
        margin = use.margin_bytes
        share = f"{format_bytes(abs(margin))} ({abs(margin) / use.capacity_bytes:.1%})"
        head += f", {share} {'left' if margin >= 0 else 'over'}"
    held = sorted(((size, name.replace("_", " ")) for name, size in peak.by_category.items() if size), reverse=True)
    parts = [f"allocated {format_bytes(use.allocated_bytes)}", f"reserved {format_bytes(use.reserved_bytes)}"]
    if use.available_bytes is not None:
        parts.append(f"available {format_bytes(use.available_bytes)}")
    if use.outside_bytes:
        parts.append(f"context and communicators {format_bytes(use.outside_bytes)}")
    return [
        f"memory needed  {head}",
        *wrapped("needs", ", ".join(parts)),
        *wrapped("allocated", ", ".join(f"{name} {format_bytes(size)}" for size, name in held)),
    ]


def _energy(result: TaskRun) -> list[str]:
    found = result.energy
    if found is None:
        return []
    return [
        f"energy  {format_energy(found.joules)} a step, {format_power(found.mean_w)} on average for {found.num_ranks} "
        f"GPU{'s' if found.num_ranks > 1 else ''} ({found.evidence})"
    ]


def _notes(result: TaskRun) -> list[str]:
    lines = []
    for item in result.evidence:
        share = "" if item.share is None else f" ({100 * item.share:.1f} % of the time)"
        detail = f": {item.detail}" if item.detail else ""
        lines += wrapped(item.kind, f"{item.what}{share}{detail}", 2)
    for sentence in result.not_modelled:
        lines += wrapped("not modelled", sentence)
    if result.plan.get("routing") and result.plan.get("routing_reason"):
        lines += wrapped("routing", f"{result.plan['routing']} ({result.plan['routing_reason']})")
    run = result.simulator
    ranks = f"{run.ranks_simulated} of {result.num_ranks} ranks"
    return [
        *lines,
        *_folding(result),
        f"simulated {ranks}, {run.events:,} events in {format_time(run.wall_s * 1e12)} by trine {run.version}",
    ]


def _folding(result: TaskRun) -> list[str]:
    """Return in how many classes the ranks were, and why."""
    scope = result.scope
    if scope is None or scope.num_ranks == 1:
        return []
    lines = []
    for stage in scope.stages[:4]:
        since = f" from {format_time(stage.begins_ps)} on" if stage.begins_ps else ""
        ways = behaviour(stage.num_ranks, stage.num_classes)
        lines.append(f"folded{since}: {ways}, {stage.num_tasks:,} tasks, {stage.num_events:,} events")
    if len(scope.stages) > 4:
        lines.append(f"folded: {len(scope.stages) - 4} more stages of the run with finer classes")
    return lines + [line for note in scope.notes for line in wrapped("folding", note)]


def _table(rows: Sequence[tuple[str, ...]]) -> list[str]:
    return [f"  {line}" for line in aligned(rows, _NAME)]


def _percent(part: int, whole: int) -> str:
    return f"{100 * part / whole:5.1f} %" if whole else "-"


def _fact(value: object) -> str:
    return ("yes" if value else "no") if isinstance(value, bool) else str(value)


def _short(name: str) -> str:
    """Keep the end of a name that is too long: there operators and layers differ."""
    name = name.removeprefix("autograd::engine::evaluate_function: ")
    return name if len(name) <= _NAME else f"...{name[3 - _NAME :]}"


def _of(count: int, shown: int) -> str:
    return f" ({shown} of {count})" if count > shown else ""
