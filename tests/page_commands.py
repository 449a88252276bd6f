"""Command lines in the pages: found in code blocks, parsed by click, not run."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click

from trine.cli.application import TrineGroup
from trine.cli.commands import find
from trine.cli.main import app
from trine.cli.parameters import CommandParameter, all_parameters

FENCE = re.compile(r"^ *```(\w*)\n(.*?)^ *```$", re.S | re.M)
SHELLS = ("", "sh", "bash", "console", "shell", "text")
#: What ends a command of a shell: a comment, a pipe, a redirection, another command.
END = re.compile(r"\s(?:#|\||&&|\d?>|;|<)\s*.*$", re.S)


def blocks(text: str) -> Iterator[str]:
    """Return the code blocks of a page that may hold commands: fenced and indented."""
    for language, code in FENCE.findall(text):
        if language in SHELLS:
            yield code
    for code in re.findall(r"(?:^    .*\n?)+", FENCE.sub("", text), re.M):
        yield re.sub(r"^    ", "", code, flags=re.M)


def commands(page: Path) -> list[str]:
    """Return the lines ``trine ...`` of a page's code blocks, without prompt, comment and pipe."""
    found = []
    for code in blocks(page.read_text(encoding="utf-8")):
        for line in code.replace("\\\n", " ").splitlines():
            for part in re.split(r"\s&&\s", line.strip().removeprefix("$ ")):
                if part.startswith("trine "):
                    found.append(END.sub("", part).strip())
    return found


def spans(page: Path) -> list[str]:
    """Return the commands ``trine ...`` that a page's text names in code spans, without their dots."""
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    found = re.findall(r"`(trine [^`]+)`", text)
    return [re.sub(r"\s(\.\.\.|\|.*|>.*)", "", re.sub(r"\s+", " ", line)) for line in found]


def named_options(page: Path) -> set[str]:
    """Return the options that a page's text names in code spans that begin with an option or with ``trine``."""
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    found = re.findall(r"`((?:--|trine )[^`]+)`", text)
    return {name for span in found for name in re.findall(r"(?<![\w-])--[a-z][a-z-]+", span)}


def problem(line: str) -> str | None:
    """Return what click says of a command line, or of a value that an option does not have; None if it is right."""
    words = shlex.split(line)[1:]
    group: click.Command = app
    try:
        context = click.Context(app, info_name="trine")
        while isinstance(group, TrineGroup):
            if not words:
                return None  # the page of a group
            name, group, words = group.resolve_command(context, words)
            assert group is not None, name
        made = group.make_context(group.name, words)
    except click.exceptions.Exit:
        return None  # --help, --version
    except (click.UsageError, click.exceptions.NoArgsIsHelpError) as error:
        return error.format_message()
    command = find(_words(line))
    assert command is not None, line
    for parameter in all_parameters(command.function()):
        typed = made.params.get(parameter.name)
        for value in typed if isinstance(typed, list | tuple) else [typed]:
            if isinstance(value, str) and not _is_value(parameter, value):
                return f"{parameter.long} has no value {value!r}"
    return None


def _words(line: str) -> str:
    words = line.split()[1:]
    return " ".join(words[:2]) if len(words) > 1 and find(" ".join(words[:2])) else words[0]


def _is_value(parameter: CommandParameter, value: str) -> bool:
    """Whether a value is a word of the metavar or a known name; files, arguments and free text always are."""
    option, known = parameter.option, parameter.values()
    if re.fullmatch(r"[a-z0-9-]+(\|[a-z0-9-]+)+", option.metavar or ""):
        return value.lower() in {*known, *(option.metavar or "").split("|")}
    is_free = option.is_argument or option.values is None or not known
    return is_free or bool(re.search(r"[./,:=]", value)) or value.isupper() or value in known
