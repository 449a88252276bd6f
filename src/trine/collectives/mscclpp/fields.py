"""Reading plain data strictly: every key is known and of its type, and every error names the file and the place."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from trine.errors import SpecError, nearest
from trine.spec import show

MAX_RANKS = 4096
MAX_CHUNKS = 2**20
MAX_OPERATIONS = 2_000_000
MAX_BYTES = 2**64 - 1
MAX_TEXT = 1000


class Fields:
    """One mapping of a file. Take what is known, then :meth:`done` refuses the rest.

    Parameters
    ----------
    data: what stands there.
    file: path of the file. where: path inside it, such as ``gpus[0].threadblocks[1].ops[3]``.

    Every method raises SpecError naming file, place, value and what would be valid.
    """

    def __init__(self, data: object, file: str, where: str) -> None:
        self.file, self.where = file, where
        if not isinstance(data, Mapping):
            raise SpecError(f"must be a mapping, got {show(data)}", file=file, field=where or None)
        self._data = data
        self._known: set[str] = set()

    def has(self, name: str) -> bool:
        return name in self._data

    def fail(self, message: str, name: str | None = None) -> SpecError:
        """An error at this place, or at one of its keys."""
        field = ".".join(part for part in (self.where, name) if part)
        return SpecError(message, file=self.file, field=field or None)

    def get(self, name: str, default: object = ...) -> object:
        self._known.add(name)
        if name not in self._data:
            if default is ...:
                raise self.fail("is missing", name)
            return default
        return self._data[name]

    def integer(self, name: str, low: int, high: int, default: int | None = None) -> int:
        value = self.get(name) if default is None else self.get(name, default)
        return self._integer(value, name, low, high)

    def _integer(self, value: object, name: str, low: int, high: int) -> int:
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.fail(f"must be a whole number, got {show(value)}", name)
        if not low <= value <= high:
            raise self.fail(f"must be from {low} to {high}, got {value}", name)
        return value

    def integers(self, name: str, low: int, high: int) -> tuple[int, ...]:
        return tuple(self._integer(v, f"{name}[{i}]", low, high) for i, v in enumerate(self._list(name)))

    def boolean(self, name: str, default: bool | None = None) -> bool:
        value = self.get(name) if default is None else self.get(name, default)
        if not isinstance(value, bool):
            raise self.fail(f"must be true or false, got {show(value)}", name)
        return value

    def text(self, name: str, known: Collection[str] | None = None, default: str | None = None) -> str:
        value = self.get(name) if default is None else self.get(name, default)
        if not isinstance(value, str):
            raise self.fail(f"must be text, got {show(value)}", name)
        if len(value) > MAX_TEXT:
            raise self.fail(f"must be at most {MAX_TEXT} characters, got {len(value)}", name)
        if known is not None and value not in known:
            raise self.fail(f"unknown {show(value)}{nearest(value[:80], known)}", name)
        return value

    def mapping(self, name: str) -> Fields:
        return Fields(self.get(name), self.file, f"{self.where}.{name}".lstrip("."))

    def mappings(self, name: str, default: list[object] | None = None) -> list[Fields]:
        where = f"{self.where}.{name}".lstrip(".")
        items = self._list(name, default)
        if len(items) > MAX_OPERATIONS:
            raise self.fail(f"must have at most {MAX_OPERATIONS} entries, got {len(items)}", name)
        return [Fields(item, self.file, f"{where}[{i}]") for i, item in enumerate(items)]

    def _list(self, name: str, default: list[object] | None = None) -> list[object]:
        value = self.get(name) if default is None else self.get(name, default)
        if not isinstance(value, list):
            raise self.fail(f"must be a list, got {show(value)}", name)
        return value

    def done(self, others: Collection[str] = ()) -> None:
        """Refuse keys that nobody has taken; ``others`` are valid here too, for the error's list of names."""
        for key in self._data:
            if key not in self._known:
                known = sorted(self._known | set(others))
                raise self.fail(f"unknown key {show(key)}{nearest(str(key)[:80], known)}")


def pick(here: Fields, items: tuple[int, ...], index: int, what: str, name: str) -> int:
    """``items[index]``, or an error that says how many there are."""
    if not 0 <= index < len(items):
        raise here.fail(f"there is no {what} {index} here, there are {len(items)}", name)
    return items[index]
