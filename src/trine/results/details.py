"""All of a result as text (``--details``): aligned tables, the largest bottlenecks first."""

from __future__ import annotations

from collections.abc import Sequence

from trine.common.units import format_bandwidth, format_bytes, format_energy, format_power, format_time
from trine.results import headline
from trine.results.brief import memory_needed, profile_suffix, throughput
from trine.results.link_use import LinkUse
from trine.results.metrics import Share
from trine.results.run import TaskRun
from trine.results.summary import likely_throughput, question
from trine.results.text import aligned, behaviour, width, wrapped
from trine.results.waits import RANK_REASONS

_NAME = 44
#: Tiers of links that are shown, the hottest first.
MAX_TIERS = 6
#: Facts of a plan that the line of the layout states, and internal ones.
_HIDDEN_FACTS = (
    "source", "cluster_fingerprint", "is_training", "num_steps", "num_ranks", "routing", "routing_reason", "workload",
    "name", "gpu", "trace_gpu", "trace_batch", "cluster", "software", "global_batch", "dp", "tp", "cp", "ep", "pp",
    "schedule", "sharding", "recompute", "sequence_parallel", "overlap", "num_split_operators",
)  # fmt: skip


def details(result: TaskRun) -> str:
    """Return every block as text."""
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
    blocks_text = []
    for block in blocks:
        if block:
            blocks_text.append("\n".join(line.rstrip() for line in block))
    return "\n".join(blocks_text)


def _head(result: TaskRun) -> list[str]:
    settings = {key: value for key, value in result.plan.items() if key not in _HIDDEN_FACTS}
    scalars = {key: value for key, value in settings.items() if isinstance(value, str | int | float) and value != ""}
    facts = ", ".join(f"{key.replace('_', ' ')} {_fact(value)}" for key, value in scalars.items())
    lines = [f"step time  {format_time(result.step_time_ps)}{profile_suffix(result)}"]
    if result.num_steps > 1:
        lines[0] += f"  (step {result.num_steps} of {result.num_steps}, from the end of the one before)"
    lines += _numbers(result)
    for sentence in result.warnings:
        lines += wrapped("warning", sentence)
    return [*lines, *wrapped("layout", question(result)), *wrapped("settings", facts)]


def _numbers(result: TaskRun) -> list[str]:
    """Return the band, throughput and utilisation."""
    ends, work, lines = headline.ends_ps(result), result.work, []
    if ends is not None and result.band is not None:
        lines += wrapped(f"{format_time(ends[0])} to {format_time(ends[1])}", result.band.words)
    if work is None or not result.step_time_ps:
        return lines
    rates, values = throughput(work, result.step_time_ps), headline.numbers(result)
    if ends is not None:
        rates[-1] += f" ({likely_throughput(work, ends)})"
    if work.model_flops:
        rates.append(f"{_tera(values['model_flops_per_s_per_gpu'])} TFLOP/s a GPU")
        if work.hardware_flops > work.model_flops:
            rates.append(f"{_tera(values['hardware_flops_per_s_per_gpu'])} with recomputation")
    if values["mfu"] is not None:
        low, high = values["mfu_low"], values["mfu_high"]
        mfu_range = "" if low is None or ends == (result.step_time_ps,) * 2 else f"{low:.1%} to {high:.1%}"
        rates.append(f"{headline.mfu_words(float(str(values['mfu'])), mfu_range, work.mfu_definition)} of {work.dtype}")
    return [*lines, *wrapped("throughput", ", ".join(rates))]


def _tera(flop_per_s: object) -> str:
    return f"{float(str(flop_per_s)) / 1e12:,.4g}"


