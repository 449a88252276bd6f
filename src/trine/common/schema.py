"""Classes that validate mappings in users' files: fields, types and error messages.

Fields are annotations, as in a dataclass: ``int``, ``float`` (also accepts whole numbers), ``str``, ``bool``,
``Any``, ``Literal``, ``list``, ``tuple`` (from a list), ``dict``, unions, other Spec classes, dataclasses, and
``Annotated`` with further constraints. Types are never converted. A class builds its checks at its first mapping.
"""

from __future__ import annotations

import inspect
import json
import math
import types
from collections.abc import Callable, Collection, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import cache
from typing import (
    Annotated,
    Any,
    Literal,
    NamedTuple,
    Self,
    TypeVar,
    Union,
    dataclass_transform,
    get_args,
    get_origin,
    get_type_hints,
)

from trine.common.units import parse_bandwidth, parse_bytes, parse_power, parse_rate, parse_time
from trine.errors import nearest

#: Returns the checked value. Raises Fault, or any ValueError; its text becomes the message.
Check = Callable[[Any], Any]
AnySpec = TypeVar("AnySpec", bound="Spec")
AnyClass = TypeVar("AnyClass")

#: Whole numbers in files fit into 64 bits.
_MAX_INT = 2**63 - 1
_WORDS: dict[type, str] = {int: "integer", float: "number", str: "string", bool: "boolean"}
_CONTAINERS: dict[type, tuple[str, str]] = {
    str: ("string", "character"), list: ("list", "item"), tuple: ("list", "item"), dict: ("dictionary", "item"),
}  # fmt: skip
_LIMITS: dict[str, tuple[str, Callable[[Any, float], bool]]] = {
    "le": ("less than or equal to", lambda value, limit: value <= limit),
    "lt": ("less than", lambda value, limit: value < limit),
    "ge": ("greater than or equal to", lambda value, limit: value >= limit),
    "gt": ("greater than", lambda value, limit: value > limit),
}


class Fault(ValueError):
    """Validation error with its place: names of fields, keys and positions, the outermost first."""

    def __init__(self, message: str, place: tuple[object, ...] = ()) -> None:
        super().__init__(message)
        self.place = place

    @property
    def path(self) -> str:
        """Place of the fault, such as ``links[2].bandwidth``."""
        parts = []
        for part in self.place:
            parts.append(f"[{part}]" if isinstance(part, int) else f".{part}")
        return "".join(parts).lstrip(".")


def _fault_at(error: ValueError, *place: object) -> Fault:
    """Return the fault with its place prefixed by ``place``."""
    return Fault(str(error), place + (error.place if isinstance(error, Fault) else ()))


