"""Answers of commands as flat records: the question of one point of an experiment."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Mapping
from contextlib import redirect_stderr, redirect_stdout
from functools import cache
from typing import Any

from trine.cli.commands import COMMANDS, find
from trine.cli.output import FILES, FOLDERS, PICTURES, PREFIXES, check_given, recording
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


@cache
def _parameters(command: str) -> Mapping[str, CommandParameter]:
    """Return the options of a command by name. Raises InputError for a command that answers nothing."""
    entry = find(command)
    known = [each.words for each in COMMANDS if each.words != "sweep"]
    if entry is None or command == "sweep":
        raise InputError(f"no such command {command!r:.80}{nearest(command, known)}", field="command")
    parameters = all_parameters(entry.function())
    if not varied_parameters(command, parameters):
        raise InputError(f"{command!r} has no answer to record", field="command")
    return {each.name: each for each in parameters if each.name not in _SHOWN}


@cache
def _spellings(command: str) -> Mapping[str, str]:
    """Return every spelling of an option's name, such as ``plan.tp`` and ``options.gpu``, and the name."""
    entry = find(command)
    assert entry is not None
    names = {name: name for name in _parameters(command)}
    for part in read(entry.function()):
        if isinstance(part, Group):
            kind = part.kind.__name__.removesuffix("Options").lower()
            for each in part.parameters:
                for prefix in (kind, part.name, "options"):
                    names.setdefault(f"{prefix}.{each.name}", each.name)
                    names.setdefault(f"{prefix}.{each.field}", each.name)
                names.setdefault(each.field, each.name)
    return names


def option_name(command: str, name: str) -> str:
    """Return the name of an option from any spelling; a field inside a file keeps its path.

    Raises InputError for an unknown command or field; names the nearest.
    """
    known = _spellings_of(command)
    wanted = name.removeprefix("--").replace("-", "_") if "." not in name else name
    option, dot, path = wanted.partition(".")
    option = option.replace("-", "_")
    if wanted not in known and dot and path and option in _INSIDE and option in known:
        return f"{option}.{path}"
    plain = f"{option}{dot}{path.replace('-', '_')}"
    if plain not in known:
        hidden = wanted if wanted in _SHOWN else None
        problem = f"{hidden} shapes the printed answer and has no place in an experiment" if hidden else None
        raise InputError(problem or f"{command} has no field {name!r:.80}{nearest(plain, known)}")
    return known[plain]


def _spellings_of(command: str) -> Mapping[str, str]:
    _parameters(command)
    return _spellings(command)


def answer_point(command: str, settings: Mapping[str, Any]) -> Row:
    """Return the answer of a command as a flat record. settings: values by the names of options.

    Raises InputError for wrong settings, and the errors of the command.
    """
    parameters = _parameters(command)
    typed = {name: _typed(parameters[option_name(command, name)], value) for name, value in settings.items()}
    missing = next((name for name, each in parameters.items() if each.is_required and name not in typed), None)
    if missing is not None:
        raise InputError("is missing", field=missing)
    run, words, defaults = _runner(command)
    forget_inputs()
    check_given(typed, words)
    try:
        with recording() as records, redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            run(**{**defaults, **typed})
    except InputError as error:
        error.rename(words)
        raise
    except SystemExit:
        raise InputError("the command ended without an answer") from None
    if not records:
        raise InputError(f"{command} gave no answer to record")
    return dict(_flat(records[-1]))


@cache
def _runner(command: str) -> tuple[Callable[..., Any], dict[str, str], dict[str, Any]]:
    """Return a command's function, its options by field, and their defaults."""
    entry = find(command)
    assert entry is not None
    function = entry.function()
    return runner(function), words_of(function), {each.name: each.default for each in all_parameters(function)}


def _typed(parameter: CommandParameter, value: Any) -> Any:
    """Return a setting as the command line would give it. Raises InputError for a value of another type."""
    if parameter.is_many:
        return [_typed_item(parameter, item) for item in (value if isinstance(value, list | tuple) else [value])]
    return _typed_item(parameter, value)


def _typed_item(parameter: CommandParameter, value: Any) -> Any:
    kind = parameter.kind
    if kind is bool:
        if not isinstance(value, bool):
            raise InputError(f"must be true or false, got {value!r:.80}", field=parameter.name)
        return value
    if isinstance(value, bool | list | dict) or value is None:
        wanted = "a number" if kind in (int, float) else "text"
        raise InputError(f"must be {wanted}, got {value!r:.80}", field=parameter.name)
    if kind is int and (isinstance(value, str) or int(value) != value):
        raise InputError(f"must be a whole number, got {value!r:.80}", field=parameter.name)
    if kind is float and isinstance(value, str):
        raise InputError(f"must be a number, got {value!r:.80}", field=parameter.name)
    return kind(value) if kind in (int, float) else str(value)


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
