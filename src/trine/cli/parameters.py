"""Command-line options derived from dataclasses and function parameters, and the conversion of typed values back.

A command is a function. Each of its parameters is an option or argument (``Annotated[str, Option(...)]``), or a
dataclass. Every dataclass field with a help text becomes an option, and trine builds the dataclass from the given
options. For ``Given[Plan]`` the command gets the given options and builds the dataclass itself, once it knows the rest.
Help texts and checks come from the dataclass. ``trine.cli.options`` holds the panel, metavar and completion values.
"""

from __future__ import annotations

import inspect
import re
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import MISSING, Field, dataclass, is_dataclass, replace
from typing import Annotated, Any, Generic, TypeVar, get_args, get_origin

from trine.cli.commands import PREPARE, find
from trine.cli.options import OPTIONS, OUTPUT, WORDS, Option
from trine.common.arguments import options_of
from trine.errors import InputError

T = TypeVar("T")

#: Unit suffixes of field names. Option names drop them, because options take text with a unit.
_UNITS = ("_bytes_per_s", "_bytes", "_ps", "_w")


@dataclass(frozen=True, slots=True)
class Fields:
    """The dataclass fields that a command offers, and its own help texts: ``Annotated[Machine, Fields(...)]``."""

    only: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    helps: Mapping[str, str] | None = None
    panel: str | None = None

    def choose(self, names: Iterable[str]) -> list[str]:
        return [name for name in names if name not in self.without and (not self.only or name in self.only)]


class Given(Generic[T]):
    """The given options of a dataclass, by field: ``given.make(batch=8)`` builds the dataclass."""

    def __init__(self, kind: type[T], values: Mapping[str, Any]) -> None:
        self.kind, self.values = kind, dict(values)

    def __contains__(self, name: str) -> bool:
        return name in self.values

    def __getitem__(self, name: str) -> Any:
        """Return the value of an option, or None if it was not given."""
        return self.values.get(name)

    def make(self, **overrides: Any) -> T:
        """Return the dataclass built from the given options; ``overrides`` replace them."""
        return self.kind(**{**self.values, **overrides})


@dataclass(frozen=True, slots=True)
class CommandParameter:
    """One option or argument of a command. name: its keyword. field: its Python name. kind: the typed value's type."""

    name: str
    field: str
    kind: Any
    option: Option
    default: Any = None
    is_many: bool = False
    is_required: bool = False
    is_pair: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        """The option's spellings: ``--nvls/--no-nvls``, or ``--output``, ``-o``."""
        dashed = self.name.replace("_", "-")
        return self.option.names or ((f"--{dashed}/--no-{dashed}",) if self.is_pair else (f"--{dashed}",))

    @property
    def long(self) -> str:
        """The option's name in error messages."""
        return max((name.partition("/")[0] for name in self.names), key=len)

    def values(self) -> list[str]:
        """Return the values for shell completion: words of the metavar, or the entries of a registry."""
        if self.option.values is not None:
            return list(self.option.values())
        words = (self.option.metavar or "").split("|")
        if len(words) > 1:
            return [word for word in words if re.fullmatch(r"[a-z0-9][a-z0-9-]*", word)]
        return []

    def value(self, typed: Any) -> Any:
        """Return the field's value for the typed text; raise InputError if the text is invalid."""
        if self.option.negates:
            return False
        if self.option.read is not None:
            return self.option.read(typed)
        unit = next((ending for ending in _UNITS if self.field.endswith(ending)), None)
        if unit is not None and isinstance(typed, str):
            from trine.common.units import parse_bandwidth, parse_bytes, parse_power, parse_time

            parse = {"_bytes_per_s": parse_bandwidth, "_bytes": parse_bytes, "_ps": parse_time, "_w": parse_power}[unit]
            return parse(typed, self.long)
        return tuple(typed) if self.is_many else typed

    def is_given(self, typed: Any) -> bool:
        return typed is not None and typed != [] and typed != () and (self.kind is not bool or self.is_pair or typed)


