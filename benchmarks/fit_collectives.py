"""Fit the costs of NCCL and RCCL (presets/collectives/*.yaml) to the bundled measurements; cross-validate by machine.

    python benchmarks/fit_collectives.py            fit on the split "fit", write the presets
    python benchmarks/fit_collectives.py --leave    also fit without each family of machines, write *-left-out.yaml

Every parameter is positive, so its logarithm is fitted, by Gauss-Newton steps on log(time) with a soft loss. Priors
pull a medium's parameters towards its kind's (all NVLinks, ...), and the kind's towards their start values. A medium
without measurements gets its kind's. Only points with quality clean or excerpt, on machines of split "fit", are used.
"""

from __future__ import annotations

import argparse
import copy
import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from trine.collectives.nccl.costs import COSTS, launch_class
from trine.collectives.nccl.parameters import Library, library_from, load_library
from trine.collectives.nccl.predict import Collectives, sent_bytes, with_library
from trine.errors import TrineError
from validation.collectives import validate_collectives
from validation.measured import COUNTED, FIT, Series, load_measurements

FOLDER = Path(__file__).parents[1] / "src" / "trine" / "presets" / "collectives"
KINDS = ("default-nvlink", "default-xgmi", "default-pcie", "default-net")
PLAIN = (
    "p2p_step_us",
    "p2p_base_us",
    "p2p_efficiency",
    "spread_us",
    "copy_GBps",
    "nvls_us",
    "nvls_efficiency",
    "nvls_single",
)
#: Prior standard deviation (log) of a parameter around its kind's, and of the kind's around its start value.
PRIOR = {
    "efficiency": 0.06,
    "nvls_efficiency": 0.06,
    "nvls_us": 0.15,
    "p2p_efficiency": 0.1,
    "ramp": 0.4,
    "launch_factor": 0.3,
}
PRIOR_ELSE, LOSS = 0.4, 0.12
#: Weight of the prior, in points per parameter.
PRIOR_WEIGHT = 0.5

Path_ = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Sample:
    """One measured point: its prepared group, collective and size, log of its time in us, and weight."""

    asked: Collectives
    op: str
    size: int
    sent: int
    log_us: float
    weight: float
    series: Series
    touches: frozenset[str]


def samples(library: str, families_out: frozenset[str] = frozenset(), split: str | None = FIT) -> list[Sample]:
    """Return the counted points of the library's machines."""
    out = []
    for series in load_measurements():
        machine = series.machine
        if machine.library != library or machine.family in families_out or (split and machine.split != split):
            continue
        points = [p for p in series.points if p.quality in COUNTED and p.time_ps > 0]
        if not points or machine.cluster is None:
            continue
        try:
            cluster = series.load_cluster()
            asked = Collectives(cluster, None, series.options)
            asked.candidates(series.op)
        except TrineError as error:
            print(f"left out {machine.name} {series.op} {series.num_gpus}: {error}", file=sys.stderr)
            continue
        view = asked.topology
        names = {view.gpu} | {tier.medium for tier in (view.inside, view.between) if tier}
        for point in points:
            weight = 1.0 / math.sqrt(len(points)) * (1.5 if point.size_bytes >= 1 << 30 else 1.0)
            sent = sent_bytes(series.op, point.size_bytes, view.num_ranks)
            out.append(
                Sample(
                    asked,
                    series.op,
                    point.size_bytes,
                    sent,
                    math.log(point.time_ps / 1e6),
                    weight,
                    series,
                    frozenset(names),
                )
            )
    return out


