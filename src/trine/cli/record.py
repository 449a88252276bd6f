"""Answers of commands as flat records: the question of one point of an experiment."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Mapping
from contextlib import redirect_stderr, redirect_stdout
from functools import cache
from typing import Any, NamedTuple

from trine.cli.commands import COMMANDS, find
from trine.cli.output import check_given, recording
from trine.cli.output_files import FILES, FOLDERS, PICTURES, PREFIXES
from trine.cli.parameters import CommandParameter, Group, all_parameters, read, runner, varied_parameters, words_of
from trine.common.inputs import forget_inputs
from trine.errors import InputError, nearest
from trine.results.report import ENVELOPE, Row

#: Options that shape the printed answer, which a record does not have.
_SHOWN = frozenset({*FILES, *FOLDERS, *PICTURES, *PREFIXES, "brief", "details"})
#: Keys about the run of the simulator, such as its wall time, which differ between equal points.
_ABOUT_RUNS = frozenset({*ENVELOPE, "trine_version", "simulator"})
#: Prefixes of files whose fields can vary; :mod:`trine.experiments.fields` knows them.
_INSIDE = ("cluster", "gpu_model", "software", "workload")


class _Asked(NamedTuple):
    """A command: its options, names by spelling such as ``plan.tp``, function, options by field, and defaults."""

    parameters: dict[str, CommandParameter]
    spellings: dict[str, str]
    run: Callable[..., Any]
    words: dict[str, str]
    defaults: dict[str, Any]


@cache
def _asked(command: str) -> _Asked:
    """Return a command. Raises InputError for one that answers nothing."""
    entry = find(command)
    if entry is None or command == "sweep":
        known = [each.words for each in COMMANDS if each.words != "sweep"]
        raise InputError(f"no such command {command!r:.80}{nearest(command, known)}", field="command")
    function = entry.function()
    every = all_parameters(function)
    if not varied_parameters(command, every):
        raise InputError(f"{command!r} has no answer to record", field="command")
    parameters = {each.name: each for each in every if each.name not in _SHOWN}
    spellings = {name: name for name in parameters}
    for part in read(function):
        if isinstance(part, Group):
            kind = part.kind.__name__.removesuffix("Options").lower()
            for each in part.parameters:
                for prefix in ("", f"{kind}.", f"{part.name}.", "options."):
                    spellings.setdefault(f"{prefix}{each.name}", each.name)
                    spellings.setdefault(f"{prefix}{each.field}", each.name)
    defaults = {each.name: each.default for each in every}
    return _Asked(parameters, spellings, runner(function), words_of(function), defaults)


def option_name(command: str, name: str) -> str:
    """Return the name of an option from any spelling; a field inside a file keeps its path.

    Raises InputError for an unknown command or field; names the nearest.
    """
    known = _asked(command).spellings
    option, dot, path = name.removeprefix("--").partition(".")
    option = option.replace("-", "_")
    plain = f"{option}{dot}{path.replace('-', '_')}"
    if plain in known:
        return known[plain]
    if path and option in _INSIDE and option in known:
        return f"{option}.{path}"
    if plain in _SHOWN:
        raise InputError(f"{plain} shapes the printed answer and has no place in an experiment")
    raise InputError(f"{command} has no field {name!r:.80}{nearest(plain, known)}")


def answer_point(command: str, settings: Mapping[str, Any]) -> Row:
    """Return the answer of a command as a flat record. settings: values by the names of options.

    Raises InputError for wrong settings, and the errors of the command.
    """
    asked = _asked(command)
    typed = {name: _typed(asked.parameters[option_name(command, name)], value) for name, value in settings.items()}
    missing = next((name for name, each in asked.parameters.items() if each.is_required and name not in typed), None)
    if missing is not None:
        raise InputError("is missing", field=missing)
    forget_inputs()
    check_given(typed, asked.words)
    try:
        with recording() as records, redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            asked.run(**{**asked.defaults, **typed})
    except InputError as error:
        error.rename(asked.words)
        raise
    except SystemExit:
        records = []
    if not records:
        raise InputError(f"{command} gave no answer to record")
    return dict(_flat(records[-1]))


def _typed(parameter: CommandParameter, value: Any, *, is_item: bool = False) -> Any:
    """Return a setting as the command line would give it. Raises InputError for a value of another type."""
    if parameter.is_many and not is_item:
        items = value if isinstance(value, list | tuple) else [value]
        return [_typed(parameter, item, is_item=True) for item in items]
    kinds: dict[Any, tuple[str, Any]] = {
        bool: ("true or false", bool), int: ("a whole number", int), float: ("a number", int | float),
    }  # fmt: skip
    wanted, accepted = kinds.get(parameter.kind, ("text", str | int | float))
    is_whole = parameter.kind is int and isinstance(value, float) and value == int(value)
    if not (isinstance(value, accepted) or is_whole) or isinstance(value, bool) != (parameter.kind is bool):
        raise InputError(f"must be {wanted}, got {value!r:.80}", field=parameter.name)
    return parameter.kind(value) if parameter.kind in kinds else str(value)


def _flat(document: Mapping[str, Any], prefix: str = "", is_row: bool = False) -> Iterator[tuple[str, Any]]:
    """Return numbers, texts and booleans of a document; nested keys are joined, lists left out.

    The only entry of the list ``rows`` belongs to the record: a collective has one per size.
    """
    for name, value in document.items():
        if not prefix and name in _ABOUT_RUNS:
            continue
        if isinstance(value, str | int | float | bool) or (value is None and not prefix):
            yield prefix + name, value
        elif isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}_")
        elif name == "rows" and isinstance(value, list) and not prefix and value and isinstance(value[0], Mapping):
            if len(value) > 1 and not is_row:
                raise InputError(f"has {len(value)} rows, and a point of an experiment has one: vary the size instead")
            yield from _flat(value[0], "", is_row=True)
