"""What every command shares: errors to one line and an exit code, JSON to a file or stdout, progress on stderr."""

from __future__ import annotations

import functools
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import ParamSpec, TypeVar

import typer

from trine.errors import InputError, TrineError

P = ParamSpec("P")
R = TypeVar("R")

EXIT_INPUT, EXIT_FAILED, EXIT_INTERRUPTED = 2, 1, 130


def reports_errors(command: Callable[P, R]) -> Callable[P, R]:
    """Turn trine's errors into one line on stderr and an exit code: 2 for wrong input, 1 for a run that failed."""

    @functools.wraps(command)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
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
    print(text, file=sys.stderr if json_target == "-" else sys.stdout, flush=True)


def write_json(answer: object, target: str | None) -> None:
    """Write ``answer`` to a file, or to stdout for ``-``. Raises InputError when the file cannot be written."""
    if target is None:
        return
    text = json.dumps(answer, indent=2, allow_nan=False) + "\n"
    if target == "-":
        sys.stdout.write(text)
        sys.stdout.flush()
        return
    try:
        Path(target).write_text(text, encoding="utf-8")
    except OSError as error:
        raise InputError(f"cannot write: {error.strerror or error}", file=target) from None


class ProgressLine:
    """Progress on stderr with an estimate of the time left, after two silent seconds."""

    SILENT_S = 2.0

    def __init__(self, things: str = "tasks") -> None:
        self._things = things
        self._began = self._since = time.monotonic()
        self._stages: list[str] = []
        self._shown = False
        self._next_s = self.SILENT_S

    def __call__(self, done: int, total: int, now_ps: int) -> None:
        """Callback of :func:`trine.engine.run`."""
        now = time.monotonic()
        elapsed = now - self._began
        if elapsed < self._next_s or not done:
            return
        self._say_stages()
        interactive = sys.stderr.isatty()
        self._next_s = elapsed + (0.2 if interactive else 5.0)
        left = (now - self._since) * (total - done) / done
        share = f"{100 * done / total:5.1f} % of {total} {self._things}"
        line = f"simulated {share}, {now_ps / 1e9:.3f} ms; about {left:.0f} s left"
        print(f"\r{line}" if interactive else line, end="" if interactive else "\n", file=sys.stderr, flush=True)
        self._shown = interactive

    def stage(self, sentence: str) -> None:
        """What is simulated from now on, for a run in several stages, each with an estimate of its own."""
        self._since = time.monotonic()
        self._stages.append(sentence)
        if self._since - self._began >= self.SILENT_S:
            self._say_stages()

    def _say_stages(self) -> None:
        for sentence in self._stages:
            say(f"\n{sentence}" if self._shown else sentence)
            self._shown = False
        self._stages.clear()

    def compiling(self) -> None:
        """Say why the first run takes long."""
        say("compiling kernels (first run on this machine only, about 10 to 20 s) ...")

    def __enter__(self) -> ProgressLine:
        return self

    def __exit__(self, *exception: object) -> None:
        if self._shown:
            print(file=sys.stderr, flush=True)
