"""Pages for tests of reports: hostile texts, one block of each kind, a timeline of many spans."""

from __future__ import annotations

import numpy as np

from trine.report.blocks import (
    Areas,
    AreaSeries,
    Bar,
    Bars,
    ChartAxis,
    ChartLine,
    ChartPoint,
    Choice,
    ClusterDrawing,
    Column,
    CommandLine,
    Heat,
    Item,
    Items,
    Points,
    RepeatedPeriod,
    SpanTrack,
    Table,
    Text,
    TierDrawing,
    TimelineBlock,
    TrackGroup,
)
from trine.report.page import Fact, Page, PageSection

#: Names that would do harm if a page took them for markup, script or control characters.
HOSTILE = (
    "<script>document.title='broken'</script>", "</script><img src=x onerror=\"document.title='broken'\">",
    "\"><svg/onload=document.title='broken'>", "a\u202egnp.exe", "\x1b[2J\x00\x07 bell", "x" * 10_000, "‏שלום ‎",
    "${document.title='broken'}", "--><!--", "\ud800 half a character",
)  # fmt: skip


def many_spans(num_spans: int, num_groups: int = 8, names: tuple[str, ...] = ("gemm", "attention", "norm")):
    """Return a timeline: groups of a compute and a communication track, each span released by the one before it."""
    per_track = num_spans // (2 * num_groups)
    count = per_track * 2 * num_groups
    within = np.arange(count) % per_track
    groups = []
    for number in range(num_groups):
        first = 2 * number * per_track
        tracks = (
            SpanTrack(name="compute", first=first, count=per_track, is_compute=True),
            SpanTrack(name="tp comm.", first=first + per_track, count=per_track),
        )
        groups.append(TrackGroup(name=f"rank {number}", tracks=tracks, note="128 ranks alike"))
    return TimelineBlock(
        title="The step", unit_ps=1000, length=per_track * 100, groups=tuple(groups), names=names, details=("layer 1",),
        colours=("forward", "backward", "tp"), reasons=("start", "compute"),
        start=(within * 100).astype(np.uint32), duration=np.full(count, 80, np.uint32),
        name=(within % len(names)).astype(np.int32), detail=np.zeros(count, np.int32),
        colour=(within % 3).astype(np.uint8), cause=np.where(within > 0, np.arange(count) - 1, -1).astype(np.int32),
        reason=np.ones(count, np.int8), critical=(within % 2).astype(np.uint8),
    )  # fmt: skip


def repeated_spans(count: int):
    """Return a timeline of one track with spans at 0, 100 and 200 + 100 ``count``: the one at 100 repeats."""
    after = 200 + 100 * count
    track = SpanTrack(name="compute", first=0, count=3, is_compute=True)
    return TimelineBlock(
        title="Folded", unit_ps=1000, length=after + 100, groups=(TrackGroup(name="rank 0", tracks=(track,)),),
        names=("first", "middle", "last"), details=(), colours=("forward",), reasons=("compute",),
        start=np.array([0, 100, after], np.uint32), duration=np.full(3, 100, np.uint32),
        name=np.arange(3, dtype=np.int32), detail=np.full(3, -1, np.int32), colour=np.zeros(3, np.uint8),
        cause=np.array([-1, 0, 1], np.int32), reason=np.zeros(3, np.int8), critical=np.ones(3, np.uint8),
        repeats=(RepeatedPeriod(start=100, end=200, count=count),),
    )  # fmt: skip


def every_block(name: str) -> tuple:
    """Return one block of each kind, with ``name`` wherever a name may come from a file."""
    bars = Bars(
        title=name, unit="s", bars=(Bar(name=name, parts=((name, 2.0, "forward"), ("b", 1.0, "idle")), note=name),),
        total=4.0, limit=3.5, limit_name=name, note=name,
    )  # fmt: skip
    axis = ChartAxis(title=name, unit="s")
    points = Points(
        title=name, x_axis=axis, y_axis=ChartAxis(title=name, unit="bytes", log=True), limit_name=name, x_limit=2.5,
        points=(
            ChartPoint(x=1, y=10, name=name, label=name, detail=name),
            ChartPoint(x=2, y=1000, name="b", hollow=True),
        ),
        lines=(ChartLine(name=name, points=((1.0, 10.0), (2.0, 1000.0)), dashed=True),),
    )  # fmt: skip
    areas = Areas(
        title=name, x_axis=axis, y_axis=ChartAxis(title="memory", unit="bytes"), x=(0.0, 1.0, 2.0), limit=3e9,
        limit_name=name, series=(AreaSeries(name=name, y=(1e9, 2e9, 2e9), colour="weights"),),
    )  # fmt: skip
    tier = TierDrawing(
        source="gpu", target="switch", name=name, links=8, bytes_per_s=4e11, size_bytes=1e9, utilisation=0.4,
        busiest=name,
    )  # fmt: skip
    table = Table(
        title=name, columns=(Column(name=name), Column(name="time", unit="s")), rows=((name, 1.0), ("b", None))
    )
    return (
        Text(lines=(name,)), CommandLine(title=name, line=f"trine {name}"), table, bars, areas, points,
        Items(title=name, items=(Item(tag="assumed", text=name),)),
        Heat(title=name, names=(name,), values=np.linspace(0, 1, 20, dtype=np.float32).reshape(1, 20), length_s=1.0),
        ClusterDrawing(title=name, tiers=(tier,), counts={"gpu": 8}), many_spans(160, 2, (name, "b")),
        Choice(title=name, options=((name, bars), ("other", table))),
    )  # fmt: skip


def page_of_blocks(*sections: tuple, title: str = "title") -> Page:
    """Return a page with one section per tuple of blocks."""
    parts = tuple(
        PageSection(key=f"part-{number}", question=f"Question {number}?", answer=f"Answer {title}.", blocks=blocks)
        for number, blocks in enumerate(sections)
    )
    fact = Fact(name=title, value=1.5, unit="s", low=1.0, high=2.0, note=title, tone="good")
    return Page(title=title, answer=title, subject="train", version="0.1.0", facts=(fact,), sections=parts)
