"""Options: from dataclasses and parameters of functions to the command line, and from what was typed back to them.

A command is a function. Each of its parameters is an option or argument (``Annotated[str, Option(...)]``), or a
dataclass, whose fields with a help text all become options. A dataclass is made of what was given; ``Given[Plan]`` is
not made: the command sees what was given, and makes it when it knows the rest. The help texts and checks are those of
the dataclass; what only a terminal needs (panel, metavar, values to complete) stands in ``trine.cli.options``.
"""

from __future__ import annotations

import inspect
import re
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import MISSING, Field, dataclass, is_dataclass, replace
from typing import Annotated, Any, Generic, TypeVar, get_args, get_origin

from trine.arguments import options_of
from trine.cli.options import OPTIONS, WORDS, Option
from trine.errors import InputError

T = TypeVar("T")

#: Units at the end of names of fields, which options lack: they take text with a unit.
_UNITS = ("_bytes_per_s", "_bytes", "_ps")


@dataclass(frozen=True, slots=True)
class Fields:
    """Which fields of a dataclass a command has, and helps of its own: ``Annotated[Machine, Fields(...)]``."""

    only: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    helps: Mapping[str, str] | None = None
    panel: str | None = None

    def choose(self, names: Iterable[str]) -> list[str]:
        return [name for name in names if name not in self.without and (not self.only or name in self.only)]


class Given(Generic[T]):
    """What was given of a dataclass's options, by field: ``given.make(batch=8)`` makes it."""

    def __init__(self, kind: type[T], values: Mapping[str, Any]) -> None:
        self.kind, self.values = kind, dict(values)

    def __contains__(self, name: str) -> bool:
        return name in self.values

    def __getitem__(self, name: str) -> Any:
        """Its value, None where it was not given."""
        return self.values.get(name)

    def make(self, **more: Any) -> T:
        """The dataclass of what was given; ``more`` wins."""
        return self.kind(**{**self.values, **more})


@dataclass(frozen=True, slots=True)
class CommandParameter:
    """One option or argument of a command. name: its keyword. field: what it is in Python; kind: what is typed."""

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
        """As typed: ``--nvls/--no-nvls``, or ``--output``, ``-o``."""
        dashed = self.name.replace("_", "-")
        return self.option.names or ((f"--{dashed}/--no-{dashed}",) if self.is_pair else (f"--{dashed}",))

    @property
    def long(self) -> str:
        """The option as errors call it."""
        return max((name.partition("/")[0] for name in self.names), key=len)

    def values(self) -> list[str]:
        """What a shell may complete: words of the metavar, or what a registry knows."""
        if self.option.values is not None:
            return list(self.option.values())
        words = (self.option.metavar or "").split("|")
        return [word for word in words if re.fullmatch(r"[a-z0-9][a-z0-9-]*", word)] if len(words) > 1 else []

    def value(self, typed: Any) -> Any:
        """What the field holds; raises InputError for text that is no such value."""
        if self.option.negates:
            return False
        if self.option.read is not None:
            return self.option.read(typed)
        unit = next((each for each in _UNITS if self.field.endswith(each)), None)
        if unit is not None and isinstance(typed, str):
            from trine.units import parse_bandwidth, parse_bytes, parse_time

            read = {"_bytes_per_s": parse_bandwidth, "_bytes": parse_bytes, "_ps": parse_time}[unit]
            return read(typed, self.long)
        return tuple(typed) if self.is_many else typed

    def is_given(self, typed: Any) -> bool:
        return typed is not None and typed != [] and typed != () and (self.kind is not bool or self.is_pair or typed)


@dataclass(frozen=True, slots=True)
class Group:
    """A parameter of a command that is a dataclass, and the options that it is made of."""

    name: str
    kind: Any
    is_given: bool
    parameters: tuple[CommandParameter, ...]

    def made(self, typed: dict[str, Any]) -> Any:
        """The dataclass, or what was given of it; takes its options out of ``typed``."""
        values = {
            each.field: each.value(value)
            for each in self.parameters
            if each.is_given(value := typed.pop(each.name, None))
        }
        return Given(self.kind, values) if self.is_given else self.kind(**values)


