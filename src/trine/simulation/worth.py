"""Options that are there to save time or memory: what the same step takes without them, said where they save none."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from trine.errors import InputError
from trine.parallel.plan import PARAMETERS_SHARDED, Plan
from trine.units import format_bytes, format_time

if TYPE_CHECKING:
    from trine.results import Result

#: A run of more events is not repeated without the option: it would take as long again.
MAX_EVENTS = 250_000
#: An option is said to save next to nothing below these parts of the time, and of the memory of the fullest rank.
LEAST_TIME, LEAST_MEMORY = 0.001, 0.02


@dataclass(frozen=True, slots=True)
class Trade:
    """An option as the command line writes it, whether it is to save time (else memory), and the plan without it.

    is_doubtful: it often saves nothing, so that a run which is too large to be compared says so.
    """

    option: str
    saves_time: bool
    without: Plan
    is_doubtful: bool = False


def trades(plan: Plan) -> tuple[Trade, ...]:
    """The options of ``plan`` that cost time to save memory, or memory and launches to save time."""
    found = []
    if plan.tp_overlap > 1:
        found.append(Trade(f"--tp-overlap {plan.tp_overlap}", True, replace(plan, tp_overlap=1), True))
    usual = 1 if plan.sharding in PARAMETERS_SHARDED else 0
    if plan.prefetch is not None and plan.prefetch > usual and (usual or plan.steps > 1):
        found.append(Trade(f"--prefetch {plan.prefetch}", True, replace(plan, prefetch=None)))
    if plan.recompute != "none":
        without = replace(plan, recompute="none", recompute_layers=None)
        found.append(Trade(f"--recompute {plan.recompute}", False, without, plan.recompute == "selective"))
    if plan.offload == "activations":
        overlap = plan.overlap if plan.num_ranks > 1 else "ideal"  # one GPU has nothing else to overlap
        found.append(Trade("--offload activations", False, replace(plan, offload="none", overlap=overlap)))
    return tuple(found)


def verdicts(result: Result, plan: Plan, simulate: Callable[[Plan], Result], why_not: str = "") -> tuple[str, ...]:
    """A sentence for each option of ``plan`` that does not pay in ``result``, or of which that is not known.

    simulate: the answer for another plan, all else being equal, which is asked for once for each option where the run
    is small. why_not: why another plan's answer could not be compared, empty where it can be.
    """
    events = result.simulator.events if result.simulator is not None else 0
    if events > MAX_EVENTS:
        why_not = f"trine repeats steps of up to {MAX_EVENTS:,} events, and this one has {events:,}"
    return tuple(text for trade in trades(plan) if (text := _verdict(trade, result, simulate, why_not)) is not None)


def _verdict(trade: Trade, result: Result, simulate: Callable[[Plan], Result], why_not: str) -> str | None:
    unknown = f"how much {'time' if trade.saves_time else 'memory'} {trade.option} saves was not found out: "
    if why_not:
        return unknown + why_not if trade.is_doubtful else None
    try:
        without = simulate(trade.without)
    except InputError as error:
        return f"{unknown}without it, {error}"
    return _of_time(trade, result, without) if trade.saves_time else _of_memory(trade, result, without)


def _of_time(trade: Trade, result: Result, without: Result) -> str | None:
    if result.step_time_ps <= without.step_time_ps * (1 - LEAST_TIME):
        return None
    pays = "hardly pays" if result.step_time_ps < without.step_time_ps else "does not pay"
    return f"{trade.option} {pays}: it makes the step {_change(result, without)}"


def _of_memory(trade: Trade, result: Result, without: Result) -> str | None:
    before, after = without.memory_peak_bytes, result.memory_peak_bytes
    if before is None or after is None or before - after >= before * LEAST_MEMORY:
        return None
    amount = format_bytes(abs(before - after))
    saved = f"takes {amount} more than the" if after > before else f"frees {amount} of the"
    return (
        f"{trade.option} hardly saves memory: it {saved} {format_bytes(before)} that the fullest rank needs without it "
        f"({100 * abs(before - after) / before:.2g} %), and makes the step {_change(result, without)}"
    )


def _change(result: Result, without: Result) -> str:
    now, before = result.step_time_ps, without.step_time_ps
    share = 100 * (now - before) / before if before else 0.0
    how = (
        f"{abs(share):.2g} % {'longer' if share > 0 else 'shorter'}" if now != before else "neither longer nor shorter"
    )
    return f"{how} ({format_time(now)}, without it {format_time(before)})"
