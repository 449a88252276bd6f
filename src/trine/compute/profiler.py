"""The profiler's part of recorded launches, from steps that a capture timed without the profiler.

The profiler slows the launching thread, not the GPU. A short simulation of the recorded step, one thread and one
stream, gives the step's time for any share of the recorded launches. Steps that wait for the CPU reveal the share: the
one that reproduces the un-profiled time. Steps that keep the GPU busy take the same time for many shares; then trine
assumes the usual share.

The CPU may have been slower while the profiler ran, because of other processes. This is so if the recorded launches,
reduced to the usual share, would make un-profiled steps longer than they were, and the launch calls of CUDA took longer
than usual. Then trine first scales launches to the usual duration of a call.
"""

from __future__ import annotations

from collections.abc import Sequence

from trine.common.units import format_time, whole_number
from trine.compute.gaps import busy_and_gaps_ps, kernel_gap_ps
from trine.graph.workload import LAUNCH_CALL, Workload

#: Share of a recorded launch that is not the profiler's: 0.73 and 0.79 in the two captures of tests/data/h100 whose
#: profiled steps wait for the CPU (Llama 3.2 1B at batch 1, DenseNet-121), each from its own steps without profiler.
USUAL_SHARE = 0.76
#: Median duration of a kernel launch call, profiler on: 6 us in TrioSim's raw vgg13 trace of an H100, 4.6 to 6.0 us in
#: eight of our nine captures (tests/data/h100).
USUAL_CALL_PS = 6_000_000
#: Steps that differ by less show no share: the spread of a capture's five steps, and the error of the simulation.
STEP_ERROR = 0.01
_HALVINGS = 30


def without_profiler(workload: Workload, costs: Sequence[int], recorded: Sequence[int]) -> tuple[float, str]:
    """Return the share of launch costs that remains without the profiler, and a note.

    costs: launch costs in ps, in the order of the operators. recorded: the same with waits and interruptions.
    """
    unprofiled = workload.unprofiled_step_ps
    if not unprofiled:
        return 1.0, "launch times were recorded with the profiler on, which makes each launch several times longer"
    speed, note = _speed_of_cpu(workload, recorded, unprofiled)
    undisturbed = [speed * cost for cost in costs]
    usual_ps = _step_ps(workload, undisturbed, USUAL_SHARE)
    is_shown = _step_ps(workload, undisturbed, 0.0) < unprofiled < _step_ps(workload, undisturbed, 1.0)
    if is_shown and abs(usual_ps / unprofiled - 1) > STEP_ERROR:
        share = _share_of(workload, undisturbed, unprofiled)
        text = f"launches are {1 - share:.0%} shorter than recorded: a step without the profiler takes"
        return speed * share, f"{text} {format_time(unprofiled)}{note}"
    text = f"launches are assumed {1 - USUAL_SHARE:.0%} shorter than recorded with the profiler"
    return speed * USUAL_SHARE, f"{text}: steps without it do not wait for the CPU{note}"


def _speed_of_cpu(workload: Workload, recorded: Sequence[int], unprofiled_ps: int) -> tuple[float, str]:
    """Return the usual over the recorded duration of launches, 1 unless the CPU was disturbed, and a note."""
    call_ps = launch_call_ps(workload)
    is_contradicted = _step_ps(workload, recorded, USUAL_SHARE) > (1 + STEP_ERROR) * unprofiled_ps
    if call_ps <= USUAL_CALL_PS or not is_contradicted:
        return 1.0, ""
    times = f"{format_time(call_ps)} instead of the usual {format_time(USUAL_CALL_PS)}"
    return USUAL_CALL_PS / call_ps, f"; something slowed the CPU while the profiler ran: a launch call took {times}"


def launch_call_ps(workload: Workload) -> int:
    """Return the median duration of the trace's kernel launch calls, 0 if it does not list them."""
    text = workload.metadata.get(LAUNCH_CALL, "")
    return whole_number(text) or 0


def _share_of(workload: Workload, costs: Sequence[float], step_ps: int) -> float:
    """Return the share of the costs, below 1, with a step of ``step_ps``."""
    low, high = 0.0, 1.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if _step_ps(workload, costs, middle) <= step_ps else (low, middle)
    return low


def _step_ps(workload: Workload, costs: Sequence[float], share: float) -> float:
    """Return the recorded step's time if launches take ``share`` of their costs: one thread launches to one stream."""
    gap_ps = kernel_gap_ps(workload)
    launched = finished = 0.0
    for operator, cost in zip(workload.operators, costs, strict=True):
        launched += share * cost
        finished = max(launched, finished) + busy_and_gaps_ps(operator, gap_ps)
    return finished
