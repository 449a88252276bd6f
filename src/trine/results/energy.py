"""Energy of the GPUs: an assumed power for each state of a device, times the time in it.

Each rank's step is split exactly into compute, exposed communication and the rest
(:func:`trine.results.metrics.rank_times`); each part draws a fraction of the GPU's maximum power (presets/power.yaml).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from typing import Literal

import numpy as np
import numpy.typing as npt

from trine.common.inputs import PRESETS
from trine.common.schema import Field, Spec
from trine.common.units import PS_PER_S, format_power
from trine.results.columns import column
from trine.results.metrics import BusyTimes

_FILE = PRESETS / "power.yaml"
STATES = ("computing", "communicating", "idle")


@dataclass(frozen=True, kw_only=True, slots=True)
class Energy:
    """Energy of a job's GPUs in a step.

    joules: of all ranks; by_state: for each of STATES. mean_w: over all ranks; peak_rank_w: the largest mean power of
    one rank. num_ranks: of the job; num_counted: ranks that represent all in the numbers. states_w: power of a rank's
    GPU in each state, if all GPUs are equal.
    """

    joules: float = field(metadata=column("step_j"))
    by_state: dict[str, float] = field(metadata=column("by_state_j"))
    mean_w: float
    peak_rank_w: float
    num_ranks: int = field(metadata=column("ranks"))
    num_counted: int = field(metadata=column("ranks_counted"))
    states_w: dict[str, float]
    evidence: str
    detail: str


class PowerFile(Spec):
    """Fractions of a GPU's maximum power by state; ``sources`` has one entry per field."""

    computing: float = Field(gt=0, le=1)
    communicating: float = Field(gt=0, le=1)
    idle: float = Field(gt=0, le=1)
    evidence: Literal["measured", "interpolated", "modelled", "assumed"]
    sources: dict[str, str]


@cache
def power_shares() -> PowerFile:
    """Return the fractions of presets/power.yaml, with their sources."""
    from trine.common.spec import read_spec

    return read_spec(_FILE, PowerFile)


def energy(
    times: BusyTimes, power_w: tuple[int, ...], weight: npt.NDArray[np.float64], num_counted: int, num_ranks: int,
    state_w: tuple[float, float, float] | None = None,
) -> Energy:  # fmt: skip
    """Return the energy of a step.

    times: of some ranks, whose GPUs draw at most power_w; weight: ranks that each one represents, float64[ranks].
    num_counted, num_ranks: for the answer. state_w: power in each of STATES, in place of fractions of power_w.
    """
    shares = power_shares()
    power = np.array(power_w, np.float64)
    parts = [getattr(shares, state) for state in STATES]
    if state_w is not None:
        power, parts = np.ones(len(power)), list(state_w)
    window_ps = times.window.end_ps - times.window.start_ps
    spent_ps = (times.compute, times.exposed, window_ps - times.compute - times.exposed)
    rows = [part * power * ps / PS_PER_S for part, ps in zip(parts, spent_ps, strict=True)]
    by_state = {state: float((row * weight).sum()) for state, row in zip(STATES, rows, strict=True)}
    joules, step_s = sum(by_state.values()), window_ps / PS_PER_S
    is_one_kind = bool((power == power[0]).all())
    mean_w = joules / step_s if step_s else 0.0
    peak_rank_w = float(np.sum(rows, axis=0).max()) / step_s if step_s else 0.0
    if is_one_kind:
        states_w = dict(zip(STATES, (part * float(power[0]) for part in parts), strict=True))
    else:
        states_w = {}
    evidence = shares.evidence if state_w is None else "modelled"
    return Energy(
        joules=joules, by_state=by_state, mean_w=mean_w, peak_rank_w=peak_rank_w, num_ranks=num_ranks,
        num_counted=num_counted, states_w=states_w, evidence=evidence,
        detail=_detail(num_counted, num_ranks, state_w),
    )  # fmt: skip


def _detail(num_counted: int, num_ranks: int, state_w: tuple[float, float, float] | None) -> str:
    shares = power_shares()
    parts = ", ".join(f"{getattr(shares, state):.0%} of its highest power {state}" for state in STATES)
    if state_w is not None:
        parts = ", ".join(f"{format_power(watts)} {state}" for watts, state in zip(state_w, STATES, strict=True))
    text = f"GPUs only (no hosts, NICs, switches, cooling): {parts}"
    if num_counted < num_ranks:
        text += f"; from {num_counted} of {num_ranks} ranks, which stand for the others"
    return text