def read(function: Callable[..., Any]) -> list[CommandParameter | Group]:
    """The parameters of a command, in the order in which they are declared."""
    hints = typing.get_type_hints(function, include_extras=True)
    found: list[CommandParameter | Group] = []
    for parameter in inspect.signature(function).parameters.values():
        hint = hints[parameter.name]
        kind, *extras = get_args(hint) if get_origin(hint) is Annotated else (hint,)
        is_given = get_origin(kind) is Given
        inner = get_args(kind)[0] if is_given else kind
        if is_dataclass(inner):
            fields = next((each for each in extras if isinstance(each, Fields)), Fields())
            found.append(Group(parameter.name, inner, is_given, tuple(_of_fields(inner, fields))))
        else:
            option = next(each for each in extras if isinstance(each, Option))
            found.append(_own(parameter, kind, option))
    return found


def all_parameters(function: Callable[..., Any]) -> list[CommandParameter]:
    """Every option and argument of a command."""
    return [each for part in read(function) for each in (part.parameters if isinstance(part, Group) else (part,))]


def _own(parameter: inspect.Parameter, hint: Any, option: Option) -> CommandParameter:
    """A parameter that is an option itself."""
    required = parameter.default is parameter.empty
    bare = next((each for each in get_args(hint) if each is not type(None)), hint) if _is_union(hint) else hint
    is_many = get_origin(bare) is list
    return CommandParameter(
        name=parameter.name, field=parameter.name, kind=get_args(bare)[0] if is_many else bare, option=option,
        default=None if required else parameter.default, is_many=is_many, is_required=required,
        is_pair=bare is bool and parameter.default is None,
    )  # fmt: skip


def _is_union(hint: Any) -> bool:
    return type(None) in get_args(hint)


def _of_fields(kind: Any, chosen: Fields) -> Iterator[CommandParameter]:
    panel, words = WORDS.get(kind.__name__, (OPTIONS, {}))
    fields = options_of(kind)
    for name in chosen.choose(fields):
        field = fields[name]
        option = words.get(name, Option())
        text = (chosen.helps or {}).get(name) or _with_default(field)
        option = replace(option, help=text, panel=chosen.panel or option.panel or panel)
        yield _of_field(field, option)


def _of_field(field: Field[Any], option: Option) -> CommandParameter:
    said = set(re.findall(r"\w+", str(field.type)))
    unit = next((each for each in _UNITS if field.name.endswith(each)), "")
    is_flag = "bool" in said
    is_many = bool(said & {"tuple", "list", "Mapping", "Sequence"}) and option.kind is None
    if option.kind is not None:
        kind = option.kind
    elif is_flag:
        kind = bool
    else:
        kind = str if unit or "str" in said else int if "int" in said else float if "float" in said else str
    return CommandParameter(
        name=option.word or field.name.removesuffix(unit), field=field.name, kind=kind, option=option,
        is_many=is_many, default=False if is_flag and _is_single(field, option) else None,
        is_pair=is_flag and not _is_single(field, option),
    )  # fmt: skip


def _is_single(field: Field[Any], option: Option) -> bool:
    """A flag without ``--no-``: what is off by default, or what an option turns off."""
    return field.default is False or option.negates


def _with_default(field: Field[Any]) -> str:
    """The help text of a field, with its default in brackets where the text names none."""
    text: str = field.metadata["help"]
    default = field.default
    if default in (MISSING, None, (), "") or isinstance(default, bool) or text.rstrip(".").endswith("]"):
        return text
    if field.name.endswith(("_bytes", "_ps")):
        return text
    ending = "." if text.endswith(".") else ""
    return f"{text.removesuffix('.')} [{default}]{ending}"


def runner(function: Callable[..., Any]) -> Callable[..., Any]:
    """The command as a function of what is typed, by the names of options."""
    parts = read(function)

    def run(**typed: Any) -> Any:
        call = {part.name: part.made(typed) for part in parts if isinstance(part, Group)}
        return function(**typed, **call)

    return run


def words_of(function: Callable[..., Any]) -> dict[str, str]:
    """Options by the fields that they set, for errors that name fields."""
    return {each.field: each.long for each in all_parameters(function) if not each.option.is_argument}


def given(kind: type[T], **typed: Any) -> Given[T]:
    """What a command line with these options would give of ``kind``, by the words of the options."""
    group = Group("", kind, True, tuple(_of_fields(kind, Fields())))
    values: Given[T] = group.made(typed)
    if typed:
        raise InputError(f"{kind.__name__} has no option {next(iter(typed))!r}")
    return values
