"""What the command line itself refuses: options that there are not, and counts beyond all machines."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

import typer
from typer.core import TyperGroup

from trine.errors import InputError, one_line
from trine.inputs import can_be_named
from trine.units import MAX_GPUS

#: No count of an option is larger than that of the GPUs of the largest machine.
MAX_COUNT = MAX_GPUS
#: Numbers that count nothing, or samples, of which jobs may have more.
_NO_COUNTS = frozenset({"seed", "batch", "global_batch", "micro_batch"})
#: What typer raises for an unknown option or a value that is none: it names the command.
_UsageError: type[Exception] = typer.BadParameter.__bases__[0]


def check_given(given: Mapping[str, object]) -> None:
    """Refuse numbers that no machine or run has, and texts that nothing is called, before anything is made of them.

    Raises
    ------
    InputError: a number beyond :data:`MAX_COUNT`, or a text with NUL or halves of characters; names the option.
    """
    for name, value in given.items():
        option = f"--{name.replace('_', '-')}"
        for one in value if isinstance(value, list | tuple) else (value,):
            if isinstance(one, int) and one > MAX_COUNT and name not in _NO_COUNTS:
                raise InputError(f"{option} is at most {MAX_COUNT}, got {one}")
            if isinstance(one, str) and not can_be_named(one):
                raise InputError(f"{option}: nothing is called {one!r}")


class OneLineGroup(TyperGroup):
    """A group of commands whose errors of usage are one line, as all errors are."""

    def main(  # type: ignore[override]  # the options that trine and its tests give
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        standalone_mode: bool = True,
        **extra: Any,
    ) -> Any:
        """Run a command line."""
        try:
            code = super().main(args, prog_name, standalone_mode=False, **extra)
            if not standalone_mode:
                return code
        except _UsageError as error:
            if not standalone_mode:
                raise
            if "Help" in type(error).__name__:  # a group without a command: its message is the help
                print(error, file=sys.stderr, flush=True)
                sys.exit(2)
            print(f"error: {_said(error)}", file=sys.stderr, flush=True)
            sys.exit(2)
        except typer.Abort:
            sys.exit(1)
        sys.exit(code if isinstance(code, int) else 0)


def _said(error: Any) -> str:
    """The message, and where help is."""
    command = getattr(getattr(error, "ctx", None), "command_path", None)
    help_ = f" ({command} --help)" if command else ""
    return one_line(error.format_message().rstrip(".") + help_)
