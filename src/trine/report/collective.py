"""The page of a collective's predicted times: ``trine collective``."""

from __future__ import annotations

from trine.common.units import format_bandwidth, format_bytes, format_time
from trine.report.blocks import Block, Cell, ChartAxis, ChartLine, ChartPoint, Choice, Column, Points, Table
from trine.report.certainty import certainty
from trine.report.page import Fact, Page, PageSection
from trine.report.reading import Document, amount, number, rows, section, text

_PS_PER_US, _BYTES_PER_GB = 1e6, 1e9


def collective_page(document: Document, command: str) -> Page:
    """Return the page: times and bus bandwidths by size, links, evidence."""
    sizes = rows(document, "rows")
    return Page(
        title=_title(document), answer=_answer(document, sizes), subject="collective",
        version=text(document, "version"), facts=_facts(sizes),
        sections=(_how_long(sizes), _which_link(document), certainty(document, command)),
    )  # fmt: skip


def size_words(size_bytes: float) -> str:
    """Return a size as people type it: in decimal units if it is a whole number of thousands, else in binary ones."""
    for unit, factor in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if size_bytes >= factor and size_bytes % factor == 0 and size_bytes % 2**20 != 0:
            return f"{size_bytes / factor:g} {unit}"
    return format_bytes(size_bytes)


def _title(document: Document) -> str:
    nodes = amount(document, "num_nodes")
    words = f"{text(document, 'op')} of {amount(document, 'num_ranks'):.0f} ranks on {text(document, 'cluster')}"
    if nodes:
        words += f", {nodes:.0f} node{'s' if nodes > 1 else ''}"
    library = f"{text(document, 'library')} {text(document, 'library_version')}".strip()
    return f"{words}, {library}" if library else words


def _answer(document: Document, sizes: list[Document]) -> str:
    if not sizes:
        return "No size was asked."
    top = max(sizes, key=lambda row: amount(row, "size_bytes"))
    time = format_time(amount(top, "time_us") * _PS_PER_US)
    rate = format_bandwidth(amount(top, "busbw_GBps") * _BYTES_PER_GB)
    choice = "/".join(word for word in (text(top, "algorithm"), text(top, "protocol")) if word)
    size = size_words(amount(top, "size_bytes"))
    return f"{text(document, 'op')} of {size} takes {time}: {rate} of bus bandwidth with {choice or 'no algorithm'}."


def _facts(sizes: list[Document]) -> tuple[Fact, ...]:
    if not sizes:
        return ()
    top = max(sizes, key=lambda row: amount(row, "size_bytes"))
    low, high = number(top, "low_us"), number(top, "high_us")
    time = Fact(
        name="Time of the largest size", value=amount(top, "time_us") / 1e6, unit="s",
        low=None if low is None else low / 1e6, high=None if high is None else high / 1e6,
    )  # fmt: skip
    rate = Fact(name="Bus bandwidth", value=amount(top, "busbw_GBps") * _BYTES_PER_GB, unit="bytes/s")
    return (time, rate, Fact(name="Algorithm", value=text(top, "algorithm") or "–"), _bound(top))


def _bound(row: Document) -> Fact:
    return Fact(name="Limited by", value=text(row, "limit") or "–")


def _how_long(sizes: list[Document]) -> PageSection:
    blocks: list[Block] = []
    drawn = [row for row in sizes if amount(row, "size_bytes") > 0 and amount(row, "time_us") > 0]
    if len(drawn) > 1:
        views = (("Time", _times(drawn)), ("Bus bandwidth", _rates(drawn)))
        blocks.append(Choice(title="Over the size", options=views))
    blocks.append(_table(sizes))
    evidence = sorted({text(row, "evidence") for row in sizes if text(row, "evidence")})
    answer = f"{len(sizes)} size{'s' if len(sizes) != 1 else ''}; times are {' and '.join(evidence) or 'modelled'}."
    return PageSection(key="fit", question="How long?", answer=answer, blocks=tuple(blocks))


