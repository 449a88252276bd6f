"""The page docs/background/training-accuracy.md with its pictures, from replays of steps and layouts."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from trine.common._version import __version__
from trine.compute.tables import machine
from trine.results.headline import nearest_in
from trine.results.picture import COLOURS, save, subplots
from trine.results.report import Row, Table
from trine.validation.harness import HEAD, cells, grouped, markdown, page_text, quantile, write_with_pictures
from trine.validation.layouts import FITTED_FACTORS, LayoutValidation
from trine.validation.step_factors import ComparedStep, source_weights, words
from trine.validation.training import (
    BLIND,
    CALIBRATED,
    GROUPS,
    TrainingValidation,
    chosen_rows,
    fitted_cells,
    layout_words,
    step_row,
)
from trine.validation.training_rows import TrainingSource, load_left_out, load_sources

# The bands that results show: from errors of published steps, each left out of the data behind its prediction.
#
# ``benchmarks/write_bands.py`` writes them to presets/measured/training/bands.yaml, which
# :mod:`trine.results.headline` reads. A level is a GPU and software at a scale, a GPU and software, a generation of
# GPUs and software, a generation, or everything. Within a level every source has the same weight. A band always
# contains the prediction itself, even if all rows of a level were slower, or all faster.
#
# A level has few models, so a new model lies outside its 10th to 90th percentile more often than in two of ten cases.
# :func:`share_left_out` counts these: with LOW and HIGH about 80 % of the rows lie inside.

LOW, HIGH = 0.08, 0.92
#: The generation of each GPU; bands pool GPUs of one architecture, regardless of their memory.
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


def band_document(steps: TrainingValidation) -> dict[str, Any]:
    """Return the content of bands.yaml: ``levels`` blind, ``fitted_levels`` with factors of other rows, ``mfu``."""
    blind = [(step, math.log(step.measured_s / step.answer.step_s)) for step in steps.counted]
    fitted = [
        (step, math.log(step.measured_s / step.calibrated_s)) for step in steps.counted if step.calibrated_s is not None
    ]
    return {
        "made_by": f"benchmarks/write_bands.py, trine {__version__}, {len(blind)} published steps",
        "levels": _levels(blind),
        "fitted_levels": _levels(fitted),
        "generations": GENERATIONS,
        "mfu": _public_mfu(steps.compared),
    }


def _levels(errors: Sequence[tuple[ComparedStep, float]]) -> list[dict[str, Any]]:
    errors_by_level: dict[tuple[tuple[str, str], ...], list[tuple[ComparedStep, float]]] = {}
    for step, error in errors:
        facts = {
            "gpu": step.row.gpu, "software": step.answer.software, "scale": step.row.scale,
            "generation": step.row.generation,
        }  # fmt: skip
        for level in _LEVELS:
            errors_by_level.setdefault(tuple((name, facts[name]) for name in level), []).append((step, error))
    return [{"of": dict(level), **_percentiles(members)} for level, members in sorted(errors_by_level.items())]


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
                description = f"{step.row.model} on {step.row.num_gpus} GPUs, {step.row.source.title}"
                best[step.row.gpu] = mfu, description
    return {gpu: {"mfu": round(mfu, 4), "row": row} for gpu, (mfu, row) in sorted(best.items())}


def share_inside(
    report: TrainingValidation, document: Mapping[str, Any], is_fitted: bool = False
) -> tuple[float, float]:
    """Return the share of rows inside their band, and the bands' median high / low; sources have equal weight."""
    return _share([(step, document) for step in report.counted], is_fitted)


def share_left_out(report: TrainingValidation, is_fitted: bool = False) -> tuple[float, float]:
    """Return :func:`share_inside` with bands fitted without the rows of the same model and source."""
    rows: list[tuple[ComparedStep, Mapping[str, Any]]] = []
    for members in grouped(report.counted, lambda step: (step.row.source.key, step.row.model)).values():
        left_out = {step.row.name for step in members}
        document = band_document(replace(report, steps=tuple(s for s in report.steps if s.row.name not in left_out)))
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
    is_inside, widths, weights = (np.array(column) for column in zip(*rows, strict=True))
    return float(np.average(is_inside, weights=weights)), quantile(widths, weights, 0.5)


PAGE = "training-accuracy.md"
STEPS_PICTURE, LAYOUTS_PICTURE = "training-accuracy-steps.png", "training-accuracy-layouts.png"
NUM_WORST = 8
_HEAD = (*HEAD[:-1], "<= 10 %")


