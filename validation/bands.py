"""Likely ranges of later predictions: bands from errors of published steps, each left out of its prediction's data.

``benchmarks/write_bands.py`` writes them to presets/measured/training/bands.yaml, which :mod:`trine.results.headline`
reads. A level is a GPU and software at a scale, a GPU and software, a generation of GPUs and software, a generation, or
everything. Within a level every source has the same weight, and within a source every group of rows has one vote. A
band always contains the prediction itself, even if all rows of a level were slower, or all faster.

Layouts on several nodes of a shared fabric (:mod:`validation.layouts`) enter the level of their scale. Their
scatter also gives the factors that widen a level of another scale (:mod:`trine.results.scales`). The band of
convolutional networks comes from :mod:`validation.cnn_rows`.

A level has few models, so a new model lies outside its 10th to 90th percentile more often than in two of ten cases.
:func:`share_left_out` counts these: with LOW and HIGH about 80 % of the rows lie inside.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from trine.common._version import __version__
from trine.compute.tables import machine
from trine.results.headline import StepBand, nearest_in
from trine.results.scales import NAMES
from validation.cnn_rows import CnnStep
from validation.harness import grouped, quantile
from validation.step_factors import ComparedStep, source_weights
from validation.training import TrainingValidation

LOW, HIGH = 0.08, 0.92


def _architecture(generation: str) -> str:
    """Return the name of a generation without its memory or number."""
    return "cdna" if generation.startswith("cdna") else generation.removesuffix("-gddr")


#: The generation of each GPU; bands pool GPUs of one architecture, regardless of their memory.
GENERATIONS = {gpu: _architecture(generation) for generation, gpus in machine.GENERATIONS.items() for gpu in gpus}
_LEVELS = (("gpu", "software", "scale"), ("gpu", "software"), ("generation", "software"), ("generation",), ())
#: A step and log(measured / predicted).
StepError = tuple[ComparedStep, float]


def band_document(
    steps: TrainingValidation, layouts: Sequence[ComparedStep] = (), cnns: Sequence[CnnStep] = ()
) -> dict[str, Any]:
    """Return the content of bands.yaml.

    layouts: on several nodes, as :meth:`validation.layouts.LayoutValidation.on_several_nodes`. ``levels``: blind;
    ``fitted_levels``: with factors of other rows; ``scales``: factors of a stand-in by scale; ``cnn``: of ``cnns``.
    """
    blind, blind_layouts = _blind_errors(steps.counted), _blind_errors(layouts)
    return {
        "made_by": f"benchmarks/write_bands.py, trine {__version__}, {len(blind) + len(blind_layouts)} published steps",
        "levels": _levels(blind, blind_layouts),
        "fitted_levels": _levels(_fitted_errors(steps.counted), _fitted_errors(layouts)),
        "scales": scale_widening(blind, blind_layouts),
        "cnn": cnn_level(cnns),
        "generations": GENERATIONS,
    }


def _blind_errors(steps: Iterable[ComparedStep]) -> list[StepError]:
    return [(step, math.log(step.measured_s / step.answer.step_s)) for step in steps]


def _fitted_errors(steps: Iterable[ComparedStep]) -> list[StepError]:
    return [(step, math.log(step.measured_s / step.calibrated_s)) for step in steps if step.calibrated_s is not None]


def _levels(errors: Sequence[StepError], layouts: Sequence[StepError]) -> list[dict[str, Any]]:
    """Return all levels. Layouts enter only the level of their scale: elsewhere they would outnumber all other rows."""
    errors_by_level: dict[tuple[tuple[str, str], ...], list[StepError]] = {}
    for (step, error), levels in [*((each, _LEVELS) for each in errors), *((each, _LEVELS[:1]) for each in layouts)]:
        facts = {
            "gpu": step.row.gpu, "software": step.answer.software, "scale": step.row.scale,
            "generation": step.row.generation,
        }  # fmt: skip
        for level in levels:
            errors_by_level.setdefault(tuple((name, facts[name]) for name in level), []).append((step, error))
    return [{"of": dict(level), **_percentiles(members)} for level, members in sorted(errors_by_level.items())]


def _percentiles(members: Sequence[StepError]) -> dict[str, Any]:
    on_shared = [each for each in members if each[0].row.source.fabric is not None]
    return {
        "rows": len(members), "votes": len({(step.row.source.key, step.row.group) for step, _ in members}),
        "scales": _votes_by_scale(members), "shared_scales": _votes_by_scale(on_shared), **_ends(*_quantiles(members)),
    }  # fmt: skip


def _votes_by_scale(members: Sequence[StepError]) -> dict[str, int]:
    scales = {(s.row.source.key, s.row.group, s.row.scale) for s, _ in members}
    votes = Counter(scale for *_, scale in scales)
    return {name: votes[name] for name in NAMES if votes[name]}


def _band_of(step: ComparedStep, document: Mapping[str, Any], is_fitted: bool = False) -> StepBand | None:
    row = step.row
    return nearest_in(
        document, row.gpu, step.answer.software, row.num_nodes, is_fitted, is_shared=row.source.fabric is not None
    )


def _quantiles(members: Sequence[StepError]) -> tuple[float, float]:
    """Return the LOW and HIGH quantile of measured / predicted."""
    errors = np.array([error for _, error in members])
    weights = np.array(source_weights([step for step, _ in members]))
    return math.exp(quantile(errors, weights, LOW)), math.exp(quantile(errors, weights, HIGH))


def _ends(low: float, high: float) -> dict[str, float]:
    return {"low": round(min(low, 1.0), 4), "high": round(max(high, 1.0), 4)}


def scale_widening(errors: Sequence[StepError], layouts: Sequence[StepError]) -> dict[str, dict[str, float]]:
    """Return factors of both ends by scale: ends of the layouts over the ends of the same sources on one node.

    A larger scale is at least as wide as a smaller one; a scale without layouts is as wide as the next smaller one.
    """
    sources = {step.row.source.key for step, _ in layouts}
    one_node = [each for each in errors if each[0].row.source.key in sources and each[0].row.scale == NAMES[0]]
    low = high = 1.0
    factors = {NAMES[0]: {"low": low, "high": high}}
    reference = _quantiles(one_node) if one_node else (1.0, 1.0)
    for scale in NAMES[1:]:
        members = [each for each in layouts if each[0].row.scale == scale]
        if members:
            ends = _quantiles(members)
            low, high = min(low, ends[0] / reference[0]), max(high, ends[1] / reference[1])
        factors[scale] = {"low": round(low, 4), "high": round(high, 4)}
    return factors


def cnn_level(cnns: Sequence[CnnStep]) -> dict[str, Any] | None:
    """Return the band of convolutional networks, one vote a network, GPU and precision; None without rows."""
    if not cnns:
        return None
    votes = Counter(step.group for step in cnns)
    errors = np.array([math.log(step.measured_s / step.predicted_s) for step in cnns])
    weights = np.array([1 / votes[step.group] for step in cnns])
    low, high = (math.exp(quantile(errors, weights, share)) for share in (LOW, HIGH))
    return {"rows": len(cnns), "votes": len(votes), "scales": {NAMES[0]: len(votes)}, **_ends(low, high)}


def share_inside(
    report: TrainingValidation, document: Mapping[str, Any], is_fitted: bool = False
) -> tuple[float, float]:
    """Return the share of rows inside their band, and the bands' median high / low; sources have equal weight."""
    return _share([(step, document) for step in report.counted], is_fitted)


