"""trine's own trace format: a workload as JSON, lossless and with the same bytes every time. docs/formats/trace.md."""

from __future__ import annotations

import dataclasses
import gzip
import json
from collections.abc import Iterable, Mapping
from os import PathLike
from pathlib import Path

from trine.errors import TraceError
from trine.graph.workload import Operator, Parameter, Tensor, Workload
from trine.inputs import head
from trine.outputs import write_bytes
from trine.workload.files import read_json
from trine.workload.load import Reader
from trine.workload.native_check import check_workload
from trine.workload.native_fields import Fields

FORMAT, VERSION = "trine-trace", 1
SUFFIXES = (".trine.json", ".trine.json.gz")


def save(workload: Workload, path: str | PathLike[str]) -> None:
    """Write ``workload`` to ``path``, which must end in ``.trine.json`` or ``.trine.json.gz``.

    The same workload always gives the same bytes. Raises TraceError for another name, for a value that JSON cannot
    hold, or if the file cannot be written.
    """
    place = Path(path)
    if not place.name.endswith(SUFFIXES):
        raise TraceError(f"must end in {' or '.join(SUFFIXES)}", file=place)
    check_workload(workload, place)
    try:
        data = _dump(workload).encode()
    except (TypeError, ValueError) as error:
        raise TraceError(f"cannot be written as JSON: {error}", file=place) from None
    if place.name.endswith(".gz"):
        data = gzip.compress(data, compresslevel=9, mtime=0)
    write_bytes(place, data, error=TraceError)


def _dump(workload: Workload) -> str:
    """One line for each operator, tensor and parameter, so that text tools can compare traces."""
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
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _lines(key: str, rows: Iterable[str]) -> str:
    body = ",\n  ".join(rows)
    return f"{_json(key)}: [\n  {body}\n]" if body else f"{_json(key)}: []"


def _row(item: Operator | Tensor | Parameter) -> str:
    """Fields that have their default are left out."""
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
    document = Fields(read_json(path, strict=True), path, "")
    found = document.text("format"), document.number("version")
    if found != (FORMAT, VERSION):
        message = f"is {found[0][:40]!r} version {found[1]}; this trine reads {FORMAT!r} version {VERSION}"
        raise TraceError(message, file=path)
    tensors = [_tensor(fields) for fields in document.objects("tensors")]
    by_id = {tensor.id: tensor for tensor in tensors}
    if len(by_id) != len(tensors):
        ids = [tensor.id for tensor in tensors]
        twice = next(i for i in ids if ids.count(i) > 1)
        raise TraceError(f"tensor {twice} is there twice", file=path, field="tensors")
    workload = Workload(
        name=document.text("name"), source=document.text("source"), format=document.text("recorded_as"),
        gpu=document.optional_text("gpu"), batch=document.number("batch"),
        operators=tuple(_operator(fields) for fields in document.objects("operators")), tensors=by_id,
        parameters=tuple(_parameter(fields) for fields in document.objects("parameters")),
        missing=document.texts("missing"), assumptions=document.texts("assumptions"),
        unprofiled_step_ps=document.optional_number("unprofiled_step_ps"), metadata=document.text_map("metadata"),
    )  # fmt: skip
    document.done()
    check_workload(workload, path)
    return workload


def _tensor(fields: Fields) -> Tensor:
    tensor = Tensor(
        id=fields.number("id"), shape=fields.numbers("shape"), dtype=fields.text("dtype"),
        size_bytes=fields.number("size_bytes"), storage=fields.number("storage"), role=fields.text("role"),
        batch_dims=fields.numbers("batch_dims", ()),
    )  # fmt: skip
    fields.done()
    return tensor


def _operator(fields: Fields) -> Operator:
    operator = Operator(
        id=fields.number("id"), name=fields.text("name"), phase=fields.text("phase"), inputs=fields.numbers("inputs"),
        outputs=fields.numbers("outputs"), gpu_time_ps=fields.number("gpu_time_ps"),
        launch_start_ps=fields.optional_number("launch_start_ps", absent=True),
        launch_duration_ps=fields.optional_number("launch_duration_ps", absent=True),
        forward_id=fields.optional_number("forward_id", absent=True), layer=fields.text("layer", ""),
        kernel_times_ps=fields.numbers("kernel_times_ps", ()), attributes=fields.attributes("attributes"),
    )  # fmt: skip
    fields.done()
    return operator


def _parameter(fields: Fields) -> Parameter:
    parameter = Parameter(
        weight=fields.number("weight"), size_bytes=fields.number("size_bytes"),
        gradient=fields.optional_number("gradient"), gradient_operator=fields.optional_number("gradient_operator"),
    )  # fmt: skip
    fields.done()
    return parameter


def _find(path: Path) -> dict[str, Path] | None:
    if path.is_dir():
        files = sorted(file for file in path.iterdir() if file.name.endswith(SUFFIXES) and file.is_file())
        if len(files) > 1:
            raise TraceError(f"holds {len(files)} traces, {files[0].name} and others: name one", file=path)
        return {"trace": files[0]} if files else None
    return {"trace": path} if path.name.endswith(SUFFIXES) or _says_native(path) else None


def _says_native(path: Path) -> bool:
    """Whether a JSON file of another name begins as this format does."""
    if not path.name.endswith((".json", ".json.gz")):
        return False
    return b'"trine-trace"' in head(path, 4096)[:200]


def _read(files: dict[str, Path], batch: int | None) -> Workload:
    workload = load_native(files["trace"])
    if batch is not None and batch != workload.batch:
        message = f"batch {batch} was given, but the trace says {workload.batch}"
        raise TraceError(message, file=files["trace"], field="batch")
    return workload


READER = Reader("native", f"a file that ends in {' or '.join(SUFFIXES)}", _find, _read)
