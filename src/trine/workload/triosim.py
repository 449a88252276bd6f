"""Reader of TrioSim's two CSV files, ``trace.csv`` (operators) and ``tensor.csv`` (tensors), of one step on one GPU.

Columns and their meaning: docs/formats/reading-traces.md. Times are whole microseconds, sizes count elements. There is
no CPU side. A tensor without elements stands for an absent one (no gradient for the input of the first layer).
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from io import StringIO
from operator import itemgetter
from pathlib import Path

from trine.common.units import MAX_INT64, PS_PER_US
from trine.errors import TraceError
from trine.graph.workload import GPU_KERNELS, PHASES, Operator, Workload
from trine.workload.analysis.analyse import analyse
from trine.workload.files import MAX_DIGITS, read_text, short
from trine.workload.raw_trace import RawCall, RawTensor, RawTrace, call_kind
from trine.workload.readers import TraceReader

#: Columns that trine reads; it ignores Operator_cudatime, gpuid and tpflag.
TRACE_COLUMNS = (
    "OperatorID", "OperatorName", "Operator_input", "Operator_output", "Operator_cudatimenooverlap", "InputSize",
    "OutputSize", "stage",
)  # fmt: skip
TENSOR_COLUMNS = (
    "Index", "TensorID", "TensorShape", "TensorNumElement", "TensorEachByte", "TensorType", "TensorStorgeid", "gpuid",
)  # fmt: skip

#: Longest cell; the lists of an optimizer over 10 000 parameters take about 400 kB.
MAX_CELL = 8 * 2**20
_DTYPES = {0: "none", 1: "uint8", 2: "float16", 4: "float32", 8: "int64"}
_INTEGER = re.compile(r"-?\d+", re.ASCII)
_HINTS = {
    "running_mean": "buffer", "running_var": "buffer", "target": "input", "weight": "weight", "bias": "weight",
    "bias=None": "weight",
}  # fmt: skip


def read_triosim(folder: Path) -> RawTrace:
    """Read ``folder/trace.csv`` and ``folder/tensor.csv``. Raises TraceError naming the file and line at fault."""
    tensor_file, trace_file = folder / "tensor.csv", folder / "trace.csv"
    tensors = _read_tensors(tensor_file)
    rows = list(_read_operators(trace_file, tensors, tensor_file))
    if not rows:
        raise TraceError("holds no operator", file=trace_file)
    storages = _allocations(rows, tensors)
    ids = dict.fromkeys(i for row in rows for i in (*row.inputs, *row.outputs))
    used_tensors = {i: replace(tensors[i], storage=storages[i]) for i in ids}
    calls = tuple(_call(op, index, used_tensors) for index, op in enumerate(rows))
    have_times = any(row.gpu_time_ps for row in rows)
    return RawTrace(
        name=folder.name, source=str(folder), format="triosim", gpu=None, operators=tuple(rows), calls=calls,
        tensors=used_tensors, missing=(*(() if have_times else (GPU_KERNELS,)),
                 "CPU launch times", "dtypes (only bytes per element)", "operator attributes (stride, padding, ...)",
                 "the GPU's name", "kernels of each operator"),
        assumptions=("dtypes follow from bytes per element: 4 float32, 2 float16, 8 int64, 1 uint8",),
    )  # fmt: skip


def _call(op: Operator, index: int, tensors: dict[int, RawTensor]) -> RawCall:
    inputs, outputs = _present(op.inputs, tensors), _present(op.outputs, tensors)
    return RawCall(call_kind(op.name), inputs, outputs, op.phase, index, in_place=op.name.endswith("_"))


def _present(ids: tuple[int, ...], tensors: dict[int, RawTensor]) -> tuple[int | None, ...]:
    tensor_ids = []
    for i in ids:
        tensor_ids.append(None if tensors[i].dtype == "none" else i)
    return tuple(tensor_ids)


def _rows(path: Path, columns: tuple[str, ...]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield ``(file:line, cells in the order of columns)``; ignore extra columns, raise TraceError for missing ones."""
    text = read_text(path)
    if "\0" in text:
        raise TraceError("holds a NUL byte", file=path)
    limit = csv.field_size_limit(MAX_CELL)
    reader = csv.reader(StringIO(text, newline=""), strict=True)
    try:
        header = [cell.strip() for cell in next(reader, [])]
        absent = [column for column in columns if column not in header]
        if absent:
            raise TraceError(f"lacks the column {', '.join(absent)}; it needs {', '.join(columns)}", file=f"{path}:1")
        pick = itemgetter(*(header.index(column) for column in columns))
        name = str(path)
        for cells in reader:
            line = f"{name}:{reader.line_num}"
            if len(cells) != len(header):
                raise TraceError(f"has {len(cells)} cells, the header {len(header)}: is it cut off?", file=line)
            yield line, pick(cells)
    except csv.Error as error:
        raise TraceError(f"is not CSV: {error}", file=f"{path}:{reader.line_num}") from None
    finally:
        csv.field_size_limit(limit)


