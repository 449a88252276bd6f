"""How well can layouts on a shared fabric be ranked by a model that knows all but the momentary bandwidth?

    python benchmarks/fabric_luck.py [--models 3B 8B] [--nodes 16 32] [--jobs N]
    python benchmarks/fabric_luck.py --choice 0.024

The Ultra-Scale Playbook measured 1 GiB collectives between nodes many times: on 32 nodes the 95th percentile is six to
eight times the 5th (``presets/measured/training/fabric.csv``). Each layout was timed once. This benchmark predicts
every clean layout of a group at three fabric bandwidths and interpolates its step for any other. It draws "measured"
steps from these predictions, each at a random bandwidth (lognormal through both percentiles), and ranks them by the
predictions at the 95th percentile. A model without errors would get this Spearman and regret. Printed next to them:
the results on the measured rows, and the bandwidths at which predictions agree. Takes ten minutes on two cores.

The second command is instant: the loss by the first choice on 1 and 2 nodes of a model with a median error of 2.4 %.
"""

from __future__ import annotations

import argparse
import csv
import io
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from unittest.mock import patch

import numpy as np

from trine.common.arrays import Float64
from validation import training_rows
from validation.layouts import LEAST, spearman
from validation.replay_rows import Ask, predict
from validation.training_rows import FOLDER, TrainingRow, load_layouts

DRAWS = 400
#: Standard deviations between the 5th and the 95th percentile of a normal distribution.
BETWEEN = 3.29
#: Fractions of the 95th-percentile bandwidth at which steps are predicted.
PARTS = (1.0, 0.5, 0.125)


