"""The page docs/background/training-accuracy.md with its pictures, from replays of steps and layouts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from trine.common._version import __version__
from trine.results.picture import COLOURS, save, subplots
from trine.results.report import Row, Table
from validation.bands import band_document, share_inside, share_left_out
from validation.harness import HEAD, cells, markdown, page_text, write_with_pictures
from validation.layouts import FITTED_FACTORS, LayoutValidation
from validation.step_factors import ComparedStep, words
from validation.training import (
    BLIND,
    CALIBRATED,
    GROUPS,
    TrainingValidation,
    chosen_rows,
    fitted_cells,
    layout_words,
    step_row,
)
from validation.training_rows import TrainingSource, load_left_out, load_sources

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
    group_rows = [
        {"by": by, "group": name, "is_fitted": is_fitted, **errors.row()}
        for by in GROUPS
        for is_fitted in (False, True)
        for name, errors in steps.grouped(by, is_fitted)
    ]
    worst_rows = [step_row(step) for step in (*steps.worst(), *steps_apart)]
    tables: dict[str, Table] = {
        "training-accuracy-groups.csv": group_rows,
        "training-accuracy-rows.csv": worst_rows,
        "training-accuracy-sources.csv": _sources(steps),
        "training-accuracy-layout-groups.csv": layouts.tables()["groups"],
        "training-accuracy-layouts.csv": layouts.tables()["rows"],
    }
    return write_with_pictures(folder, PAGE, page(steps, layouts), pictures, tables)


def page(steps: TrainingValidation, layouts: LayoutValidation) -> str:
    """Return the page in Markdown."""
    return page_text(
        PAGE, edition=_edition(steps), totals=_totals(steps), groups=_groups(steps), bands=_bands(steps),
        tuned=_tuned(steps), left_out=_left_out(),
        worst=_worst_rows(steps), num_fitted=layouts.num_fitted, factors=words(layouts.factors, FITTED_FACTORS),
        ranking=layouts.headline, layout_errors=_layout_errors(layouts), apart=_apart_list(steps),
        constant_mfu=_constant_mfu(steps),
    )  # fmt: skip


def _edition(report: TrainingValidation) -> str:
    total = sum(not row.apart for row in chosen_rows(None, False))
    sources = {s.group("source") for s in report.counted}
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
    return "\n".join(f"- {row['group'].replace('|', ', ')} (rows: {row['rows']}): {row['reason']}." for row in rows)


def _worst_rows(report: TrainingValidation) -> str:
    rows = []
    for step in report.worst()[:NUM_WORST]:
        rows.append(
            (
                step.row.name,
                step.row.model,
                f"{step.row.num_gpus} x {step.row.gpu}",
                layout_words(step.row, " ") or "one GPU",
                f"{step.measured_s:.4g} s",
                f"{step.answer.step_s:.4g} s",
                f"{step.error:+.1%}",
                "" if step.calibrated_error is None else f"{step.calibrated_error:+.1%}",
            )
        )
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
            ratios = []
            for s in steps:
                ratios.append(((s.calibrated_s or 0) if is_fitted else s.answer.step_s) / s.measured_s)
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
