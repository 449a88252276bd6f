"""Base class of trine's results, and their output formats.

A result is a :class:`Report`: a headline, tables, notes, evidence, pictures and a timeline. This module turns these
into JSON with its envelope, CSV, Parquet, pandas, Perfetto, pictures and the notebook display.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from trine.common import shown
from trine.common._version import __version__
from trine.common.evidence import Evidence
from trine.common.plugins import load_target
from trine.common.units import PS_PER_S
from trine.errors import InputError, MissingExtraError, nearest
from trine.results.rows import Row as Row
from trine.results.rows import Table as Table
from trine.results.text import first_screen

if TYPE_CHECKING:
    import pandas

#: Keys common to all JSON results (docs/reference/json.md).
ENVELOPE = ("schema", "version", "command")


class Timeline(NamedTuple):
    """A Perfetto trace: its packets in order, and notes on omitted events."""

    packets: Iterator[bytes]
    notes: tuple[str, ...] = ()


class Report(ABC):
    """A result. Subclasses define its content; the methods that write files and pictures are common to all."""

    #: Name of the JSON schema, ``trine/<SCHEMA>/<number>``.
    SCHEMA: ClassVar[str]

    @property
    @abstractmethod
    def headline(self) -> str:
        """The result in one line."""

    def summary(self) -> str:
        """Return the result as text for one screen: by default the first lines of the details."""
        return first_screen(self.details())

    @abstractmethod
    def details(self) -> str:
        """Return the full text of the result."""

    @abstractmethod
    def document(self) -> Row:
        """Return the result's keys as plain data, without the envelope."""

    def record(self) -> Row:
        """Return one flat row for a point of an experiment; by default the document, whose lists are left out."""
        return self.document()

    def tables(self) -> dict[str, Table]:
        """Return the tables by name, the main table first; values in a row are plain."""
        return {}

    @property
    def evidence(self) -> tuple[Evidence, ...]:
        """Evidence for the numbers."""
        return ()

    @property
    def notes(self) -> tuple[str, ...]:
        """Warnings, assumptions and omissions, as sentences."""
        return ()

    @property
    def sources(self) -> tuple[str, ...]:
        """Sources of the inputs besides the evidence: traces, clusters."""
        return ()

    def pictures(self) -> Mapping[str, Callable[..., Any]]:
        """Return the available pictures: name -> function that returns a figure. The first is the default."""
        return {}

    def timeline(self) -> Timeline | None:
        """Return the result as a Perfetto trace; None if it has no timeline."""
        return None

    # Output formats

    def to_json(self, path: str | Path | None = None) -> Row:
        """Return the result as plain data in its envelope, and write it to ``path`` if given."""
        content = envelope(self.document(), self.SCHEMA, None)
        if path is not None:
            from trine.common.outputs import write_json

            write_json(path, content)
        return content

    def to_csv(self, path: str | Path) -> None:
        """Write the main table to a ``.csv`` file, or all tables into a folder, which is created if needed.

        Raises InputError if the result has no table or a file cannot be written.
        """
        from trine.results import frames

        frames.to_csv(self._tables(), path)

    def to_parquet(self, directory: str | Path) -> None:
        """Write all tables as Parquet files into a folder; raises MissingExtraError without pyarrow."""
        from trine.results import frames

        frames.to_parquet(self._tables(), directory)

    def to_frame(self, table: str | None = None) -> pandas.DataFrame:
        """Return a table, by default the main one, as a pandas data frame.

        Raises InputError for an unknown table, MissingExtraError without pandas.
        """
        from trine.results import frames

        tables = self._tables()
        return frames.to_frame(tables[_output_name("table", table, tables, self)])

    def to_perfetto(self, path: str | Path) -> tuple[str, ...]:
        """Write a timeline for https://ui.perfetto.dev, compressed if ``path`` ends in ``.gz``.

        Return notes on omitted events. Raises InputError if the result has no timeline.
        """
        timeline = self.timeline()
        if timeline is None:
            raise InputError(f"{type(self).__name__} has no timeline", file=path)
        from trine.results.packets import write_packets

        write_packets(timeline.packets, Path(path))
        return timeline.notes

    def to_report(self, path: str | Path) -> None:
        """Write a report: one HTML file that opens from disk. Raises InputError if it cannot be written."""
        load_target("trine.report.answers:write_answer")(self, path)

    def report(self, height_px: int = 640) -> Any:
        """Return the report as an object that a notebook shows below the cell. height_px: of its frame."""
        return load_target("trine.report.answers:inline")(self, height_px)

    def plot(self, what: str | Path | None = None, *, path: str | Path | None = None, **options: Any) -> Any:
        """Draw the result, and write the picture to ``path`` (PNG, SVG or PDF) if given; return matplotlib's figure.

        what: a name from :meth:`pictures`, by default the first; a file name means ``path``. options: for the picture.

        Raises
        ------
        InputError: unknown picture or file ending. MissingExtraError: no matplotlib.
        """
        from trine.results import picture

        pictures = self.pictures()
        if path is None and what is not None and what not in pictures and Path(what).suffix:
            what, path = None, what
        if path is not None:
            picture.check_ending(path)
        picture.matplotlib()
        figure = pictures[_output_name("what", None if what is None else str(what), pictures, self)](**options)
        if path is not None:
            picture.save(figure, path)
        return figure

    def __repr__(self) -> str:
        return shown.titled(self, self.headline)

    def _repr_html_(self) -> str:
        name, main = next(((name, rows) for name, rows in self.tables().items() if rows), ("", []))
        evidence = (f"{item.what}: {item.kind}{f' ({item.detail})' if item.detail else ''}" for item in self.evidence)
        if isinstance(main, list):
            from trine.results.frames import flat

            rows = [flat(row) for row in main]
        else:
            rows = []
        return shown.page(
            self.headline,
            self._thumbnail(),
            shown.table(name, rows),
            shown.folded("evidence", evidence),
            shown.folded("notes", self.notes),
        )

    def _thumbnail(self) -> str:
        """Return the default picture, small, as HTML; "" without matplotlib, or if it needs choices or is missing."""
        name = next(iter(self.pictures()), "")
        if not name:
            return ""
        try:
            figure = self.plot(name)
        except (InputError, MissingExtraError, TypeError):
            return ""
        from trine.results.picture import thumbnail

        return thumbnail(figure, name)

    def _tables(self) -> dict[str, Table]:
        tables = {name: rows for name, rows in self.tables().items() if rows}
        if not tables:
            raise InputError(f"{type(self).__name__} has no table")
        return tables


def envelope(document: Mapping[str, object], schema: str, command: str | None) -> Row:
    """Return the result's keys together with the keys of ENVELOPE.

    schema: name of the schema. command: the CLI command (``cluster show``), None for a call from Python.
    """
    return {"schema": f"trine/{schema}/1", "version": __version__, "command": command, **document}


def seconds(ps: int) -> float:
    """Return picoseconds as the nearest float in seconds, which prints as the exact decimal up to 15 digits."""
    return ps / PS_PER_S


def evidence_rows(evidence: tuple[Evidence, ...]) -> list[Row]:
    """Return one row per statement, without unknown values."""
    rows = []
    for item in evidence:
        rows.append({key: value for key, value in asdict(item).items() if value not in ("", None)})
    return rows


def _output_name(field: str, name: str | None, outputs: Mapping[str, object], report: Report) -> str:
    if not outputs:
        raise InputError(f"{type(report).__name__} has no such output", field=field)
    if name is None:
        return next(iter(outputs))
    if name not in outputs:
        raise InputError(f"{type(report).__name__} has no {name!r:.80}{nearest(name, outputs)}", field=field)
    return name
