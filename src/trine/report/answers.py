"""A report of an answer in Python: the door behind ``Report.to_report`` and ``--report``."""

from __future__ import annotations

import os
from collections.abc import Mapping

from trine.report.documents import page_of
from trine.report.html import write_page
from trine.report.run_blocks import NO_RUN, blocks_of_run
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
    """Write the report of an answer to a file. Raises InputError if the file cannot be written.

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
    blocks = NO_RUN if run is None else blocks_of_run(run)
    write_page(page_of(found, headline=headline, command=command, run=blocks), path)
