"""Whether the casts of a precision pay in a step: what they take of the launching thread, and the step without them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from trine.common.units import format_time
from trine.errors import InputError
from trine.graph.workload import OPTIMIZER
from trine.results.waits import LAUNCH
from trine.software.precision import CAST_DTYPES
from trine.training.trades import MAX_EVENTS, MIN_TIME_SAVING, change

if TYPE_CHECKING:
    from trine.results import Result
    from trine.training.setup import Setup

#: Least part of the step that waits for launches, from which a warning names the casts.
MIN_WAIT = 0.1


def launch_bound_casts(result: Result, setup: Setup) -> tuple[str, ...]:
    """Return a warning if a step in FP8 or FP4 waits for launches, with the part of them that casts are.

    Transformer Engine makes a tensor for each expert, and most recipes launch casts for each of them, so the casts of
    many experts with few tokens each take the thread more time than FP8 saves on the GPU. NVIDIA measured Qwen3 235B
    on 64 B200 at 16.9 s a step in MXFP8 and 16.0 s in bf16 (NVIDIA-NeMo/Megatron-Bridge pull request 1760).
    """
    precision = setup.workload.metadata.get("recipe")
    waited = int(result.rank_times.waits[result.slowest_row, LAUNCH])
    if precision is None or setup.launch is None or waited < MIN_WAIT * result.step_time_ps:
        return ()
    share = share_of_casts(setup)
    if not share:
        return ()
    return (
        f"{precision} may not pay: the GPU waits {format_time(waited)} of {format_time(result.step_time_ps)} for the "
        f"launching thread, and casts are {100 * share:.0f} % of that thread's time in a micro-batch; --advice "
        "compares with the step without it",
    )


def share_of_casts(setup: Setup) -> float:
    """Return the part of the launching thread's time for a micro-batch's operators that launches casts."""
    assert setup.launch is not None
    total, casts = 0, 0
    tensors = setup.workload.tensors
    for op, launch in zip(setup.workload.operators, setup.launch.launches(), strict=True):
        if op.phase == OPTIMIZER:
            continue
        time_ps = launch.time_ps + launch.experts // setup.plan.ep * launch.expert_ps
        total += time_ps
        is_cast = op.name == "aten::_to_copy" and tensors[op.outputs[0]].dtype in CAST_DTYPES
        casts += time_ps if is_cast else 0
    return casts / total if total else 0.0


def precision_verdict(
    precision: str, result: Result, simulate: Callable[[], Result], why_not: str = ""
) -> tuple[str, ...]:
    """Return a sentence if the casts of ``precision`` make the step no shorter, or if that is unknown.

    simulate: returns the result without them, all else being equal; called if the run is small. why_not: why results
    cannot be compared, empty if they can.
    """
    events = result.simulator.events if result.simulator is not None else 0
    if events > MAX_EVENTS:
        why_not = f"trine repeats steps of up to {MAX_EVENTS:,} events, and this one has {events:,}"
    if why_not:
        return (f"how much time --precision {precision} saves is unknown: {why_not}",)
    try:
        without = simulate()
    except InputError as error:
        return (f"how much time --precision {precision} saves is unknown: without it, {error}",)
    if result.step_time_ps <= without.step_time_ps * (1 - MIN_TIME_SAVING):
        return ()
    return (
        f"--precision {precision} does not pay: it makes the step {change(result, without)}; on the slowest rank, "
        f"compute takes {_compute(result)} (without it {_compute(without)}), waits for launches {_waited(result)} "
        f"({_waited(without)})",
    )


def _compute(result: Result) -> str:
    return format_time(int(result.rank_times.compute[result.slowest_row]))


def _waited(result: Result) -> str:
    return format_time(int(result.rank_times.waits[result.slowest_row, LAUNCH]))
