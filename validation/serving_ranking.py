"""Ranking of published serving configurations: rank correlation, and the regret of trine's choice under a TPOT limit.

A group is a model on one kind of GPU with one input and output length; its configurations differ in engine, precision,
layout and concurrency. trine chooses the configuration with the highest predicted tokens/s per GPU among those whose
predicted TPOT meets the limit. A choice that misses the limit when measured loses throughput in proportion: it counts
as tokens/s per GPU x limit / measured TPOT.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from trine.results.report import Row
from validation.harness import grouped
from validation.layouts import spearman
from validation.serving_quantities import ComparedRun
from validation.serving_rows import AGGREGATED

#: Least number of configurations of a group.
LEAST = 8
#: Limits of TPOT in seconds: 100, 50, 33 and 20 tokens/s per user.
LIMITS_S = (0.010, 0.020, 0.030, 0.050)


@dataclass(frozen=True, slots=True)
class RankedConfiguration:
    """Measured and predicted tokens/s per GPU and TPOT in seconds of a configuration."""

    measured_rate: float
    predicted_rate: float
    measured_tpot_s: float
    predicted_tpot_s: float


@dataclass(frozen=True, kw_only=True, slots=True)
class RankedGroup:
    """Configurations of a model. regrets: lost share of the best measured tokens/s per GPU, by TPOT limit in seconds.

    Limits that no measured configuration meets are left out.
    """

    model: str
    gpu: str
    isl: int
    osl: int
    count: int
    spearman: float
    regrets: dict[float, float]

    def row(self) -> Row:
        """Return the group as plain data; limits in milliseconds."""
        regrets = [{"tpot_limit_ms": round(1e3 * limit_s), "regret": loss} for limit_s, loss in self.regrets.items()]
        return {
            "model": self.model, "gpu": self.gpu, "isl": self.isl, "osl": self.osl, "num_configurations": self.count,
            "spearman": self.spearman, "regrets": regrets,
        }  # fmt: skip


def ranked_groups(runs: Iterable[ComparedRun], least: int = LEAST) -> list[RankedGroup]:
    """Return the groups of at least ``least`` aggregated runs with a prediction, the lowest rank correlation first."""
    aggregated = [run for run in runs if run.row.kind == AGGREGATED]
    keys = grouped(aggregated, lambda run: (run.row.model_name, run.row.gpu_name, run.row.isl, run.row.osl))
    groups = []
    for (model, gpu, isl, osl), members in keys.items():
        configurations = [ranked for run in members if (ranked := _ranked(run)) is not None]
        if len(configurations) < least:
            continue
        predicted = np.array([each.predicted_rate for each in configurations])
        measured = np.array([each.measured_rate for each in configurations])
        group = RankedGroup(
            model=model, gpu=gpu, isl=isl, osl=osl, count=len(configurations), spearman=spearman(predicted, measured),
            regrets=regrets(configurations),
        )  # fmt: skip
        groups.append(group)
    return sorted(groups, key=lambda group: group.spearman)


def _ranked(run: ComparedRun) -> RankedConfiguration | None:
    row, predicted = run.row, run.prediction
    measured_s = row.end_to_end_s
    if measured_s is None or row.tpot_ms is None or predicted.end_to_end_s is None or predicted.tpot_s is None:
        return None
    return RankedConfiguration(
        measured_rate=row.tokens_per_s_per_gpu(measured_s),
        predicted_rate=row.tokens_per_s_per_gpu(predicted.end_to_end_s.value),
        measured_tpot_s=row.tpot_ms / 1e3, predicted_tpot_s=predicted.tpot_s.value,
    )  # fmt: skip


def regrets(configurations: Sequence[RankedConfiguration]) -> dict[float, float]:
    """Return the regret of the choice for each limit that a measured configuration meets."""
    losses = {}
    for limit_s in LIMITS_S:
        feasible = [each for each in configurations if each.measured_tpot_s <= limit_s]
        if feasible:
            best = max(each.measured_rate for each in feasible)
            chosen = _choice(configurations, limit_s)
            reached = chosen.measured_rate * min(1.0, limit_s / chosen.measured_tpot_s)
            losses[limit_s] = max(0.0, 1 - reached / best)
    return losses


def _choice(configurations: Sequence[RankedConfiguration], limit_s: float) -> RankedConfiguration:
    """Return the best prediction under the limit, or the one with the lowest TPOT if none meets it."""
    allowed = [each for each in configurations if each.predicted_tpot_s <= limit_s]
    if not allowed:
        return min(configurations, key=lambda each: each.predicted_tpot_s)
    return max(allowed, key=lambda each: each.predicted_rate)