def _integer(text: str, column: str, line: str) -> int:
    text = text.strip()
    if text.isdecimal() and text.isascii() and len(text) < 19:  # nearly always; below 2^63
        return int(text)
    if len(text) > MAX_DIGITS or not _INTEGER.fullmatch(text):
        raise TraceError(f"must be a whole number, got {short(text)}", file=line, field=column)
    number = int(text)
    if not 0 <= number <= MAX_INT64:
        raise TraceError(f"must be between 0 and 2^63-1, got {number}", file=line, field=column)
    return number


def _microseconds(text: str, column: str, line: str) -> int:
    """Return a time in whole or decimal microseconds as picoseconds, rounded up."""
    integer_part, _, decimals = text.strip().partition(".")
    if len(text) > MAX_DIGITS or not (decimals or "0").isdecimal() or not decimals.isascii():
        raise TraceError(f"must be a time in microseconds, got {short(text)}", file=line, field=column)
    digits = 6  # decimals down to a picosecond
    ps = _integer(integer_part, column, line) * PS_PER_US + int(decimals[:digits].ljust(digits, "0"))
    ps += bool(decimals[digits:].strip("0"))
    if ps > MAX_INT64:
        raise TraceError("is too long", file=line, field=column)
    return ps


def _integers(text: str, separator: str, column: str, line: str) -> tuple[int, ...]:
    text = text.strip()
    if not (text.startswith("[") and text.endswith("]")):
        raise TraceError(f"must be a list in brackets, got {short(text)}", file=line, field=column)
    body = text[1:-1].strip()
    if not body:
        return ()
    parts = body.split(separator)
    if body.isascii() and body.replace(separator, "").replace(" ", "").isdecimal() and max(map(len, parts)) < 19:
        with suppress(ValueError):  # nearly always; below 2^63. The loop below reports the fault of an odd one
            return tuple(map(int, parts))
    return tuple([_integer(part, column, line) for part in parts])


def _read_tensors(path: Path) -> dict[int, RawTensor]:
    tensors: dict[int, RawTensor] = {}
    read: set[tuple[str, ...]] = set()
    for line, cells in _rows(path, TENSOR_COLUMNS):
        if (content := cells[1:7]) in read:  # most tensors are listed at each use
            continue
        read.add(content)
        _, id_, shape_, count_, item_bytes_, type_, storage_, _ = cells
        id_number = _integer(id_, "TensorID", line)
        shape = _integers(shape_, ",", "TensorShape", line)
        count = _integer(count_, "TensorNumElement", line)
        item_bytes = _integer(item_bytes_, "TensorEachByte", line)
        if item_bytes not in _DTYPES or (item_bytes == 0 and count):
            raise TraceError(f"must be 1, 2, 4 or 8, got {item_bytes}", file=line, field="TensorEachByte")
        if count != _product(shape) and not (item_bytes == 0 and count == 0):
            raise TraceError(
                f"is {count}, but the shape {list(shape)} has {_product(shape)}", file=line, field="TensorNumElement"
            )
        storage = _integer(storage_, "TensorStorgeid", line)
        shape = (0,) if item_bytes == 0 else shape
        hint = _HINTS.get(type_.strip(), "")
        tensor = RawTensor(id_number, shape, _DTYPES[item_bytes], count * item_bytes, storage, hint)
        earlier = tensors.setdefault(id_number, tensor)
        if (earlier.shape, earlier.size_bytes, earlier.storage) != (tensor.shape, tensor.size_bytes, tensor.storage):
            raise TraceError(
                f"tensor {id_number} is {list(shape)} with {tensor.size_bytes} bytes in storage {storage} here, "
                f"{list(earlier.shape)} with {earlier.size_bytes} bytes in storage {earlier.storage} before",
                file=line, field="TensorShape",
            )  # fmt: skip
        if hint and not earlier.hint:
            tensors[id_number] = tensor
    return tensors