def show(value: object) -> str:
    """Return a value's text for an error message, at most 80 characters."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


class BeforeValidator(NamedTuple):
    """In ``Annotated``: a check of a value before its type is checked."""

    check: Check


class AfterValidator(NamedTuple):
    """In ``Annotated``: a check of a value after its type is checked."""

    check: Check


class OrNone(NamedTuple):
    """In ``Annotated``: null is allowed in a file, and the class replaces it by a value of the type."""


Bandwidth = Annotated[int, BeforeValidator(lambda value: parse_bandwidth(value))]
Duration = Annotated[int, BeforeValidator(lambda value: parse_time(value))]
Size = Annotated[int, BeforeValidator(lambda value: parse_bytes(value))]
Rate = Annotated[int, BeforeValidator(lambda value: parse_rate(value))]
Power = Annotated[int, BeforeValidator(lambda value: parse_power(value))]


@dataclass(frozen=True, slots=True, eq=False)
class FieldInfo:
    """Arguments of :func:`Field`. limits: bounds of a number by name; lengths: minimum and maximum."""

    default: Any
    default_factory: Callable[[], Any] | None
    alias: str | None
    strict: bool
    limits: dict[str, float]
    lengths: tuple[int, float]
    allow_inf_nan: bool

    @property
    def is_required(self) -> bool:
        return self.default is ... and self.default_factory is None

    def initial(self) -> Any:
        """Return the default."""
        return self.default if self.default_factory is None else self.default_factory()


def Field(
    default: Any = ..., *, default_factory: Callable[[], Any] | None = None, alias: str | None = None,
    strict: bool = True, gt: float | None = None, ge: float | None = None, lt: float | None = None,
    le: float | None = None, min_length: int = 0, max_length: float = math.inf, allow_inf_nan: bool = True,
) -> Any:  # fmt: skip
    """Describe a field besides its type: default, name in files, limits, and numbers of items or characters.

    strict: False also accepts numbers written as text.
    """
    limits = {"le": le, "lt": lt, "ge": ge, "gt": gt}
    set_limits = {name: limit for name, limit in limits.items() if limit is not None}
    return FieldInfo(default, default_factory, alias, strict, set_limits, (min_length, max_length), allow_inf_nan)


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(Field,))
class Spec:
    """Base class of a mapping in a file: frozen, without unknown keys or type conversion.

    Created from keywords or from a mapping. ``fields_set``: names of the fields set by the caller.
    """

    model_fields: dict[str, FieldInfo]
    fields_set: frozenset[str]

    def __init_subclass__(cls) -> None:
        """Collect the fields, starting with the last base; their types are resolved later."""
        infos: dict[str, FieldInfo] = {}
        for base in reversed(cls.__mro__[:-1]):
            for name in inspect.get_annotations(base) if base is not Spec else ():
                default = base.__dict__.get(name, ...)
                infos[name] = default if isinstance(default, FieldInfo) else Field(default)
        cls.model_fields = infos

    def __init__(self, **values: Any) -> None:
        self._take(values)

    @classmethod
    def model_validate(cls, data: object) -> Self:
        """Return the mapping ``data`` as this class. Raises Fault."""
        if isinstance(data, cls):
            return data
        if not isinstance(data, Mapping):
            raise Fault(f"must be a mapping, got {show(data)}")
        spec = cls.__new__(cls)
        spec._take(data)
        return spec

    def _take(self, data: Mapping[Any, Any]) -> None:
        kind: Any = type(self)
        checks, values, names = _checks_of(kind), self.__dict__, []
        for key in data:
            if key not in checks:
                raise Fault(f"unknown key {show(key)}{nearest(str(key)[:80], list(checks))}")
        for key, (name, info, check) in checks.items():
            if key in data:
                try:
                    values[name] = check(data[key])
                except ValueError as error:
                    raise _fault_at(error, key) from None
                names.append(name)
            elif info.is_required:
                raise Fault("is missing", (key,))
            else:
                values[name] = info.initial()
        values["fields_set"] = frozenset(names)
        self._check()

    def _check(self) -> None:
        """Check all fields together; subclasses override this and raise ValueError."""

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"{type(self).__name__} is frozen: {name} cannot be set")

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self._values() == other._values()

    def __hash__(self) -> int:
        return hash((type(self), *self._values().values()))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in self._values().items())})"

    def _values(self) -> dict[str, Any]:
        return {name: self.__dict__[name] for name in self.model_fields}

    def model_copy(self, update: Mapping[str, Any]) -> Self:
        """Return a copy with the fields of ``update`` replaced, without checking them."""
        copy = type(self).__new__(type(self))
        copy.__dict__.update(self.__dict__, **update)
        copy.__dict__["fields_set"] = self.fields_set | frozenset(update)
        return copy

    def model_dump(
        self, exclude: Collection[str] = (), *, exclude_none: bool = False, exclude_unset: bool = False,
        exclude_defaults: bool = False,
    ) -> dict[str, Any]:  # fmt: skip
        """Return plain data, optionally without the fields of ``exclude``, None, unset fields, or default values."""

        def plain(value: object) -> object:
            if isinstance(value, Spec):
                return value.model_dump(
                    exclude_none=exclude_none, exclude_unset=exclude_unset, exclude_defaults=exclude_defaults
                )
            if isinstance(value, dict):
                return {key: plain(each) for key, each in value.items()}
            if isinstance(value, list):
                return [plain(each) for each in value]
            return value

        return {
            name: plain(value)
            for name, value in self._values().items()
            if name not in exclude
            and not (exclude_none and value is None)
            and not (exclude_unset and name not in self.fields_set)
            and not (exclude_defaults and not (info := self.model_fields[name]).is_required and value == info.initial())
        }

    def model_dump_json(self) -> str:
        """Return plain data as JSON, in one line."""
        return json.dumps(self.model_dump(), separators=(",", ":"), ensure_ascii=False)


def make_spec(name: str, base: type[AnySpec], fields: Mapping[str, tuple[Any, Any]]) -> type[AnySpec]:
    """Return a subclass of ``base`` with more ``fields``: type and default (``...`` if required) by name."""
    namespace = {"__annotations__": {key: kind for key, (kind, _) in fields.items()}, "__module__": base.__module__}
    return type(name, (base,), namespace | {key: default for key, (_, default) in fields.items()})


def read_as(cls: type[AnyClass], data: object, **extra: Any) -> AnyClass:
    """Return ``data``, a mapping in a file, as a Spec or a dataclass; ``extra``: fields that files cannot set.

    Raises ValueError: a Fault, or an error from the class's validation.
    """
    if issubclass(cls, Spec):
        return cls.model_validate(data)
    kind: Any = cls
    spec = _spec_of(kind, frozenset(extra)).model_validate(data)
    return cls(**{name: getattr(spec, name) for name in spec.fields_set}, **extra)


@cache
def _spec_of(cls: Any, excluded: frozenset[str]) -> type[Spec]:
    """Return a Spec that checks the fields of a dataclass."""
    kinds = get_type_hints(cls, include_extras=True)
    kinds_and_infos: dict[str, tuple[Any, Any]] = {}
    for field in fields(cls):
        is_required = field.default is MISSING and field.default_factory is MISSING
        if field.name not in excluded:
            alias = next((part.alias for part in get_args(kinds[field.name]) if isinstance(part, FieldInfo)), None)
            kinds_and_infos[field.name] = kinds[field.name], Field(... if is_required else None, alias=alias)
    return make_spec(cls.__name__, Spec, kinds_and_infos)


@cache
def _checks_of(cls: Any) -> dict[str, tuple[str, FieldInfo, Check]]:
    """Return, by name in files, the field's name, its FieldInfo and its check."""
    kinds = get_type_hints(cls, include_extras=True)
    return {
        info.alias or name: (name, info, _with_limits(info, check_of(kinds[name], info.strict)))
        for name, info in cls.model_fields.items()
    }