def _times(result: TaskRun) -> list[str]:
    """Return how the slowest rank spends the step, longest first, and its waits."""
    times, rank, step = result.rank_times, result.slowest_row, result.step_time_ps
    kinds = (times.compute, times.exposed, times.bubble, times.idle)
    names = ("compute", "exposed communication", "pipeline bubble", "idle")
    parts = sorted(((name, int(ps[rank])) for name, ps in zip(names, kinds, strict=True)), key=lambda part: -part[1])
    waits = sorted(zip(times.waits[rank].tolist(), RANK_REASONS, strict=True), reverse=True)
    wait_text = ", ".join(f"{reason} {format_time(ps)}" for ps, reason in waits if ps)
    path = sorted(((ps, name) for name, ps in result.critical_path_times.items() if ps), reverse=True)
    rows = [(name, format_time(ps), _percent(ps, step)) for name, ps in parts if ps or name == "compute"]
    hidden = int(times.communication[rank] - times.exposed[rank])
    if hidden:
        rows.append(("(communication hidden behind compute)", format_time(hidden), _percent(hidden, step)))
    return [
        f"time of rank {result.slowest_rank}, {_place(result)}",
        *_table(rows),
        *wrapped("waited for", wait_text),
        *wrapped("critical path", ", ".join(f"{name} {_percent(ps, step).strip()}" for ps, name in path)),
    ]


def _place(result: TaskRun) -> str:
    """Return whether the slowest of the ranks that are shown is the slowest of all."""
    rank_ends_ps = result.records.end_ps[result.graph.rank == result.slowest_row]
    early = result.window.end_ps - int(rank_ends_ps.max(initial=0))
    if early and len(result.shown_ranks) < result.num_ranks:
        return f"which ends {format_time(early)} before the last of {result.num_ranks}"
    return f"the slowest of {result.num_ranks}"


def _top_shares(heading: str, shares: Sequence[Share], step_ps: int, num_shown: int) -> list[str]:
    ranked = sorted(shares, key=lambda share: -(share.compute_ps + share.communication_ps))
    rows = [("", "compute", "", "communication", "")]
    for share in ranked[:num_shown]:
        sent = share.communication_ps
        communication = (format_time(sent), _percent(sent, step_ps)) if sent else ("", "")
        compute = format_time(share.compute_ps), _percent(share.compute_ps, step_ps)
        rows.append((_short(share.name), *compute, *communication))
    return [f"top {heading}{_shown_note(len(ranked), num_shown)}", *_table(rows)] if ranked else []


def _collectives(result: TaskRun) -> list[str]:
    uses = result.collectives
    rows = []
    for use in uses[:4]:
        late = f"+ {format_time(use.waiting_ps)} waiting for late ranks" if use.waiting_ps else ""
        sizes = f"{use.count} x {format_bytes(use.size_bytes)}", f"{use.group_size} ranks"
        rows.append((_short(use.kind), *sizes, format_time(use.transfer_ps), late))
    return [f"collectives of a rank{_shown_note(len(uses), 4)}", *_table(rows)] if uses else []


def _links(result: TaskRun) -> list[str]:
    """Return the hottest link of each tier, and how many links of the tier carry something."""
    busy_links = [use for use in result.links if use.size_bytes]
    used_links = sorted(busy_links, key=lambda use: (-use.utilisation, use.link))
    tiers: dict[str, list[LinkUse]] = {}
    for use in used_links:
        tiers.setdefault(use.tier or use.name, []).append(use)
    rows = []
    for uses in list(tiers.values())[:MAX_TIERS]:
        size, rate = format_bytes(uses[0].size_bytes), f"of {format_bandwidth(uses[0].bytes_per_s)}"
        rows.append((_short(uses[0].name), _tier(uses), size, rate, f"{100 * uses[0].utilisation:.1f} %"))
    return [f"busiest link of each tier{_shown_note(len(tiers), MAX_TIERS)}", *_table(rows)] if used_links else []


def _tier(uses: Sequence[LinkUse]) -> str:
    """``leaf-spine, 256 links``: those that carry something; "" where tiers are not known."""
    count = sum(use.count for use in uses)
    if uses[0].tier:
        return f"{uses[0].tier}, {count} link{'s' if count > 1 else ''}"
    return ""


