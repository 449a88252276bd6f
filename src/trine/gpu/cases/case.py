"""The result of a case study: a table, curves, and a comparison with the paper."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, cast

from trine.collectives.sizes import format_size
from trine.results.axes import tidy, title, with_micro_sign, write_in_full
from trine.results.picture import COLOURS, log_scale, subplots
from trine.results.report import Report, Row, Table
from trine.results.text import first_screen, width

Value = str | int | float
#: Verdicts, weakest first.
DIFFERS, DIRECTION, AGREES = "differs", "agrees in direction", "agrees"
VERDICTS = (DIFFERS, DIRECTION, AGREES)


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """A statement of the paper, trine's result, and whether the statement holds; None marks a mere remark.

    whose: label of the source, if it is not the paper.
    assumed: simulation parameters that the paper does not state; empty if it states all of them. volatile: whether the
    result differs from run to run.
    """

    paper: str
    here: str
    holds: bool | None
    assumed: str = ""
    volatile: bool = False
    whose: str = "paper"

    @property
    def verdict(self) -> str | None:
        """The verdict; ``agrees`` requires that the paper states all simulated parameters. None for remarks."""
        if self.holds is None:
            return None
        if not self.holds:
            return DIFFERS
        if self.assumed:
            return DIRECTION
        return AGREES


@dataclass(frozen=True, kw_only=True, slots=True)
class Curve:
    """A curve of ``y`` over ``x``. style: matplotlib format such as ``o-``; colour: index into the palette."""

    label: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    style: str = "o-"
    colour: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Panel:
    """One pair of axes. sizes: x is in bytes. log: the logarithmic axes (``""``, ``x``, ``y``, ``xy``)."""

    title: str
    x_label: str
    y_label: str
    curves: tuple[Curve, ...]
    sizes: bool = False
    log: str = "x"


@dataclass(frozen=True, kw_only=True, repr=False)
class CaseStudy(Report):
    """Result of one case study.

    settings: sentences on the setup. columns, rows: the table; a column whose name ends in ``bytes`` is shown as
    sizes. volatile: columns that differ from run to run, such as wall time.
    """

    SCHEMA: ClassVar[str] = "study"

    name: str
    title: str
    settings: tuple[str, ...]
    columns: tuple[str, ...]
    rows: tuple[tuple[Value, ...], ...]
    findings: tuple[Finding, ...]
    panels: tuple[Panel, ...]
    volatile: tuple[str, ...] = ()

    @property
    def verdict(self) -> str:
        """The weakest verdict of the findings."""
        verdicts = [finding.verdict for finding in self.findings]
        return next((verdict for verdict in VERDICTS if verdict in verdicts), AGREES)

    @property
    def agrees(self) -> bool:
        """Whether trine reproduces all of the paper's statements with the paper's parameters."""
        return self.verdict == AGREES

    def column(self, name: str) -> list[Value]:
        """Return the values of one column."""
        place = self.columns.index(name)
        return [row[place] for row in self.rows]

    def text(self, *, volatile: bool = True) -> str:
        """Return the study as text; ``volatile`` False omits values that differ from run to run."""
        columns = [i for i, name in enumerate(self.columns) if volatile or name not in self.volatile]
        return self._text(columns, volatile)

    def _text(self, columns: Sequence[int], volatile: bool) -> str:
        from textwrap import fill

        lines = [*(fill(line, width(), subsequent_indent="  ") for line in (self.title, *self.settings)), ""]
        lines += [*self._table(columns), ""]
        for finding in self.findings:
            if volatile or not finding.volatile:
                lines += [fill(text, width(), subsequent_indent=" " * 11) for text in _finding_lines(finding)]
        return "\n".join(lines)

    def _table(self, columns: Sequence[int]) -> list[str]:
        heads = [self.columns[i] for i in columns]
        shown_rows = []
        for row in self.rows:
            shown_rows.append([row[i] for i in columns])
        return table(heads, shown_rows)

    @property
    def headline(self) -> str:
        """Title and verdict."""
        return f"{self.title}: {self.verdict}"

    @property
    def notes(self) -> tuple[str, ...]:
        return self.settings

    def summary(self) -> str:
        """Return the first lines of the study, with the columns that fit the terminal."""
        count = len(self.columns)
        while count > 2 and max(map(len, self._table(range(count)))) > width():
            count -= 1
        return first_screen(self._text(range(count), volatile=True))

    def details(self) -> str:
        """Return the whole study as text."""
        return self.text()

    def tables(self) -> dict[str, Table]:
        """Return the tables ``rows`` and ``findings``."""
        document = self.document()
        return {name: cast(list[Row], document[name]) for name in ("rows", "findings")}

    def document(self) -> Row:
        """Return the study as plain data."""
        rows = [dict(zip(self.columns, row, strict=True)) for row in self.rows]
        findings = []
        for f in self.findings:
            findings.append(
                {
                    "paper": f.paper,
                    "here": f.here,
                    "agrees": None if f.verdict is None else f.verdict == AGREES,
                    "verdict": f.verdict,
                    "assumed": f.assumed,
                }
            )
        return {
            "study": self.name,
            "title": self.title,
            "settings": list(self.settings),
            "rows": rows,
            "findings": findings,
            "agrees": self.agrees,
            "verdict": self.verdict,
        }

    def pictures(self) -> Mapping[str, Callable[..., Any]]:
        """Return ``curves``: all panels side by side."""
        return {"curves": partial(_draw, self.panels)}


def _finding_lines(finding: Finding) -> list[str]:
    if finding.verdict is None:
        return [f"besides  {finding.here}"]
    lines = [f"{finding.verdict:7}  {finding.whose}: {finding.paper}", f"         here: {finding.here}"]
    return [*lines, f"         assumed: {finding.assumed}"] if finding.assumed else lines


def table(columns: Sequence[str], rows: Sequence[Sequence[Value]]) -> list[str]:
    """Return the lines of a table with right-aligned columns."""
    sizes = [name.split()[-1] == "bytes" for name in columns]
    heads = [name.removesuffix(" bytes") for name in columns]
    cells = []
    for row in rows:
        cells.append([_cell(value, size) for value, size in zip(row, sizes, strict=True)])
    widths = []
    for column in zip(heads, *cells, strict=True):
        widths.append(max(len(text) for text in column))
    aligned_lines = []
    for line in (heads, *cells):
        aligned_lines.append("  ".join(text.rjust(width) for text, width in zip(line, widths, strict=True)))
    return aligned_lines


def _cell(value: Value, is_size: bool) -> str:
    if isinstance(value, str):
        return value
    if is_size:
        return format_size(int(value))
    if isinstance(value, int):
        return f"{value:,}"
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    if abs(value) >= 10:
        return f"{value:.1f}"
    return f"{value:.2f}"


def _draw(panels: Sequence[Panel]) -> Any:
    count = len(panels)
    figure, axes = subplots(1, count, figsize=(6.0 * count, 4.0), squeeze=False)
    for axis, panel in zip(axes.flat, panels, strict=True):
        _panel(axis, panel)
    return figure


def _panel(axis: Any, panel: Panel) -> None:
    for curve in panel.curves:
        colour = COLOURS[curve.colour % len(COLOURS)]
        name = with_micro_sign(curve.label)
        axis.plot(curve.x, curve.y, curve.style, color=colour, label=name, markersize=4.5, linewidth=1.3)
    if "x" in panel.log:
        axis.set_xscale("log", base=2)
        ticks = sorted({x for curve in panel.curves for x in curve.x})
        shown_ticks = ticks[:: max(1, -(-len(ticks) // 8))]
        tick_texts = []
        for x in shown_ticks:
            tick_texts.append(format_size(int(x)) if panel.sizes else f"{x:g}")
        axis.set_xticks(shown_ticks, tick_texts)
        axis.xaxis.minorticks_off()
    if "y" in panel.log:
        log_scale(axis)
    else:
        write_in_full(axis.yaxis)
    axis.set_xlabel(f"{panel.x_label} (bytes)" if panel.sizes else panel.x_label)
    axis.set_ylabel(panel.y_label)
    title(axis, panel.title)
    tidy(axis, "both")
    axis.legend(fontsize=8, framealpha=0.8, edgecolor="none")