class Problem:
    """Parameters as a vector of logarithms: kinds first, then each medium's offset from its kind."""

    def __init__(self, data: dict[str, Any], points: list[Sample]) -> None:
        self.data, self.points = data, points
        self.library = library_from(data)
        kinds = {"default-net"} | {self._kind(s) for s in points if s.asked.topology.inside}
        self.paths: list[Path_] = []
        self.start: list[float] = []
        self.sigma: list[float] = []
        media = sorted({(tier.medium, kind) for s in points for tier, kind in self._tiers(s) if tier.medium})
        self.kind_of = dict(media)
        for kind in sorted(kinds):
            self._medium(kind, data["media"][kind])
        for name, kind in media:
            self._medium(name, data["media"][kind], offset=True)
        for op in data["extra_steps"]:
            self._add(("extra_steps", op), data["extra_steps"][op], 0.3)
        for launch in data["launch_us"]:
            self._add(("launch_us", launch), data["launch_us"][launch], 0.5)
        for generation in sorted({launch_class(s.asked.topology) for s in points}):
            self._add(("launch_factor", generation), 1.0, PRIOR["launch_factor"])
        self.x0 = np.zeros(len(self.paths))

    def _tiers(self, sample: Sample) -> Iterator[tuple[Any, str]]:
        view = sample.asked.topology
        if view.inside:
            yield view.inside, self._kind(sample)
        if view.between:
            yield view.between, "default-net"

    def _kind(self, sample: Sample) -> str:
        inside = sample.asked.topology.inside
        return self.library.medium(inside.medium, between=False).name if inside else ""

    def _medium(self, name: str, given: dict[str, Any], offset: bool = False) -> None:
        base = {**self.data["media"]["default-nvlink"], **given}
        for key in ("step_us", "base_us", "efficiency", "ramp"):
            for protocol in ("ll", "ll128", "simple", "p2p"):
                value = {**self.data["media"]["default-nvlink"][key], **given.get(key, {})}.get(protocol)
                if value is not None:
                    self._add(("media", name, key, protocol), value, PRIOR.get(key, PRIOR_ELSE))
        for key in PLAIN:
            if key in base and (key[:4] != "nvls" or "nvlink" in name):
                self._add(("media", name, key), base[key], PRIOR.get(key, PRIOR_ELSE))

    def _add(self, path: Path_, value: float, sigma: float) -> None:
        self.paths.append(path)
        self.start.append(float(value))
        self.sigma.append(sigma)

    def build(self, x: np.ndarray) -> dict[str, Any]:
        """Return the library's file with these parameters; a medium's are its kind's times a factor."""
        data = copy.deepcopy(self.data)
        factors = np.exp(np.clip(x, -3, 3))
        for path, value, factor in zip(self.paths, self.start, factors, strict=True):
            here = data
            for name in path[:-1]:
                here = here.setdefault(name, {})
            if path[0] == "media" and path[1] in self.kind_of:
                kind = data["media"][self.kind_of[path[1]]]
                for name in path[2:]:
                    kind = kind[name] if name in kind else data["media"]["default-nvlink"][path[2]][path[3]]
                value = kind
            here[path[-1]] = float(f"{value * factor:.5g}")
        for name, kind in self.kind_of.items():
            for key in ("channels",):
                data["media"][name].setdefault(key, self.data["media"][kind].get(key, 16))
            data["media"][name]["evidence"] = "interpolated"
        return data

    def residuals(self, library: Library, subset: np.ndarray) -> np.ndarray:
        groups: dict[int, Collectives] = {}
        out = np.empty(len(subset))
        for i, index in enumerate(subset):
            sample = self.points[index]
            asked = groups.get(id(sample.asked))
            if asked is None:
                asked = groups[id(sample.asked)] = with_library(sample.asked, library)
            pair = asked.choice(sample.op, sample.sent)
            cost = COSTS[pair[0]](asked.context, sample.op, float(sample.sent), pair[1])
            out[i] = math.log(cost.total_us) - sample.log_us
        return out

    def touched(self, path: Path_) -> np.ndarray:
        """Return the indices of the points that a parameter can affect."""
        if path[0] == "launch_factor":
            launch = path[1]
            there = [i for i, s in enumerate(self.points) if launch == launch_class(s.asked.topology)]
            return np.array(there, dtype=int)
        if path[0] == "media":
            names = {path[1]} | {m for m, kind in self.kind_of.items() if kind == path[1]}
            return np.array([i for i, s in enumerate(self.points) if names & s.touches], dtype=int)
        return np.arange(len(self.points))

    def fit(self, steps: int, x: np.ndarray | None = None) -> np.ndarray:
        """Run Gauss-Newton with a soft loss and a prior; halve steps that do not reduce the loss."""
        x = self.x0.copy() if x is None else x.copy()
        everything = np.arange(len(self.points))
        weight = np.array([s.weight for s in self.points])
        subsets = [self.touched(path) for path in self.paths]
        prior = PRIOR_WEIGHT / np.array(self.sigma)

        def value(at: np.ndarray) -> tuple[float, np.ndarray]:
            r = self.residuals(library_from(self.build(at)), everything)
            soft = 2 * LOSS**2 * (np.sqrt(1 + (r / LOSS) ** 2) - 1)
            return float((weight * soft).sum() + LOSS**2 * ((prior * at) ** 2).sum()), r

        best, r = value(x)
        for step in range(steps):
            jacobian = np.zeros((len(self.points), len(x)))
            for p, subset in enumerate(subsets):
                if len(subset):
                    moved = x.copy()
                    moved[p] += 0.02
                    jacobian[subset, p] = (self.residuals(library_from(self.build(moved)), subset) - r[subset]) / 0.02
            irls = weight / np.sqrt(1 + (r / LOSS) ** 2)
            normal = jacobian.T @ (irls[:, None] * jacobian) + np.diag((LOSS * prior) ** 2)
            gradient = jacobian.T @ (irls * r) + (LOSS * prior) ** 2 * x
            move = -np.linalg.solve(normal + 1e-9 * np.eye(len(x)), gradient)
            move *= min(1.0, 0.7 / max(1e-9, np.abs(move).max()))
            for _ in range(5):
                trial, trial_r = value(x + move)
                if trial < best:
                    break
                move *= 0.5
            else:
                break
            gain = best - trial
            x, best, r = x + move, trial, trial_r
            print(f"  step {step}: {best:.4f}", file=sys.stderr)
            if gain < 1e-4 * best:
                break
        return x


