"""Predict transformer operators at another batch size: NeuSight's measurements at two sizes, each from the other.

Run: python benchmarks/transformer_prediction.py FOLDER [--kinds]
FOLDER: ``op_labels`` of NeuSight's data (Lee et al., ASPLOS 2025; github.com/sitar-lab/NeuSight, MIT), one folder per
GPU with files ``model-mode-sequence-batch.csv[.gz]``: one row per operator of a torch.fx graph, latencies in ms.
Each time includes about 6 to 9 us of launch, also for operators that touch no data.
"""

from __future__ import annotations

import argparse
import ast
import csv
import gzip
import io
import math
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from batch_prediction import TOTAL, predict, table

from trine.graph.workload import BACKWARD, FORWARD, Operator, Tensor, Workload

MODULES = {"Linear": "linear", "Conv1D": "linear", "LayerNorm": "layer_norm", "Embedding": "embedding"}
GRADIENTS = {"linear": "Addmm", "matmul": "Bmm", "bmm": "Bmm", "layer_norm": "NativeLayerNorm"}
FUNCTIONS = {"truediv": "div", "getitem": "slice"}
AUTOGRAD = "autograd::engine::evaluate_function: "


class Reader:
    """Reader of one file as a workload; the first dimension scales if it is a multiple of the batch."""

    def __init__(self, path: Path, batch: int) -> None:
        self.batch = batch
        self.tensors: dict[int, Tensor] = {}
        self.operators: list[Operator] = []
        text = gzip.decompress(path.read_bytes()).decode() if path.suffix == ".gz" else path.read_text()
        for row in csv.DictReader(io.StringIO(text)):
            self._read(row)
        self.workload = Workload(
            name=f"{path.parent.name} {path.name.split('.')[0]}", source=str(path), format="neusight", gpu=None,
            batch=batch, operators=tuple(self.operators), tensors=self.tensors, parameters=(),
        )  # fmt: skip

    def _read(self, row: dict[str, str]) -> None:
        forward_ms = float(row["fw_latency"] or 0)
        shapes = [s for s in ast.literal_eval(row["input_shapes"] or "[]") if s and isinstance(s[0], int)]
        output = ast.literal_eval(row["output_shape"] or "()")
        if forward_ms <= 0 or not shapes or not output or not isinstance(output[0], int):
            return
        name = _name(row)
        inputs = [self._tensor(shape, "activation") for shape in shapes]
        if name == "linear":
            inputs = [inputs[0], self._tensor((output[-1], shapes[0][-1]), "weight")]
        made = self._tensor(output, "activation")
        forward = self._operator(f"aten::{name}", FORWARD, inputs, [made], forward_ms, row["Name"], None)
        backward_ms = float(row["bw_latency"] or 0)
        if backward_ms > 0:
            gradient = GRADIENTS.get(name, name.title().replace("_", "")) + "Backward0"
            self._operator(
                AUTOGRAD + gradient, BACKWARD, [made, *inputs], inputs[:1], backward_ms, row["Name"], forward
            )

    def _tensor(self, shape: tuple[int, ...], role: str) -> int:
        number, scales = len(self.tensors) + 1, role != "weight" and len(shape) > 1 and shape[0] % self.batch == 0
        self.tensors[number] = Tensor(
            id=number, shape=tuple(shape), dtype="float32", size_bytes=4 * math.prod(shape), storage=number, role=role,
            batch_dims=(0,) if scales else (),
        )  # fmt: skip
        return number

    def _operator(
        self,
        name: str,
        phase: str,
        inputs: list[int],
        outputs: list[int],
        time_ms: float,
        layer: str,
        forward: int | None,
    ) -> int:
        number = len(self.operators) + 1
        op = Operator(
            id=number, name=name, phase=phase, inputs=tuple(inputs), outputs=tuple(outputs), layer=layer,
            gpu_time_ps=round(time_ms * 1e9), forward_id=forward,
        )  # fmt: skip
        self.operators.append(op)
        return number


def _name(row: dict[str, str]) -> str:
    """Return the operator's PyTorch name: the class name of a module, or the name of a function or method."""
    if row["op"] == "call_module":
        module = re.findall(r"<class '[\w.]*?(\w+)'>", row["meta"])[-1]
        return MODULES.get(module, module.lower())
    found = re.match(r"<(?:built-in )?(?:function|method) (\w+)", row["target"])
    name = found[1] if found else row["target"]
    return FUNCTIONS.get(name, name)


def pairs(folder: Path) -> Iterator[tuple[Workload, Workload]]:
    """Yield pairs of workloads of one model, mode and GPU at two batch sizes."""
    found: dict[tuple[str, ...], list[tuple[int, Path]]] = defaultdict(list)
    for path in sorted(folder.glob("*/*.csv*")):
        *what, batch = path.name.split(".")[0].split("-")
        found[(path.parent.name, *what)].append((int(batch), path))
    for _, files in sorted(found.items()):
        for (small, first), (large, second) in zip(sorted(files), sorted(files)[1:], strict=False):
            yield Reader(first, small).workload, Reader(second, large).workload


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--kinds", action="store_true", help="a table per operator kind for each prediction")
    arguments = parser.parse_args()
    errors, plain = defaultdict(list), defaultdict(list)
    print(f"{'from':<52}{'to':>4}{'measured ms':>13}{'predicted ms':>14}{'error %':>9}{'plain %':>9}")
    for small, large in pairs(arguments.folder):
        for source, target in ((small, large), (large, small)):
            rows = predict(source, target)
            row, gpu = rows[TOTAL], source.name.split()[0]
            errors[gpu].append(abs(row.error))
            plain[gpu].append(abs(row.plain_error))
            print(
                f"{source.name:<52}{target.batch:>4}{row.recorded_ps / 1e9:>13.2f}{row.predicted_ps / 1e9:>14.2f}"
                f"{100 * row.error:>+9.2f}{100 * row.plain_error:>+9.2f}"
            )
            if arguments.kinds:
                print(table(rows))
    for gpu, values in sorted(errors.items()):
        for name, found in (("trine", values), ("plain scaling", plain[gpu])):
            print(f"{gpu}, {name}: mean error {sum(found) / len(found):.2%}, worst {max(found):.2%}")


if __name__ == "__main__":
    main()