def check_of(kind: Any, strict: bool = True) -> Check:
    """Return the check for a type."""
    origin, inner = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return _annotated(inner, strict)
    if origin is Union or origin is types.UnionType:
        checks = [check_of(each, strict) for each in inner if each is not types.NoneType]
        return _union(checks, len(checks) < len(inner))
    if origin is Literal:
        return one_of(inner)
    if origin is list:
        return _list(check_of(inner[0]))
    if origin is tuple:
        return _chained(_list(check_of(inner[0])), tuple)
    if origin is dict:
        return _dict(check_of(inner[0]), check_of(inner[1]))
    if kind is Any:
        return lambda value: value
    if isinstance(kind, type) and (issubclass(kind, Spec) or is_dataclass(kind)):
        return lambda value: read_as(kind, value)
    return _number_as_text if kind is float and not strict else _plain(kind)


def _annotated(inner: tuple[Any, ...], strict: bool) -> Check:
    kind, *extras = inner
    strict = strict and all(extra.strict for extra in extras if isinstance(extra, FieldInfo))
    check = check_of(kind, strict)
    for extra in extras:
        if isinstance(extra, FieldInfo):
            check = _with_limits(extra, check)
        elif isinstance(extra, BeforeValidator):
            check = _chained(extra.check, check)
        elif isinstance(extra, AfterValidator):
            check = _chained(check, extra.check)
        elif isinstance(extra, OrNone):
            check = _union([check], True)
    return check


