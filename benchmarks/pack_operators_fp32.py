"""Pack operator times into presets/operators: NeuSight's (float32) and DeepBench's tables, and bundled traces.

    python benchmarks/pack_operators_fp32.py NEUSIGHT DEEPBENCH

NEUSIGHT: folder with ``nv_train_*.csv.gz`` and ``amd_*.csv.gz`` (https://github.com/sitar-lab/NeuSight; MIT).
DEEPBENCH: folder with ``DeepBench_NV_{V100,P100,T4}.xlsx`` (https://github.com/baidu-research/DeepBench, results/train;
Apache-2.0). Each folder holds LICENSE.

A time t is stored as 1 + round(2000 ln(t / 1 us)), to 0.025 %; 0 means no measurement. 16-bit numbers are split into
two byte planes, which compress better. Rows are sorted by shape.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import re
import shutil
import zipfile
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
from fp32_coding import coded, planes

from trine.compute import Split, kind_of
from trine.compute.cost import Sizing, is_gradient
from trine.compute.kinds import family_of
from trine.compute.tables.convolutions import BOTH, FORWARD, MIN_CHANNELS, WEIGHT
from trine.compute.tables.fp32_files import DEEPBENCH, ELEMENTWISE, NEUSIGHT, TRACES
from trine.compute.tables.fp32_times import convolution_of
from trine.workload.readers import load_bundled

OPERATORS = Path(__file__).resolve().parents[1] / "src/trine/presets/operators"
GPUS = {
    "Tesla V100-PCIE-32GB": "v100-pcie", "Tesla P100-PCIE-16GB": "p100-pcie", "Tesla T4": "t4",
    "NVIDIA A100-PCIE-40GB": "a100-pcie-40gb", "NVIDIA A100 80GB PCIe": "a100-pcie-40gb",
    "AMD Instinct MI210": "mi210", "AMD Instinct MI100": "mi100",
}  # fmt: skip
#: NeuSight operator -> columns of its shape. NeuSight's GEMMs are (M x N) (N x K), as its kernels' grids show; trine's
#: tables use (m x k) (k x n).
COLUMNS = {
    "bmm": ("B", "M", "K", "N"),
    "linear": ("M", "K", "N"),
    "conv": ("B", "Input_Channel", "Output_Channel", "Kernel_Szie", "Input_Size", "Stride", "Padding"),
    "ln": ("B", "H"),
    "softmax": ("B", "H"),
}
NAMES = {"ln": "layer_norm"}
BENCH = {"V100": "v100", "P100": "p100-pcie", "T4": "t4"}
#: Float32 traces; their convolutions ran in TF32.
BUNDLED, TRACED_ON = ("vgg13-h100-b128", "resnet50-h100-b128"), "h100-sxm"
PASSES = ("Forward (msec)", "wrt Inputs (msec)", "wrt Parameters (msec)")

Shape = tuple[int, ...]
#: table -> shape -> GPU -> all measured times in us
Found = dict[str, dict[Shape, dict[str, list[float]]]]


def main() -> None:
    """Write the three files and their licences."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("neusight", type=Path)
    parser.add_argument("deepbench", type=Path)
    given = parser.parse_args()
    write(NEUSIGHT, tuple(dict.fromkeys(GPUS.values())), neusight(given.neusight))
    shutil.copyfile(given.neusight / "LICENSE", NEUSIGHT.parent / "LICENSE")
    write(DEEPBENCH, tuple(BENCH.values()), deepbench(given.deepbench))
    shutil.copyfile(given.deepbench / "LICENSE", DEEPBENCH.parent / "LICENSE")
    write(TRACES, (TRACED_ON,), traces())
    shutil.copyfile(OPERATORS.parent / "traces" / BUNDLED[0] / "LICENSE.triosim", TRACES.parent / "LICENSE")


def neusight(folder: Path) -> Found:
    """Return every NeuSight row on a GPU that trine knows."""
    found: Found = {}
    for path in sorted([*folder.glob("nv_train_*.csv.gz"), *folder.glob("amd_*.csv.gz")]):
        if path.name.endswith("_vec.csv.gz"):  # a copy of the others
            continue
        with gzip.open(path, "rt", encoding="utf-8", newline="") as file:
            for row in csv.DictReader(file):
                gpu, name = GPUS.get(row["Device"]), row["OPName"]
                if gpu is None or not float(row["Latency"]) > 0:
                    continue
                add(found, *key_of(row, name), gpu, float(row["Latency"]) * 1e3)
    return found


def key_of(row: dict[str, str], name: str) -> tuple[str, Shape]:
    """Return the table and the shape of a row."""
    if name in ELEMENTWISE:
        return "elementwise", (ELEMENTWISE.index(name), int(row["B"]), int(row["H"]))
    return NAMES.get(name, name), tuple(int(float(row[column])) for column in COLUMNS[name])


def add(found: Found, table: str, shape: Shape, gpu: str, us: float) -> None:
    """Add one measurement in us."""
    found.setdefault(table, {}).setdefault(shape, {}).setdefault(gpu, []).append(us)


