"""``--vary FIELD=VALUES`` on every command that answers: the command at many points, with a table as answer."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import click

from trine.cli.options import Option
from trine.cli.output import FILES, FOLDERS, PICTURES, PREFIXES, check_outputs
from trine.cli.parameters import CommandParameter
from trine.cli.progress import RowsLine
from trine.errors import InputError

#: Options of commands that are about a single answer.
_ONE_ANSWER = (*FILES, *FOLDERS, *PICTURES, *PREFIXES)
_PANEL = "Many points"
#: The options, in the order of help pages.
PARAMETERS = tuple(
    CommandParameter(name=name, field=name, kind=kind, option=Option(text, metavar, _PANEL), is_many=name == "vary")
    for name, kind, metavar, text in (
        ("vary", str, "FIELD=VALUES", "Answer for each value: 1,2,4 or 8..64*2 or uniform(0.1..0.9); tables the answers."),
        ("samples", int, "N", "Draw N samples of random fields."),
        ("experiment", str, "DIR", "Keep the points in this folder, to go on later [none]."),
        ("processes", int, "N", "Answer in N processes [one per CPU]."),
    )
)
NAMES = frozenset(each.name for each in PARAMETERS)


def options() -> list[click.Option]:
    """Return the options for click."""
    return [
        click.Option(
            [*each.names, each.name], type=each.kind, multiple=each.is_many, metavar=each.option.metavar,
            help=each.option.help,
        )
        for each in PARAMETERS
    ]  # fmt: skip


def take(typed: dict[str, Any]) -> dict[str, Any]:
    """Remove the options of this module from the typed ones, and return those given.

    Raises InputError for one without ``--vary``.
    """
    values = {name: typed.pop(name, None) for name in NAMES}
    given = {name: value for name, value in values.items() if value not in (None, ())}
    if given and "vary" not in given:
        raise InputError(f"--{next(iter(given))} needs --vary FIELD=VALUES")
    return given


def answer_varied(
    words: str, parameters: Sequence[CommandParameter], typed: Mapping[str, Any], vary: Mapping[str, Any]
) -> None:
    """Run a command at the points of ``--vary``, and print the table.

    Raises InputError for unknown fields and contradictory options.
    """
    from trine.cli.record import option_name
    from trine.cli.sweep import show_points
    from trine.experiments import ExperimentSpec, sweep

    given = {name: value for name, value in typed.items() if value not in (None, (), [])}
    shown = {name: given.pop(name, None) for name in ("json", "parquet", "brief", "details")}
    single = next((name for name in given if name in _ONE_ANSWER), None)
    if single is not None:
        raise InputError(f"--{single.replace('_', '-')} is about one answer: it does not go with --vary")
    if shown["brief"] and shown["details"]:
        raise InputError("--brief and --details contradict each other")
    check_outputs({name: shown[name] for name in ("json", "parquet")})
    axes: dict[str, str] = {}
    for text in vary["vary"]:
        name, values = _axis(text)
        name = option_name(words, name)
        if axes.setdefault(name, values) != values:
            raise InputError(f"--vary {name} is given twice")
    arguments = {each.name for each in parameters if each.option.is_argument}
    settings = {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in given.items()
        if not (name in arguments and name in axes)  # the command line needs the argument, and the values replace it
    }
    spec = ExperimentSpec(command=words, settings=settings, vary=axes, samples=vary.get("samples"))
    folder = vary.get("experiment")
    place = tempfile.TemporaryDirectory(prefix="trine-") if folder is None else nullcontext(folder)
    with place as directory:
        with RowsLine("points answered") as line:
            answer = sweep(
                spec, directory, processes=vary.get("processes"), progress=lambda done, _, total: line.rows(done, total)
            )
        answer = replace(answer, is_kept=folder is not None)
        show_points(answer, shown["json"], bool(shown["brief"]), bool(shown["details"]), shown["parquet"], words)


def _axis(text: str) -> tuple[str, str]:
    """Return the field and the values of ``FIELD=VALUES``. Raises InputError for another text."""
    name, equals, values = text.partition("=")
    if not equals or not name.strip() or not values.strip():
        raise InputError(f"takes FIELD=VALUES such as tp=1,2,4, got {text!r:.80}", field="--vary")
    return name.strip(), values.strip()