def share_left_out(
    report: TrainingValidation, is_fitted: bool = False, layouts: Sequence[ComparedStep] = ()
) -> tuple[float, float]:
    """Return :func:`share_inside` with bands fitted without the rows of the same model and source."""
    rows: list[tuple[ComparedStep, Mapping[str, Any]]] = []
    groups = grouped(report.counted, lambda step: (step.row.source.key, step.row.model))
    for (source, model), members in groups.items():
        left_out = {step.row.name for step in members}
        others = [step for step in layouts if (step.row.source.key, step.row.model) != (source, model)]
        remaining = tuple(step for step in report.steps if step.row.name not in left_out)
        document = band_document(replace(report, steps=remaining), others)
        rows += [(step, document) for step in members]
    return _share(rows, is_fitted)


def _share(steps: Sequence[tuple[ComparedStep, Mapping[str, Any]]], is_fitted: bool) -> tuple[float, float]:
    rows = []
    for (step, document), weight in zip(steps, source_weights([step for step, _ in steps]), strict=True):
        predicted = step.calibrated_s if is_fitted else step.answer.step_s
        band = _band_of(step, document, is_fitted)
        if predicted is not None and band is not None:
            rows.append((band.low <= step.measured_s / predicted <= band.high, band.high / band.low, weight))
    if not rows:
        return math.nan, math.nan
    is_inside, widths, weights = (np.array(column) for column in zip(*rows, strict=True))
    return float(np.average(is_inside, weights=weights)), quantile(widths, weights, 0.5)


def coverage(steps: Sequence[ComparedStep], document: Mapping[str, Any]) -> list[tuple[str, int, int, float]]:
    """Return name, rows, groups and the share of groups inside their likely range: all steps, then each source.

    A group has one vote, which its rows share. Blind predictions only.
    """
    inside: dict[tuple[str, str], list[bool]] = {}
    for step in steps:
        band = _band_of(step, document)
        is_inside = band is not None and band.low <= step.measured_s / step.answer.step_s <= band.high
        inside.setdefault((step.row.source.key, step.row.group), []).append(is_inside)
    sources = dict.fromkeys(source for source, _ in inside)
    tables = [("all", list(inside.values()))]
    source_tables = []
    for name in sources:
        source_tables.append((name, [rows for (source, _), rows in inside.items() if source == name]))
    tables += source_tables
    rows_of_tables = []
    for name, groups in tables:
        rows_of_tables.append(
            (name, sum(map(len, groups)), len(groups), float(np.mean([np.mean(rows) for rows in groups])))
        )
    return rows_of_tables
