"""``--vary FIELD=VALUES`` on every command that answers: the command at many points, with a table as answer."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

from trine.cli.output import show_answer, write_json
from trine.cli.output_files import FILES, FOLDERS, PICTURES, PREFIXES, check_outputs
from trine.cli.parameters import CommandParameter
from trine.errors import InputError

#: Options of commands that are about a single answer.
_ONE_ANSWER = (*FILES, *FOLDERS, *PICTURES, *PREFIXES)


def answer_varied(
    words: str, parameters: Sequence[CommandParameter], typed: Mapping[str, Any], vary: Mapping[str, Any]
) -> None:
    """Run a command at the points of ``--vary``, and print the table.

    Raises InputError for unknown fields and contradictory options.
    """
    if "vary" not in vary:
        raise InputError(f"--{next(iter(vary))} needs --vary FIELD=VALUES")
    from trine.cli.record import option_name
    from trine.cli.sweep import end_points, run_watched
    from trine.experiments import ExperimentSpec

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
        name, _, values = map(str.strip, text.partition("="))
        if not name or not values:
            raise InputError(f"takes FIELD=VALUES such as tp=1,2,4, got {text!r:.80}", field="--vary")
        name = option_name(words, name)
        if axes.setdefault(name, values) != values:
            raise InputError(f"--vary {name} is given twice")
    arguments = {each.name for each in parameters if each.option.is_argument}
    settings = {}
    for argument, given_value in given.items():
        if not (argument in arguments and argument in axes):
            settings[argument] = list(given_value) if isinstance(given_value, tuple) else given_value
    spec = ExperimentSpec(command=words, settings=settings, vary=axes, samples=vary.get("samples"))
    folder = vary.get("experiment")
    with _spare_folder() if folder is None else nullcontext(folder) as directory:
        watched = run_watched(spec, directory, processes=vary.get("processes"))
        answer = replace(watched.experiment, is_kept=folder is not None)
        show_answer(answer, shown["json"], bool(shown["brief"]), bool(shown["details"]))
        write_json(answer, shown["json"], words)
        end_points(answer, watched.is_finished, shown["parquet"])


def _spare_folder() -> tempfile.TemporaryDirectory[str]:
    """Return a folder that lasts as long as the answer."""
    return tempfile.TemporaryDirectory(prefix="trine-", ignore_cleanup_errors=True)
