"""Reading and writing a calibration, strictly. The format is described in :mod:`trine.compute.calibration`."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import cast

from trine.compute.calibration import Calibration, Point
from trine.compute.kinds import BACKWARD_SUFFIX, FAMILIES, family_of
from trine.errors import SpecError, nearest
from trine.inputs import read_text
from trine.outputs import write_text
from trine.units import MAX_INT64

_FORMAT, _VERSION = "trine-calibration", 1
_MAX_BYTES = 256 * 2**20
_HEAD = ("format", "version", "gpu", "resolution_ps", "sources", "points")
_POINT_INTS = {"batch": 1, "flops": 0, "bytes": 0, "time_ps": 1}


def write(calibration: Calibration, path: str | os.PathLike[str]) -> None:
    """Write ``calibration`` to ``path``: the same calibration gives the same bytes."""
    data = {"format": _FORMAT, "version": _VERSION, **asdict(calibration)}
    write_text(path, json.dumps(data, indent=1, ensure_ascii=False, allow_nan=False) + "\n")


def read(path: str | os.PathLike[str]) -> Calibration:
    """Read a calibration. Raises SpecError, naming file and field, for anything that is not exactly one."""
    from trine.spec import parse_json

    return _calibration(parse_json(read_text(path, _MAX_BYTES), os.fspath(path)), path)


def _calibration(data: object, path: object) -> Calibration:
    head = _mapping(data, _HEAD, path, "")
    if head["format"] != _FORMAT:
        raise SpecError(f"must be {_FORMAT!r}, got {str(head['format'])[:80]!r}", file=path, field="format")
    if head["version"] != _VERSION or isinstance(head["version"], bool):
        raise SpecError(
            f"version {str(head['version'])[:80]} is not known; this trine reads {_VERSION}", file=path, field="version"
        )
    gpu = None if head["gpu"] is None else _string(head["gpu"], path, "gpu")
    sources = tuple(_string(s, path, f"sources[{i}]") for i, s in enumerate(_list(head["sources"], path, "sources")))
    points = tuple(_point(p, path, f"points[{i}]") for i, p in enumerate(_list(head["points"], path, "points")))
    return Calibration(gpu, _whole(head["resolution_ps"], 1, path, "resolution_ps"), sources, points)


def _point(data: object, path: object, field: str) -> Point:
    given = _mapping(data, tuple(f.name for f in fields(Point)), path, field)
    numbers = {name: _whole(given[name], least, path, f"{field}.{name}") for name, least in _POINT_INTS.items()}
    kind = _string(given["kind"], path, f"{field}.kind")
    if family_of(kind) not in FAMILIES:
        known = [*FAMILIES, *(family + BACKWARD_SUFFIX for family in FAMILIES)]
        raise SpecError(f"unknown kind {kind[:80]!r}{nearest(kind[:80], known)}", file=path, field=f"{field}.kind")
    return Point(_string(given["operator"], path, f"{field}.operator"), kind, **numbers)


def _mapping(data: object, keys: tuple[str, ...], path: object, field: str) -> Mapping[str, object]:
    """Check that ``data`` is an object with exactly ``keys``."""
    if not isinstance(data, dict):
        raise SpecError(f"must be an object with {', '.join(keys)}", file=path, field=field or None)
    for key in data:
        if key not in keys:
            raise SpecError(f"unknown key {key[:80]!r}{nearest(key[:80], keys)}", file=path, field=field or None)
    for key in keys:
        if key not in data:
            raise SpecError(f"the key {key!r} is missing", file=path, field=field or None)
    return cast("Mapping[str, object]", data)


def _list(value: object, path: object, field: str) -> list[object]:
    if not isinstance(value, list):
        raise SpecError(f"must be a list, got {str(value)[:80]!r}", file=path, field=field)
    return value


def _string(value: object, path: object, field: str) -> str:
    if not isinstance(value, str):
        raise SpecError(f"must be a string, got {str(value)[:80]!r}", file=path, field=field)
    return value


def _whole(value: object, least: int, path: object, field: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= MAX_INT64:
        raise SpecError(f"must be a whole number of at least {least}, got {str(value)[:80]!r}", file=path, field=field)
    return value