@dataclass(frozen=True, slots=True)
class Group:
    """A command parameter that is a dataclass, and the options for its fields."""

    name: str
    kind: Any
    is_given: bool
    parameters: tuple[CommandParameter, ...]

    def build(self, typed: dict[str, Any]) -> Any:
        """Return the dataclass, or a ``Given`` of it; remove its options from ``typed``."""
        values = {}
        for parameter in self.parameters:
            if parameter.is_given(value := typed.pop(parameter.name, None)):
                values[parameter.field] = parameter.value(value)
        return Given(self.kind, values) if self.is_given else self.kind(**values)


def read(function: Callable[..., Any]) -> list[CommandParameter | Group]:
    """Return the parameters of a command, in declaration order."""
    hints = typing.get_type_hints(function, include_extras=True)
    parameters: list[CommandParameter | Group] = []
    for parameter in inspect.signature(function).parameters.values():
        hint = hints[parameter.name]
        kind, *extras = get_args(hint) if get_origin(hint) is Annotated else (hint,)
        is_given = get_origin(kind) is Given
        inner = get_args(kind)[0] if is_given else kind
        if is_dataclass(inner):
            fields = next((extra for extra in extras if isinstance(extra, Fields)), Fields())
            parameters.append(Group(parameter.name, inner, is_given, tuple(_of_fields(inner, fields))))
        else:
            option = next(extra for extra in extras if isinstance(extra, Option))
            parameters.append(_of_parameter(parameter, kind, option))
    return parameters


def all_parameters(function: Callable[..., Any]) -> list[CommandParameter]:
    """Return every option and argument of a command."""
    parameters: list[CommandParameter] = []
    for part in read(function):
        parameters.extend(part.parameters if isinstance(part, Group) else (part,))
    return parameters


def _of_parameter(parameter: inspect.Parameter, hint: Any, option: Option) -> CommandParameter:
    """Return the option or argument for a plain function parameter."""
    required = parameter.default is parameter.empty
    kinds = get_args(hint)
    if type(None) in kinds:
        bare = next((each for each in kinds if each is not type(None)), hint)
    else:
        bare = hint
    is_many = get_origin(bare) is list
    type_of_text = get_args(bare)[0] if is_many else bare
    default = None if required else parameter.default
    return CommandParameter(
        name=parameter.name, field=parameter.name, kind=type_of_text, option=option, default=default, is_many=is_many,
        is_required=required, is_pair=bare is bool and parameter.default is None,
    )  # fmt: skip


def _of_fields(kind: Any, selection: Fields) -> Iterator[CommandParameter]:
    panel, words = WORDS.get(kind.__name__, (OPTIONS, {}))
    fields = options_of(kind)
    for name in selection.choose(fields):
        field = fields[name]
        option = words.get(name, Option())
        text = (selection.helps or {}).get(name) or _with_default(field)
        option = replace(option, help=text, panel=selection.panel or option.panel or panel)
        yield _of_field(field, option)


def _of_field(field: Field[Any], option: Option) -> CommandParameter:
    kinds = set(re.findall(r"\w+", str(field.type)))
    unit = next((ending for ending in _UNITS if field.name.endswith(ending)), "")
    is_flag = "bool" in kinds
    is_many = bool(kinds & {"tuple", "list", "Mapping", "Sequence"}) and option.kind is None
    if option.kind is not None:
        kind = option.kind
    elif is_flag:
        kind = bool
    else:
        if unit or "str" in kinds:
            kind = str
        elif "int" in kinds:
            kind = int
        elif "float" in kinds:
            kind = float
        else:
            kind = str
    return CommandParameter(
        name=option.word or field.name.removesuffix(unit), field=field.name, kind=kind, option=option,
        is_many=is_many, default=False if is_flag and _is_single(field, option) else None,
        is_pair=is_flag and not _is_single(field, option),
    )  # fmt: skip


