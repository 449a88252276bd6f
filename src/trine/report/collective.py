"""The page of a collective's predicted times: ``trine collective``."""

from __future__ import annotations

from trine.common.units import format_bandwidth, format_bytes, format_time
from trine.report.blocks import Block, Cell, ChartAxis, ChartLine, ChartPoint, Choice, Head, Points, Table
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


def _largest(sizes: list[Document]) -> Document:
    return max(sizes, key=lambda row: amount(row, "size_bytes"))


def _seconds(row: Document, key: str) -> float | None:
    """Return a time of a row, which is in us, in seconds; None if it is missing."""
    time_us = number(row, key)
    return None if time_us is None else time_us / 1e6


def _bytes_per_s(row: Document, key: str) -> float | None:
    """Return a rate of a row, which is in GB/s, in bytes/s; None if it is missing."""
    rate = number(row, key)
    return None if rate is None else rate * _BYTES_PER_GB


def _choice(row: Document) -> str:
    """Return the algorithm and the protocol of a size as words."""
    return "/".join(word for word in (text(row, "algorithm"), text(row, "protocol")) if word)


def _answer(document: Document, sizes: list[Document]) -> str:
    if not sizes:
        return "No size was asked."
    top = _largest(sizes)
    time = format_time(amount(top, "time_us") * _PS_PER_US)
    rate = format_bandwidth(amount(top, "busbw_GBps") * _BYTES_PER_GB)
    size = size_words(amount(top, "size_bytes"))
    choice = _choice(top) or "no algorithm"
    return f"{text(document, 'op')} of {size} takes {time}: {rate} of bus bandwidth with {choice}."


def _facts(sizes: list[Document]) -> tuple[Fact, ...]:
    if not sizes:
        return ()
    top = _largest(sizes)
    time = Fact(
        name="Time of the largest size", value=amount(top, "time_us") / 1e6, unit="s", low=_seconds(top, "low_us"),
        high=_seconds(top, "high_us"),
    )  # fmt: skip
    rate = Fact(name="Bus bandwidth", value=amount(top, "busbw_GBps") * _BYTES_PER_GB, unit="bytes/s")
    return (time, rate, Fact(name="Algorithm", value=text(top, "algorithm") or "–"), _bound(top))


def _bound(row: Document) -> Fact:
    link = text(row, "limit").replace("->", " → ")  # with spaces, long names wrap between the ends
    return Fact(name="Limited by", value=link or "–")


def _how_long(sizes: list[Document]) -> PageSection:
    blocks: list[Block] = []
    drawn = [row for row in sizes if amount(row, "size_bytes") > 0 and amount(row, "time_us") > 0]
    if len(drawn) > 1:
        views = (("Time", _times(drawn)), ("Bus bandwidth", _rates(drawn)))
        blocks.append(Choice(title="Over the size", options=views))
    blocks.append(_table(sizes))
    evidence = sorted({text(row, "evidence") for row in sizes} - {""})
    plural = "" if len(sizes) == 1 else "s"
    answer = f"{len(sizes)} size{plural}; times are {' and '.join(evidence) or 'modelled'}."
    return PageSection(key="fit", question="How long?", answer=answer, blocks=tuple(blocks))


def _times(sizes: list[Document]) -> Points:
    """Return the times by size, with the likely range as dashed lines."""
    points = []
    for row in sizes:
        points.append(ChartPoint(x=amount(row, "size_bytes"), y=amount(row, "time_us") / 1e6, name=_words(row)))
    lines = []
    for name, key, is_dashed in (("", "time_us", False), ("likely range", "low_us", True), ("", "high_us", True)):
        ends = []
        for row in sizes:
            if amount(row, key) > 0:
                ends.append((amount(row, "size_bytes"), amount(row, key) / 1e6))
        if len(ends) > 1:
            lines.append(ChartLine(name=name, points=tuple(ends), colour="first", dashed=is_dashed))
    return Points(
        title="", x_axis=_size_axis(sizes), y_axis=ChartAxis(title="time", unit="s", log=True), points=tuple(points),
        lines=tuple(lines),
    )  # fmt: skip


