"""Every command of trine as click builds it."""

from __future__ import annotations

from collections.abc import Iterator

import click

from trine.cli.main import app


def built(words: str) -> click.Command:
    """The command of these words."""
    command: click.Command = app
    for word in words.split():
        assert isinstance(command, click.Group)
        found = command.get_command(click.Context(command), word)
        assert found is not None, words
        command = found
    return command


def all_commands(words: str = "") -> Iterator[tuple[str, click.Command]]:
    """Every command that is no group, by its words."""
    command = built(words)
    if not isinstance(command, click.Group):
        yield words, command
        return
    for name in command.list_commands(click.Context(command)):
        yield from all_commands(f"{words} {name}".strip())
