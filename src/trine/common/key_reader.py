"""Mappings of files read key by key, for formats whose allowed keys depend on the values of others.

Values are checked by the checks of :mod:`trine.common.schema`, whose classes serve all formats with fixed keys.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import cache
from typing import Annotated, Any, TypeVar

from trine.common.schema import Fault, Field, check_of, show
from trine.errors import SpecError, nearest

Value = TypeVar("Value")
#: Returns the checked value, of a type that the reader knows. Raises Fault.
CheckOf = Callable[[Any], Value]

#: Longest list of mappings, and longest text.
MAX_ITEMS = 2_000_000
MAX_TEXT = 1000
#: Checks of values without limits.
BOOLEAN: CheckOf[bool] = check_of(bool)
TEXT: CheckOf[str] = check_of(Annotated[str, Field(max_length=MAX_TEXT)])
_ITEMS: CheckOf[list[Any]] = check_of(Annotated[list[Any], Field(max_length=MAX_ITEMS)])


@cache
def whole(low: int, high: int) -> CheckOf[int]:
    """Return the check of a whole number from ``low`` to ``high``, which may need 64 bits without a sign."""

    def check(value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int):
            raise Fault(f"should be a valid integer, got {show(value)}")
        if not low <= value <= high:
            raise Fault(f"should be from {low} to {high}, got {show(value)}")
        return value

    return check


def tuple_of(check: CheckOf[Value]) -> CheckOf[tuple[Value, ...]]:
    """Return the check of a list, whose items ``check`` checks."""

    def checked(value: Any) -> tuple[Value, ...]:
        items = []
        for position, item in enumerate(_ITEMS(value)):
            try:
                items.append(check(item))
            except Fault as fault:
                raise Fault(str(fault), (position, *fault.place)) from None
        return tuple(items)

    return checked


def named(names: Collection[str]) -> CheckOf[str]:
    """Return the check of one of many names; its error has the nearest one."""

    def check(value: Any) -> str:
        text = TEXT(value)
        if text not in names:
            raise Fault(f"unknown {show(text)}{nearest(text[:80], names)}")
        return text

    return check


class KeyReader:
    """One mapping of a file. Read the known keys, then :meth:`done` refuses the rest.

    Parameters
    ----------
    data: the mapping's content.
    file: path of the file. where: path inside it, such as ``gpus[0].threadblocks[1].ops[3]``.

    Every method raises SpecError with the file, the place, the value and valid alternatives.
    """

    def __init__(self, data: object, file: str, where: str) -> None:
        self.file, self.where = file, where
        if not isinstance(data, Mapping):
            raise SpecError(f"must be a mapping, got {show(data)}", file=file, field=where or None)
        self._data = data
        self._read_keys: set[str] = set()

    def has(self, name: str) -> bool:
        """Return whether the mapping has a key."""
        return name in self._data

    def fail(self, message: str, name: str | None = None) -> SpecError:
        """Return an error at this place, or at one of its keys."""
        field = ".".join(part for part in (self.where, name) if part)
        return SpecError(message, file=self.file, field=field or None)

    def read(self, name: str, check: CheckOf[Value], default: Value | None = None) -> Value:
        """Return the checked value of a key; without a default the key is required."""
        self._read_keys.add(name)
        if name not in self._data:
            if default is None:
                raise self.fail("is missing", name)
            return default
        try:
            return check(self._data[name])
        except Fault as fault:
            raise self.fail(str(fault), name + fault.path) from None

    def mapping(self, name: str) -> KeyReader:
        """Return the reader of a mapping inside this one."""
        content: Any = self.read(name, check_of(Any))
        return KeyReader(content, self.file, self._place_of(name))

    def mappings(self, name: str, default: list[Any] | None = None) -> list[KeyReader]:
        """Return the readers of a list of mappings."""
        where = self._place_of(name)
        readers = []
        for position, item in enumerate(self.read(name, _ITEMS, default)):
            readers.append(KeyReader(item, self.file, f"{where}[{position}]"))
        return readers

    def done(self) -> None:
        """Refuse unread keys."""
        for key in self._data:
            if key not in self._read_keys:
                raise self.fail(f"unknown key {show(key)}{nearest(str(key)[:80], self._read_keys)}")

    def _place_of(self, name: str) -> str:
        return f"{self.where}.{name}".lstrip(".")