def _rates(sizes: list[Document]) -> Points:
    """Return the bus bandwidths by size."""
    points, ends = [], []
    for row in sizes:
        x, y = amount(row, "size_bytes"), amount(row, "busbw_GBps") * _BYTES_PER_GB
        ends.append((x, y))
        points.append(ChartPoint(x=x, y=y, name=_words(row)))
    line = ChartLine(name="", points=tuple(ends), colour="first")
    return Points(
        title="", x_axis=_size_axis(sizes), y_axis=ChartAxis(title="bus bandwidth", unit="bytes/s"),
        points=tuple(points), lines=(line,),
    )  # fmt: skip


def _words(row: Document) -> str:
    """Return a size and the library's choice, for a point of a chart."""
    return f"{size_words(amount(row, 'size_bytes'))}: {text(row, 'algorithm')}/{text(row, 'protocol')}"


def _size_axis(sizes: list[Document]) -> ChartAxis:
    """Return the axis of sizes, with labels at all of them or at about eight."""
    found = sorted({amount(row, "size_bytes") for row in sizes})
    step = max(1, -(-len(found) // 8))
    return ChartAxis(title="size", unit="bytes", log=True, ticks=tuple(found[::step]))


def _table(sizes: list[Document]) -> Table:
    columns = (
        Head(name="size", unit="bytes"), Head(name="time", unit="s", scale="time"),
        Head(name="low", unit="s", scale="time"), Head(name="high", unit="s", scale="time"),
        Head(name="algorithm bandwidth", unit="bytes/s"), Head(name="bus bandwidth", unit="bytes/s"),
        Head(name="algorithm"), Head(name="protocol"), Head(name="channels", unit="count"),
        Head(name="evidence"),
    )  # fmt: skip
    return Table(title="All sizes", columns=columns, rows=tuple(_row(row) for row in sizes), max_rows=30)


def _row(row: Document) -> tuple[Cell, ...]:
    times = [_seconds(row, key) for key in ("time_us", "low_us", "high_us")]
    rates = [_bytes_per_s(row, key) for key in ("algbw_GBps", "busbw_GBps")]
    words = [text(row, key) for key in ("algorithm", "protocol")]
    return (number(row, "size_bytes"), *times, *rates, *words, number(row, "channels"), text(row, "evidence"))


def _which_link(document: Document) -> PageSection:
    blocks: list[Block] = [_table_of_tiers(document)]
    if rows(document, "links"):
        blocks.append(_table_of_links(document))
    answer = _sentences_about_links(document)
    return PageSection(key="link", question="Which link?", answer=answer, blocks=tuple(blocks))


def _sentences_about_links(document: Document) -> str:
    """Return the busiest link, the routing with its reason, and where the library's choice is explained."""
    answer = "The answer has no traffic of links."
    tiers = rows(document, "tiers")
    if tiers:
        top = max(tiers, key=lambda row: amount(row, "busy_us"))
        answer = f"{text(top, 'busiest')} ({text(top, 'tier')}) is the busiest link."
    routing, reason = text(document, "routing"), text(document, "routing_reason")
    if routing and reason:
        answer += f" Routing: {routing} ({reason})."
    elif routing:
        answer += f" Routing: {routing}."
    if section(document, "explained"):
        answer += " See --explain for the library's choice."
    return answer


def _table_of_tiers(document: Document) -> Table:
    columns = (
        Head(name="tier"), Head(name="links", unit="count"), Head(name="bytes on busiest", unit="bytes"),
        Head(name="busy", unit="s"), Head(name="busiest link"),
    )  # fmt: skip
    cells: list[tuple[Cell, ...]] = []
    for row in rows(document, "tiers"):
        busy_s = amount(row, "busy_us") / 1e6
        cells.append((text(row, "tier"), number(row, "links"), number(row, "bytes"), busy_s, text(row, "busiest")))
    return Table(title="Tiers of links, largest size", columns=columns, rows=tuple(cells))


def _table_of_links(document: Document) -> Table:
    """Return the table of links, the busiest first."""
    columns = (Head(name="link"), Head(name="bytes", unit="bytes"), Head(name="busy", unit="s"))
    cells: list[tuple[Cell, ...]] = []
    for row in sorted(rows(document, "links"), key=lambda row: -amount(row, "busy_us")):
        cells.append((text(row, "name"), number(row, "bytes"), amount(row, "busy_us") / 1e6))
    return Table(title="Links, largest size", columns=columns, rows=tuple(cells))
