"""The page docs/background/training-accuracy.md with its pictures, from replays of steps and layouts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from trine.results.picture import COLOURS, save, subplots
from trine.studies.band_levels import HIGH, LOW, band_document, share_inside, share_left_out
from trine.studies.step_factors import HUBER, NOISE, PRIORS, ComparedStep, words
from trine.studies.training_rows import load_sources
from trine.studies.validate_layouts import FITTED_FACTORS, LayoutValidation
from trine.studies.validate_training import (
    BLIND,
    CALIBRATED,
    GROUPS,
    TrainingValidation,
    chosen_rows,
    fitted_cells,
    layout_words,
)
from trine.studies.validation import HEAD, cells, markdown, page_text, write_with_pictures

PAGE = "training-accuracy.md"
STEPS_PICTURE, LAYOUTS_PICTURE = "training-accuracy-steps.png", "training-accuracy-layouts.png"
NUM_WORST = 25
_HEAD = (*HEAD[:-1], "<= 10 %")
#: What others publish of themselves.
PEERS = (
    ("calculon", "its own 8 points of Korthikanti et al.", "3.65 % mean"),
    ("calculon", "48 other published steps, replayed by us in 2026", "19.4 % mean"),
    ("SimuMax", "its own 43 rows on B200", "5.6 % mean, 10.4 % p90"),
    ("aiconfigurator", "its own GEMMs, whole shapes left out", "3.63 % median, 14.7 % p90"),
    ("aiconfigurator", "its own attention, whole shapes left out", "2.0 % median, 9.7 % p90"),
    ("a constant MFU of 50 %", "178 published steps", "30.3 % mean"),
    ("trine 0.3.0", "242 published steps without vTrain's single-node table", "28.6 % mean, 45 % p90"),
)  # fmt: skip


def write_page(steps: TrainingValidation, layouts: LayoutValidation, folder: str | Path) -> list[Path]:
    """Write the page and its pictures into ``folder``; needs the extra ``plot``. Returns what was written."""
    pictures = {
        STEPS_PICTURE: lambda path: plot_steps(steps, path),
        LAYOUTS_PICTURE: lambda path: plot_layouts(layouts, path),
    }
    return write_with_pictures(folder, PAGE, page(steps, layouts), pictures)


def page(steps: TrainingValidation, layouts: LayoutValidation) -> str:
    """The page in Markdown."""
    return page_text(
        PAGE,
        noise=NOISE,
        priors=", ".join(map(str, PRIORS)),
        huber=HUBER,
        edition=_edition(steps),
        totals=_totals(steps),
        bands=_bands(steps),
        groups="\n\n".join(f"## By {by}\n\n{_groups(steps, by)}" for by in GROUPS),
        num_worst=NUM_WORST,
        worst=_worst(steps),
        apart=_apart(steps),
        layout_errors=_layout_errors(layouts),
        layout_groups=_layout_groups(layouts),
        peers=_peers(steps),
        sources=_sources(steps),
    )


def _edition(found: TrainingValidation) -> str:
    every = sum(not row.apart for row in chosen_rows(None, False))
    asked = len(found.counted)
    if asked == every:
        return f"This edition asks all {every} rows that count."
    return f"This edition asks {asked} of the {every} rows that count, drawn by the hash of their names (`--rows N`)."


def _totals(found: TrainingValidation) -> str:
    rows = []
    for name, is_fitted, (mean, p90, bias) in (("blind", False, BLIND), ("fitted", True, CALIBRATED)):
        errors = found.errors(found.counted, is_fitted)
        if errors is not None:
            met = errors.mean <= mean and errors.p90 <= p90 and abs(errors.bias) <= bias
            wanted = f"mean {mean:.0%}, p90 {p90:.0%}" + (f", bias {bias:.0%}" if bias < 1 else "")
            rows.append((name, *cells(errors), wanted, "met" if met else "not met"))
    return markdown(("over all sources", *_HEAD, "wanted at most", ""), rows)


def _bands(found: TrainingValidation) -> str:
    document, parts = band_document(found), []
    for name, is_fitted in (("blind", False), ("fitted", True)):
        (inside, width), (left_out, _) = share_inside(found, document, is_fitted), share_left_out(found, is_fitted)
        if inside == inside:
            parts.append(
                f"{name}: {inside:.0%} of the rows lie in their band, {left_out:.0%} where the band knows nothing of "
                f"their model; median high / low {width:.2f}"
            )
    level = f"{LOW:.0%} to {HIGH:.0%} quantile of the nearest level with at least 8 rows"
    return f"Bands ({level}; what they are to hold is 80 %): " + "; ".join(parts) + "."


def _groups(found: TrainingValidation, by: str) -> str:
    fitted = dict(found.grouped(by, True))
    rows = [(name, *cells(errors), *fitted_cells(fitted.get(name))) for name, errors in found.grouped(by)]
    return markdown((by, *_HEAD, "fitted: bias", "mean", "p90"), rows)


def _worst(found: TrainingValidation) -> str:
    rows = [
        (
            step.row.name, step.row.model, f"{step.row.num_gpus} x {step.row.gpu}",
            layout_words(step.row, " ") or "one GPU", f"{step.measured_s:.4g} s", f"{step.answer.step_s:.4g} s",
            f"{step.error:+.1%}", "" if step.calibrated_error is None else f"{step.calibrated_error:+.1%}",
            "; ".join(step.row.open) or "nothing",
        )
        for step in found.worst()[:NUM_WORST]
    ]  # fmt: skip
    head = ("row", "model", "GPUs", "layout", "measured", "predicted", "error", "fitted", "left open")
    return markdown(head, rows)


def _apart(found: TrainingValidation) -> str:
    failed = Counter((s.row.source.key, s.row.apart or s.answer.why_not) for s in found.failed)
    rows = [(key, why, *cells(errors)) for key, why, errors in found.apart()]
    rows += [(key, why, f"{count}", "not predicted", "", "", "", "") for (key, why), count in failed.items()]
    return markdown(("source", "why", *_HEAD), rows)


def _layout_errors(found: LayoutValidation) -> str:
    rows = [(name, *cells(errors)) for name, errors in found.by_nodes()]
    if (alone := found.blind_errors) is not None:
        rows.insert(0, ("1 node, nothing fitted", *cells(alone)))
    rows += [(f"apart: {why}", *cells(errors)) for why, errors in found.apart()]
    said = f"{words(found.factors, FITTED_FACTORS)}, fitted on {found.num_fitted} rows."
    if not found.num_fitted:
        said = "Here nothing is fitted" + (", and a few layouts of each group are asked." if found.is_sample else ".")
    return f"{said}\n\n" + markdown(("nodes", *_HEAD), rows)


def _layout_groups(found: LayoutValidation) -> str:
    rows = [
        (g.name, *cells(g), f"{g.spearman:.3f}", f"{g.regret:.1%}", f"{g.best_of_three:.1%}") for g in found.groups()
    ]
    return markdown(("group", *_HEAD, "Spearman", "regret", "of three"), rows)


def _peers(found: TrainingValidation) -> str:
    rows: list[tuple[str, ...]] = [*PEERS]
    constant = [replace(s, calibrated_s=constant_mfu_s(s)) for s in found.counted if s.answer.peak_flops]
    errors = found.errors(constant, True)
    if errors is not None:
        off = f"{errors.mean:.1%} mean, {errors.p90:.1%} p90"
        rows.append(("a constant MFU of 50 %", "the rows of this page", off))
    return markdown(("whose", "on what", "error"), rows)


def constant_mfu_s(step: ComparedStep) -> float:
    """What a step would take at half of the data sheet's peak."""
    return step.answer.model_flops / (0.5 * step.answer.peak_flops)


