"""What every command shares: errors to one line and an exit code, answers and JSON, what Ctrl-C leaves."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TextIO, TypeVar

from trine.cli.help import RED, has_colour, painted
from trine.cli.streams import want_stdout
from trine.cli.writable import check_outputs
from trine.errors import InputError, TrineError, one_line
from trine.inputs import can_be_named
from trine.units import MAX_GPUS

if TYPE_CHECKING:
    from trine.results import Result
    from trine.results.report import Report

R = TypeVar("R")
T = TypeVar("T")

#: What the command that runs could not write, in words.
_missing: list[str] = []

#: What a person must not overlook.
_WRONG = re.compile(r"(?i:out of memory|does not fit)|\bPARTIAL\b|\bSUSPICIOUS\b|^error:|^warning:", re.MULTILINE)

EXIT_INPUT, EXIT_FAILED, EXIT_INTERRUPTED = 2, 1, 130


#: No count of an option is larger than that of the GPUs of the largest machine.
MAX_COUNT = MAX_GPUS
#: Numbers that count nothing, or samples, of which jobs may have more.
_NO_COUNTS = frozenset({"seed", "batch", "global_batch", "micro_batch"})


def check_given(given: Mapping[str, object], words: Mapping[str, str]) -> None:
    """Refuse numbers that no machine or run has, and texts that nothing is called, before anything is made of them.

    words: as of :func:`reports_errors`.

    Raises
    ------
    InputError: a number beyond :data:`MAX_COUNT`, or a text with NUL or halves of characters; names the option.
    """
    for name, value in given.items():
        option = words.get(name, f"--{name.replace('_', '-')}")
        for one in value if isinstance(value, list | tuple) else (value,):
            if isinstance(one, int) and one > MAX_COUNT and name not in _NO_COUNTS:
                raise InputError(f"{option} is at most {MAX_COUNT}, got {one}")
            if isinstance(one, str) and not can_be_named(one):
                raise InputError(f"{option}: nothing is called {one!r}")


def reports_errors(command: Callable[..., R], words: Mapping[str, str]) -> Callable[..., R]:
    """Turn trine's errors into one line on stderr and an exit code: 2 for wrong input, 1 for a run that failed.

    Files that cannot be written are refused before the command begins. words: options by the fields that they set, in
    place of which errors name them.
    """

    def wrapped(**given: Any) -> R:
        try:
            _missing.clear()
            check_given(given, words)
            check_outputs(given)
            answer = command(**given)
        except InputError as error:
            error.rename(words)
            say(f"error: {error}")
            raise SystemExit(EXIT_INPUT) from None
        except TrineError as error:
            say(f"error: {error}")
            raise SystemExit(EXIT_FAILED) from None
        except OSError as error:
            say(_line(error))
            raise SystemExit(EXIT_INPUT) from None
        except KeyboardInterrupt:
            say("interrupted")
            raise SystemExit(EXIT_INTERRUPTED) from None
        if _missing:
            raise SystemExit(EXIT_INPUT)
        return answer

    return wrapped


@contextmanager
def writes() -> Iterator[None]:
    """Write one of the files that were asked for; where that fails it is said, and the command goes on to the others.

    It ends with the exit code 2 then: the answer behind them may have taken hours.
    """
    try:
        yield
    except (InputError, OSError) as error:
        _missing.append(_line(error))
        say(_missing[-1])


def all_written() -> bool:
    """Whether the command that runs could write all files so far."""
    return not _missing


def _line(error: Exception) -> str:
    if not isinstance(error, OSError):
        return f"error: {error}"
    where = f"{error.filename}: " if error.filename is not None else ""
    return f"error: {one_line(f'{where}{error.strerror or error}')}"


def say(text: str) -> None:
    """A line for the person at the terminal, on stderr."""
    print(coloured(text, sys.stderr), file=sys.stderr, flush=True)


def coloured(text: str, stream: TextIO) -> str:
    """``text`` with what is wrong in red, at a terminal that takes colour; as it is everywhere else."""
    return _WRONG.sub(lambda found: painted(found[0], RED, True), text) if has_colour(stream) else text


def show_answer(answer: Report, json_target: str | None, brief: bool) -> None:
    """An answer as text, or its headline alone."""
    show(answer.headline if brief else answer.summary(), json_target)


def show(text: str, json_target: str | None) -> None:
    """The readable answer: on stdout, or on stderr when stdout belongs to the JSON."""
    if json_target == "-":
        say(text)
    else:
        print(coloured(text, sys.stdout), flush=True)


def until_stopped(items: Iterable[T]) -> tuple[list[T], bool]:
    """All of them, True; or those before Ctrl-C, False. Raises KeyboardInterrupt where that came before the first."""
    found: list[T] = []
    try:
        for item in items:
            found.append(item)  # noqa: PERF402 (list(items) would lose all of them)
    except KeyboardInterrupt:
        if not found:
            raise
        return found, False
    return found, True


def end(finished: bool) -> None:
    """Leave with the exit code of a run that was stopped, if it was."""
    if not finished:
        say("interrupted: the answer is about what had happened until then")
        raise SystemExit(EXIT_INTERRUPTED)


def show_table(
    layout: str, titles: Sequence[str], rows: Sequence[Sequence[object]], json_target: str | None, has_head: bool = True
) -> None:
    """A table: fitted to the terminal there, with wrapped cells; anywhere else lines of ``layout``, as scripts read.

    has_head: whether the titles are a line of their own there.
    """
    stream = sys.stderr if json_target == "-" else sys.stdout
    if not stream.isatty() or os.environ.get("TERM") == "dumb":
        for row in (*([titles] if has_head else []), *rows):
            show(layout.format(*row), json_target)
        return
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(*titles, box=box.SIMPLE_HEAD, pad_edge=False)
    for row in rows:
        table.add_row(*map(str, row))
    Console(file=stream, highlight=False, markup=False).print(table)


def write_json(answer: Report | Mapping[str, object], target: str | None, command: str, schema: str = "") -> None:
    """Write an answer in its envelope to a file, as :func:`writes`, or to stdout for ``-``.

    command: what was asked, such as ``cluster show``. schema: the name of the answer's form, where it is not a Report;
    "": ``cluster-show``.
    """
    if target is None:
        return
    from trine.results.report import Report, envelope

    content = answer.document() if isinstance(answer, Report) else answer
    form = answer.SCHEMA if isinstance(answer, Report) else schema or command.replace(" ", "-")
    whole = envelope(content, form, command)
    if target == "-":
        want_stdout()
        print(json.dumps(whole, indent=2, allow_nan=False), flush=True)
        return
    from trine.spec import write_json as write

    with writes():
        write(target, whole)


def write_files(result: Result, perfetto: str | None, parquet: str | None, timeline: str | None) -> None:
    """Write what was asked for, and say where."""
    if perfetto is not None:
        with writes():
            result.to_perfetto(perfetto)
            say(f"timeline written to {perfetto}: open it at https://ui.perfetto.dev and expand all groups")
    if parquet is not None:
        with writes():
            result.to_parquet(parquet)
            say(f"records written to {parquet}")
    if timeline is not None:
        with writes():
            result.plot("timeline", path=timeline)
            say(f"timeline drawn in {timeline}")
