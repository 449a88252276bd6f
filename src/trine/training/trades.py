"""Options of a plan that cost time to save memory, or memory to save time, and whether they pay."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from trine.common.units import format_bytes, format_time
from trine.errors import InputError
from trine.parallel.plan import PARAMETERS_SHARDED, Plan

if TYPE_CHECKING:
    from trine.results import Result


#: trine repeats runs without the option up to this number of events, because a repeat takes as long as the run.
MAX_EVENTS = 250_000
#: Savings below these fractions, of the time and of the fullest rank's memory, are reported as negligible.
MIN_TIME_SAVING, MIN_MEMORY_SAVING = 0.001, 0.02


@dataclass(frozen=True, slots=True)
class Trade:
    """An option in command-line form, whether it should save time (else memory), and the plan without it.

    is_doubtful: it often saves nothing, so that a run too large to compare reports the missing comparison.
    """

    option: str
    saves_time: bool
    without: Plan
    is_doubtful: bool = False


def trades(plan: Plan) -> tuple[Trade, ...]:
    """Return the options of ``plan`` that cost time to save memory, or memory and launches to save time."""
    options = []
    if plan.tp_overlap > 1:
        options.append(Trade(f"--tp-overlap {plan.tp_overlap}", True, replace(plan, tp_overlap=1), True))
    usual = 1 if plan.sharding in PARAMETERS_SHARDED else 0
    if plan.prefetch is not None and plan.prefetch > usual and (usual or plan.steps > 1):
        options.append(Trade(f"--prefetch {plan.prefetch}", True, replace(plan, prefetch=None)))
    if plan.recompute != "none":
        without = replace(plan, recompute="none", recompute_layers=None)
        options.append(Trade(f"--recompute {plan.recompute}", False, without, plan.recompute == "selective"))
    if plan.offload == "activations":
        overlap = plan.overlap if plan.num_ranks > 1 else "ideal"  # without offload, one GPU overlaps nothing
        options.append(Trade("--offload activations", False, replace(plan, offload="none", overlap=overlap)))
    return tuple(options)


def verdicts(result: Result, plan: Plan, simulate: Callable[[Plan], Result], why_not: str = "") -> tuple[str, ...]:
    """Return a sentence for each option of ``plan`` that does not pay in ``result``, or whose saving is unknown.

    simulate: returns the result of another plan, all else being equal; called once per option if the run is small.
    why_not: why another plan's result cannot be compared, empty if it can.
    """
    events = result.simulator.events if result.simulator is not None else 0
    if events > MAX_EVENTS:
        why_not = f"trine repeats steps of up to {MAX_EVENTS:,} events, and this one has {events:,}"
    texts = []
    for trade in trades(plan):
        if (text := _verdict(trade, result, simulate, why_not)) is not None:
            texts.append(text)
    return tuple(texts)


def _verdict(trade: Trade, result: Result, simulate: Callable[[Plan], Result], why_not: str) -> str | None:
    prefix = f"how much {'time' if trade.saves_time else 'memory'} {trade.option} saves is unknown: "
    if why_not:
        return prefix + why_not if trade.is_doubtful else None
    try:
        without = simulate(trade.without)
    except InputError as error:
        return f"{prefix}without it, {error}"
    return _time_verdict(trade, result, without) if trade.saves_time else _memory_verdict(trade, result, without)


def _time_verdict(trade: Trade, result: Result, without: Result) -> str | None:
    if result.step_time_ps <= without.step_time_ps * (1 - MIN_TIME_SAVING):
        return None
    pays = "hardly pays" if result.step_time_ps < without.step_time_ps else "does not pay"
    return f"{trade.option} {pays}: it makes the step {change(result, without)}"


def _memory_verdict(trade: Trade, result: Result, without: Result) -> str | None:
    before, after = without.memory_peak_bytes, result.memory_peak_bytes
    if before is None or after is None or before - after >= before * MIN_MEMORY_SAVING:
        return None
    amount = format_bytes(abs(before - after))
    gain = f"takes {amount} more than the" if after > before else f"frees {amount} of the"
    return (
        f"{trade.option} hardly saves memory: it {gain} {format_bytes(before)} that the fullest rank needs without it "
        f"({100 * abs(before - after) / before:.2g} %), and makes the step {change(result, without)}"
    )


def change(result: Result, without: Result) -> str:
    """Return how much longer or shorter a step is than the step without an option, in words."""
    now, before = result.step_time_ps, without.step_time_ps
    share = 100 * (now - before) / before if before else 0.0
    if now != before:
        effect = f"{abs(share):.2g} % {'longer' if share > 0 else 'shorter'}"
    else:
        effect = "neither longer nor shorter"
    return f"{effect} ({format_time(now)}, without it {format_time(before)})"