def _is_single(field: Field[Any], option: Option) -> bool:
    """Return whether a flag has no ``--no-`` form: it is off by default, or the option turns the field off."""
    return field.default is False or option.negates


def _with_default(field: Field[Any]) -> str:
    """Return the help text of a field, with its default in brackets unless the text already ends in brackets."""
    text: str = field.metadata["help"]
    default = field.default
    if default in (MISSING, None, (), "") or isinstance(default, bool) or text.rstrip(".").endswith("]"):
        return text
    if field.name.endswith(("_bytes", "_ps")):
        return text
    ending = "." if text.endswith(".") else ""
    return f"{text.removesuffix('.')} [{default}]{ending}"


def runner(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the command as a function whose keywords are option names and whose values are the typed ones."""
    parts = read(function)

    def run(**typed: Any) -> Any:
        call = {part.name: part.build(typed) for part in parts if isinstance(part, Group)}
        return function(**typed, **call)

    return run


#: Options of every command that answers, in the order of help pages; :mod:`trine.cli.vary` handles them.
VARIED = tuple(
    CommandParameter(name=name, field=name, kind=kind, option=Option(text, metavar, OUTPUT), is_many=name == "vary")
    for name, kind, metavar, text in (
        ("vary", str, "FIELD=VALUES", "Answer for each value, such as tp=1,2,4 or nodes=8..64*2."),
        ("samples", int, "N", "With --vary FIELD=uniform(1..9): draw N samples."),
        ("experiment", str, "DIR", "With --vary: keep the points in this folder [nowhere]."),
        ("processes", int, "N", "With --vary: answer in N processes [one per CPU]."),
    )
)


#: Commands that no experiment asks, although they write JSON: one runs experiments, one a function of the user, which
#: a received experiment must not do, and one writes a file.
_UNVARIED = frozenset({"sweep", "trace capture", "measure"})


def varied_parameters(words: str, parameters: Iterable[CommandParameter]) -> tuple[CommandParameter, ...]:
    """Return the options for many points that a command has: all or none. Commands that write JSON answer."""
    if words not in _UNVARIED and any(each.name == "json" for each in parameters):
        return VARIED
    return ()


#: The option of every command that answers, besides those of VARIED.
REPORT = CommandParameter(
    name="report", field="report", kind=str, option=Option("Write a report: one HTML file.", "FILE", OUTPUT)
)  # fmt: skip


#: The option of commands that may run for long, and these commands.
LIVE_COMMANDS = (
    "train", "plan", "size", "sweep", "collective", "kernel run", "eidolon run", "eidolon sweep", "chakra run", "hop",
)  # fmt: skip
LIVE = CommandParameter(
    name="live", field="live", kind=bool, default=False,
    option=Option("Show and steer the run on a page of this machine; its address is on stderr.", panel=OUTPUT),
)  # fmt: skip


def report_parameters(words: str, parameters: Iterable[CommandParameter]) -> tuple[CommandParameter, ...]:
    """Return ``--report`` for commands that answer: they write JSON, prepare nothing, and have no such option."""
    names = {each.name for each in parameters}
    command = find(words)
    if "json" not in names or "report" in names or command is None or command.panel == PREPARE:
        return ()
    return (REPORT,)


def live_parameters(words: str) -> tuple[CommandParameter, ...]:
    """Return ``--live`` for commands that may run for long."""
    return (LIVE,) if words in LIVE_COMMANDS else ()


def words_of(function: Callable[..., Any]) -> dict[str, str]:
    """Return the option of each field, so that error messages can name options in place of fields."""
    return {each.field: each.long for each in all_parameters(function) if not each.option.is_argument}


def given(kind: type[T], **typed: Any) -> Given[T]:
    """Return the ``Given`` that a command line with these options would produce for ``kind``; keywords are options."""
    group = Group("", kind, True, tuple(_of_fields(kind, Fields())))
    values: Given[T] = group.build(typed)
    if typed:
        raise InputError(f"{kind.__name__} has no option {next(iter(typed))!r}")
    return values