def _product(shape: tuple[int, ...]) -> int:
    result = 1
    for size in shape:
        result *= size
    return result


def _read_operators(path: Path, tensors: dict[int, RawTensor], tensor_file: Path) -> Iterator[Operator]:
    line_of: dict[int, str] = {}
    for line, cells in _rows(path, TRACE_COLUMNS):
        id_, name, inputs_, outputs_, time_, in_sizes, out_sizes, stage = cells
        id_number = _integer(id_, "OperatorID", line)
        if id_number in line_of:
            raise TraceError(f"{id_number} was used before, at {line_of[id_number]}", file=line, field="OperatorID")
        line_of[id_number] = line
        if not name.strip() or len(name) > 1000:
            raise TraceError(f"must be a name, got {short(name)}", file=line, field="OperatorName")
        if stage not in PHASES:
            raise TraceError(f"must be one of {', '.join(PHASES)}, got {short(stage)}", file=line, field="stage")
        inputs = _integers(inputs_, ";", "Operator_input", line)
        outputs = _integers(outputs_, ";", "Operator_output", line)
        for column, ids, sizes in (("InputSize", inputs, in_sizes), ("OutputSize", outputs, out_sizes)):
            _check_sizes(column, ids, _integers(sizes, ";", column, line), tensors, line, tensor_file)
        time = _microseconds(time_, "Operator_cudatimenooverlap", line)
        yield Operator(id=id_number, name=name.strip(), phase=stage, inputs=inputs, outputs=outputs, gpu_time_ps=time)


def _check_sizes(
    column: str, ids: tuple[int, ...], sizes: tuple[int, ...], tensors: dict[int, RawTensor], line: str, file: Path
) -> None:
    if len(ids) != len(sizes):
        raise TraceError(f"lists {len(sizes)} sizes for {len(ids)} tensors", file=line, field=column)
    for id_number, size in zip(ids, sizes, strict=True):
        tensor = tensors.get(id_number)
        if tensor is None:
            raise TraceError(f"tensor {id_number} is not in {file}", file=line, field=column)
        if size != _product(tensor.shape):
            raise TraceError(
                f"tensor {id_number} has {size} elements here, {_product(tensor.shape)} in {file.name}",
                file=line, field=column,
            )  # fmt: skip


def _allocations(operators: list[Operator], tensors: dict[int, RawTensor]) -> dict[int, int]:
    """Return the allocation number of each tensor that the operators use.

    PyTorch reuses freed memory, and with it the storage id, for later tensors. An output is a new allocation if no
    input of its operator has its storage. An input without a producer is a view of its storage's contents, unless the
    number of bytes differs: then an operator outside the file made it.
    """
    allocation: dict[int, int] = {}
    holder: dict[int, tuple[int, int]] = {}  # storage id -> (allocation, bytes of its first tensor)
    count = 0
    for op in operators:
        for id_number in op.inputs:
            tensor = tensors[id_number]
            if id_number in allocation:
                continue
            holding = holder.get(tensor.storage)
            if holding is None or holding[1] != tensor.size_bytes:
                count += 1
                holding = holder[tensor.storage] = (count, tensor.size_bytes)
            allocation[id_number] = holding[0]
        input_storages = {tensors[i].storage for i in op.inputs}
        for id_number in op.outputs:
            tensor = tensors[id_number]
            if id_number in allocation:
                continue
            if tensor.storage not in input_storages or tensor.storage not in holder:
                count += 1
                holder[tensor.storage] = (count, tensor.size_bytes)
            allocation[id_number] = holder[tensor.storage][0]
    return allocation


def _find(path: Path) -> dict[str, Path] | None:
    folder = path if path.is_dir() else path.parent
    if path.is_dir() or path.name in ("trace.csv", "tensor.csv"):
        files = {"trace": folder / "trace.csv", "tensor": folder / "tensor.csv"}
        if path.is_file() or any(file.exists() for file in files.values()):
            return files
    return None


def _read(files: dict[str, Path], batch: int | None) -> Workload:
    return analyse(read_triosim(files["trace"].parent), batch=batch)


READER = TraceReader("triosim", "trace.csv and tensor.csv in one folder", _find, _read)
