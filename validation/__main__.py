"""The commands of ``python -m validation``: replay of the measurements that come with trine."""

from __future__ import annotations

import sys
from collections.abc import Callable
from inspect import getdoc

import click

from trine.cli.application import TrineGroup, single
from validation import cli

PROGRAM = "python -m validation"
COMMANDS: dict[str, Callable[..., None]] = {
    "collectives": cli.collectives, "loadstore": cli.loadstore, "training": cli.training, "layouts": cli.layouts,
    "memory": cli.memory, "serving": cli.serving, "operators": cli.operators, "scaling": cli.scaling,
    "accuracy": cli.accuracy,
}  # fmt: skip


class ValidationGroup(TrineGroup):
    """All commands; errors take one line, as trine's."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of the commands."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Build a command, or return None for an unknown name."""
        function = COMMANDS.get(cmd_name)
        return None if function is None else single(function, cmd_name, PROGRAM)

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the names of the commands and what they do."""
        for name, function in COMMANDS.items():
            formatter.write(f"python -m validation {name:12} {(getdoc(function) or '').splitlines()[0]}\n")


app = ValidationGroup(PROGRAM)

if __name__ == "__main__":
    app.main(sys.argv[1:], PROGRAM)
