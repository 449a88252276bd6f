"""Plain command lines, read without Typer: its import, and a validator for each of 80 options, take 0.1 s of a start.

What is plain means to Typer what it means here (tests/property/test_cli_direct.py). Whatever is not plain (an option
that is none, a value that is missing or no number, completion, ``--``) is left to Typer, which also says what is wrong.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from trine.cli.commands import GROUPS, Command, find
from trine.cli.output import reports_errors
from trine.cli.parameters import CommandParameter, all_parameters, runner, words_of

_INT, _FLOAT = re.compile(r"-?[0-9]{1,18}"), re.compile(r"-?[0-9]{1,18}(\.[0-9]{1,18})?(e-?[0-9]{1,2})?")


def run_plain(words: Sequence[str]) -> bool:
    """Run a plain command line; False, before anything has happened, where it is not plain."""
    found = _command(words)
    if found is None:
        return False
    command, rest = found
    function = command.function()
    typed = read_plain(all_parameters(function), rest)
    if typed is None:
        return False
    reports_errors(runner(function), words_of(function))(**typed)
    return True


def _command(words: Sequence[str]) -> tuple[Command, Sequence[str]] | None:
    count = 2 if words[0] in GROUPS else 1
    command = find(" ".join(words[:count]))
    return None if command is None else (command, words[count:])


def read_plain(parameters: Sequence[CommandParameter], words: Sequence[str]) -> dict[str, Any] | None:
    """What was typed, by the names of parameters, with the defaults of the others; None where that is not plain."""
    options = _Options(parameters)
    left = list(reversed(words))
    while left:
        word = left.pop()
        if not (options.take(word, left) if _is_option(word) else options.place(word)):
            return None
    return options.typed() if options.is_complete() else None


class _Options:
    """What has been typed so far."""

    def __init__(self, parameters: Sequence[CommandParameter]) -> None:
        self._parameters = parameters
        self._by_name = {name: (each, value) for each in parameters for name, value in _spellings(each)}
        self._places = [each for each in parameters if each.option.is_argument]
        self._typed: dict[str, Any] = {}

    def take(self, word: str, left: list[str]) -> bool:
        """An option, and its value: behind ``=``, or the next word, which is taken from the end of ``left``."""
        name, equals, text = word.partition("=")
        parameter, flag = self._by_name.get(name, (None, None))
        if parameter is None or (equals and not name.startswith("--")):
            return False
        if flag is not None:
            self._typed[parameter.name] = flag
            return not equals
        if not equals:
            if not left or _is_option(left[-1]):
                return False
            text = left.pop()
        return self._set(parameter, text)

    def place(self, word: str) -> bool:
        """An argument."""
        if not self._places:
            return False
        return self._set(self._places[0] if self._places[0].is_many else self._places.pop(0), word)

    def _set(self, parameter: CommandParameter, text: str) -> bool:
        """Note a value; False for text that is empty or no such number."""
        shape = {int: _INT, float: _FLOAT}.get(parameter.kind)
        if not text or (parameter.kind is not str and (shape is None or not shape.fullmatch(text))):
            return False
        value = parameter.kind(text)
        if parameter.is_many:
            self._typed.setdefault(parameter.name, []).append(value)
        else:
            self._typed[parameter.name] = value
        return True

    def is_complete(self) -> bool:
        return all(each.name in self._typed for each in self._parameters if each.is_required)

    def typed(self) -> dict[str, Any]:
        return {each.name: self._typed.get(each.name, each.default) for each in self._parameters}


def _is_option(word: str) -> bool:
    return word.startswith("-") and word != "-"


def _spellings(parameter: CommandParameter) -> list[tuple[str, bool | None]]:
    """Names as typed, and what a flag is when it is typed so; None of an option that takes a value."""
    if parameter.option.is_argument:
        return []
    if parameter.kind is not bool:
        return [(name, None) for name in parameter.names]
    found: list[tuple[str, bool | None]] = []
    for names in parameter.names:
        on, slash, off = names.partition("/")
        found += [(on, True), *([(off, False)] if slash else [])]
    return found
