"""The page of all errors: a chart with each row, tables by group, and the published errors of other simulators."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from trine.common._version import __version__
from trine.report.blocks import Block, ChartAxis, ChartLine, ChartPoint, Choice, Head, Points, Table, Text
from trine.report.page import Fact, Page, PageSection
from validation.accuracy import Figure, read_report

#: Most points of a chart: evenly chosen rows, the worst ones always included.
MAX_POINTS = 1500
#: Points beyond these errors are always shown.
ALWAYS_SHOWN = 0.25
#: Errors that other tools publish of themselves, beside those of the report of served models.
PUBLISHED = (
    ("SimuMax", "steps of its 43 rows on B200", "5.6 % mean, 90th percentile 10.4 %", "its README"),
    ("calculon", "8 points of Korthikanti et al.", "3.65 % mean", "its examples"),
    ("calculon", "48 more published steps, replayed with it", "19.4 % mean", "docs/background/training-accuracy.md"),
    ("TrioSim", "a step at another batch, A100", "3.25 % mean", "its figure 6"),
    ("aiconfigurator", "GEMMs, whole shapes left out", "3.63 % median", "its own tables"),
)


def accuracy_page(figures: Sequence[Figure]) -> Page:
    """Return the page of all stored reports."""
    by_key = {figure.key: figure for figure in figures}
    steps = by_key["training steps: all, blind (mean)"]
    tpot = by_key["serving: time per token, all (median)"]
    large = by_key["collectives: all machines, from 1 MiB, machine left out (median)"]
    facts = (
        Fact(name="Training steps", value=steps.error, unit="share", note=f"mean of {steps.rows:,} rows, blind"),
        Fact(name="Time per token", value=tpot.error, unit="share", note=f"median of {tpot.rows:,} rows"),
        Fact(name="Collectives from 1 MiB", value=large.error, unit="share",
             note=f"median of {large.rows:,} rows, machine left out"),
    )  # fmt: skip
    sections = (
        _training(figures), _serving(figures), _memory(figures), _collectives(figures), _rest(figures), _published(),
    )  # fmt: skip
    return Page(
        title="How far trine is from measurements", answer=f"Steps are off by {steps.error:.1%} on average.",
        subject="validate", version=__version__, facts=facts, sections=sections,
    )  # fmt: skip


def _training(figures: Sequence[Figure]) -> PageSection:
    report = read_report("training", "blind")
    rows = []
    for row in report["rows"]:
        detail = f"{row['source']}, {row['software']}, {row['num_gpus']:,} GPUs of {row['gpu']}"
        rows.append((row["measured_s"], row["predicted_s"], row["model"], detail))
    chart = _chart("Each published step", "s", rows)
    return PageSection(
        key="training", question="Training steps", blocks=(chart, _table(figures, "training steps")),
        answer="Published steps, predicted without any factor fitted on steps; fitted figures stand in the table.",
    )  # fmt: skip


def _serving(figures: Sequence[Figure]) -> PageSection:
    report, charts = read_report("serving"), []
    for quantity, name in (("tpot", "time per token"), ("ttft", "time to first token"), ("end_to_end", "latency")):
        rows = []
        for row in report["rows"]:
            if row.get("quantity") == quantity and row["predicted"]:
                load = f"{row['isl']:,} + {row['osl']:,} tokens, {row['concurrency'] or row['batch']} in flight"
                rows.append((row["measured"], row["predicted"], row["stack"], f"{load}, tp {row['tp']}"))
        charts.append((name, _chart(f"Each published run: {name}", "s", rows)))
    coverage = next(each for each in report["coverage"] if each["kind"] == "all with stated workers")
    blocks = (Choice(title="Quantity", options=tuple(charts)), _table(figures, "serving"))
    return PageSection(
        key="serving", question="Served models", blocks=blocks,
        answer=f"{coverage['num_answered']:,} of {coverage['num_rows']:,} runs that state their workers are answered.",
    )  # fmt: skip


def _memory(figures: Sequence[Figure]) -> PageSection:
    rows = []
    for row in read_report("memory")["rows"]:
        if row["measured_bytes"] and row["predicted_bytes"]:
            rows.append((row["measured_bytes"], row["predicted_bytes"], row["row"], row["source"]))
    blocks = (_chart("Each measured peak", "bytes", rows), _table(figures, "peak memory"))
    return PageSection(key="memory", question="Peak memory", answer="Allocated or reserved bytes of one GPU.",
                       blocks=blocks)  # fmt: skip


def _collectives(figures: Sequence[Figure]) -> PageSection:
    rows = []
    for row in read_report("collectives")["points"]:
        rows.append((row["measured_us"] / 1e6, row["time_us"] / 1e6, row["series"], f"{row['size_bytes']:,} bytes"))
    blocks = (_chart("Each measured collective", "s", rows), _table(figures, "collectives"))
    return PageSection(
        key="collectives", question="Collectives", blocks=blocks,
        answer="Tables of nccl-tests and of profiles. The chart has the fitted model; the table also figures with the "
        "machine left out of the fit.",
    )  # fmt: skip


def _rest(figures: Sequence[Figure]) -> PageSection:
    kinds = ("operators", "kernels load by load", "scaling from one GPU to eight", "order of layouts")
    return PageSection(key="parts", question="Parts", answer="Operators, kernels and layouts.",
                       blocks=tuple(_table(figures, kind) for kind in kinds))  # fmt: skip


def _published() -> PageSection:
    rows: list[tuple[str | float | None, ...]] = []
    for each in read_report("serving")["published"]:
        of = f"{each['rows']:,} {each['of']}, {each['statistic']}"
        rows.append((each["tool"], of, each["tpot"], each["end_to_end"], each["ttft"], each["source"]))
    columns = (Head(name="tool"), Head(name="rows"), Head(name="time per token", unit="share"),
               Head(name="latency", unit="share"), Head(name="first token", unit="share"),
               Head(name="source"))  # fmt: skip
    training = Table(title="Training", columns=(Head(name="tool"), Head(name="of"), Head(name="error"),
                     Head(name="source")), rows=PUBLISHED)  # fmt: skip
    serving = Table(title="Serving", columns=columns, rows=tuple(rows))
    text = Text(lines=("Each on rows of its own choice, so that the errors of two tools do not compare directly.",))
    return PageSection(
        key="others", question="Other simulators", answer="Errors that other simulators publish of themselves.",
        blocks=(text, serving, training),
    )  # fmt: skip


def _table(figures: Sequence[Figure], kind: str) -> Block:
    chosen = [figure for figure in figures if figure.kind == kind]
    columns = (Head(name="rows of"), Head(name="statistic"), Head(name="error", unit="share"),
               Head(name="rows", unit="count"))  # fmt: skip
    rows = tuple((figure.name, figure.statistic, figure.error, figure.rows) for figure in chosen)
    return Table(title=kind[0].upper() + kind[1:], columns=columns, rows=rows)


def _chart(title: str, unit: str, rows: Sequence[tuple[float, float, str, str]]) -> Points:
    """Return a chart of predicted against measured. rows: measured, predicted, name, detail."""
    points = []
    for measured, predicted, name, detail in _thinned(rows):
        error = predicted / measured - 1
        points.append(ChartPoint(x=measured, y=predicted, name=name, detail=f"{error:+.1%}; {detail}", size=0.05))
    low, high = min(row[0] for row in rows), max(row[0] for row in rows)
    line = ChartLine(name="equal", points=((low, low), (high, high)), colour="other", dashed=True)
    note = "" if len(points) == len(rows) else f"{len(points):,} of {len(rows):,} rows; all beyond 25 % are shown."
    return Points(
        title=title, x_axis=ChartAxis(title="measured", unit=unit, log=True),
        y_axis=ChartAxis(title="predicted", unit=unit, log=True), points=tuple(points), lines=(line,), note=note,
    )  # fmt: skip


def _thinned(rows: Sequence[tuple[float, float, str, str]]) -> Iterable[Any]:
    """Return the rows far from their measurement, and every n-th of the others."""
    far = [row for row in rows if abs(row[1] / row[0] - 1) > ALWAYS_SHOWN]
    near = [row for row in rows if abs(row[1] / row[0] - 1) <= ALWAYS_SHOWN]
    room = max(1, MAX_POINTS - len(far))
    return [*far, *near[:: max(1, -(-len(near) // room))]]
