"""A run of tasks on one screen (``trine train``): time, throughput, memory, time breakdown and evidence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from trine.common.evidence import EXPERT_LOAD, GPU_FILE
from trine.common.units import format_bandwidth, format_bytes, format_time
from trine.results import headline
from trine.results.brief import digits, profile_suffix, throughput
from trine.results.screen import Listing, Screen
from trine.results.waits import RANK_REASONS

if TYPE_CHECKING:
    from trine.common.evidence import Evidence
    from trine.results.headline import StepWork
    from trine.results.run import TaskRun
    from trine.results.traffic import CollectiveUse

MAX_COLLECTIVES, MAX_OPERATORS = 4, 5
#: Contention above this part of the step is named in the answer.
MIN_CONTENTION = 0.05
_AXES = ("tp", "cp", "ep", "pp", "dp")
#: Plan options that are part of the question, and the text for each; {} is the value.
_CHOICES = {
    "sharding": "{}", "schedule": "{}", "offload": "{} offloaded", "sequence_parallel": "sequence parallelism",
    "overlap": "overlap {}",
}  # fmt: skip
_USUAL = {"sharding": "none", "overlap": "modelled"}


def screen(result: TaskRun) -> Screen:
    """Return the default answer."""
    return Screen(
        question=question(result),
        numbers=[*_step(result), *_throughput_row(result), *_memory(result)],
        listings=(Listing(title=f"time of rank {result.slowest_rank}", rows=_times(result)), _uses(result)),
        warnings=result.warnings,
        closing=(
            ("range", "" if result.band is None else result.band.words),
            ("rests on", basis(result.evidence, profile_suffix(result))),
            ("bottleneck", _bottleneck(result)),
            ("experts", _statement(result, EXPERT_LOAD)),
            ("contention", _contention(result)),
            ("folding", _folding(result)),
            ("next", f"--details (operators, layers, links, evidence){_next(result)}"),
        ),
    )


def question(result: TaskRun) -> str:
    """Return the question in words: workload, machine, layout and batch."""
    plan = result.plan
    gpu, cluster = plan.get("gpu") or plan.get("trace_gpu"), plan.get("cluster")
    name = plan.get("workload") or plan.get("name") or "job"
    machine = f"{result.num_ranks:,} x {gpu or 'GPU'}" + (f" ({cluster})" if cluster else "")
    layout = " x ".join(f"{axis} {plan[axis]}" for axis in _AXES if plan.get(axis, 1) not in (1, None))
    facts = [layout, *_batches(result)]
    facts += [text.format(plan[key]) for key, text in _CHOICES.items() if plan.get(key) not in (None, _USUAL.get(key))]
    if plan.get("recompute") not in (None, "none"):
        facts.append(f"{plan['recompute']} recomputation")
    if profile := profile_suffix(result):
        facts.append(f"profile {profile.removeprefix(' with ')}")
    return f"{name} on {machine}: {', '.join(fact for fact in facts if fact)}".removesuffix(": ")


def _batches(result: TaskRun) -> list[str]:
    plan, work = result.plan, result.work
    if not isinstance(batch := plan.get("global_batch"), int):
        return []
    tokens = f" of {work.tokens // work.samples:,} tokens" if work is not None and work.tokens and work.samples else ""
    sizes = plan.get("micro_batches")
    count = len(sizes) if isinstance(sizes, Sequence) else 1
    return [f"global batch {batch:,}{tokens}", *([f"{count:,} micro-batches"] if count > 1 else [])]


def _step(result: TaskRun) -> list[tuple[str, str, str]]:
    ends = headline.ends_ps(result)
    remark = "" if ends is None else f"likely {format_time(ends[0])} to {format_time(ends[1])}"
    if result.num_steps > 1:
        remark += f"{'; ' if remark else ''}step {result.num_steps} of {result.num_steps}"
    return [("step", format_time(result.step_time_ps), remark)]


def _throughput_row(result: TaskRun) -> list[tuple[str, str, str]]:
    work, step_ps, ends = result.work, result.step_time_ps, headline.ends_ps(result)
    if work is None or not step_ps:
        return []
    (value, *_), remarks, values = throughput(work, step_ps)[::-1], [], headline.numbers(result)
    if ends is not None:
        remarks.append(likely_throughput(work, ends))
    if values["model_flops_per_s_per_gpu"]:
        rate = f"{float(str(values['model_flops_per_s_per_gpu'])) / 1e12:,.4g} TFLOP/s per GPU"
        if values["mfu"] is not None:
            likely = "" if values["mfu_low"] is None else f"{values['mfu_low']:.1%} to {values['mfu_high']:.1%}"
            rate += f", {headline.mfu_words(float(str(values['mfu'])), likely, work.mfu_definition)}"
        remarks.append(rate)
    return [("throughput", value, "; ".join(remarks))]


def likely_throughput(work: StepWork, ends_ps: tuple[int, int]) -> str:
    """Return the range of tokens (or samples) per second that corresponds to the range of the step."""
    low, high = (digits(headline.per_second(work.tokens or work.samples, ps)) for ps in ends_ps[::-1])
    return f"likely {low} to {high}"


def _memory(result: TaskRun) -> list[tuple[str, str, str]]:
    if not result.memory_peaks:
        return []
    use, margin = result.memory_uses[result.fullest_row], ""
    value = format_bytes(use.needed_bytes)
    verdict = use.verdict
    if use.margin_bytes is not None:
        value += f" of {format_bytes(use.capacity_bytes)}"
        verdict = verdict.upper()
        margin = f": {format_bytes(abs(use.margin_bytes))} {'left' if use.margin_bytes >= 0 else 'over'}"
    between = f"likely {format_bytes(use.low_bytes)} to {format_bytes(use.high_bytes)}"
    rows = [("memory", value, f"{verdict}{margin} on rank {result.fullest_rank}; {between}")]
    if (host := result.host_memory) is not None:
        value = f"{format_bytes(host.bytes_per_host)} of {format_bytes(host.capacity_bytes)}"
        rows.append(("host memory", value, f"{host.words}; offloaded by {host.ranks} ranks"))
    return rows


def _times(result: TaskRun) -> list[tuple[str, ...]]:
    """Return the slowest rank's time breakdown."""
    times, row, step = result.rank_times, result.slowest_row, result.step_time_ps
    compute, exposed, bubble, idle = (
        int(part_ps[row]) for part_ps in (times.compute, times.exposed, times.bubble, times.idle)
    )
    waits = dict(zip(RANK_REASONS, times.waits[row].tolist(), strict=True)) | {"communication": 0}
    longest = max(waits, key=lambda reason: waits[reason])
    parts = [
        ("compute", compute),
        ("exposed communication", exposed),
        ("pipeline bubble", bubble),
        (f"idle (mostly {longest})" if waits[longest] else "idle", idle),
    ]
    hidden = ("hidden communication", int(times.communication[row] - times.exposed[row]))
    shown_parts = [part for part in parts if part[1] or part[0] == "compute"]
    hidden_parts = [hidden] if hidden[1] else []
    visible = shown_parts + hidden_parts
    return [(name, format_time(ps), percent(ps, step)) for name, ps in visible]


