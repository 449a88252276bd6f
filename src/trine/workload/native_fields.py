"""Typed fields of a JSON object, each taken once; what is left over is an error that names the nearest field."""

from __future__ import annotations

from pathlib import Path
from typing import NoReturn

from trine.errors import TraceError, nearest
from trine.units import MAX_INT64
from trine.workload.files import short

_REQUIRED = object()


class Fields:
    """Fields of the object at ``where`` in ``path``. Every method raises TraceError with that place."""

    def __init__(self, value: object, path: Path, where: str) -> None:
        self._path = path
        self._where = where
        if not isinstance(value, dict):
            self._fail("", f"must be an object, got {short(value)}")
        self._values: dict[str, object] = value
        self._taken: list[str] = []

    def _fail(self, name: str, message: str) -> NoReturn:
        raise TraceError(message, file=self._path, field=".".join(part for part in (self._where, name) if part) or None)

    def _take(self, name: str, default: object = _REQUIRED) -> object:
        self._taken.append(name)
        value = self._values.get(name, default)
        if value is _REQUIRED:
            left = [key for key in self._values if key not in self._taken]
            hint = nearest(name, left) if left else ""
            self._fail(name, "is missing" + (hint if hint.startswith("; did") else ""))
        return value

    def done(self) -> None:
        """Raise if the object has a field that nobody took."""
        for key in self._values:
            if key not in self._taken:
                self._fail(key[:80], f"is not a field of this format{nearest(key[:80], self._taken)}")

    def text(self, name: str, default: object = _REQUIRED) -> str:
        value = self._take(name, default)
        if not isinstance(value, str) or len(value) > 100_000:
            self._fail(name, f"must be text, got {short(value)}")
        return value

    def optional_text(self, name: str) -> str | None:
        return None if self._values.get(name, "") is None and self._take(name) is None else self.text(name)

    def _integer(self, name: str, value: object) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MAX_INT64:
            self._fail(name, f"must be a whole number from 0 to 2^63-1, got {short(value)}")
        return value

    def number(self, name: str) -> int:
        return self._integer(name, self._take(name))

    def optional_number(self, name: str, *, absent: bool = False) -> int | None:
        value = self._take(name, None if absent else _REQUIRED)
        return None if value is None else self._integer(name, value)

    def _list(self, name: str, default: object = _REQUIRED) -> list[object]:
        value = self._take(name, default)
        if not isinstance(value, list | tuple):
            self._fail(name, f"must be a list, got {short(value)}")
        return list(value)

    def numbers(self, name: str, default: object = _REQUIRED) -> tuple[int, ...]:
        return tuple(self._integer(name, value) for value in self._list(name, default))

    def texts(self, name: str) -> tuple[str, ...]:
        values = self._list(name)
        bad = [value for value in values if not isinstance(value, str)]
        if bad:
            self._fail(name, f"must be a list of texts, got {short(bad[0])}")
        return tuple(str(value) for value in values)

    def text_map(self, name: str) -> dict[str, str]:
        value = self._take(name)
        if not isinstance(value, dict) or not all(isinstance(text, str) for text in value.values()):
            self._fail(name, f"must be an object of texts, got {short(value)}")
        return value

    def objects(self, name: str) -> list[Fields]:
        return [Fields(item, self._path, f"{name}[{i}]") for i, item in enumerate(self._list(name))]

    def attributes(self, name: str) -> dict[str, object]:
        value = self._take(name, {})
        if not isinstance(value, dict):
            self._fail(name, f"must be an object, got {short(value)}")
        return {key: self._frozen(f"{name}.{key[:40]}", item) for key, item in value.items()}

    def _frozen(self, name: str, value: object) -> object:
        if isinstance(value, list):
            return tuple(self._frozen(name, item) for item in value)
        if not isinstance(value, bool | int | float | str):
            self._fail(name, f"must be a number, text, true, false or a list of those, got {short(value)}")
        return value