def main() -> None:
    """Predict, draw, and print one line per group."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=["1B", "3B", "8B"])
    parser.add_argument("--nodes", type=int, nargs="+", default=[16, 32])
    parser.add_argument("--jobs", type=int, default=None)
    parser.add_argument("--choice", type=float, metavar="ERROR", help="what such errors (median) lose on 1-2 nodes")
    given = parser.parse_args()
    if given.choice is not None:
        _show_choice(given.choice)
        return
    groups: dict[tuple[str, int], list[TrainingRow]] = {}
    for row in load_layouts():
        model, nodes = row.facts["model"], row.num_nodes
        if row.step_s is not None and not row.apart and model in given.models and nodes in given.nodes:
            groups.setdefault((model, nodes), []).append(row)
    print("group            rows  without error: Spearman (p10)  regret  of three | here: Spearman  regret  of three | "
          "bandwidth that fits, of the 95th percentile: p10, median, p90")  # fmt: skip
    with ProcessPoolExecutor(given.jobs, mp_context=get_context("spawn")) as pool:
        for (model, nodes), rows in sorted(groups.items()):
            if len(rows) >= LEAST:
                steps = np.array(list(pool.map(_steps, [row.name for row in rows]))).T
                _show(f"{model} on {nodes} nodes", rows, steps)


def _show_choice(error: float) -> None:
    """Print how often a model's first choice on 1 and 2 nodes loses at most 2 % (median of groups).

    Its errors are independent, with median ``error``."""
    groups: dict[tuple[str, int], list[float]] = {}
    for row in load_layouts():
        if row.step_s is not None and not row.apart and row.num_nodes <= 2 and row.facts["model"] != "1B":
            groups.setdefault((row.facts["model"], row.num_nodes), []).append(row.tokens / row.step_s)
    random, lost = np.random.default_rng(1), []
    for (model, nodes), rates in sorted(groups.items()):
        if len(rates) >= LEAST:
            measured = np.sort(rates)[::-1]
            guessed = measured * np.exp(random.normal(0.0, error / 0.6745, (10 * DRAWS, len(measured))))
            lost.append(1 - measured[guessed.argmax(axis=1)] / measured[0])
            behind = ", ".join(f"{1 - rate / measured[0]:.1%}" for rate in measured[1:5])
            print(f"{model} on {nodes} nodes: {len(measured)} layouts; the next four lose {behind}; "
                  f"errors of {error:.1%} lose {lost[-1].mean():.1%} on average")  # fmt: skip
    print(f"the median of the groups is at most 2 % in {(np.median(lost, axis=0) <= 0.02).mean():.0%} of the draws")


def _steps(name: str) -> list[float]:
    """Return the step time of a layout in seconds at each of :data:`PARTS`."""
    row = next(row for row in load_layouts() if row.name == name)
    usual = training_rows.fabric_bandwidth
    found = []
    for part in PARTS:
        with patch.object(training_rows, "fabric_bandwidth", lambda *asked, part=part: part * usual(*asked)):
            found.append(predict(row, Ask()).step_s)
    return found


def _show(name: str, rows: Sequence[TrainingRow], steps: Float64) -> None:
    """Print one group; steps: float64[parts, rows] in seconds."""
    random = np.random.default_rng(1)
    sigma = np.array([_sigma(row) for row in rows])
    drawn = []
    for _ in range(DRAWS):
        part = np.exp(sigma * (random.standard_normal(len(rows)) - BETWEEN / 2))
        drawn.append(_ranked(steps[0], _at(steps, np.minimum(part, 1.2))))
    without = np.array(drawn)
    measured = np.array([row.step_s for row in rows], np.float64)
    here = _ranked(steps[0], measured)
    fits = np.quantile(_fitting(steps, measured), [0.1, 0.5, 0.9])
    middle, low, high = np.median(without, axis=0), np.quantile(without, 0.1, axis=0), np.quantile(without, 0.9, axis=0)
    print(f"{name:16} {len(rows):4}  {middle[0]:.3f} ({low[0]:.3f})  "
          f"{middle[1]:.1%}  {middle[2]:.1%} (p90 {high[2]:.1%}) | "
          f"{here[0]:.3f}  {here[1]:.1%}  {here[2]:.1%} | {fits[0]:.2f}, {fits[1]:.2f}, {fits[2]:.2f}")  # fmt: skip


def _sigma(row: TrainingRow) -> float:
    """Return the standard deviation of the log bandwidth of the row's collective."""
    kind = "reduce_scatter" if row.facts["sharding"] == "zero1" else "all_reduce"
    lines = csv.DictReader(io.StringIO((FOLDER / "fabric.csv").read_text()))
    known = {int(line["nodes"]): line for line in lines if line["collective"] == kind}
    line = known[max(count for count in known if count <= max(row.replica_nodes, 2))]
    return float(np.log(float(line["busbw_GBps_p95"]) / float(line["busbw_GBps_p5"]))) / BETWEEN


def _at(steps: Float64, part: Float64) -> Float64:
    """Return steps at fractions of the bandwidth, inter- and extrapolated linearly in its inverse."""
    inverse, asked = 1 / part, 1 / np.array(PARTS)
    left = np.where(inverse < asked[1], 0, 1)
    columns = np.arange(steps.shape[1])
    share = (inverse - asked[left]) / (asked[left + 1] - asked[left])
    found: Float64 = steps[left, columns] * (1 - share) + steps[left + 1, columns] * share
    return found


def _fitting(steps: Float64, measured: Float64) -> Float64:
    """Return the bandwidth fractions at which predictions match; only rows that half the bandwidth slows by > 10 %."""
    moved = steps[1] - steps[0]
    chosen = moved > 0.1 * steps[0]
    inverse = 1 + (measured - steps[0])[chosen] / moved[chosen]
    found: Float64 = 1 / np.clip(inverse, 0.5, 20)
    return found


def _ranked(predicted: Float64, measured: Float64) -> tuple[float, float, float]:
    """Return Spearman, and the throughput lost by the first layout and by the best of the first three."""
    order, best = np.argsort(predicted, kind="stable"), measured.min()
    lost = 1 - best / measured[order]
    return spearman(-predicted, -measured), float(lost[0]), float(lost[:3].min())


if __name__ == "__main__":
    main()