def _uses(result: TaskRun) -> Listing:
    """Return the largest collectives of a rank; without any, the largest operators."""
    uses = result.collectives
    if not uses:
        rows = [(name, format_time(ps), percent(ps, result.step_time_ps)) for name, ps in _operators(result)]
        return Listing(title="largest operators", rows=rows[:MAX_OPERATORS])
    waits = any(use.waiting_ps for use in uses[:MAX_COLLECTIVES])
    lines = []
    for use in uses[:MAX_COLLECTIVES]:
        lines.append(
            (
                _group(use),
                f"{use.count:,} x {format_bytes(use.size_bytes)}",
                format_time(use.transfer_ps),
                *([f"+ {format_time(use.waiting_ps)} wait for late ranks" if use.waiting_ps else ""] if waits else []),
            )
        )
    return Listing(title="largest collectives of a rank", rows=lines)


def _group(use: CollectiveUse) -> str:
    """Return the collective with its group: ``all_reduce dp 8``, ``all_reduce of 8`` if no axis has a name.

    A message between two ranks of an axis is ``send_recv in ep``.
    """
    axes = "-".join(axis for axis in use.axes if not axis[-1:].isdigit())
    if use.kind == "send_recv" and axes:
        return f"send_recv in {axes}"
    return f"{use.kind} {axes or 'of'} {use.group_size}"


