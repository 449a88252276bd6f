"""``--report FILE`` on every command that answers, and ``trine report``: an answer as one HTML file."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from typing import Annotated, Any

from trine.cli.options import OUTPUT, Option, argument
from trine.cli.output import say, written
from trine.cli.output_files import REPORT_FILE, check_outputs
from trine.cli.parameters import REPORT
from trine.cli.report_target import ReportTarget, reporting


def repeated_line(words: str, typed: Sequence[str]) -> str:
    """Return the command line without ``--report``, quoted for a shell."""
    kept, skips = [], False
    for word in typed:
        if skips or word == REPORT.long:
            skips = not skips
        elif not word.startswith(f"{REPORT.long}="):
            kept.append(word)
    return shlex.join(["trine", *words.split(), *kept])


def answer_reported(target: ReportTarget, command: Callable[..., None], /, **options: Any) -> None:
    """Run a command that writes a report too. Raises InputError before it runs if the file cannot be written."""
    check_outputs({**options, REPORT_FILE: target.path})
    with reporting(target):
        command(**options)


def report(
    answer: Annotated[str, argument("Answer of any command, written with --json.", "RESULT.json")],
    output: Annotated[str, Option("File to write.", "FILE", OUTPUT, ("--output", "-o"))],
) -> None:
    """Write a report of RESULT: one HTML file that opens from disk. For a timeline, add --report to the command itself.

    Example: trine report step.json --output step.html
    """
    from trine.common._version import __version__
    from trine.report.documents import page_of, read_answer
    from trine.report.html import write_page

    page = page_of(read_answer(answer))
    if page.version != __version__:
        say(f"note: the answer is of trine {page.version or 'of unknown version'}, and this is {__version__}")
    written(output, lambda path: write_page(page, path), "report written to {}")
