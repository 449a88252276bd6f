"""Write the tables of JSON keys into the pages of docs/reference, from json-keys.csv and the columns that src declares.

    python tools/json_reference.py           # writes the tables between <!-- keys: ANSWER --> and <!-- end -->
    python tools/json_reference.py --check   # fails if a page differs

Columns of the CSV: answer (the NAME of the schema trine/NAME/1); keys, separated by commas; unit; meaning; null_if.
A key is a path: ``ranks[].name`` is ``name`` in each entry of the list ``ranks``, ``tasks.*.end_ps`` is ``end_ps`` in
each value of the object ``tasks``. A unit ``see ANSWER KEY`` stands for all keys below that key (without KEY: for the
whole answer). Below a unit ``object of ...`` or ``list of ...`` any keys may follow. A unit ``columns of MODULE:NAME``
stands for the columns that src declares there (``trine.results.columns.Columns``), below each of the keys.
"""

from __future__ import annotations

import argparse
import csv
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from trine.common.plugins import load_target
from trine.results.columns import Column

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "docs" / "reference"
TABLE = FOLDER / "json-keys.csv"
BLOCK = re.compile(r"(<!-- keys: ([a-z-]+) -->\n).*?(<!-- end -->)", re.S)
SEE = re.compile(r"see ([a-z-]+)(?: (\S+))?$")
DECLARED = re.compile(r"columns of (\S+:\w+)$")


class Row(NamedTuple):
    """Keys of one answer with one meaning."""

    answer: str
    keys: tuple[str, ...]
    unit: str
    meaning: str
    null_if: str

    @property
    def is_open(self) -> bool:
        """Whether any keys may follow below these."""
        return self.unit.startswith(("object of", "list of")) or self.unit == "any"


def read_rows() -> list[Row]:
    """Return all rows of the CSV, with the declared columns in the places that name them."""
    rows: list[Row] = []
    with TABLE.open(encoding="utf-8", newline="") as file:
        for each in csv.DictReader(file):
            keys = tuple(each["keys"].split(", "))
            declared = DECLARED.match(each["unit"])
            if declared is None:
                rows.append(Row(each["answer"], keys, each["unit"], each["meaning"], each["null_if"]))
            else:
                rows += declared_rows(each["answer"], keys, load_target(declared[1]))
    return rows


def declared_rows(answer: str, places: Sequence[str], columns: Iterable[Column]) -> list[Row]:
    """Return the rows of declared columns in some places of an answer; columns with one meaning share a row."""
    alike: dict[tuple[str, str], list[Column]] = {}
    for column in columns:
        alike.setdefault((column.meaning, column.null_if), []).append(column)
    rows = []
    for (meaning, null_if), group in alike.items():
        keys = tuple(f"{place}.{column.key}" for place in places for column in group)
        units = [column.unit for column in group]
        rows.append(Row(answer, keys, units[0] if len(set(units)) == 1 else ", ".join(units), meaning, null_if))
    return rows


def paths(rows: Sequence[Row], answer: str, below: str = "") -> Iterator[tuple[str, Row]]:
    """Return the keys of an answer below a key, each with its row; also keys of other answers that it refers to."""
    for row in rows:
        if row.answer != answer:
            continue
        seen = SEE.match(row.unit)
        for key in row.keys:
            if not key.startswith(below):
                continue
            if key:
                yield key, row
            if seen is not None:
                yield from ((key + tail, its_row) for tail, its_row in _tails(rows, seen, is_whole=not key))


def _tails(rows: Sequence[Row], seen: re.Match[str], is_whole: bool) -> Iterator[tuple[str, Row]]:
    """Return the ends of the keys that a reference stands for; is_whole: all keys of the answer."""
    below = seen[2] or ""
    for key, row in paths(rows, seen[1], below):
        tail = key.removeprefix(below)
        if below and tail[:1] in ("[", "."):
            yield tail, row
        elif not below:
            yield (key if is_whole else f".{key}"), row


def parent_of(key: str) -> tuple[str, str]:
    """Split ``rows[].parts[].name`` into ``rows[].parts[]`` and ``name``."""
    parent, _, name = key.rpartition(".")
    return parent, name


def tables(rows: Iterable[Row], answer: str) -> str:
    """Return the tables of an answer: first its own keys, then the keys of each list and object."""
    found: dict[tuple[str, ...], list[str]] = {(): []}
    for row in rows:
        if row.answer != answer:
            continue
        parents = tuple(dict.fromkeys(parent for parent, _ in map(parent_of, row.keys) if parent))
        names = ", ".join(f"`{name}`" for name in dict.fromkeys(name for _, name in map(parent_of, row.keys)))
        meaning = row.meaning + (f" Null: {row.null_if}." if row.null_if else "")
        found.setdefault(parents, []).append(f"| {names} | {_unit(row.unit)} | {meaning} |")
    head = "| key | unit | meaning |\n|---|---|---|\n"
    return "\n".join(
        _title(parents) + head + "".join(f"{line}\n" for line in lines) for parents, lines in found.items()
    )


def _unit(unit: str) -> str:
    return "object" if SEE.match(unit) else unit


def _title(parents: tuple[str, ...]) -> str:
    if not parents:
        return ""
    names = ", ".join(f"`{parent.removesuffix('.*').removesuffix('[]')}`" for parent in parents)
    return f"Each of {names}:\n\n" if parents[0].endswith(("[]", ".*")) else f"{names}:\n\n"


def page_text(text: str, rows: Iterable[Row]) -> str:
    """Return a page with its tables written anew. Raises KeyError for an answer that the CSV lacks."""
    rows = list(rows)

    def block(match: re.Match[str]) -> str:
        if not any(row.answer == match[2] for row in rows):
            raise KeyError(match[2])
        return f"{match[1]}\n{tables(rows, match[2])}\n{match[3]}"

    return BLOCK.sub(block, text)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="fail if a page differs from the CSV")
    is_check = parser.parse_args().check
    rows, differing = read_rows(), []
    for page in sorted(FOLDER.glob("*.md")):
        text = page.read_text(encoding="utf-8")
        written = page_text(text, rows)
        if written == text:
            continue
        differing.append(page.name)
        if not is_check:
            page.write_text(written, encoding="utf-8")
    for name in differing:
        print(f"docs/reference/{name}: {'differs from json-keys.csv' if is_check else 'written'}")
    return 1 if is_check and differing else 0


if __name__ == "__main__":
    sys.exit(main())
