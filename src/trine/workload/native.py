"""trine's own trace format: a workload as JSON, lossless and always with the same bytes. docs/formats/trace.md."""

from __future__ import annotations

import dataclasses
import gzip
import json
from collections.abc import Callable, Iterable, Mapping
from os import PathLike
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from trine.common.arguments import named_arguments
from trine.common.outputs import write_bytes
from trine.common.units import MAX_INT64
from trine.errors import TraceError, nearest
from trine.graph.workload import Operator, Parameter, RecordedCollective, Tensor, Workload
from trine.workload.consistency import check_workload
from trine.workload.files import NATIVE_SUFFIXES, read_json, short

_REQUIRED = object()
Item = TypeVar("Item", Tensor, Operator, Parameter, RecordedCollective)


class JsonFields:
    """Fields of the object at ``where`` in ``path``. Every method raises TraceError with that place."""

    def __init__(self, value: object, path: Path, field: str) -> None:
        self._path = path
        self._field = field
        if not isinstance(value, dict):
            self._fail("", f"must be an object, got {short(value)}")
        self._values: dict[str, object] = value
        self._read_names: list[str] = []

    def _fail(self, name: str, message: str) -> NoReturn:
        raise TraceError(message, file=self._path, field=".".join(part for part in (self._field, name) if part) or None)

    def _take(self, name: str, default: object = _REQUIRED) -> object:
        self._read_names.append(name)
        value = self._values.get(name, default)
        if value is _REQUIRED:
            unread = [key for key in self._values if key not in self._read_names]
            hint = nearest(name, unread) if unread else ""
            self._fail(name, "is missing" + (hint if hint.startswith("; did") else ""))
        return value

    def done(self) -> None:
        """Raise TraceError if the object has a field that no method read."""
        for key in self._values:
            if key not in self._read_names:
                self._fail(key[:80], f"is not a field of this format{nearest(key[:80], self._read_names)}")

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

    def number(self, name: str, default: object = _REQUIRED) -> int:
        return self._integer(name, self._take(name, default))

    def optional_number(self, name: str, default: object = _REQUIRED) -> int | None:
        value = self._take(name, default)
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

    def objects(self, name: str, default: object = _REQUIRED) -> list[JsonFields]:
        return [JsonFields(item, self._path, f"{name}[{i}]") for i, item in enumerate(self._list(name, default))]

    def attributes(self, name: str, default: object = _REQUIRED) -> dict[str, object]:
        value = self._take(name, default)
        if not isinstance(value, dict):
            self._fail(name, f"must be an object, got {short(value)}")
        return {key: self._frozen(f"{name}.{key[:40]}", item) for key, item in value.items()}

    def read(self, field: dataclasses.Field[Any]) -> Any:
        """Return the field of a dataclass; a file may leave out a field with a default."""
        default = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
        read = _READ[str(field.type)]
        return read(self, field.name, _REQUIRED if default is dataclasses.MISSING else default)

    def _frozen(self, name: str, value: object) -> object:
        if isinstance(value, list):
            return tuple(self._frozen(name, item) for item in value)
        if not isinstance(value, bool | int | float | str):
            self._fail(name, f"must be a number, text, true, false or a list of those, got {short(value)}")
        return value


#: Type of a dataclass's field -> the method that reads it.
_READ: Mapping[str, Callable[[JsonFields, str, object], object]] = {
    "int": JsonFields.number, "int | None": JsonFields.optional_number, "str": JsonFields.text,
    "tuple[int, ...]": JsonFields.numbers, "Mapping[str, object]": JsonFields.attributes,
}  # fmt: skip

FORMAT, VERSION = "trine-trace", 1


