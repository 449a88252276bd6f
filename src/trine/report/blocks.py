"""The blocks of a section: texts, tables, charts and timelines. A block is plain data; ``assets/`` draws it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
import numpy.typing as npt

#: Units of numbers. The page scales them for people: seconds to ms, bytes to GiB, and so on.
UNITS = (
    "s", "bytes", "bytes/s", "share", "count", "tokens/s", "flop/s", "flop/byte", "usd", "days", "hours", "W", "J",
    "kWh", "number", "",
)  # fmt: skip

#: Colours by role. The page has a shade of each for light and for dark; other names get the colour of "other".
COLOURS = (
    "forward", "backward", "recompute", "optimizer", "compute", "communication", "tp", "dp", "pp", "cp", "ep",
    "hidden", "bubble", "idle", "launch", "input", "offload", "weights", "gradients", "state", "activations", "other",
    "first", "second",
)  # fmt: skip

Cell = str | float | int | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Text:
    """Sentences, one paragraph each."""

    KIND: ClassVar[str] = "text"
    lines: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class CommandLine:
    """A command line that a reader can copy. title: what it does."""

    KIND: ClassVar[str] = "command"
    title: str
    line: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Item:
    """One statement. tag: the word before it, such as its evidence (``measured``, ``assumed``)."""

    tag: str
    text: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Items:
    """A list of statements."""

    KIND: ClassVar[str] = "items"
    title: str
    items: tuple[Item, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Head:
    """A column of a table. unit: one of :data:`UNITS`; "" for text. scale: columns of one scale share their unit."""

    name: str
    unit: str = ""
    scale: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Table:
    """Rows of numbers and texts. Readers can sort it by a column.

    marked: numbers of the rows to emphasise. dimmed: numbers of rows that are out, such as layouts that do not fit.
    max_rows: rows shown before "show all". note: a sentence below the table.
    """

    KIND: ClassVar[str] = "table"
    title: str
    columns: tuple[Head, ...]
    rows: tuple[tuple[Cell, ...], ...]
    marked: tuple[int, ...] = ()
    dimmed: tuple[int, ...] = ()
    max_rows: int = 12
    note: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Bar:
    """A bar of parts: (name, value, colour) each. note: text behind the bar."""

    name: str
    parts: tuple[tuple[str, float, str], ...]
    note: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Bars:
    """Horizontal bars with a common scale, each of one or more parts.

    total: the length that 100 % stands for, None for no percentages. limit: a value marked by a line; limit_name: its
    name.
    """

    KIND: ClassVar[str] = "bars"
    title: str
    unit: str
    bars: tuple[Bar, ...]
    total: float | None = None
    limit: float | None = None
    limit_name: str = ""
    max_rows: int = 12
    note: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class ChartAxis:
    """An axis of a chart. log: a logarithmic scale. ticks: values to label; empty for round numbers.

    labels: texts of the ticks, empty for their numbers.
    """

    title: str
    unit: str = ""
    log: bool = False
    ticks: tuple[float, ...] = ()
    labels: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class AreaSeries:
    """A line or an area: values at the x positions of its chart, NaN-free. colour: one of :data:`COLOURS`."""

    name: str
    y: tuple[float, ...]
    colour: str = "other"


@dataclass(frozen=True, kw_only=True, slots=True)
class Areas:
    """Stacked step areas: each value holds from its x to the next one. limit: a horizontal line, with its name."""

    KIND: ClassVar[str] = "areas"
    title: str
    x_axis: ChartAxis
    y_axis: ChartAxis
    x: tuple[float, ...]
    series: tuple[AreaSeries, ...]
    limit: float | None = None
    limit_name: str = ""
    note: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class ChartLine:
    """A line through points (x, y), such as a roof or a Pareto front. dashed: drawn with gaps."""

    name: str
    points: tuple[tuple[float, float], ...]
    colour: str = "other"
    dashed: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class ChartPoint:
    """A point of a chart. hollow: it does not fit, or is out for another reason. label: text beside it; "" for none.

    detail: text shown when the point is selected. size: area relative to the others, in (0, 1].
    """

    x: float
    y: float
    name: str
    colour: str = "first"
    hollow: bool = False
    label: str = ""
    detail: str = ""
    size: float = 0.2


@dataclass(frozen=True, kw_only=True, slots=True)
class Points:
    """A chart of points and lines. x_limit, y_limit: values marked by a line across the chart.

    legend: (name, colour) of the points' colours.
    """

    KIND: ClassVar[str] = "points"
    title: str
    x_axis: ChartAxis
    y_axis: ChartAxis
    points: tuple[ChartPoint, ...] = ()
    lines: tuple[ChartLine, ...] = ()
    x_limit: float | None = None
    y_limit: float | None = None
    limit_name: str = ""
    legend: tuple[tuple[str, str], ...] = ()
    note: str = ""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Heat:
    """Shares over time, one row per link or unit. values: float32[rows, bins] from 0 to 1. length_s: of all bins."""

    KIND: ClassVar[str] = "heat"
    title: str
    names: tuple[str, ...]
    values: npt.NDArray[np.float32]
    length_s: float
    note: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class TierDrawing:
    """A group of links between two kinds of device. utilisation: of its busiest link, from 0 to 1."""

    source: str
    target: str
    name: str
    links: int
    bytes_per_s: float
    size_bytes: float
    utilisation: float
    busiest: str


@dataclass(frozen=True, kw_only=True, slots=True)
class ClusterDrawing:
    """A drawing of a cluster: kinds of device, and the tiers of links between them. limiting: name of a tier."""

    KIND: ClassVar[str] = "cluster"
    title: str
    tiers: tuple[TierDrawing, ...]
    counts: Mapping[str, int] = field(default_factory=dict)
    note: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class SpanTrack:
    """A row of a timeline: spans ``first`` to ``first + count - 1``, which do not overlap."""

    name: str
    first: int
    count: int
    is_compute: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class TrackGroup:
    """The tracks of one rank. note: the ranks that it stands for, its stage."""

    name: str
    tracks: tuple[SpanTrack, ...]
    note: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class RepeatedPeriod:
    """A gap of a timeline that repeats the time before it: from ``end`` on, the window ``start`` to ``end`` returns
    ``count`` times. Numbers in units of the timeline.
    """

    start: int
    end: int
    count: int


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class TimelineBlock:
    """Spans of ranks over time, sorted by track and start.

    unit_ps: length of the unit of times. length: of the timeline, in units. start, duration: uint32[spans], in units.
    name, colour, detail: indices into ``names``, ``colours`` and ``details`` (-1: none). microbatch: number of the
    micro-batch, -1: none; None if no span has one. cause: int32[spans], the span
    that released a span, -1: none. reason: int8[spans], index into ``reasons``, -1: none. critical: uint8[spans], 1 on
    the critical path. zooms: for each of ``details`` the word by which ``--zoom`` finds its collective, quoted for a
    shell, "" for none. programs: the ``names`` of operators that ``--zoom`` can run. command: the line to which
    ``--zoom`` is added. zoomed: the word of the collective or operator that the answer has at both levels. zoom_answer:
    what the answer says about it. legend: words of ``colours``, empty for the names of the colours.
    """

    KIND: ClassVar[str] = "timeline"
    title: str
    unit_ps: int
    length: int
    groups: tuple[TrackGroup, ...]
    names: tuple[str, ...]
    details: tuple[str, ...]
    colours: tuple[str, ...]
    reasons: tuple[str, ...]
    start: npt.NDArray[np.uint32]
    duration: npt.NDArray[np.uint32]
    name: npt.NDArray[np.signedinteger]
    detail: npt.NDArray[np.signedinteger]
    colour: npt.NDArray[np.uint8]
    cause: npt.NDArray[np.int32]
    reason: npt.NDArray[np.int8]
    critical: npt.NDArray[np.uint8]
    microbatch: npt.NDArray[np.signedinteger] | None = None
    repeats: tuple[RepeatedPeriod, ...] = ()
    zooms: tuple[str, ...] = ()
    programs: tuple[int, ...] = ()
    command: str = ""
    zoomed: str = ""
    zoom_answer: str = ""
    legend: tuple[str, ...] = ()
    note: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Choice:
    """Several views of the same subject, one shown at a time: (name, block) each."""

    KIND: ClassVar[str] = "choice"
    title: str
    options: tuple[tuple[str, Block], ...]


Block = Text | CommandLine | Items | Table | Bars | Areas | Points | Heat | ClusterDrawing | TimelineBlock | Choice
