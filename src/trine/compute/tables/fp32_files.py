"""NeuSight's times by shape in float32, DeepBench's, and times from the bundled traces.

Each .npz file has ``gpus`` (preset names), and for each table ``NAME.shapes`` (columns x rows) and ``NAME.times``
(GPUs x rows), as 16-bit numbers in two byte planes. A time t is stored as 1 + round(2000 ln(t / 1 us)), and a missing
measurement as 0. benchmarks/pack_operators_fp32.py writes the files.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from pathlib import Path

import numpy as np

from trine.common.arrays import Float64, Int64
from trine.compute.tables.files import FOLDER
from trine.errors import SpecError

NEUSIGHT = FOLDER / "neusight" / "operators.npz"
DEEPBENCH = FOLDER / "deepbench" / "operators.npz"
TRACES = FOLDER / "triosim" / "operators.npz"
#: NeuSight's elementwise operators by their number in its table. Operators in BINARY take two tensors, the others
#: one; a final ``u`` marks the one-tensor form.
ELEMENTWISE = ("add", "addu", "div", "divu", "gelu", "mul", "mulu", "pow", "powu", "relu", "tanh")
#: Elementwise operators that read two tensors.
BINARY = ("add", "div", "mul", "pow")
FOLDS = 5
STEPS = 2000.0


@dataclass(frozen=True, slots=True)
class Fp32Rows:
    """One table: ``shapes`` (rows x columns) and times in microseconds by GPU (NaN if not measured)."""

    name: str
    shapes: Int64
    times_us: dict[str, Float64]


def decoded(code: np.ndarray) -> Float64:
    """Return microseconds; NaN if not measured."""
    times_us: Float64 = np.where(code > 0, np.exp((code.astype(np.float64) - 1) / STEPS), np.nan)
    return times_us


def whole(of_bytes: np.ndarray) -> Int64:
    """Return the numbers from their byte planes: (bytes of a number, rows, columns), lowest byte first."""
    numbers = np.zeros(of_bytes.shape[1:], np.int64)
    for place, plane in enumerate(of_bytes):
        numbers += plane.astype(np.int64) << (8 * place)
    return numbers


@cache
def measured(path: Path, table: str) -> Fp32Rows:
    """Return one table of a file. Raises SpecError for an invalid file."""
    try:
        with np.load(path, allow_pickle=False) as file:
            gpus = [str(name) for name in file["gpus"]]
            shapes, times = whole(file[f"{table}.shapes"]), decoded(whole(file[f"{table}.times"]))
    except (OSError, KeyError, ValueError) as error:
        raise SpecError(f"not a table of operator times: {error}", file=path) from None
    columns = np.ascontiguousarray(shapes.T)
    return Fp32Rows(table, columns, {gpu: row for gpu, row in zip(gpus, times, strict=True) if np.isfinite(row).any()})


def shape_text(table: str, shape: tuple[int, ...]) -> str:
    """Return the text whose SHA-256 determines the fold of a shape: ``bmm 13x27x15x29``, ``add 13021x984``."""
    if table == "elementwise":
        table, shape = ELEMENTWISE[shape[0]], shape[1:]
    return f"{table} {'x'.join(map(str, shape))}"


def fold_of(text: str) -> int:
    """Return the SHA-256 of the UTF-8 text, as a number, modulo 5."""
    return int.from_bytes(sha256(text.encode()).digest(), "big") % FOLDS


@cache
def folds(path: Path, table: str) -> Int64:
    """Return the fold of each shape of a table."""
    shapes = measured(path, table).shapes.tolist()
    return np.array([fold_of(shape_text(table, tuple(shape))) for shape in shapes], np.int64)
