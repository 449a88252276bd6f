"""The page docs/background/training-accuracy.md with its pictures, from replays of steps and layouts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from trine.outputs import write_text
from trine.results.picture import COLOURS, save, subplots
from trine.studies.band_levels import HIGH, LOW, band_document, share_inside, share_left_out
from trine.studies.compared_steps import ComparedStep, Errors, cells
from trine.studies.step_factors import HUBER, NOISE, PRIORS, words
from trine.studies.training_rows import load_sources
from trine.studies.validate_layouts import FITTED_FACTORS, LayoutValidation
from trine.studies.validate_training import BLIND, CALIBRATED, GROUPS, TrainingValidation, chosen_rows

PAGE = "training-accuracy.md"
STEPS_PICTURE, LAYOUTS_PICTURE = "training-accuracy-steps.png", "training-accuracy-layouts.png"
NUM_WORST = 25
_HEAD = "rows | bias | mean | median | p90 | <= 10 % |"
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
_INTRO = f"""# How far predicted training steps are from published ones

Written by `trine validate training --report docs/background`; do not edit. Measured: tables that others published
(`src/trine/presets/measured/training`, each row with its source). None was measured by us. Error: predicted / measured
step time - 1. Every source weighs the same, however many rows it has.

*Blind*: nothing of a source is used; operator times come from tables of kernels, software profiles from code and
documentation. *Fitted*: at most three factors (compute, launching thread, communication; one where a source has fewer
than eight rows) fitted on the source's other models on the same GPU, or, where it has one model, on other numbers of
GPUs. The fit makes errors of log(predicted / measured) least, of a standard deviation of {NOISE:g}, with a prior on the
log of each factor (standard deviations {", ".join(map(str, PRIORS))}) and Huber's weights: errors beyond {HUBER:g}
standard deviations count in proportion, not squared. So a factor that few rows show stays near 1, and a row whose facts
are wrong moves none far. (`trine calibrate --step` fits without either, and refuses what its steps do not show.)
Micro-batches beyond a steady pace are extrapolated, exactly (`trine.studies.steady`)."""
_APART = """Shown apart, counted nowhere: rows whose source leaves decisive facts open, tensor parallelism over more
than 8 GPUs, and vTrain's single-node table, whose times are linear in micro-batches to 5e-7 (every
eighth row is replayed)."""
_LAYOUTS = """Layouts of Llama-like models in nanotron on 8 to 512 H100 (Ultra-Scale Playbook), errors of tokens/s.
Three factors are fitted on the clean layouts of the 1B model on up to 4 nodes, and judged on all others: of compute, of
the launching thread, and of communication inside nodes. None is of the fabric: how fast that is was measured beside the
layouts, and is an input of the rows.
*Clean* and *slow*: nanotron of that time polled pipeline sends with a pause in some runs and not in
others; nothing in the source says in which. Rows with unexplained time per micro-batch above 0.15 s (by
an independent model) are `slow`. Regret: throughput lost by taking the layout that trine ranks first;
of three: by the best of its first three."""
_NOISE = """Rows of identical stated facts differ by 4-8 % (median) and about 30 % (p90) across sources; equal
layouts of the playbook by 0.6 % on one node, 4 % on 16-32 (one step is timed, on a shared fabric). No
model can be nearer. On more than 8 nodes the hour decides how fast the fabric is:
[what a ranking can know](software.md#layouts-on-a-shared-fabric-what-a-ranking-can-know)."""


def write_page(steps: TrainingValidation, layouts: LayoutValidation, folder: str | Path) -> list[Path]:
    """Write the page and its pictures into ``folder``; needs the extra ``plot``. Returns what was written."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    plot_steps(steps, folder / STEPS_PICTURE)
    plot_layouts(layouts, folder / LAYOUTS_PICTURE)
    write_text(folder / PAGE, page(steps, layouts))  # last: it names the pictures
    return [folder / name for name in (PAGE, STEPS_PICTURE, LAYOUTS_PICTURE)]


def page(steps: TrainingValidation, layouts: LayoutValidation) -> str:
    """The page in Markdown."""
    blocks = [
        _INTRO, _edition(steps), "## Totals", _totals(steps), _bands(steps),
        f"![Predicted over measured step time by source]({STEPS_PICTURE})",
        *(block for by in GROUPS for block in (f"## By {by}", _groups(steps, by))),
        f"## The {NUM_WORST} worst rows, blind", _worst(steps),
        "## What is apart", _APART, _apart(steps),
        "## Layouts", _LAYOUTS, _layout_errors(layouts), _layout_groups(layouts),
        f"![Predicted and measured tokens/s of layouts]({LAYOUTS_PICTURE})",
        "## What no model can know", _NOISE,
        "## What others publish", _peers(steps),
        "## Sources", _sources(steps),
    ]  # fmt: skip
    return "\n\n".join(blocks) + "\n"


def _edition(found: TrainingValidation) -> str:
    every = sum(not row.apart for row in chosen_rows(None, False))
    asked = len(found.counted)
    if asked == every:
        return f"This edition asks all {every} rows that count."
    return f"This edition asks {asked} of the {every} rows that count, drawn by the hash of their names (`--rows N`)."


def _table(header: str, rows: Sequence[str]) -> str:
    return "\n".join([header, "|" + "---|" * (header.count("|") - 1), *(f"| {row} |" for row in rows)])


def _joined(errors: Errors | None) -> str:
    return " | ".join(("",) * 6 if errors is None else cells(errors))


def _totals(found: TrainingValidation) -> str:
    rows = []
    for name, is_fitted, (mean, p90, bias) in (("blind", False, BLIND), ("fitted", True, CALIBRATED)):
        errors = found.errors(found.counted, is_fitted)
        if errors is not None:
            met = errors.mean <= mean and errors.p90 <= p90 and abs(errors.bias) <= bias
            wanted = f"mean {mean:.0%}, p90 {p90:.0%}" + (f", bias {bias:.0%}" if bias < 1 else "")
            rows.append(f"{name} | {_joined(errors)} | {wanted} | {'met' if met else 'not met'}")
    return _table(f"| over all sources | {_HEAD} wanted at most | |", rows)


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
    rows = [f"{name} | {_joined(errors)} | {_short(fitted.get(name))}" for name, errors in found.grouped(by)]
    return _table(f"| {by} | {_HEAD} fitted: bias | mean | p90 |", rows)


def _short(errors: Errors | None) -> str:
    return " | | " if errors is None else f"{errors.bias:+.1%} | {errors.mean:.1%} | {errors.p90:.1%}"


def _worst(found: TrainingValidation) -> str:
    rows = []
    for step in found.worst()[:NUM_WORST]:
        row, off = step.row, step.calibrated_error
        fitted = "" if off is None else f"{off:+.1%}"
        plan = row.plan()
        layout = " ".join(f"{name} {getattr(plan, name)}" for name in ("dp", "tp", "pp") if getattr(plan, name) > 1)
        rows.append(
            f"{row.name} | {row.model} | {row.num_gpus} x {row.gpu} | {layout or 'one GPU'} | "
            f"{step.measured_s:.4g} s | {step.answer.step_s:.4g} s | {step.error:+.1%} | {fitted} | "
            f"{'; '.join(row.open) or 'nothing'}"
        )
    return _table("| row | model | GPUs | layout | measured | predicted | error | fitted | left open |", rows)


def _apart(found: TrainingValidation) -> str:
    rows = [f"{key} | {why} | {_joined(errors)}" for key, why, errors in found.apart()]
    failed = Counter((s.row.source.key, s.row.apart or s.answer.why_not) for s in found.failed)
    rows += [f"{key} | {why} | {count} | not predicted | | | | " for (key, why), count in failed.items()]
    return _table(f"| source | why | {_HEAD}", rows)


def _layout_errors(found: LayoutValidation) -> str:
    rows = [f"{name} | {_joined(errors)}" for name, errors in found.by_nodes()]
    if found.blind:
        errors = [step.measured_s / step.answer.step_s - 1 for step in found.blind]
        rows.insert(0, f"1 node, nothing fitted | {_joined(Errors.of(errors))}")
    rows += [f"apart: {why} | {_joined(errors)}" for why, errors in found.apart()]
    said = f"{words(found.factors, FITTED_FACTORS)}, fitted on {found.num_fitted} rows."
    if not found.num_fitted:
        said = "Here nothing is fitted" + (", and a few layouts of each group are asked." if found.is_sample else ".")
    return f"{said}\n\n" + _table(f"| nodes | {_HEAD}", rows)


def _layout_groups(found: LayoutValidation) -> str:
    rows = [
        f"{g.name} | {_joined(g.errors)} | {g.spearman:.3f} | {g.regret:.1%} | {g.best_of_three:.1%}"
        for g in found.groups()
    ]
    return _table(f"| group | {_HEAD} Spearman | regret | of three |", rows)


def _peers(found: TrainingValidation) -> str:
    rows = [" | ".join(row) for row in PEERS]
    constant = [replace(s, calibrated_s=constant_mfu_s(s)) for s in found.counted if s.answer.peak_flops]
    errors = found.errors(constant, True)
    if errors is not None:
        rows.append(f"a constant MFU of 50 % | the rows of this page | {errors.mean:.1%} mean, {errors.p90:.1%} p90")
    return _table("| whose | on what | error |", rows)


def constant_mfu_s(step: ComparedStep) -> float:
    """What a step would take at half of the data sheet's peak."""
    return step.answer.model_flops / (0.5 * step.answer.peak_flops)


def _sources(found: TrainingValidation) -> str:
    sources, count = load_sources(), Counter(step.row.source.key for step in found.steps)
    rows = [
        f"{key} | {source.title} | {source.licence} | {source.software} | {count[key]} | "
        f"{'; '.join(source.open) or 'nothing'}"
        for key, source in sources.items()
        if count[key]
    ]
    return _table("| source | | licence | software | rows | leaves open |", rows)


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
