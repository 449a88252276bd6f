"""A report of an answer in Python: the door behind ``Report.to_report`` and ``--report``."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from html import escape

from trine.report.documents import page_of
from trine.report.html import render, write_page
from trine.report.page import Page
from trine.report.run_blocks import NO_RUN, HasRunBlocks, blocks_of_run
from trine.results.report import Report
from trine.results.run import TaskRun


def write_answer(
    answer: Report | Mapping[str, object],
    path: str | os.PathLike[str],
    *,
    document: Mapping[str, object] | None = None,
    command: str = "",
    run: TaskRun | None = None,
) -> None:
    """Write the report of an answer to a file; parameters as of :func:`page_of_answer`.

    Raises InputError if the file cannot be written.
    """
    write_page(page_of_answer(answer, document=document, command=command, run=run), path)


def page_of_answer(
    answer: Report | Mapping[str, object],
    *,
    document: Mapping[str, object] | None = None,
    command: str = "",
    run: TaskRun | None = None,
) -> Page:
    """Return the page of an answer.

    answer: a result, or plain data with its envelope. document: its JSON with its envelope, if it is known. command:
    the line that repeats it. run: the run behind an answer that is not a result.
    """
    if isinstance(answer, Mapping):
        headline = ""
        found = answer if document is None else document
    else:
        headline = answer.headline
        found = answer.to_json() if document is None else document
    if isinstance(answer, TaskRun):
        run = answer
    if isinstance(answer, HasRunBlocks):
        blocks = answer.run_blocks()
    else:
        blocks = NO_RUN if run is None else blocks_of_run(run)
    return page_of(found, headline=headline, command=command, run=blocks)


@dataclass(frozen=True, slots=True)
class InlineReport:
    """A report that a notebook shows below its cell. height_px: of its frame."""

    page: Page
    height_px: int

    def _repr_html_(self) -> str:
        """Return a frame with the whole report inside; its scripts cannot reach the notebook."""
        content = escape(render(self.page).decode(), quote=True)
        style = f"width: 100%; height: {self.height_px}px; border: 1px solid #d5dae1"
        return f'<iframe sandbox="allow-scripts" title="report" style="{style}" srcdoc="{content}"></iframe>'


def inline(answer: Report, height_px: int) -> InlineReport:
    """Return the report of an answer for a notebook."""
    return InlineReport(page_of_answer(answer), height_px)
