"""Strict reading of users' files: errors name file, field, value and the nearest valid name."""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import yaml

from trine.common.inputs import read_text
from trine.common.schema import AnyClass, Fault, read_as, show
from trine.errors import SpecError

MAX_DEPTH = 32
#: Maximum length of a chain of files with ``base:``.
MAX_BASES = 8
NOTHING: Mapping[str, Any] = {}


def read_spec(path: str | os.PathLike[str], model: type[AnyClass]) -> AnyClass:
    """Read a YAML or JSON file as ``model``.

    Raises SpecError: the file cannot be read, is not valid YAML or JSON, or does not fit the model.
    """
    return check(model, load_mapping(path), path)


def with_bases(path: Path, find_base: Callable[[object, Path], Path]) -> list[tuple[Path, object]]:
    """Return (path, plain data) of a file, then of its base file (``base:``), and so on.

    ``find_base``: returns the path of a base file, from the value of ``base:`` and the file that has it.

    Raises SpecError: a file that cannot be read, or an endless chain of bases.
    """
    files = [(path, load_mapping(path))]
    while True:
        path, data = files[-1]
        base = data.get("base") if isinstance(data, Mapping) else None
        if base is None:
            return files
        if len(files) > MAX_BASES:
            raise SpecError(f"stands on more than {MAX_BASES} files, or on itself", file=path, field="base")
        path = find_base(base, path)
        files.append((path, load_mapping(path)))


def merged(below: object, above: object) -> object:
    """Return plain data with the keys of ``above`` in place of those of ``below``; mappings are merged key by key."""
    if not isinstance(below, Mapping) or not isinstance(above, Mapping):
        return above
    return {**below, **{key: merged(below.get(key), value) for key, value in above.items()}}


def check(model: type[AnyClass], data: object, file: object, extra: Mapping[str, Any] = NOTHING) -> AnyClass:
    """Validate plain data as ``model``; raise SpecError for the first fault, with file and field.

    model: a Spec, or a dataclass; extra: fields of the model that the data cannot set.
    """
    try:
        return read_as(model, data, **extra)
    except ValueError as error:
        field = error.path if isinstance(error, Fault) else ""
        raise SpecError(str(error), file=file, field=field or None) from None


class _Loader(yaml.CSafeLoader):
    """Loader of safe YAML without repeated keys."""

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        keys = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise _fault("a key must be text", key.start_mark)
            if key.value in keys:
                raise _fault(f"the key {key.value!r} is given twice", key.start_mark)
            keys.add(key.value)
        return super().construct_mapping(node, deep)


def _finite(loader: Any, node: Any) -> float:
    number: float = loader.construct_yaml_float(node)
    if not math.isfinite(number):
        raise _fault(f"{node.value[:40]} is no finite number", node.start_mark)
    return number


_Loader.add_constructor("tag:yaml.org,2002:float", _finite)


def _fault(problem: str, mark: Any) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(problem=problem, problem_mark=mark)


def _check_events(text: str) -> None:
    """Reject aliases (a few lines of them can make gigabytes) and deep nesting, before building anything."""
    depth = 0
    for event in yaml.parse(text, Loader=yaml.CSafeLoader):
        if isinstance(event, yaml.AliasEvent):
            raise _fault("aliases (*name) are not supported", event.start_mark)
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > MAX_DEPTH:
            raise _fault(f"nested deeper than {MAX_DEPTH} levels", event.start_mark)


def load_mapping(path: str | os.PathLike[str]) -> object:
    """Read a YAML file, or a JSON file if its name ends in ``.json``, as plain data.

    Raises SpecError, naming the line: unreadable, invalid, or with aliases, repeated keys or deep nesting.
    """
    text = read_text(path)
    return parse_json(text, os.fspath(path)) if os.fspath(path).endswith(".json") else parse_yaml(text, os.fspath(path))


def parse_yaml(text: str, file: object) -> object:
    """Parse a YAML text to plain data; ``file`` is named in errors. Raises SpecError: as :func:`load_mapping`."""
    try:
        _check_events(text)
        return yaml.load(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        place = f"{file}:{error.problem_mark.line + 1}" if error.problem_mark else file
        raise SpecError(error.problem or "not valid YAML", file=place) from None
    except (yaml.YAMLError, ValueError) as error:
        raise SpecError(f"not valid YAML: {str(error)[:200]}", file=file) from None


def parse_json(text: str, file: object) -> object:
    """Parse a JSON text to plain data; ``file`` is named in errors.

    Raises SpecError: invalid JSON (including NaN and Infinity), a repeated key, or deep nesting.
    """

    def mapping(pairs: list[tuple[str, object]]) -> dict[str, object]:
        data = dict(pairs)
        if len(data) != len(pairs):
            keys = [key for key, _ in pairs]
            twice = next(key for key in keys if keys.count(key) > 1)
            raise SpecError(f"the key {show(twice)} is given twice", file=file)
        return data

    def refuse(constant: str) -> float:
        raise SpecError(f"not valid JSON: {show(constant)} is not a number", file=file)

    def finite(number: str) -> float:
        return value if math.isfinite(value := float(number)) else refuse(number)

    try:
        return json.loads(text, object_pairs_hook=mapping, parse_constant=refuse, parse_float=finite)
    except json.JSONDecodeError as error:
        raise SpecError(f"not valid JSON: {error.msg}", file=f"{file}:{error.lineno}") from None
    except RecursionError:
        raise SpecError("nested too deeply", file=file) from None
    except SpecError:
        raise
    except ValueError:  # Python's limit on the digits of a whole number
        raise SpecError("not valid JSON: a whole number has more than 4300 digits", file=file) from None


def dump_yaml(data: Mapping[str, object]) -> str:
    """Return plain data as YAML text, in the given order, one list entry per line if it fits."""
    return yaml.dump(
        data, Dumper=yaml.CSafeDumper, sort_keys=False, allow_unicode=True, default_flow_style=None, width=120
    )


def fingerprint(data: Mapping[str, object]) -> str:
    """Return the SHA-256 of plain data in a canonical form that ignores the order of keys."""
    canonical = json.dumps(data, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return hashlib.sha256(canonical.encode()).hexdigest()
