"""Help pages: panels of options and commands, as wide as the terminal, in colour on request."""

from __future__ import annotations

import re
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from trine.cli.colour import CYAN, DIM, YELLOW, painted
from trine.cli.commands import ABOUT, COMMON, GROUPS, MAX_LISTED, below

if TYPE_CHECKING:
    from trine.cli.parameters import CommandParameter

#: Widest page: longer lines are hard to read.
MAX_WIDTH = 110
#: Rows of every help page.
_HELP = ("--help", "-h"), "Show this message and exit."
_ROOT = (
    (("--version",), "Print the version."),
    (("--show-completion",), 'Print completion for your shell: eval "$(trine --show-completion)".'),
)


class HelpRow(NamedTuple):
    """One row of a panel: option or command names, value placeholder, description."""

    panel: str
    names: str
    value: str
    text: str


def group_page(group: str = "", colour: bool = False) -> str:
    """Return the page of ``trine --help``, or of a group of commands."""
    path = f"trine {group}".strip()
    about = GROUPS[group][1] if group else ABOUT
    rows = [HelpRow(panel, name, "", text) for name, panel, text in below(group)]
    root_options = _ROOT if not group else ()
    rows += [HelpRow("Options", " ".join(names), "", text) for names, text in (*root_options, _HELP)]
    return _page(f"{path} [OPTIONS] COMMAND [ARGS]...", about, "", rows, colour)


def command_page(
    words: str, function: Callable[..., Any], colour: bool = False, is_all: bool = False, program: str = "trine"
) -> str:
    """Return the page of one command, with its most common options or all of them."""
    from trine.cli.parameters import all_parameters, live_parameters, report_parameters, varied_parameters

    parameters = all_parameters(function)
    varied = varied_parameters(words, parameters) if program == "trine" else ()
    reported = (*report_parameters(words, parameters), *live_parameters(words))
    about, _, example = (function.__doc__ or "").strip().partition("Example: ")
    usage = " ".join(_usage(item) for item in parameters if item.option.is_argument)
    common = COMMON.get(words, ())
    listed = parameters
    if not is_all and len(parameters) > MAX_LISTED:
        listed = [item for item in parameters if item.option.is_argument or item.long.removeprefix("--") in common]
    limit = None if is_all else 1
    rows = [_row(item) for item in (*listed, *reported, *varied[:limit])]
    rows.append(HelpRow("Output", " ".join(_HELP[0]), "", _HELP[1]))
    if not is_all and (hidden := len(parameters) - len(listed) + len(varied[1:])):
        rows.append(HelpRow("Output", "--help-all", "", f"Show {hidden} more options."))
    return _page(f"{program} {words} [OPTIONS] {usage}".rstrip(), about.strip(), example.strip(), rows, colour)


def _usage(argument: CommandParameter) -> str:
    name = argument.option.metavar or argument.name.upper()
    if argument.is_many and not name.endswith("..."):
        name += "..."
    return name if argument.is_required or name.startswith("[") else f"[{name}]"


def _row(parameter: CommandParameter) -> HelpRow:
    option = parameter.option
    panel = option.panel or "Options"
    if option.is_argument:
        return HelpRow(panel, option.metavar or parameter.name.upper(), "", option.help)
    text = option.help
    if option.is_listed:
        value = "|".join(parameter.values())
    else:
        value = option.metavar or {int: "N", float: "X", bool: ""}.get(parameter.kind, "TEXT")
    if parameter.is_many:
        text += " May be repeated." if "again" not in text and "repeated" not in text else ""
    if parameter.is_required:
        text += " (required)"
    return HelpRow(panel, ", ".join(parameter.names), value, text)


def _page(usage: str, about: str, example: str, rows: Iterable[HelpRow], colour: bool) -> str:
    width = min(shutil.get_terminal_size().columns, MAX_WIDTH)
    lines = [f"{painted('Usage:', YELLOW, colour)} {usage}", ""]
    lines += textwrap.wrap(about, width - 2, initial_indent=" ", subsequent_indent=" ")
    if example:
        lines += ["", f" {painted('Example:', YELLOW, colour)} {example}"]
    panels: dict[str, list[HelpRow]] = {}
    for row in rows:
        panels.setdefault(row.panel, []).append(row)
    for name, panel_rows in sorted(panels.items(), key=lambda item: item[0] != "Arguments"):
        lines += ["", *_panel(name, panel_rows, width, colour)]
    return "\n".join(lines)


def _panel(title: str, rows: list[HelpRow], width: int, colour: bool) -> Iterator[str]:
    """Yield the lines of a titled box with two columns; falls back to ASCII if the stream lacks box characters."""
    corner, edge, side = ("╭╮╰╯", "─", "│") if _has_boxes() else ("++++", "-", "|")
    inner = width - 4
    left = min(max(len(f"{row.names} {row.value}".rstrip()) for row in rows), inner // 2)
    top = f"{corner[0]}{edge} {title} "
    yield painted(top + edge * (width - len(top) - 1) + corner[1], DIM, colour)
    for row in rows:
        for number, (key, text) in enumerate(_cells(row, left, inner - left - 2)):
            cell = key
            if number == 0:
                cell = painted(row.names, CYAN, colour) + painted(key[len(row.names) :], YELLOW, colour)
            border = painted(side, DIM, colour)
            yield f"{border} {cell}{' ' * (left - len(key))}  {text:{inner - left - 2}} {border}"
    yield painted(corner[2] + edge * (width - 2) + corner[3], DIM, colour)


def _cells(row: HelpRow, left: int, right: int) -> Iterator[tuple[str, str]]:
    """Yield the lines of a row as (left, right) cells; long values continue on further lines of the left cell."""
    texts = textwrap.wrap(row.text, right) or [""]
    names = f"{row.names} {row.value}".rstrip()
    if len(names) <= left:
        yield names, texts[0]
        for text in texts[1:]:
            yield "", text
        return
    parts = [row.names, *textwrap.wrap(re.sub(r"\|", "| ", row.value), left - 2)] if row.value else [row.names]
    parts = [parts[0], *(f"  {part.replace('| ', '|')}" for part in parts[1:])]
    for number in range(max(len(parts), len(texts))):
        first_cell = parts[number] if number < len(parts) else ""
        second_cell = texts[number] if number < len(texts) else ""
        yield first_cell, second_cell


def _has_boxes() -> bool:
    try:
        "╭─│".encode(sys.stdout.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True
