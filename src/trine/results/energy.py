"""Energy of the GPUs: a declared power for each state of a device, times how long it is in it. An assumption.

The step of a rank is split into compute, exposed communication and the rest exactly
(:func:`trine.results.metrics.rank_times`); each has a part of the GPU's highest power (presets/power.yaml).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from trine.units import PS_PER_S

if TYPE_CHECKING:
    from trine.results.power_schema import PowerFile
    from trine.results.result import Result

_FILE = Path(__file__).parent.parent / "presets" / "power.yaml"
STATES = ("computing", "communicating", "idle")


@dataclass(frozen=True, kw_only=True, slots=True)
class Energy:
    """What the GPUs of a job take in a step.

    joules: of all ranks; by_state: of each of STATES. mean_w: of all ranks; the largest that a rank takes by itself is
    peak_rank_w. num_ranks: of the job; num_counted: ranks that the numbers rest on, which stand for all. states_w: the
    power of a rank's GPU in each state, where all are alike.
    """

    joules: float
    by_state: dict[str, float]
    mean_w: float
    peak_rank_w: float
    num_ranks: int
    num_counted: int
    states_w: dict[str, float]
    evidence: str
    detail: str


@cache
def power_shares() -> PowerFile:
    """The shares of presets/power.yaml, with their sources."""
    from trine.results.power_schema import PowerFile
    from trine.spec import read_spec

    return read_spec(_FILE, PowerFile)


def energy(result: Result) -> Energy | None:
    """The energy of the result's step; None where the power of a GPU, or what it did, is not known.

    Of a folded result each row counts for the ranks of its class. Where not all classes have rows, some ranks that are
    spread over all stand for the others, and ``num_counted`` is smaller than ``num_ranks``.
    """
    if not result.power_w or not all(result.power_w):
        return None
    seen, weight = result, alike_rows(result)
    counted = result.num_ranks
    if weight.sum() != result.num_ranks:
        if result.scope is None:  # some ranks of a run that was not folded: nothing is known of the others
            return None
        spread = result.scope.spread()
        seen, weight, counted = result.scope.observe(list(spread)), np.array(list(spread.values())), len(spread)
    return _added_up(seen, weight, counted)


def alike_rows(result: Result) -> npt.NDArray[np.float64]:
    """How many ranks do exactly what each row does: float64[rows]. Of rows of one class the first has its ranks."""
    scope, ranks = result.scope, result.shown_ranks
    if scope is None or scope.shows_all:
        return np.ones(len(ranks))
    _, first = np.unique([scope.class_of(rank) for rank in ranks], return_index=True)
    alike = np.zeros(len(ranks))
    alike[first] = [scope.class_size(ranks[row]) for row in first.tolist()]
    return alike


def _added_up(result: Result, weight: npt.NDArray[np.float64], num_counted: int) -> Energy:
    """Energy of the rows of ``result``, each ``weight`` times."""
    shares, times = power_shares(), result.rank_times
    power = np.array(result.power_w, np.float64)
    parts = [getattr(shares, state) for state in STATES]
    spent_ps = (times.compute, times.exposed, times.bubble + times.idle)
    rows = [part * power * ps / PS_PER_S for part, ps in zip(parts, spent_ps, strict=True)]
    by_state = {state: float((row * weight).sum()) for state, row in zip(STATES, rows, strict=True)}
    joules, step_s = sum(by_state.values()), result.step_time_s
    is_one_kind = bool((power == power[0]).all())
    return Energy(
        joules=joules,
        by_state=by_state,
        mean_w=joules / step_s if step_s else 0.0,
        peak_rank_w=float(np.sum(rows, axis=0).max()) / step_s if step_s else 0.0,
        num_ranks=result.num_ranks,
        num_counted=num_counted,
        states_w=dict(zip(STATES, (part * float(power[0]) for part in parts), strict=True)) if is_one_kind else {},
        evidence=shares.evidence,
        detail=_detail(num_counted, result.num_ranks),
    )


def _detail(counted: int, num_ranks: int) -> str:
    shares = power_shares()
    parts = ", ".join(f"{getattr(shares, state):.0%} of its highest power {state}" for state in STATES)
    text = f"GPUs only (no hosts, NICs, switches, cooling): {parts}"
    if counted < num_ranks:
        text += f"; from {counted} of {num_ranks} ranks, which stand for the others"
    return text