def write_page(steps: TrainingValidation, layouts: LayoutValidation, folder: str | Path) -> list[Path]:
    """Write the page, its tables and pictures into ``folder``; needs the extra ``plot``. Return the paths."""
    pictures = {
        STEPS_PICTURE: lambda path: plot_steps(steps, path),
        LAYOUTS_PICTURE: lambda path: plot_layouts(layouts, path),
    }
    steps_apart = (step for step in steps.compared if step.row.apart)
    tables: dict[str, Table] = {
        "training-accuracy-groups.csv": [
            {"by": by, "group": name, "is_fitted": is_fitted, **errors.row()}
            for by in GROUPS
            for is_fitted in (False, True)
            for name, errors in steps.grouped(by, is_fitted)
        ],
        "training-accuracy-rows.csv": [step_row(step) for step in (*steps.worst(), *steps_apart)],
        "training-accuracy-sources.csv": _sources(steps),
        "training-accuracy-layout-groups.csv": layouts.tables()["groups"],
        "training-accuracy-layouts.csv": layouts.tables()["rows"],
    }
    return write_with_pictures(folder, PAGE, page(steps, layouts), pictures, tables)


def page(steps: TrainingValidation, layouts: LayoutValidation) -> str:
    """Return the page in Markdown."""
    return page_text(
        PAGE, edition=_edition(steps), totals=_totals(steps), groups=_groups(steps), bands=_bands(steps),
        tuned=_tuned(steps), left_out=_left_out(), worst=_worst_rows(steps), num_fitted=layouts.num_fitted, factors=words(layouts.factors, FITTED_FACTORS),
        ranking=layouts.headline, layout_errors=_layout_errors(layouts), apart=_apart_list(steps),
        constant_mfu=_constant_mfu(steps),
    )  # fmt: skip


def _edition(report: TrainingValidation) -> str:
    total, sources = sum(not row.apart for row in chosen_rows(None, False)), {s.group("source") for s in report.counted}
    version = __version__ if report.stored is None else report.stored.version
    return f"{len(report.counted)} of {total} published steps that count, of {len(sources)} sources (trine {version})."


def _totals(report: TrainingValidation) -> str:
    rows = []
    for name, is_fitted, target in (("blind", False, BLIND), ("fitted", True, CALIBRATED)):
        errors = report.errors(report.counted, is_fitted)
        if errors is not None:
            limits = ", ".join(f"{name} {limit:.0%}" for name, limit in target.limits("{}").items())
            rows.append((name, *cells(errors), limits, "met" if target.met(errors) else "not met"))
    return markdown(("over all sources", *_HEAD, "target (at most)", "result"), rows)


def _bands(report: TrainingValidation) -> str:
    document, parts = band_document(report), []
    for name, is_fitted in (("blind", False), ("fitted", True)):
        (part, width), (left_out, _) = share_inside(report, document, is_fitted), share_left_out(report, is_fitted)
        if part == part:
            parts.append(f"{part:.0%} of {name} rows ({left_out:.0%} without the model's rows; width {width:.2f})")
    return f"The likely range holds {', '.join(parts)}. The target is 80 %; width is the median of high / low."


def _groups(report: TrainingValidation) -> str:
    fitted = dict(report.grouped("source", True))
    rows = [(name, *cells(errors), *fitted_cells(fitted.get(name))) for name, errors in report.grouped("source")]
    return markdown(("source", *_HEAD, "fitted: bias", "mean", "p90"), rows)


def _tuned(report: TrainingValidation) -> str:
    """Return a table of the groups of tuned software, one vote each, and of all of them."""
    voted = report.voted()
    rows = [*report.votes(), *([("all groups", voted)] if voted else [])]
    return markdown(("group", *_HEAD), [(name.replace("|", ", "), *cells(errors)) for name, errors in rows])


def _left_out() -> str:
    rows = load_left_out()
    return "\n".join(f"- {row['group'].replace('|', ', ')} ({row['rows']} rows): {row['reason']}." for row in rows)


def _worst_rows(report: TrainingValidation) -> str:
    rows = [
        (
            step.row.name, step.row.model, f"{step.row.num_gpus} x {step.row.gpu}",
            layout_words(step.row, " ") or "one GPU", f"{step.measured_s:.4g} s", f"{step.answer.step_s:.4g} s",
            f"{step.error:+.1%}", "" if step.calibrated_error is None else f"{step.calibrated_error:+.1%}",
        )
        for step in report.worst()[:NUM_WORST]
    ]  # fmt: skip
    return markdown(("row", "model", "GPUs", "layout", "measured", "predicted", "blind error", "fitted error"), rows)


def _apart_list(report: TrainingValidation) -> str:
    failed = Counter((s.row.source.key, s.row.apart or s.answer.why_not) for s in report.failed)
    lines = [f"- {key}: {e.count} rows, mean error {e.mean:.1%}: {why}." for key, why, e in report.apart()]
    return "\n".join([*lines, *(f"- {key}, not predicted ({n}): {why}." for (key, why), n in failed.items())])


