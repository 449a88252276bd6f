"""What every command shares: errors to one line and an exit code, answers and JSON, what Ctrl-C leaves."""

from __future__ import annotations

import functools
import json
import os
import sys
from collections.abc import Callable, Iterable
from typing import ParamSpec, TypeVar

import typer

from trine.cli.writable import check_outputs
from trine.errors import InputError, TrineError

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

EXIT_INPUT, EXIT_FAILED, EXIT_INTERRUPTED = 2, 1, 130


def reports_errors(command: Callable[P, R]) -> Callable[P, R]:
    """Turn trine's errors into one line on stderr and an exit code: 2 for wrong input, 1 for a run that failed.

    Files that cannot be written are refused before the command begins.
    """

    @functools.wraps(command)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            check_outputs(kwargs)
            return command(*args, **kwargs)
        except InputError as error:
            say(f"error: {error}")
            raise typer.Exit(EXIT_INPUT) from None
        except TrineError as error:
            say(f"error: {error}")
            raise typer.Exit(EXIT_FAILED) from None
        except BrokenPipeError:
            raise typer.Exit(EXIT_FAILED) from None
        except OSError as error:
            say(f"error: {error.filename or ''}: {error.strerror or error}")
            raise typer.Exit(EXIT_INPUT) from None
        except KeyboardInterrupt:
            say("interrupted")
            raise typer.Exit(EXIT_INTERRUPTED) from None

    return wrapped


def say(text: str) -> None:
    """A line for the person at the terminal, on stderr."""
    print(text, file=sys.stderr, flush=True)


def show(text: str, json_target: str | None) -> None:
    """The readable answer: on stdout, or on stderr when stdout belongs to the JSON."""
    if json_target == "-":
        say(text)
    else:
        _put(text)


def _put(text: str) -> None:
    """A text on stdout. Whoever closed it (``| head -1``) has read enough: files are still to be written."""
    try:
        print(text, flush=True)
    except BrokenPipeError:
        # else Python complains when it flushes what is left
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


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


def write_json(answer: object, target: str | None) -> None:
    """Write ``answer`` to a file, or to stdout for ``-``. Raises InputError when the file cannot be written."""
    if target is None:
        return
    if target == "-":
        _put(json.dumps(answer, indent=2, allow_nan=False))
        return
    from trine.spec import write_json as write

    write(target, answer)