@named_arguments
def save(workload: Workload, path: str | PathLike[str]) -> None:
    """Write ``workload`` to ``path``, which must end in ``.trine.json`` or ``.trine.json.gz``.

    The same workload always gives the same bytes. Raises TraceError for another suffix, for a value that JSON cannot
    hold, or if the file cannot be written.
    """
    place = Path(path)
    if not place.name.endswith(NATIVE_SUFFIXES):
        raise TraceError(f"must end in {' or '.join(NATIVE_SUFFIXES)}", file=place)
    check_workload(workload, place)
    try:
        data = _dump(workload).encode()
    except (TypeError, ValueError) as error:
        raise TraceError(f"cannot be written as JSON: {error}", file=place) from None
    if place.name.endswith(".gz"):
        data = gzip.compress(data, compresslevel=9, mtime=0)
    write_bytes(place, data, error=TraceError)


def _dump(workload: Workload) -> str:
    """Return the text, with one line per operator, tensor and parameter, so that text tools can compare traces."""
    first = {
        "format": FORMAT, "version": VERSION, "name": workload.name, "source": workload.source,
        "recorded_as": workload.format, "gpu": workload.gpu, "batch": workload.batch,
        "unprofiled_step_ps": workload.unprofiled_step_ps, "missing": list(workload.missing),
        "assumptions": list(workload.assumptions), "metadata": dict(sorted(workload.metadata.items())),
    }  # fmt: skip
    lines = [f"{_json(key)}: {_json(value)}" for key, value in first.items()]
    lines.append(_lines("tensors", (_row(workload.tensors[i]) for i in sorted(workload.tensors))))
    lines.append(_lines("operators", map(_row, workload.operators)))
    lines.append(_lines("parameters", map(_row, workload.parameters)))
    if workload.collectives:
        lines.append(_lines("collectives", map(_row, workload.collectives)))
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _lines(key: str, rows: Iterable[str]) -> str:
    body = ",\n  ".join(rows)
    return f"{_json(key)}: [\n  {body}\n]" if body else f"{_json(key)}: []"


def _row(item: Operator | Tensor | Parameter | RecordedCollective) -> str:
    """Return an item as JSON, without the fields that have their default."""
    values: dict[str, object] = {}
    for field in dataclasses.fields(item):
        value = getattr(item, field.name)
        default = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
        if value != default or default is dataclasses.MISSING:
            values[field.name] = dict(sorted(value.items())) if isinstance(value, Mapping) else value
    return _json(values)


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def load_native(path: Path) -> Workload:
    """Read a file that :func:`save` wrote. Raises TraceError naming the field at fault."""
    document = JsonFields(read_json(path, strict=True), path, "")
    identity = document.text("format"), document.number("version")
    if identity != (FORMAT, VERSION):
        message = f"is {identity[0][:40]!r} version {identity[1]}; this trine reads {FORMAT!r} version {VERSION}"
        raise TraceError(message, file=path)
    tensors = [_read_as(Tensor, fields) for fields in document.objects("tensors")]
    by_id = {tensor.id: tensor for tensor in tensors}
    if len(by_id) != len(tensors):
        ids = [tensor.id for tensor in tensors]
        twice = next(i for i in ids if ids.count(i) > 1)
        raise TraceError(f"tensor {twice} is there twice", file=path, field="tensors")
    name, source, recorded_as = document.text("name"), document.text("source"), document.text("recorded_as")
    gpu, batch = document.optional_text("gpu"), document.number("batch")
    operators = tuple(_read_as(Operator, fields) for fields in document.objects("operators"))
    parameters = tuple(_read_as(Parameter, fields) for fields in document.objects("parameters"))
    workload = Workload(
        name=name, source=source, format=recorded_as, gpu=gpu, batch=batch, operators=operators, tensors=by_id,
        parameters=parameters, missing=document.texts("missing"), assumptions=document.texts("assumptions"),
        unprofiled_step_ps=document.optional_number("unprofiled_step_ps"), metadata=document.text_map("metadata"),
        collectives=tuple(_read_as(RecordedCollective, fields) for fields in document.objects("collectives", ())),
    )  # fmt: skip
    document.done()
    check_workload(workload, path)
    return workload


def _read_as(kind: type[Item], fields: JsonFields) -> Item:
    """Return the object as a dataclass. Raises TraceError for a field that is wrong, missing or unknown."""
    values = {field.name: fields.read(field) for field in dataclasses.fields(kind)}
    fields.done()
    return kind(**values)