def _layout_errors(report: LayoutValidation) -> str:
    rows = [(name, *cells(errors)) for name, errors in report.by_nodes()]
    if (blind := report.blind_errors) is not None:
        rows.insert(0, ("1 node, nothing fitted", *cells(blind)))
    rows += [(f"apart: {why}", *cells(errors)) for why, errors in report.apart()]
    return markdown(("nodes", *_HEAD), rows)


def _constant_mfu(report: TrainingValidation) -> str:
    """Return the error of half of the data sheet's peak as every step's rate."""
    answers = ((step, step.answer) for step in report.counted if step.answer.peak_flops)
    steps = [replace(step, calibrated_s=answer.model_flops / (0.5 * answer.peak_flops)) for step, answer in answers]
    errors = report.errors(steps, True)
    return "unknown" if errors is None else f"{errors.mean:.1%} mean, {errors.p90:.1%} p90"


def _sources(report: TrainingValidation) -> list[Row]:
    count = Counter(step.row.source.key for step in report.steps)
    return [
        {"source": key, "title": source.title, "licence": source.licence, "software": _software_words(source),
         "rows": count[key], "open": list(source.open)}
        for key, source in load_sources().items()
        if count[key]
    ]  # fmt: skip


def _software_words(source: TrainingSource) -> str:
    names = [source.software] if isinstance(source.software, str) else source.software.values()
    return "; ".join(dict.fromkeys(names))


def plot_steps(report: TrainingValidation, path: Path) -> None:
    """Predicted over measured step time against measured, by source; blind to the left, fitted to the right."""
    figure, axes = subplots(1, 2, figsize=(11, 4.6), sharey=True)
    names = sorted({step.group("source") for step in report.counted})
    colours = (*COLOURS, "black")
    for axis, title, is_fitted in ((axes[0], "blind", False), (axes[1], "factors fitted on other rows", True)):
        for number, name in enumerate(names):
            steps = [s for s in report.counted if s.group("source") == name and (s.calibrated_s or not is_fitted)]
            ratios = [((s.calibrated_s or 0) if is_fitted else s.answer.step_s) / s.measured_s for s in steps]
            marker = "os^vD*PX"[number % 8]
            axis.scatter([s.measured_s for s in steps], ratios, s=16, lw=0, alpha=0.75, marker=marker,
                         color=colours[number % len(colours)], label=f"{name} ({len(steps)})")  # fmt: skip
        _ratio_axis(axis, title)
    axes[0].set_ylabel("predicted / measured step time")
    axes[0].legend(frameon=False, fontsize=8, ncols=2)
    save(figure, path)


def _ratio_axis(axis: Any, title: str) -> None:
    axis.fill_between([1e-3, 1e4], 0.9, 1.1, color="#009E73", alpha=0.12, lw=0)
    axis.axhline(1, color="black", lw=0.8)
    axis.set_xscale("log")
    axis.set_yscale("log", base=2)
    ticks = [0.25, 0.5, 0.71, 0.9, 1, 1.1, 1.41, 2, 4]
    axis.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
    axis.minorticks_off()
    axis.set_xlim(0.1, 500)
    axis.set_ylim(0.4, 2.5)
    axis.set_xlabel("measured step time (s)")
    axis.set_title(title, fontsize=10)


def plot_layouts(report: LayoutValidation, path: Path) -> None:
    """Predicted against measured tokens/s of a GPU, a panel a model, colours by nodes."""
    models = sorted({step.row.facts["model"] for step in report.counted})
    figure, axes = subplots(1, max(1, len(models)), figsize=(11, 4.2), squeeze=False)
    for axis, model in zip(axes.flat, models, strict=False):
        steps = [step for step in report.counted if step.row.facts["model"] == model]
        for number, nodes in enumerate(sorted({step.row.num_nodes for step in steps})):
            _dots(axis, [step for step in steps if step.row.num_nodes == nodes], nodes, number)
        ends = np.array(axis.get_xlim())
        axis.plot(ends, ends, color="black", lw=0.8)
        axis.set_xlabel("measured tokens/s a GPU")
        axis.set_title(f"{model}, {len(steps)} layouts", fontsize=10)
        axis.legend(frameon=False, fontsize=8)
    axes.flat[0].set_ylabel("predicted tokens/s a GPU")
    save(figure, path)


def _dots(axis: Any, steps: Sequence[ComparedStep], nodes: int, number: int) -> None:
    rate = [step.row.tokens / step.row.num_gpus for step in steps]
    measured = [tokens / step.measured_s for tokens, step in zip(rate, steps, strict=True)]
    predicted = [tokens / (s.calibrated_s or s.answer.step_s) for tokens, s in zip(rate, steps, strict=True)]
    axis.scatter(measured, predicted, s=12, lw=0, alpha=0.7, color=COLOURS[number % len(COLOURS)],
                 label=f"{nodes} node{'s' if nodes > 1 else ''}")  # fmt: skip