def _operators(result: TaskRun) -> list[tuple[str, int]]:
    ranked = sorted(result.operators, key=lambda share: -share.compute_ps)
    prefix = "autograd::engine::evaluate_function: "
    return [(share.name.removeprefix(prefix), share.compute_ps) for share in ranked if share.compute_ps]


def basis(evidence: Sequence[Evidence], profile: str = "") -> str:
    """Return the basis of the times: evidence of operator times, software profile, and number of assumptions."""
    shares = [f"{100 * item.share:.0f} % {item.kind}" for item in evidence if item.share is not None]
    facts = [f"operator times {', '.join(shares)}"] if shares else []
    facts += [f"kernels of {item.detail}" for item in evidence if item.what == GPU_FILE]
    facts += [f"software profile{profile.removeprefix(' with')}"] if profile else []
    assumed = sum(item.kind == "assumed" and item.share is None for item in evidence)
    assumptions = [f"{assumed} assumption{'s' if assumed > 1 else ''}"] if assumed else []
    return "; ".join([*facts, *assumptions])


def _bottleneck(result: TaskRun) -> str:
    path = sorted(((ps, name) for name, ps in result.critical_path_times.items() if ps), reverse=True)
    if not path:
        return ""
    (ps, name), step = path[0], result.step_time_ps
    text = f"{name}, {percent(ps, step)} of the critical path"
    if name == "compute" and (top := _operators(result)[:3]):
        return f"{text}; " + ", ".join(f"{operator} {percent(part, step)}" for operator, part in top) + " of the step"
    link = max(result.links, key=lambda use: use.utilisation, default=None)
    if name == "communication" and link is not None:
        rate = format_bandwidth(link.bytes_per_s)
        return f"{text}; busiest link {link.name}, {100 * link.utilisation:.0f} % of {rate}"
    return text


def _statement(result: TaskRun, subject: str) -> str:
    """Return the detail of the evidence on a subject; empty without one."""
    details = [item.detail for item in result.evidence if item.what == subject]
    return details[0] if details else ""


def _contention(result: TaskRun) -> str:
    """Return the cost of contention and its remedy, if it is above :data:`MIN_CONTENTION` of the step."""
    lost_ps, step_ps = result.contention_ps, result.step_time_ps
    if lost_ps <= MIN_CONTENTION * step_ps:
        return ""
    plan, remedy = result.plan, "NCCL_MAX_CTAS limits its SMs"
    if plan.get("sequence_parallel") and not plan.get("userbuffers"):
        remedy = "--userbuffers takes fewer for tensor parallelism"
    return (
        f"communication kernels beside GEMMs cost {format_time(lost_ps)} of compute, {percent(lost_ps, step_ps)} of "
        f"the step; {remedy} (trine help contention)"
    )


def _folding(result: TaskRun) -> str:
    """Return the results of ``--verify-fold``, and the bound of micro-batches that nearly repeat, if any."""
    notes, repeats, steps = () if result.scope is None else result.scope.notes, result.repeats, result.repeated_steps
    parts = [note for note in notes if note.startswith("verified: ")][:1]
    parts += [steps.verified] if steps is not None and steps.verified else []
    if repeats is not None:
        parts += [repeats.verified] if repeats.verified else []
        if repeats.bound_ps:
            limit = format_time(repeats.bound_ps)
            parts.append(f"micro-batches nearly repeat: step, starts and ends are within {limit} (--exact)")
    return "; ".join(parts)


def _next(result: TaskRun) -> str:
    options = ["--explain-memory"] if result.memory_peaks else []
    return "".join(f"; {option}" for option in (*options, "trine help answer"))


def percent(part: int, total: int) -> str:
    """Return a share such as ``34.7 %``; a dash if ``total`` is 0."""
    return f"{100 * part / total:.1f} %" if total else "-"
