"""What every command shares: errors to one line and an exit code, answers and JSON, what Ctrl-C leaves."""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, ParamSpec, TypeVar

import typer

from trine.cli.streams import want_stdout
from trine.cli.usage import check_given
from trine.cli.writable import check_outputs
from trine.errors import InputError, TrineError, one_line

if TYPE_CHECKING:
    from trine.results.report import Report

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

#: What the command that runs could not write, in words.
_missing: list[str] = []

EXIT_INPUT, EXIT_FAILED, EXIT_INTERRUPTED = 2, 1, 130


def reports_errors(command: Callable[P, R]) -> Callable[P, R]:
    """Turn trine's errors into one line on stderr and an exit code: 2 for wrong input, 1 for a run that failed.

    Files that cannot be written are refused before the command begins.
    """

    @functools.wraps(command)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            _missing.clear()
            check_given(kwargs)
            check_outputs(kwargs)
            answer = command(*args, **kwargs)
        except InputError as error:
            say(f"error: {error}")
            raise typer.Exit(EXIT_INPUT) from None
        except TrineError as error:
            say(f"error: {error}")
            raise typer.Exit(EXIT_FAILED) from None
        except OSError as error:
            say(_line(error))
            raise typer.Exit(EXIT_INPUT) from None
        except KeyboardInterrupt:
            say("interrupted")
            raise typer.Exit(EXIT_INTERRUPTED) from None
        if _missing:
            raise typer.Exit(EXIT_INPUT)
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
    print(text, file=sys.stderr, flush=True)


def show(text: str, json_target: str | None) -> None:
    """The readable answer: on stdout, or on stderr when stdout belongs to the JSON."""
    if json_target == "-":
        say(text)
    else:
        print(text, flush=True)


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
        raise typer.Exit(EXIT_INTERRUPTED)


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
