"""What the command line itself refuses: options that there are not, and counts beyond all machines."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

import typer
from typer.core import TyperGroup

from trine.errors import InputError, one_line
from trine.units import MAX_GPUS

#: No count of an option is larger than that of the GPUs of the largest machine.
MAX_COUNT = MAX_GPUS
#: Numbers that count nothing, or samples, of which jobs may have more.
_NO_COUNTS = frozenset({"seed", "batch", "global_batch", "micro_batch"})
#: What typer raises for an unknown option or a value that is none: it names the command.
_UsageError = typer.BadParameter.__bases__[0]


def check_counts(given: Mapping[str, object]) -> None:
    """Refuse numbers that no machine or run has, before anything is made of them.

    Raises
    ------
    InputError: a number beyond :data:`MAX_COUNT`; names the option.
    """
    for name, value in given.items():
        for number in value if isinstance(value, list | tuple) else (value,):
            if isinstance(number, int) and number > MAX_COUNT and name not in _NO_COUNTS:
                raise InputError(f"--{name.replace('_', '-')} is at most {MAX_COUNT}, got {number}")


class OneLineGroup(TyperGroup):
    """A group of commands whose errors of usage are one line, as all errors are."""

    def main(self, args: Sequence[str] | None = None, *words: Any, standalone_mode: bool = True, **extra: Any) -> Any:
        """Run a command line."""
        if not standalone_mode:
            return super().main(args, *words, standalone_mode=False, **extra)
        try:
            code = super().main(args, *words, standalone_mode=False, **extra)
        except _UsageError as error:
            print(f"error: {_said(error)}", file=sys.stderr, flush=True)
            sys.exit(2)
        except typer.Abort:
            print("interrupted", file=sys.stderr, flush=True)
            sys.exit(1)
        sys.exit(code if isinstance(code, int) else 0)


def _said(error: Any) -> str:
    """The message, and where help is."""
    command = getattr(getattr(error, "ctx", None), "command_path", None)
    help_ = f" ({command} --help)" if command else ""
    return one_line(error.format_message().rstrip("."), len(one_line("x" * 1000)) - len(help_)) + help_
