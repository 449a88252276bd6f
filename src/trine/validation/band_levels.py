"""The bands that results show: from errors of published steps, each left out of the data behind its prediction.

``benchmarks/write_bands.py`` writes them to presets/measured/training/bands.yaml, which
:mod:`trine.results.headline` reads. A level is a GPU and software at a scale, a GPU and software, a generation of GPUs
and software, a generation, or everything. Within a level every source has the same weight. A band always contains the
prediction itself, even if all rows of a level were slower, or all faster.

A level has few models, so a new model lies outside its 10th to 90th percentile more often than in two of ten cases.
:func:`share_left_out` counts these: with LOW and HIGH about 80 % of the rows lie inside.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from trine.common._version import __version__
from trine.compute.tables import machine
from trine.results.headline import nearest_in
from trine.validation.harness import grouped, quantile
from trine.validation.step_factors import ComparedStep, source_weights
from trine.validation.training import TrainingValidation

LOW, HIGH = 0.08, 0.92
#: The generation of each GPU; bands put GPUs of one architecture together, whatever their memory.
GENERATIONS = {
    gpu: "cdna" if name.startswith("cdna") else name.removesuffix("-gddr")
    for name, gpus in machine.GENERATIONS.items()
    for gpu in gpus
}
#: Published MFU of other tables, counted in the same way: GPU, MFU, source.
STATED = (
    ("h100-sxm", 0.494, "16B on 192 GPUs, Megatron-LM README"),
    ("a100-80gb", 0.53, "175B on 256 GPUs, Megatron-LM in MegaScale (NSDI 2024, table 2)"),
)
_LEVELS = (("gpu", "software", "scale"), ("gpu", "software"), ("generation", "software"), ("generation",), ())


def band_document(found: TrainingValidation) -> dict[str, Any]:
    """Return the content of bands.yaml: ``levels`` blind, ``fitted_levels`` with factors of other rows, ``mfu``."""
    blind = [(step, math.log(step.measured_s / step.answer.step_s)) for step in found.counted]
    fitted = [
        (step, math.log(step.measured_s / step.calibrated_s)) for step in found.counted if step.calibrated_s is not None
    ]
    return {
        "made_by": f"benchmarks/write_bands.py, trine {__version__}, {len(blind)} published steps",
        "levels": _levels(blind),
        "fitted_levels": _levels(fitted),
        "generations": GENERATIONS,
        "mfu": _public_mfu(found.compared),
    }


def _levels(errors: Sequence[tuple[ComparedStep, float]]) -> list[dict[str, Any]]:
    found: dict[tuple[tuple[str, str], ...], list[tuple[ComparedStep, float]]] = {}
    for step, error in errors:
        facts = {
            "gpu": step.row.gpu, "software": step.answer.software, "scale": step.row.scale,
            "generation": step.row.generation,
        }  # fmt: skip
        for level in _LEVELS:
            found.setdefault(tuple((name, facts[name]) for name in level), []).append((step, error))
    return [{"of": dict(level), **_percentiles(members)} for level, members in sorted(found.items())]


def _percentiles(members: Sequence[tuple[ComparedStep, float]]) -> dict[str, float | int]:
    errors = np.array([error for _, error in members])
    weights = np.array(source_weights([step for step, _ in members]))
    low, high = (math.exp(quantile(errors, weights, share)) for share in (LOW, HIGH))
    return {"rows": len(members), "low": round(min(low, 1.0), 4), "high": round(max(high, 1.0), 4)}


def _public_mfu(steps: Sequence[ComparedStep]) -> dict[str, dict[str, Any]]:
    """Return the largest MFU among each GPU's rows, counted as in :mod:`trine.results.headline`."""
    best = {gpu: (mfu, row) for gpu, mfu, row in STATED}
    for step in steps:
        if step.answer.peak_flops:
            mfu = step.answer.model_flops / step.measured_s / step.answer.peak_flops
            if mfu > best.get(step.row.gpu, (0.0, ""))[0]:
                where = f"{step.row.model} on {step.row.num_gpus} GPUs, {step.row.source.title}"
                best[step.row.gpu] = mfu, where
    return {gpu: {"mfu": round(mfu, 4), "row": row} for gpu, (mfu, row) in sorted(best.items())}


def share_inside(
    found: TrainingValidation, document: Mapping[str, Any], is_fitted: bool = False
) -> tuple[float, float]:
    """Return the share of rows inside their band, and the bands' median high / low; sources have equal weight."""
    return _share([(step, document) for step in found.counted], is_fitted)


def share_left_out(found: TrainingValidation, is_fitted: bool = False) -> tuple[float, float]:
    """Return the same with bands that leave out the rows of the same model in the same source."""
    rows: list[tuple[ComparedStep, Mapping[str, Any]]] = []
    for members in grouped(found.counted, lambda step: (step.row.source.key, step.row.model)).values():
        left_out = {step.row.name for step in members}
        document = band_document(replace(found, steps=tuple(s for s in found.steps if s.row.name not in left_out)))
        rows += [(step, document) for step in members]
    return _share(rows, is_fitted)


def _share(steps: Sequence[tuple[ComparedStep, Mapping[str, Any]]], is_fitted: bool) -> tuple[float, float]:
    rows = []
    for (step, document), weight in zip(steps, source_weights([step for step, _ in steps]), strict=True):
        predicted = step.calibrated_s if is_fitted else step.answer.step_s
        band = nearest_in(document, step.row.gpu, step.answer.software, step.row.num_nodes, is_fitted)
        if predicted is not None and band is not None:
            rows.append((band.low <= step.measured_s / predicted <= band.high, band.high / band.low, weight))
    if not rows:
        return math.nan, math.nan
    inside, widths, weights = (np.array(column) for column in zip(*rows, strict=True))
    return float(np.average(inside, weights=weights)), quantile(widths, weights, 0.5)