def deepbench(folder: Path) -> Found:
    """Return GEMMs and convolutions in float32, or float16 with float32 sums; P100's 'Psuedo FP16' lacks those sums."""
    found: Found = {}
    for file, gpu in BENCH.items():
        with zipfile.ZipFile(folder / f"DeepBench_NV_{file}.xlsx") as book:
            for number, dtype in ((1, 0), (2, 1)):
                if (gpu, dtype) != ("p100-pcie", 1):
                    read_sheet(found, sheet(book, number), gpu, dtype)
    return found


def traces() -> Found:
    """Return the bundled traces' convolutions: forward, both gradients, or (first layer) the weight gradient alone."""
    found: Found = {}
    for name in BUNDLED:
        workload = load_bundled(name, None)
        sizing = Sizing(workload)
        for op in workload.operators:
            sizes = sizing.sizes(op, Split(workload.batch))
            layer = convolution_of(sizes) if family_of(kind_of(op)) == "conv" else None
            if layer is None:
                continue
            direction = FORWARD
            if is_gradient(sizes):
                direction = BOTH if layer.channels >= MIN_CHANNELS else WEIGHT
            shape = (2, direction, layer.size[1], layer.size[0], layer.channels, layer.batch, layer.out)
            ends = [pair[::-1] for pair in (layer.filter, layer.padding, layer.stride)]
            add(found, "conv", (*shape, *(n for pair in ends for n in pair)), TRACED_ON, op.gpu_time_ps / 1e6)
    return found


def read_sheet(found: Found, rows: Iterator[dict[str, str]], gpu: str, dtype: int) -> None:
    """Add GEMMs (dtype, m, n, k, transposed a, b); convolutions (dtype, pass, w, h, c, n, k, filter, pad, stride)."""
    columns: dict[str, str] = {}
    for row in rows:
        if any(text.startswith(("Recurrent", "All-Reduce", "Sparse")) for text in row.values()):
            columns = {}
        elif "Forward (msec)" in row.values() or {"M", "N", "K"} <= set(row.values()):
            columns = {text.strip(): letter for letter, text in row.items()}
            columns = {
                n.removesuffix(" (Filter width)").removesuffix(" (Filter height)"): x for n, x in columns.items()
            }
            continue
        value = {name: row.get(letter, "") for name, letter in columns.items()}
        if is_number(value.get("Time (msec)", "")) and is_number(value.get("M", "")):
            transposed = [int(value[f"{side} Transpose"].strip().upper() == "T") for side in "AB"]
            shape = (dtype, *(int(float(value[name])) for name in "MNK"), *transposed)
            add(found, "gemm", shape, gpu, float(value["Time (msec)"]) * 1e3)
        if is_number(value.get("W", "")) and is_number(value.get("R", "")):
            names = ("W", "H", "C", "N", "K", "S", "R", "pad_w", "pad_h", "Horizontal stride", "Vertical stride")
            sizes = tuple(int(float(value[name])) for name in names)
            for index, name in enumerate(PASSES):
                if is_number(value[name]) and float(value[name]) > 0:
                    add(found, "conv", (dtype, index, *sizes), gpu, float(value[name]) * 1e3)


def is_number(text: str) -> bool:
    """Return True if a cell holds a number."""
    return re.fullmatch(r"[0-9.]+(E-?[0-9]+)?", text.strip()) is not None


def sheet(book: zipfile.ZipFile, number: int) -> Iterator[dict[str, str]]:
    """Yield the rows of a sheet: column -> text."""
    space = {"": "http://schemas.openxmlformats.org/spreadsheetml/2006/main"}
    shared = [
        "".join(t.text or "" for t in item.iterfind(".//t", space))
        for item in ElementTree.fromstring(book.read("xl/sharedStrings.xml")).iterfind("si", space)
    ]
    for row in ElementTree.fromstring(book.read(f"xl/worksheets/sheet{number}.xml")).iterfind(".//row", space):
        cells = {}
        for cell in row.iterfind("c", space):
            value = cell.find("v", space)
            if value is not None and value.text is not None:
                text = shared[int(value.text)] if cell.get("t") == "s" else value.text
                cells[re.sub(r"\d", "", cell.get("r", ""))] = text
        yield cells


def write(path: Path, gpus: tuple[str, ...], found: Found) -> None:
    """Write one array of shapes and one of coded medians per table."""
    arrays = {"gpus": np.array(gpus)}
    for table, rows in sorted(found.items()):
        shapes = sorted(rows)
        times = np.array([[np.median(rows[s].get(gpu, [0.0])) for s in shapes] for gpu in gpus])
        arrays[f"{table}.shapes"] = planes(
            np.array(shapes, np.uint16 if max(map(max, shapes)) < 65536 else np.uint32).T
        )
        arrays[f"{table}.times"] = planes(coded(times))
        print(f"{path.name}: {table}: {len(shapes)} shapes, {(times > 0).sum(1)} times of {gpus}")
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(path, **arrays)
    print(f"{path}: {path.stat().st_size} bytes")


if __name__ == "__main__":
    main()
