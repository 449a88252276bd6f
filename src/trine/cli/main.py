"""The command line: a thin layer over the Python API that imports only the requested command."""

from __future__ import annotations

import gc
import os
import sys
import warnings
from typing import TYPE_CHECKING

from trine.cli.commands import GROUPS, find
from trine.cli.streams import end_streams, keep_interrupts, keep_streams
from trine.common._version import __version__
from trine.errors import safe

if TYPE_CHECKING:
    from trine.cli.application import TrineGroup

_HELP = ("--help", "-h", "--help-all")
#: Environment variables that libraries read on import; the user's setting wins. numpy's products are small here, and
#: starting threads for them takes longer.
_SETTINGS = {"OPENBLAS_NUM_THREADS": "1"}
#: Thresholds of the garbage collector: new objects before it scans the youngest generation, and scans before it goes to
#: the next one. It never runs in one job on 16 384 GPUs, but does in commands that run hundreds of jobs in a row
#: (``validate training --jobs 1`` reached 23 GB without a collector).
COLLECT_AFTER = (1_000_000, 2, 2)


def __getattr__(name: str) -> TrineGroup:
    """Return ``app``, which holds all commands; build it on first access."""
    if name != "app":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from trine.cli.application import make_app

    globals()["app"] = group = make_app()
    return group


def page(words: list[str]) -> str | None:
    """Return the help page that a command line requests, or None if it requests none."""
    position = next((number for number, word in enumerate(words) if word in _HELP), None)
    if position is None:
        return None
    from trine.cli.colour import has_colour
    from trine.cli.help import command_page, group_page

    path = words[: next(number for number, word in enumerate(words) if word.startswith("-"))]
    colour = has_colour(sys.stdout)
    if not path or (len(path) == 1 and path[0] in GROUPS):
        return group_page("".join(path), colour) if position == len(path) else None
    for count in (2, 1):
        command = find(" ".join(path[:count]))
        if command is not None:
            return command_page(command.words, command.function(), colour, words[position] == "--help-all")
    return None


def _one_line(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, line: str | None = None
) -> str:
    """Format trine's cache warnings as one-line notes for the terminal, and others as Python does."""
    from trine.common._jit_files import CacheWarning

    if issubclass(category, CacheWarning):
        return f"note: {safe(str(message))}\n"
    return f"{filename}:{lineno}: {category.__name__}: {safe(str(message))}\n"


def _run(words: list[str]) -> object:
    """Print the version or a help page, or run a command; return the exit code."""
    if "_TRINE_COMPLETE" not in os.environ:
        if words[:1] == ["--version"]:
            print(f"trine {__version__}")
            return 0
        if not words:
            from trine.cli.colour import has_colour
            from trine.cli.help import group_page

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
    """Run the ``trine`` command (entry point).

    The process is short. Python's default garbage collection would cost a quarter of a second, and so would numba's
    teardown (measured by benchmarks/bench_train.py). So trine collects rarely, and exits without the teardown.
    """
    gc.set_threshold(*COLLECT_AFTER)
    for name, value in _SETTINGS.items():
        os.environ.setdefault(name, value)
    keep_interrupts()
    keep_streams()
    warnings.formatwarning = _one_line
    code = _run(sys.argv[1:])
    if isinstance(code, int):
        number = code
    elif code is None:
        number = 0
    else:
        number = 1
    if "torch" in sys.modules:  # a capture: torch must close its threads and files
        sys.exit(end_streams(number))
    if "multiprocessing.util" in sys.modules:  # after Ctrl-C, workers are still busy: Python's tracker would complain
        sys.modules["multiprocessing.util"]._run_finalizers(0)
    os._exit(end_streams(number))