def _memory(result: TaskRun) -> list[str]:
    if not result.memory_peaks:
        return []
    row, head = result.fullest_row, memory_needed(result)
    peak, use = result.memory_peaks[row], result.memory_uses[row]
    if use.margin_bytes is not None:
        margin = use.margin_bytes
        share = f"{format_bytes(abs(margin))} ({abs(margin) / use.capacity_bytes:.1%})"
        head += f", {share} {'left' if margin >= 0 else 'over'}"
    largest = sorted(((size, name.replace("_", " ")) for name, size in peak.by_category.items() if size), reverse=True)
    parts = [f"likely {format_bytes(use.low_bytes)} to {format_bytes(use.high_bytes)}"]
    parts += [f"allocated {format_bytes(use.allocated_bytes)}", f"reserved {format_bytes(use.reserved_bytes)}"]
    if use.available_bytes is not None:
        parts.append(f"available {format_bytes(use.available_bytes)}")
    if use.outside_bytes:
        parts.append(f"context and communicators {format_bytes(use.outside_bytes)}")
    return [
        f"memory needed  {head}",
        *wrapped("needs", ", ".join(parts)),
        *wrapped("allocated", ", ".join(f"{name} {format_bytes(size)}" for size, name in largest)),
    ]


def _energy(result: TaskRun) -> list[str]:
    use = result.energy
    if use is None:
        return []
    return [
        f"energy  {format_energy(use.joules)} a step, {format_power(use.mean_w)} on average for {use.num_ranks} "
        f"GPU{'s' if use.num_ranks > 1 else ''} ({use.evidence})"
    ]


def _notes(result: TaskRun) -> list[str]:
    lines = []
    for item in result.evidence:
        share = "" if item.share is None else f" ({100 * item.share:.1f} % of the time)"
        detail = f": {item.detail}" if item.detail else ""
        lines += wrapped(item.kind, f"{item.what}{share}{detail}")
    for sentence in result.not_modelled:
        lines += wrapped("not modelled", sentence)
    if result.plan.get("routing") and result.plan.get("routing_reason"):
        lines += wrapped("routing", f"{result.plan['routing']} ({result.plan['routing_reason']})")
    return [*lines, *_folding(result), _simulated(result)]


def _folding(result: TaskRun) -> list[str]:
    """Return the classes of ranks in each stage of a run with several, and notes."""
    scope = result.scope
    if scope is None or scope.num_ranks == 1:
        return []
    lines = []
    for stage in scope.stages[:4] if len(scope.stages) > 1 else ():
        ways = behaviour(stage.num_ranks, stage.num_classes)
        counts = f"{stage.num_tasks:,} tasks, {stage.num_events:,} events"
        lines.append(f"folded from {format_time(stage.begins_ps)} on: {ways}, {counts}")
    if len(scope.stages) > 4:
        lines.append(f"folded: {len(scope.stages) - 4} more stages of the run with finer classes")
    return lines + [line for note in scope.notes for line in wrapped("folding", note)]


def _simulated(result: TaskRun) -> str:
    run, stages = result.simulator, () if result.scope is None else result.scope.stages
    ranks = f"{run.ranks_simulated} of {result.num_ranks} ranks:"
    if len(stages) == 1 and result.num_ranks > run.ranks_simulated:
        ranks = f"1 of {result.num_ranks} identical ranks:"
        if run.ranks_simulated > 1:
            ranks = f"{run.ranks_simulated} representative ranks of {result.num_ranks}:"
        ranks += f" {stages[0].num_tasks:,} tasks,"
    wall = format_time(run.wall_s * 1e12)
    return f"simulated {ranks} {run.events:,} events in {wall} by trine {run.version}"


def _table(rows: Sequence[tuple[str, ...]]) -> list[str]:
    """Return lines whose first column is _NAME wide, as in other tables, if the terminal is wide enough."""
    excess = max(map(len, aligned(rows, _NAME))) + 2 - width()
    return [f"  {line}" for line in aligned(rows, _NAME - max(0, excess))]


def _percent(part: int, total: int) -> str:
    return f"{100 * part / total:5.1f} %" if total else "-"


def _fact(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value)


def _short(name: str) -> str:
    """Keep the end of a name that is too long: there operators and layers differ."""
    name = name.removeprefix("autograd::engine::evaluate_function: ")
    return name if len(name) <= _NAME else f"...{name[3 - _NAME :]}"


def _shown_note(count: int, num_shown: int) -> str:
    return f" ({num_shown} of {count})" if count > num_shown else ""