def report(points: list[Sample], library: Library, verbose: bool) -> None:
    """Print the median and 90th percentile of the absolute error below and above 1 MiB, and by machine."""
    errors: dict[tuple[str, str], list[float]] = {}
    every: dict[str, list[float]] = {"<1M": [], ">=1M": []}
    for sample in points:
        asked = with_library(sample.asked, library)
        pair = asked.choice(sample.op, sample.sent)
        us = COSTS[pair[0]](asked.context, sample.op, float(sample.sent), pair[1]).total_us
        error = us / math.exp(sample.log_us) - 1
        band = ">=1M" if sample.sent >= 1 << 20 else "<1M"
        every[band].append(error)
        machine = sample.series.machine
        key = f"{machine.family:14} {machine.name:18} {sample.op:14} {sample.series.num_gpus:4}"
        errors.setdefault((key, band), []).append(error)
    for band, found in every.items():
        if found:
            print(
                f"{band}: n {len(found)} median {np.median(np.abs(found)):.3f} "
                f"p90 {np.quantile(np.abs(found), 0.9):.3f}"
            )
    if verbose:
        for (key, band), found in sorted(errors.items()):
            a = np.array(found)
            print(
                f"  {key} {band:5} n {len(a):3} median |e| {np.median(abs(a)):.2f}  bias {np.median(a):+.2f} "
                f"worst {a[abs(a).argmax()]:+.2f}"
            )


def leave_out(name: str, data: dict[str, Any], steps: int) -> list[tuple[Sample, float]]:
    """Return each point of split "fit" with its time (us) predicted by a fit without its family."""
    every = samples(name)
    families = sorted({sample.series.machine.family for sample in every})
    out = []
    for family in families:
        rest = [sample for sample in every if sample.series.machine.family != family]
        print(f" without {family}", file=sys.stderr)
        problem = Problem(data, rest)
        library = library_from(problem.build(problem.fit(steps)))
        for sample in every:
            if sample.series.machine.family == family:
                asked = with_library(sample.asked, library)
                out.append((sample, asked.predict(sample.op, sample.size).time_ps / 1e6))
    return out


def summarise(rows: list[tuple[Sample, float]]) -> None:
    """Print errors and the factors that hold 80 % of the points, within and between scale-up domains."""
    for net in (False, True):
        for small in (True, False):
            part = [
                us / math.exp(s.log_us)
                for s, us in rows
                if (s.asked.topology.between is not None) == net and (s.sent < 1 << 20) == small
            ]
            if part:
                error = np.abs(np.array(part) - 1)
                low, high = np.quantile(1 / np.array(part), (0.1, 0.9))
                print(
                    f"left out, {'between' if net else 'inside'} domains, {'<' if small else '>='} 1 MiB: "
                    f"n {len(part)} "
                    f"median {np.median(error):.3f} p90 {np.quantile(error, 0.9):.3f} band {low:.2f} to {high:.2f}"
                )


def write_left_out(rows: list[tuple[Sample, float]]) -> None:
    """Write the left-out predictions for `trine validate collectives`, with the model and data they belong to."""
    path = FOLDER.parent / "measured" / "left_out.csv"
    load_library.cache_clear()  # the presets have just been rewritten
    usual = {(c.series.number, c.point.size_bytes): c for c in validate_collectives().compared}
    lines = [
        "# written by benchmarks/fit_collectives.py --leave",
        "series,size_bytes,predicted_us,usual_us,measured_us",
    ]
    for sample, us in rows:
        found = usual[sample.series.number, sample.size]
        times = f"{us:.6g},{found.predicted.time_ps / 1e6:.6g},{found.point.time_ps / 1e6:.6g}"
        lines.append(f"{sample.series.number},{sample.size},{times}")
    path.write_text("\n".join(lines) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--leave", action="store_true")
    parser.add_argument("--steps", type=int, default=15)
    parser.add_argument("--library", default="nccl,rccl")
    arguments = parser.parse_args()
    left: list[tuple[Sample, float]] = []
    for name in arguments.library.split(","):
        data = yaml.safe_load((Path(__file__).parent / "collective_priors.yaml").read_text())[name]
        problem = Problem(data, samples(name))
        x = problem.fit(arguments.steps)
        fitted = problem.build(x)
        (FOLDER / f"{name}.yaml").write_text(yaml.safe_dump(fitted, sort_keys=False))
        print(name, "fit split")
        report(problem.points, library_from(fitted), True)
        rest = [s for s in samples(name, split=None) if s.series.machine.split != FIT]
        if rest:
            print(name, "held out")
            report(rest, library_from(fitted), True)
        if arguments.leave:
            left += leave_out(name, data, arguments.steps)
    if left:
        summarise(left)
        write_left_out(left)


if __name__ == "__main__":
    main()
