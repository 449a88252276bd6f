"""Reading a Hugging Face config.json key by key: each key is used, harmless, or refused by name."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NoReturn

from trine.common.inputs import PRESETS, read_text
from trine.common.spec import load_mapping
from trine.errors import SpecError, nearest

#: Longer lists (of layers) are probably damaged files.
MAX_ITEMS = 10_000
_LARGEST = 10**9


class Config:
    """The keys of a config, or of one of its sections; each key that is read counts as used.

    file: named in errors. section: prefix of the names of keys in errors.
    """

    def __init__(self, keys: Mapping[str, Any], file: str, section: str = "") -> None:
        self.file = file
        self.section = section
        self._keys = keys
        self._used: set[str] = set()

    def fail(self, key: str, message: str) -> NoReturn:
        """Raise SpecError about a key."""
        raise SpecError(message, file=self.file, field=f"{self.section}{key}")

    def has(self, *names: str) -> bool:
        """Return whether one of these keys is present with a value."""
        return any(self._keys.get(name) is not None for name in names)

    def get(self, *names: str, default: Any = None) -> Any:
        """Return the value of the first of these keys that has one, as it stands in the file."""
        self._used.update(names)
        return next((self._keys[name] for name in names if self._keys.get(name) is not None), default)

    def count(self, *names: str, default: int | None = None, least: int = 1) -> int:
        """Return a number of layers, at most :data:`MAX_ITEMS`. Raises SpecError like :meth:`size`."""
        return self.size(*names, default=default, least=least, most=MAX_ITEMS)

    def fill(self, defaults: Mapping[str, Any]) -> None:
        """Take values for missing keys: the defaults of the class that reads such a config in transformers."""
        present = {key: value for key, value in self._keys.items() if value is not None}
        self._keys = {**defaults, **present}

    def size(self, *names: str, default: int | None = None, least: int = 1, most: int = _LARGEST) -> int:
        """Return a whole number from ``least`` to ``most``. Raises SpecError if it is missing or no such number."""
        value = self.get(*names, default=default)
        name = next((n for n in names if self._keys.get(n) is not None), names[0])
        if value is None:
            hint = nearest(name, [key for key in self._keys if key not in self._used], is_listed=True)
            self.fail(name, f"is missing{hint}")
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            self.fail(name, f"must be a whole number from {least} to {most:,}, got {str(value)[:40]!r}")
        return int(value)

    def flag(self, *names: str, default: bool = False) -> bool:
        """Return true or false. Raises SpecError for another value."""
        value = self.get(*names, default=default)
        if not isinstance(value, bool):
            self.fail(names[0], f"must be true or false, got {str(value)[:40]!r}")
        return value

    def text(self, *names: str, default: str = "") -> str:
        """Return a text. Raises SpecError for another value."""
        value = self.get(*names, default=default)
        if not isinstance(value, str):
            self.fail(names[0], f"must be a text, got {str(value)[:40]!r}")
        return value

    def number(self, name: str, default: float) -> float:
        """Return a number above 0. Raises SpecError for another value."""
        value = self.get(name, default=default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= _LARGEST:
            self.fail(name, f"must be a number above 0, at most {_LARGEST:,}, got {str(value)[:40]!r}")
        return float(value)

    def one_of(self, name: str, values: Collection[str], default: str) -> str:
        """Return a text that is one of ``values``. Raises SpecError with the nearest value."""
        value = self.text(name, default=default)
        if value not in values:
            self.fail(name, f"{value[:40]!r} is unknown to trine{nearest(value, values)}")
        return value

    def items(self, name: str, count: int = 0) -> list[Any]:
        """Return a list, of ``count`` items if given; empty without the key. Raises SpecError for another value."""
        value = self.get(name, default=[])
        if not isinstance(value, list) or len(value) > MAX_ITEMS:
            self.fail(name, f"must be a list of at most {MAX_ITEMS:,} items")
        if value and count and len(value) < count:
            self.fail(name, f"has {len(value)} items for {count} layers")
        return value[:count] if count else value

    def whole_items(self, name: str, count: int = 0, least: int = 0) -> list[int]:
        """Return a list of whole numbers from ``least`` on; see :meth:`items`. Raises SpecError for another item."""
        values = self.items(name, count)
        for number, value in enumerate(values):
            if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= _LARGEST:
                message = f"must be a whole number from {least} to {_LARGEST:,}, got {str(value)[:40]!r}"
                self.fail(f"{name}[{number}]", message)
        return values

    def kinds(self, name: str, known: Collection[str], count: int = 0) -> list[str]:
        """Return a list of texts in ``known``; see :meth:`items`. Raises SpecError with the nearest text."""
        values = self.items(name, count)
        for number, value in enumerate(values):
            if not isinstance(value, str) or value not in known:
                text = str(value)[:40]
                self.fail(f"{name}[{number}]", f"{text!r} is unknown to trine{nearest(text, known)}")
        return values

    def parts(self, name: str) -> list[Config]:
        """Return the sections in a list. Raises SpecError for an item that is none."""
        values = self.items(name)
        for number, value in enumerate(values):
            if not isinstance(value, Mapping):
                self.fail(f"{name}[{number}]", f"must be a section of keys, got {str(value)[:40]!r}")
        return [Config(value, self.file, f"{self.section}{name}[{i}].") for i, value in enumerate(values)]

    def part(self, name: str) -> Config:
        """Return a section. Raises SpecError if it is none."""
        value = self.get(name, default={})
        if not isinstance(value, Mapping):
            self.fail(name, f"must be a section of keys, got {str(value)[:40]!r}")
        return Config(value, self.file, f"{self.section}{name}.")

    def ignore(self, *names: str) -> None:
        """Count keys as used that say nothing beyond others."""
        self._used.update(names)

    def check_used(self) -> None:
        """Raise SpecError for the first key that is neither used nor harmless, and has a value that is not off."""
        harmless = harmless_keys()
        for key, value in self._keys.items():
            if key in self._used or key in harmless or _is_off(value):
                continue
            self.fail(key, f"changes the model in a way that trine does not know: {json.dumps(value)[:60]}")


def _is_off(value: Any) -> bool:
    """Return whether a value says that something is absent."""
    return value is None or value is False or value in ("", 0, 0.0) or value == [] or value == {}


@cache
def harmless_keys() -> frozenset[str]:
    """Return the keys that change neither shapes nor computation (presets/formats/huggingface.yaml)."""
    content: Any = load_mapping(PRESETS / "formats" / "huggingface.yaml")
    return frozenset(key for keys in content["harmless"].values() for key in keys)


def read_config(path: Path) -> Mapping[str, Any]:
    """Return the keys of a config.json: the file, or the one in a folder.

    Raises SpecError for a missing or damaged file.
    """
    file = path / "config.json" if path.is_dir() else path
    text = read_text(file)
    try:
        content = json.loads(text, parse_constant=lambda word: math.inf if "Inf" in word else None)
    except (ValueError, RecursionError) as error:
        raise SpecError(f"is no JSON: {str(error)[:80]}", file=file) from None
    if not isinstance(content, Mapping):
        raise SpecError("must be a mapping of keys", file=file)
    return content


def repeated(kinds: Sequence[Any], count: int, usual: Any) -> list[Any]:
    """Return the kinds of ``count`` layers; ``usual`` for all of them without a list."""
    return list(kinds) if kinds else [usual] * count
