"""The page of an answer without a page of its own: its numbers, its tables, and how sure they are."""

from __future__ import annotations

from collections.abc import Sequence

from trine.report.blocks import Block, Cell, Head, Table
from trine.report.certainty import certainty
from trine.report.page import Page, PageSection
from trine.report.reading import Document, number, rows, text

#: Units of keys by their ending: the ending, the unit, and the factor to it.
_ENDINGS = (
    ("_bytes_per_s", "bytes/s", 1.0),
    ("_GBps", "bytes/s", 1e9),
    ("tokens_per_s", "tokens/s", 1.0),
    ("_bytes", "bytes", 1.0),
    ("_ps", "s", 1e-12),
    ("_us", "s", 1e-6),
    ("_s", "s", 1.0),
    ("_share", "share", 1.0),
    ("_usd", "usd", 1.0),
)
#: Abbreviations in keys, as they are written in a sentence.
_WORDS = {"cpu": "CPU", "gpu": "GPU", "gpus": "GPUs", "mfu": "MFU"}
#: Keys that other parts of the page show.
_HIDDEN = frozenset({
    "schema", "version", "command", "trine_version", "evidence", "notes", "warnings", "not_modelled", "plan", "inputs",
})  # fmt: skip
_MAX_COLUMNS, _MAX_ROWS = 12, 2000


def generic_page(document: Document, headline: str, command: str) -> Page:
    """Return a page with the scalars and the tables of an answer. headline: its first line, "" if unknown."""
    subject = text(document, "command") or "answer"
    blocks: list[Block] = []
    scalars = _scalars(document)
    if scalars is not None:
        blocks.append(scalars)
    for key in document:
        table = None if key in _HIDDEN else table_of_rows(key, rows(document, key))
        if table is not None:
            blocks.append(table)
    answer = PageSection(key="answer", question="What is the answer?", answer=headline, blocks=tuple(blocks))
    return Page(
        title=f"trine {subject}", answer=headline or f"Answer of trine {subject}", subject=subject,
        version=text(document, "version"), sections=(answer, certainty(document, command)),
    )  # fmt: skip


def unit_of(key: str) -> tuple[str, str, float]:
    """Return the name of a key in words, its unit, and the factor to that unit."""
    for ending, unit, factor in _ENDINGS:
        if key.endswith(ending) and key != ending:
            stem = key.removesuffix(ending) if ending != "tokens_per_s" else key
            return _name_of(stem), unit, factor
    return _name_of(key), "", 1.0


def _name_of(stem: str) -> str:
    """Return a key without its unit in words: ``gpus_simulated`` is ``GPUs simulated``."""
    words = []
    for word in stem.strip("_").split("_"):
        words.append(_WORDS.get(word, word))
    return " ".join(words)


def table_of_rows(title: str, found: Sequence[Document]) -> Table | None:
    """Return the rows of a list in an answer as a table; nested values are left out. None without rows."""
    keys = list(dict.fromkeys(key for row in found[:50] for key in row if _is_plain(row, key)))[:_MAX_COLUMNS]
    if not found or not keys:
        return None
    columns, table_rows = [], []
    for key in keys:
        name, unit, _ = unit_of(key)
        is_number = any(number(row, key) is not None for row in found)
        columns.append(Head(name=name, unit=unit or ("number" if is_number else "")))
    for row in found[:_MAX_ROWS]:
        table_rows.append(tuple(_cell(row, key) for key in keys))
    note = f"The first {_MAX_ROWS:,} of {len(found):,} rows." if len(found) > _MAX_ROWS else ""
    return Table(title=title.replace("_", " "), columns=tuple(columns), rows=tuple(table_rows), note=note)


def _is_plain(row: Document, key: str) -> bool:
    return isinstance(row[key], str | int | float) or row[key] is None


def _cell(row: Document, key: str) -> Cell:
    value = number(row, key)
    if value is not None:
        return value * unit_of(key)[2]
    found = row.get(key)
    if isinstance(found, bool):
        return "yes" if found else "no"
    return text(row, key) or None


def _scalars(document: Document) -> Table | None:
    found: list[tuple[Cell, ...]] = []
    for key, value in document.items():
        if key in _HIDDEN or not isinstance(value, str | int | float) or value == "":
            continue
        found.append((unit_of(key)[0], _shown(document, key)))
    if not found:
        return None
    return Table(title="Numbers", columns=(Head(name="name"), Head(name="value")), rows=tuple(found), max_rows=30)


def _shown(document: Document, key: str) -> str:
    from trine.common.units import format_bandwidth, format_bytes, format_time

    value = number(document, key)
    if value is None:
        return str(document[key]) if not isinstance(document[key], bool) else ("yes" if document[key] else "no")
    _, unit, factor = unit_of(key)
    scaled = value * factor
    if unit == "s":
        return format_time(scaled * 1e12)
    if unit == "bytes":
        return format_bytes(scaled)
    if unit == "bytes/s":
        return format_bandwidth(scaled)
    return f"{scaled:,.6g}"
