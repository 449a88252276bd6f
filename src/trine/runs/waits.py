"""Who waits for whom: the time that ranks spend in collectives until the last rank enters."""

from __future__ import annotations

from dataclasses import dataclass

from trine.runs.measured_run import MeasuredRun


@dataclass(frozen=True, slots=True)
class RankWaits:
    """One rank, times per step in ps.

    compute_ps: kernels without collectives. transfer_ps: collectives after the last rank has entered. waiting_ps:
    collectives before that. waited_for_ps: mean wait of the other ranks in collectives that this rank enters last.
    times_last: number of those per step.
    """

    rank: int
    compute_ps: int
    transfer_ps: int
    waiting_ps: int
    waited_for_ps: int
    times_last: float


def rank_waits(run: MeasuredRun) -> tuple[RankWaits, ...]:
    """Return the waits of each rank."""
    size = len(run.ranks)
    transfer, waiting, waited_for, last = ([0] * size for _ in range(4))
    for instance in run.instances:
        kernels = [(row, run.ranks[row].activities[place]) for row, place in instance.members]
        entry_ps = min(max(kernel.start_ps for _, kernel in kernels), min(kernel.end_ps for _, kernel in kernels))
        total_ps = 0
        for row, kernel in kernels:
            wait_ps = max(0, entry_ps - kernel.start_ps)
            waiting[row] += wait_ps
            transfer[row] += kernel.duration_ps - wait_ps
            total_ps += wait_ps
        if len(kernels) > 1 and total_ps:
            latest = max(kernels, key=lambda each: each[1].start_ps)[0]
            waited_for[latest] += total_ps // (len(kernels) - 1)
            last[latest] += 1
    rows = []
    for row, trace in enumerate(run.ranks):
        compute_ps = sum(each.duration_ps for each in trace.activities if each.collective is None)
        rows.append(
            RankWaits(
                trace.rank,
                compute_ps // run.num_steps,
                transfer[row] // run.num_steps,
                waiting[row] // run.num_steps,
                waited_for[row] // run.num_steps,
                last[row] / run.num_steps,
            )
        )
    return tuple(rows)
