"""Stored reports: predictions beside published measurements, as ``python -m validation`` wrote them (presets/stored).

A file holds a report's headline, paragraphs and document, with fitted factors and, where a report fits any, blind. The
repository's folder ``validation/`` computes them again; ``benchmarks/store_reports.py`` stores them.
"""

from __future__ import annotations

import gzip
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any

from trine.common.inputs import PRESETS, read_bytes
from trine.errors import InputError, nearest
from trine.results.report import Report, Row, Table
from trine.results.text import wrapped_at

FOLDER = PRESETS / "stored"
#: All stored reports.
REPORTS = ("collectives", "loadstore", "training", "layouts", "memory", "serving", "operators", "scaling")
#: Files without effect on a prediction: commands, texts, case studies, and tables that are written from predictions.
_LEFT_OUT = (
    "cli/", "gpu/cli/", "decentralised/cli.py", "gpu/cases/", "docs/", "presets/stored/",
    "presets/measured/left_out.csv", "presets/measured/training/bands.yaml", "common/_version.py",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class Origin:
    """The trine version that stored a report, the hash of its data and code, and the CPU time of the replay in seconds.

    is_current: whether the installed data and code have the same hash.
    """

    version: str
    hash: str
    cpu_s: float
    is_current: bool

    @property
    def line(self) -> str:
        """The first line of the printed report."""
        changed = "" if self.is_current else "; data or code changed since"
        minutes = max(1, round(self.cpu_s / 60))
        return f"stored report of trine {self.version}{changed} ({minutes} CPU min; to repeat it: --again)"


@cache
def hash_inputs() -> str:
    """Return SHA-256 of the installed data and code: names and bytes of all Python files and presets.

    Names are sorted. Files without effect on a prediction do not count: ``cli``, ``docs``, the stored reports, case
    studies, trine's version, and files written from predictions (``bands.yaml``, ``left_out.csv``).
    """
    root = PRESETS.parent
    files = {}
    for path in (*root.rglob("*.py"), *PRESETS.rglob("*.*")):
        name = path.relative_to(root).as_posix()
        if path.is_file() and not name.startswith(_LEFT_OUT):
            files[name] = path
    digest = hashlib.sha256()
    for name in sorted(files):
        content = hashlib.sha256(files[name].read_bytes()).digest()
        digest.update(f"{name}\0".encode() + content)
    return digest.hexdigest()


def origin_of(made: Mapping[str, Any]) -> Origin:
    """Return the origin of a report; made: version, hash and CPU time as stored."""
    is_current = made["hash"] == hash_inputs()
    return Origin(version=made["version"], hash=made["hash"], cpu_s=made["cpu_s"], is_current=is_current)


@dataclass(frozen=True, kw_only=True, repr=False)
class StoredReport(Report):
    """A report of ``trine validate`` as it was stored.

    paragraphs: sentences, which wrap, or lines of a table. content: the document without its origin.
    """

    SCHEMA: str  # type: ignore[misc]  # of the report that was stored
    stored: Origin
    text: str
    paragraphs: tuple[str | tuple[str, ...], ...]
    content: Mapping[str, Any]

    @property
    def headline(self) -> str:
        """The stored headline."""
        return self.text

    def details(self) -> str:
        """Return the origin, the headline and all paragraphs."""
        return blocks(self.stored.line, self.text, *self.paragraphs)

    def document(self) -> Row:
        """Return the stored document with ``stored``, its origin."""
        return {**self.content, "stored": asdict(self.stored)}

    def tables(self) -> dict[str, Table]:
        """Return the document's lists of rows."""
        tables: dict[str, Table] = {}
        for name, value in self.content.items():
            is_table = isinstance(value, list) and bool(value) and isinstance(value[0], dict)
            if is_table:
                tables[name] = value
        return tables


def stored_report(name: str, blind: bool = False) -> StoredReport:
    """Return a stored report: of :data:`REPORTS`; blind: without fitted factors.

    Raises InputError for an unknown name, and for a report that fits nothing if ``blind``.
    """
    if name not in REPORTS:
        raise InputError(f"unknown report {name!r:.80}{nearest(name[:80], REPORTS)}", field="name")
    content = json.loads(gzip.decompress(read_bytes(FOLDER / f"{name}.json.gz")))
    form = content.get("blind" if blind else "fitted")
    if form is None:
        raise InputError(f"the report of {name} fits no factors: it is blind", field="blind")
    paragraphs: list[str | tuple[str, ...]] = []
    for paragraph in form["paragraphs"]:
        paragraphs.append(paragraph if isinstance(paragraph, str) else tuple(paragraph))
    return StoredReport(
        SCHEMA=f"validate-{name}", stored=origin_of(content["made"]), text=form["headline"],
        paragraphs=tuple(paragraphs), content=form["document"],
    )  # fmt: skip


def blocks(*parts: str | Sequence[str]) -> str:
    """Return paragraphs, each a sentence, which wraps, or its lines; leave out empty ones."""
    texts = []
    for part in parts:
        if part:
            lines = wrapped_at("", part, 0) if isinstance(part, str) else part
            texts.append("\n".join(lines))
    return "\n\n".join(texts)
