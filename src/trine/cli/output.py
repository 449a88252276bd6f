"""Shared by all commands: errors as one line with an exit code, answers, JSON, output files, Ctrl-C."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, TextIO, TypeVar

from trine.cli.colour import RED, has_colour, painted
from trine.cli.output_files import check_outputs
from trine.cli.report_target import ReportTarget, report_target
from trine.cli.streams import want_stdout
from trine.common.inputs import can_be_named, forget_inputs, was_read
from trine.common.units import MAX_GPUS
from trine.errors import InputError, TrineError, one_line, safe, several_lines
from trine.results.text import WIDE, fitted

if TYPE_CHECKING:
    from trine.parallel.plan import Plan
    from trine.results import Result
    from trine.results.report import Report, Row
    from trine.results.run import TaskRun
    from trine.training.options import SimulateOptions

    #: Workload, layout and options of a step.
    StepRequest = tuple[str, Plan, SimulateOptions]

#: Message about a timeline file.
TIMELINE = "timeline written to {}: open it at https://ui.perfetto.dev"

R = TypeVar("R")
T = TypeVar("T")

#: Errors of the files that the running command could not write.
_missing: list[str] = []

#: Words to show in red.
_WRONG = re.compile(r"(?i:out of memory|does not fit)|\bPARTIAL\b|\bSUSPICIOUS\b|^error:|^warning:", re.MULTILINE)

EXIT_INPUT, EXIT_FAILED, EXIT_INTERRUPTED = 2, 1, 130


#: Records of the commands that run inside :func:`recording`; None outside.
_records: ContextVar[list[Mapping[str, object]] | None] = ContextVar("records", default=None)

_LESS_MEMORY = "simulate fewer GPUs or micro-batches, or raise the limit of this process (ulimit -v)"
#: Upper bound of counts: the GPUs of the largest machine.
MAX_COUNT = MAX_GPUS
#: Numbers without this bound: seeds, samples, tokens and requests.
_NO_COUNTS = frozenset({
    "seed", "batch", "global_batch", "micro_batch", "input_tokens", "output_tokens", "prefix_tokens", "concurrency",
    "max_batched_tokens", "max_sequences",
})  # fmt: skip


def check_given(options: Mapping[str, object], words: Mapping[str, str]) -> None:
    """Refuse counts beyond any machine, and texts that cannot be names, before the command runs.

    words: as of :func:`reports_errors`.

    Raises InputError: a number beyond :data:`MAX_COUNT`, or a text with NUL or halves of characters; names the option.
    """
    if options.get("brief") and options.get("details"):
        raise InputError("--brief and --details contradict each other")
    for name, value in options.items():
        option = words.get(name, f"--{name.replace('_', '-')}")
        for item in value if isinstance(value, list | tuple) else (value,):
            if isinstance(item, int) and item > MAX_COUNT and name not in _NO_COUNTS:
                raise InputError(f"{option} is at most {MAX_COUNT}, got {item}")
            if isinstance(item, str) and not can_be_named(item):
                raise InputError(f"{option}: unknown name {item!r}")


def reports_errors(command: Callable[..., R], words: Mapping[str, str]) -> Callable[..., R]:
    """Turn trine's errors into one line on stderr and an exit code: 2 for wrong input, 1 for a run that failed.

    Output files that cannot be written are refused before the command begins. words: options by the field they set;
    errors name the option.
    """

    def wrapped(**options: Any) -> R:
        try:
            _missing.clear()
            forget_inputs()
            check_given(options, words)
            check_outputs(options)
            answer = command(**options)
        except InputError as error:
            error.rename(words)
            say(f"error: {error}")
            raise SystemExit(EXIT_INPUT) from None
        except TrineError as error:
            print(coloured(safe(several_lines(f"error: {error}")), sys.stderr), file=sys.stderr, flush=True)
            raise SystemExit(EXIT_FAILED) from None
        except OSError as error:
            say(_line(error))
            raise SystemExit(EXIT_INPUT) from None
        except MemoryError as error:
            say(f"error: out of memory{f' ({one_line(str(error), 120)})' if str(error) else ''}: {_LESS_MEMORY}")
            raise SystemExit(EXIT_FAILED) from None
        except KeyboardInterrupt:
            say("interrupted")
            raise SystemExit(EXIT_INTERRUPTED) from None
        if _missing:
            raise SystemExit(EXIT_INPUT)
        return answer

    return wrapped


@contextmanager
def writes() -> Iterator[None]:
    """Write one output file; print an error and go on to the other files if that fails.

    The command then exits with code 2. It goes on because the answer may have taken hours.
    """
    try:
        yield
    except (InputError, OSError) as error:
        _missing.append(_line(error))
        say(_missing[-1])


def written(path: str | None, write: Callable[[str], object], text: str = "") -> None:
    """Write an output file if ``path`` is given; print the notes of ``write``, then ``text`` with the path for {}."""
    if path is None:
        return
    with writes():
        keep_input(path)
        notes = write(path)
        for note in notes if isinstance(notes, tuple) else ():
            say(f"note: {note}")
        if text:
            say(text.format(path))


def keep_input(path: str) -> None:
    """Refuse to overwrite an input file of this command, or a file that an input names."""
    if was_read(path):
        raise InputError("is an input of this command and is not overwritten", file=path)


def drawn(path: str | None, answer: Report, picture: str | None = None, message: str = "drawn in {}") -> None:
    """Draw a picture of an answer if ``path`` is given, and print the path."""
    written(path, lambda file: answer.plot(picture, path=file), message)


@contextmanager
def recording() -> Iterator[list[Mapping[str, object]]]:
    """Collect answers as plain data in place of printing them: the points of an experiment."""
    records: list[Mapping[str, object]] = []
    token = _records.set(records)
    try:
        yield records
    finally:
        _records.reset(token)


def is_recording() -> bool:
    """Return whether the answer will be a record, so that its text needs no work."""
    return _records.get() is not None


def all_written() -> bool:
    """Return whether the running command has written all files so far."""
    return not _missing


def _line(error: Exception) -> str:
    if not isinstance(error, OSError):
        return f"error: {error}"
    place = error.filename
    if place is None and isinstance(error, FileNotFoundError):  # os.getcwd() names no path
        place = f"working directory {os.environ.get('PWD', '.')}"
    return f"error: {one_line(f'{place}: {error.strerror or error}' if place is not None else str(error))}"


def say(text: str) -> None:
    """Print one line on stderr; escape line ends, also in file names."""
    print(coloured(safe(text, "\t"), sys.stderr), file=sys.stderr, flush=True)


def coloured(text: str, stream: TextIO) -> str:
    """Return ``text`` with errors and warnings in red if ``stream`` is a terminal with colour, else unchanged."""
    if has_colour(stream):
        return _WRONG.sub(lambda match: painted(match[0], RED, True), text)
    return text


def show_answer(answer: Report, json_target: str | None, brief: bool, details: bool) -> None:
    """Print an answer on one screen, its headline alone, or everything."""
    if is_recording():
        return
    with to_terminal(json_target):
        if brief:
            shown = answer.headline
        elif details:
            shown = answer.details()
        else:
            shown = answer.summary()
        show(shown, json_target)


@contextmanager
def to_terminal(json_target: str | None) -> Iterator[None]:
    """Write answers as wide as the terminal that shows them."""
    with fitted(os.get_terminal_size(_stream(json_target).fileno()).columns if _stream(json_target).isatty() else WIDE):
        yield


def _stream(json_target: str | None) -> TextIO:
    """Return stdout, or stderr when stdout belongs to the JSON."""
    return sys.stderr if json_target == "-" else sys.stdout


def show(text: str, json_target: str | None) -> None:
    """Print the readable answer."""
    stream = _stream(json_target)
    print(coloured(safe(text), stream), file=stream, flush=True)


def until_stopped(items: Iterable[T]) -> tuple[list[T], bool]:
    """Return all items and True, or those before Ctrl-C and False. Raises KeyboardInterrupt before the first item."""
    results: list[T] = []
    try:
        for item in items:
            results.append(item)  # noqa: PERF402 (list(items) would lose all of them)
    except KeyboardInterrupt:
        if not results:
            raise
        return results, False
    return results, True


class Section:
    """Part of an answer that an option adds: by default, nothing. finished: False if Ctrl-C stopped it."""

    finished = True

    def prepare(self, step: StepRequest, result: Result) -> None:
        """Check the option against the result, before anything is printed."""

    def answer(self, step: StepRequest, result: Result, json: str | None, brief: bool) -> None:
        """Compute the part, and print it."""

    def document(self) -> Row:
        """Return the keys that it adds to the JSON."""
        return {}

    def write(self) -> None:
        """Write its files."""


def end(finished: bool) -> None:
    """Exit with the code of an interrupted run unless the run finished."""
    if not finished:
        say("interrupted: the answer covers the run up to then")
        raise SystemExit(EXIT_INTERRUPTED)


def show_table(
    layout: str, titles: Sequence[str], rows: Sequence[Sequence[object]], json_target: str | None, has_head: bool = True
) -> None:
    """Print a table: with wrapped cells on a terminal, elsewhere one line of ``layout`` per row, for scripts.

    has_head: print the titles as the first of these lines.
    """
    stream = _stream(json_target)
    if not stream.isatty() or os.environ.get("TERM") == "dumb":
        for row in (*([titles] if has_head else []), *rows):
            show(layout.format(*row), json_target)
        return
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(*titles, box=box.SIMPLE_HEAD, pad_edge=False)
    for row in rows:
        table.add_row(*(safe(str(cell)) for cell in row))
    Console(file=stream, highlight=False, markup=False).print(table)


def write_json(
    answer: Report | Mapping[str, object],
    target: str | None,
    command: str,
    schema: str = "",
    run: TaskRun | None = None,
) -> None:
    """Write an answer in its envelope to a file, as :func:`writes`, or to stdout for ``-``; and its ``--report``.

    command: its words, such as ``cluster show``. schema: the name of the answer's form if it is not a Report; "" for
    the command's words joined, ``cluster-show``. run: the run behind an answer that is not a Report.
    """
    records, report = _records.get(), report_target()
    if target is None and records is None and report is None:
        return
    from trine.results.report import Report, envelope

    content = answer.document() if isinstance(answer, Report) else answer
    form = answer.SCHEMA if isinstance(answer, Report) else schema or command.replace(" ", "-")
    if records is not None:
        records.append(answer.record() if isinstance(answer, Report) else answer)
        return
    document = envelope(content, form, command)
    if report is not None:
        _write_report(answer, document, run, report)
    if target is None:
        return
    if target == "-":
        want_stdout()
        print(json.dumps(document, indent=2, allow_nan=False), flush=True)
        return
    from trine.common.outputs import write_json as write

    with writes():
        keep_input(target)
        write(target, document)


def _write_report(
    answer: Report | Mapping[str, object], document: Mapping[str, object], run: TaskRun | None, target: ReportTarget
) -> None:
    """Write the report of an answer. document: its JSON with its envelope. run: the run behind it, None if unknown."""
    from trine.report.answers import write_answer

    def write(path: str) -> None:
        write_answer(answer, path, document=document, command=target.line, run=run)

    written(target.path, write, "report written to {}")


def write_files(result: Result, perfetto: str | None, parquet: str | None, timeline: str | None) -> None:
    """Write the requested files, and print their paths."""
    written(perfetto, result.to_perfetto, f"{TIMELINE} and expand all groups")
    written(parquet, result.to_parquet, "records written to {}")
    drawn(timeline, result, "timeline", "timeline drawn in {}")
