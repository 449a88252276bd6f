"""The command line: a thin layer over the Python API, of which only the command that is asked for is imported."""

from __future__ import annotations

import gc
import os
import sys
import warnings
from typing import TYPE_CHECKING

from trine._version import __version__
from trine.cli.commands import GROUPS, find
from trine.cli.help import command_page, group_page, has_colour
from trine.cli.streams import end_streams, keep_interrupts, keep_streams
from trine.errors import safe

if TYPE_CHECKING:
    from trine.cli.application import TrineGroup

_HELP = ("--help", "-h", "--help-all")
#: What libraries ask when they are imported; the user's own setting wins. numpy's products are small here, and starting
#: threads for them takes longer.
_SETTINGS = {"OPENBLAS_NUM_THREADS": "1"}
#: How many objects more than before make the garbage collector look at the youngest ones, and how often it does so
#: before it looks further: never in a job on 16 384 GPUs, but where one command asks for hundreds of jobs, one after
#: the other (``validate training --jobs 1`` came to 23 GB without a collector).
COLLECT_AFTER = (1_000_000, 2, 2)


def __getattr__(name: str) -> TrineGroup:
    """``app``, all commands, made when it is asked for."""
    if name != "app":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from trine.cli.application import make_app

    globals()["app"] = made = make_app()
    return made


def page(words: list[str]) -> str | None:
    """The help page that a command line asks for; None where it asks for something else."""
    asked = next((number for number, word in enumerate(words) if word in _HELP), None)
    if asked is None:
        return None
    path = words[: next(number for number, word in enumerate(words) if word.startswith("-"))]
    colour = has_colour(sys.stdout)
    if not path or (len(path) == 1 and path[0] in GROUPS):
        return group_page("".join(path), colour) if asked == len(path) else None
    for count in (2, 1):
        command = find(" ".join(path[:count]))
        if command is not None:
            return command_page(command.words, command.function(), colour, words[asked] == "--help-all")
    return None


def _one_line(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, line: str | None = None
) -> str:
    """A warning of trine's own as people at a terminal read it; others as Python shows them."""
    from trine._jit_files import CacheWarning

    if issubclass(category, CacheWarning):
        return f"note: {safe(str(message))}\n"
    return f"{filename}:{lineno}: {category.__name__}: {safe(str(message))}\n"


def _run(words: list[str]) -> object:
    """Print what needs no command, or run one; the exit code."""
    if "_TRINE_COMPLETE" not in os.environ:
        if words[:1] == ["--version"]:
            print(f"trine {__version__}")
            return 0
        if not words:
            print(group_page(colour=has_colour(sys.stderr)), file=sys.stderr)
            return 2
        if (text := page(words)) is not None:
            print(text)
            return 0
    try:
        __getattr__("app").main(words)
    except SystemExit as stop:
        return stop.code
    return 0


def main() -> None:
    """Entry point of the ``trine`` command.

    A short process: the garbage collector as Python sets it would cost it a quarter of a second, and so would taking
    numba apart at its end (measured by benchmarks/bench_train.py), so it collects seldom and leaves without the latter.
    """
    gc.set_threshold(*COLLECT_AFTER)
    for name, value in _SETTINGS.items():
        os.environ.setdefault(name, value)
    keep_interrupts()
    keep_streams()
    warnings.formatwarning = _one_line
    code = _run(sys.argv[1:])
    number = code if isinstance(code, int) else 0 if code is None else 1
    if "torch" in sys.modules:  # a capture: torch has threads and files of its own to close
        sys.exit(end_streams(number))
    os._exit(end_streams(number))