def _times(sizes: list[Document]) -> Points:
    points, lines = [], []
    for row in sizes:
        name = f"{size_words(amount(row, 'size_bytes'))}: {text(row, 'algorithm')}/{text(row, 'protocol')}"
        points.append(ChartPoint(x=amount(row, "size_bytes"), y=amount(row, "time_us") / 1e6, name=name))
    for name, key, is_dashed in (("", "time_us", False), ("likely range", "low_us", True), ("", "high_us", True)):
        ends = [(amount(row, "size_bytes"), amount(row, key) / 1e6) for row in sizes if amount(row, key) > 0]
        if len(ends) > 1:
            lines.append(ChartLine(name=name, points=tuple(ends), colour="first", dashed=is_dashed))
    return Points(
        title="", x_axis=ChartAxis(title="size", unit="bytes", log=True, ticks=_ticks(sizes)),
        y_axis=ChartAxis(title="time", unit="s", log=True), points=tuple(points), lines=tuple(lines),
    )  # fmt: skip


def _rates(sizes: list[Document]) -> Points:
    ends = tuple((amount(row, "size_bytes"), amount(row, "busbw_GBps") * _BYTES_PER_GB) for row in sizes)
    points = [
        ChartPoint(x=x, y=y, name=f"{size_words(x)}: {text(row, 'algorithm')}/{text(row, 'protocol')}")
        for (x, y), row in zip(ends, sizes, strict=True)
    ]
    return Points(
        title="", x_axis=ChartAxis(title="size", unit="bytes", log=True, ticks=_ticks(sizes)),
        y_axis=ChartAxis(title="bus bandwidth", unit="bytes/s"), points=tuple(points),
        lines=(ChartLine(name="", points=ends, colour="first"),),
    )  # fmt: skip


def _ticks(sizes: list[Document]) -> tuple[float, ...]:
    """Return the sizes that label the axis: all of them, or about eight."""
    found = sorted({amount(row, "size_bytes") for row in sizes})
    return tuple(found[:: max(1, -(-len(found) // 8))])


def _table(sizes: list[Document]) -> Table:
    columns = (
        Column(name="size", unit="bytes"), Column(name="time", unit="s", scale="time"),
        Column(name="low", unit="s", scale="time"), Column(name="high", unit="s", scale="time"),
        Column(name="algorithm bandwidth", unit="bytes/s"), Column(name="bus bandwidth", unit="bytes/s"),
        Column(name="algorithm"), Column(name="protocol"), Column(name="channels", unit="count"),
        Column(name="evidence"),
    )  # fmt: skip
    return Table(title="All sizes", columns=columns, rows=tuple(_row(row) for row in sizes), max_rows=30)


def _row(row: Document) -> tuple[Cell, ...]:
    times = [number(row, key) for key in ("time_us", "low_us", "high_us")]
    rates = [number(row, key) for key in ("algbw_GBps", "busbw_GBps")]
    return (
        number(row, "size_bytes"), *(None if time is None else time / 1e6 for time in times),
        *(None if rate is None else rate * _BYTES_PER_GB for rate in rates), text(row, "algorithm"),
        text(row, "protocol"), number(row, "channels"), text(row, "evidence"),
    )  # fmt: skip


def _which_link(document: Document) -> PageSection:
    tiers = rows(document, "tiers")
    columns = (
        Column(name="tier"), Column(name="links", unit="count"), Column(name="bytes on busiest", unit="bytes"),
        Column(name="busy", unit="s"), Column(name="busiest link"),
    )  # fmt: skip
    found = [
        (
            text(row, "tier"),
            number(row, "links"),
            number(row, "bytes"),
            amount(row, "busy_us") / 1e6,
            text(row, "busiest"),
        )
        for row in tiers
    ]
    links = [
        (text(row, "name"), number(row, "bytes"), amount(row, "busy_us") / 1e6)
        for row in sorted(rows(document, "links"), key=lambda row: -amount(row, "busy_us"))
    ]
    link_columns = (Column(name="link"), Column(name="bytes", unit="bytes"), Column(name="busy", unit="s"))
    blocks: list[Block] = [Table(title="Tiers of links, largest size", columns=columns, rows=tuple(found))]
    if links:
        blocks.append(Table(title="Links, largest size", columns=link_columns, rows=tuple(links)))
    routing = text(document, "routing")
    answer = "The answer has no traffic of links."
    if tiers:
        top = max(tiers, key=lambda row: amount(row, "busy_us"))
        answer = f"{text(top, 'busiest')} ({text(top, 'tier')}) is the busiest link."
    reason = text(document, "routing_reason")
    if routing:
        answer += f" Routing: {routing}{f' ({reason})' if reason else ''}."
    explained = section(document, "explained")
    if explained:
        answer += " See --explain for the library's choice."
    return PageSection(key="link", question="Which link?", answer=answer, blocks=tuple(blocks))