def _sources(found: TrainingValidation) -> str:
    sources, count = load_sources(), Counter(step.row.source.key for step in found.steps)
    rows = [
        (key, source.title, source.licence, source.software, count[key], "; ".join(source.open) or "nothing")
        for key, source in sources.items()
        if count[key]
    ]
    return markdown(("source", "", "licence", "software", "rows", "leaves open"), rows)


def plot_steps(found: TrainingValidation, path: Path) -> None:
    """Predicted over measured step time against measured, by source; blind to the left, fitted to the right."""
    figure, axes = subplots(1, 2, figsize=(11, 4.6), sharey=True)
    names = sorted({step.group("source") for step in found.counted})
    colours = (*COLOURS, "black")
    for axis, title, is_fitted in ((axes[0], "blind", False), (axes[1], "factors fitted on other rows", True)):
        for number, name in enumerate(names):
            chosen = [s for s in found.counted if s.group("source") == name and (s.calibrated_s or not is_fitted)]
            ratios = [((s.calibrated_s or 0) if is_fitted else s.answer.step_s) / s.measured_s for s in chosen]
            marker = "os^vD*PX"[number % 8]
            axis.scatter([s.measured_s for s in chosen], ratios, s=16, lw=0, alpha=0.75, marker=marker,
                         color=colours[number % len(colours)], label=f"{name} ({len(chosen)})")  # fmt: skip
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


def plot_layouts(found: LayoutValidation, path: Path) -> None:
    """Predicted against measured tokens/s of a GPU, a panel a model, colours by nodes."""
    models = sorted({step.row.facts["model"] for step in found.counted})
    figure, axes = subplots(1, max(1, len(models)), figsize=(11, 4.2), squeeze=False)
    for axis, model in zip(axes.flat, models, strict=False):
        chosen = [step for step in found.counted if step.row.facts["model"] == model]
        for number, nodes in enumerate(sorted({step.row.num_nodes for step in chosen})):
            _dots(axis, [step for step in chosen if step.row.num_nodes == nodes], nodes, number)
        ends = np.array(axis.get_xlim())
        axis.plot(ends, ends, color="black", lw=0.8)
        axis.set_xlabel("measured tokens/s a GPU")
        axis.set_title(f"{model}, {len(chosen)} layouts", fontsize=10)
        axis.legend(frameon=False, fontsize=8)
    axes.flat[0].set_ylabel("predicted tokens/s a GPU")
    save(figure, path)


def _dots(axis: Any, steps: Sequence[ComparedStep], nodes: int, number: int) -> None:
    rate = [step.row.tokens / step.row.num_gpus for step in steps]
    measured = [tokens / step.measured_s for tokens, step in zip(rate, steps, strict=True)]
    predicted = [tokens / (s.calibrated_s or s.answer.step_s) for tokens, s in zip(rate, steps, strict=True)]
    axis.scatter(measured, predicted, s=12, lw=0, alpha=0.7, color=COLOURS[number % len(COLOURS)],
                 label=f"{nodes} node{'s' if nodes > 1 else ''}")  # fmt: skip