def _chained(first: Check, second: Check) -> Check:
    return lambda value: second(first(value))


def _plain(kind: type) -> Check:
    def check(value: Any) -> Any:
        if kind is int and isinstance(value, int) and abs(value) > _MAX_INT:
            raise Fault(f"should be at most {_MAX_INT} in size, got {show(value)}")
        if type(value) is kind or (isinstance(value, kind) and not isinstance(value, bool)):
            return value
        if kind is float and isinstance(value, int) and not isinstance(value, bool):
            return _as_float(value)
        raise Fault(f"should be a valid {_WORDS[kind]}, got {show(value)}")

    return check


def _as_float(value: int) -> float:
    try:
        return float(value)
    except OverflowError:
        raise Fault(f"should be a number below 1.8e308, got {show(value)}") from None


def _number_as_text(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        raise Fault(f"should be a valid number, got {show(value)}") from None


def _with_limits(info: FieldInfo, check: Check) -> Check:
    """Return ``check`` followed by the limits and lengths; None skips them."""
    if not info.limits and info.allow_inf_nan and info.lengths == (0, math.inf):
        return check
    least, most = info.lengths

    def check_limits(value: Any) -> Any:
        checked = check(value)
        if checked is None:
            return None
        if not info.allow_inf_nan and not math.isfinite(checked):
            raise Fault(f"should be a finite number, got {show(value)}")
        for name, limit in info.limits.items():
            words, holds = _LIMITS[name]
            if not holds(checked, limit):
                raise Fault(f"should be {words} {int(limit) if limit == int(limit) else limit}, got {show(value)}")
        if (least or most < math.inf) and not least <= len(checked) <= most:
            raise Fault(f"{_length(checked, least, most)}, got {show(value)}")
        return checked

    return check_limits


def _length(value: Any, least: int, most: float) -> str:
    word, unit = _CONTAINERS[type(value)]
    bound, number = ("at least", least) if len(value) < least else ("at most", int(most))
    unit += "" if number == 1 else "s"
    remark = "" if word == "string" else f" after validation, not {len(value)}"
    return f"{word} should have {bound} {number} {unit}{remark}"


def _union(checks: list[Check], takes_none: bool) -> Check:
    """Return a check that tries ``checks`` in order; if all fail it raises the first error."""

    def check(value: Any) -> Any:
        if value is None and takes_none:
            return None
        first: ValueError | None = None
        for candidate in checks:
            try:
                return candidate(value)
            except ValueError as error:
                first = first or error
        assert first is not None
        raise first

    return check


def one_of(words: tuple[Any, ...]) -> Check:
    """Return the check that a value is one of ``words``."""
    quoted = [repr(word) for word in words]
    text = " or ".join(filter(None, (", ".join(quoted[:-1]), quoted[-1])))

    def check(value: Any) -> Any:
        if any(type(value) is type(word) and value == word for word in words):
            return value
        raise Fault(f"should be {text}, got {show(value)}")

    return check


def _list(check: Check) -> Check:
    def checked(value: Any) -> Any:
        if not isinstance(value, list):
            raise Fault(f"should be a valid list, got {show(value)}")
        checked_items = []
        for position, item in enumerate(value):
            try:
                checked_items.append(check(item))
            except ValueError as error:
                raise _fault_at(error, position) from None
        return checked_items

    return checked


def _dict(of_key: Check, of_value: Check) -> Check:
    def checked(value: Any) -> Any:
        if not isinstance(value, dict):
            raise Fault(f"should be a valid dictionary, got {show(value)}")
        checked_items = {}
        for key, item in value.items():
            try:
                name = of_key(key)
            except ValueError as error:
                raise _fault_at(error, key, "[key]") from None
            try:
                checked_items[name] = of_value(item)
            except ValueError as error:
                raise _fault_at(error, key) from None
        return checked_items

    return checked
