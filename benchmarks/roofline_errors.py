"""How far the roofline (trine.compute.Roofline) is from measurements, over all cases, worst first.

Run: python benchmarks/roofline_errors.py FOLDER [--worst N]
FOLDER holds ``ops/aiconfigurator`` (NVIDIA aiconfigurator, Apache-2.0: kernels of inference, parquet), ``ops/neusight``
(Lee et al., ASPLOS 2025, MIT: whole models in float32) and ``training.csv`` (published training steps, sources in its
rows). Needs pyarrow. Nothing here is fitted: the shares are the defaults. Printed: docs/background/roofline.md.
"""

from __future__ import annotations

import argparse
import csv
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from trine.cluster import load_gpu
from trine.compute import Roofline, Shares, Split
from trine.graph.workload import BACKWARD, FORWARD, OPTIMIZER, SYNTHESISED, Operator, Tensor, Workload
from trine.workload.synthesis.model import with_roofline_times
from trine.workload.synthesis.spec import Transformer
from trine.workload.synthesis.transformer import transformer

KERNELS = {
    "a100-80gb": ("a100_sxm", "trtllm_1.0.0"),
    "h100-sxm": ("h100_sxm", "trtllm_1.3.0rc20"),
    "h200": ("h200_sxm", "trtllm_1.3.0rc20"),
    "l40s": ("l40s", "trtllm_1.3.0rc20"),
}
NEUSIGHT_GPUS = {
    "NVIDIA_A100-PCIE-40GB": "a100-40gb", "NVIDIA_A100_80GB_PCIe": "a100-80gb", "Tesla_V100-PCIE-32GB": "v100",
    "Tesla_T4": "t4",
}  # fmt: skip
NEUSIGHT_MODELS = {"gpt2_large": (36, 1280, 20, 1024), "gpt3_xl": (24, 3072, 24, 2048), "gpt3_27": (32, 2560, 32, 2048)}
TRAINING_GPUS = {"A100 (single 8-GPU node)": "a100-80gb", "a100_80gb": "a100-80gb", "h100_80gb": "h100-sxm"}


@dataclass(frozen=True)
class Case:
    group: str
    name: str
    measured_s: float
    predicted_s: float

    @property
    def error(self) -> float:
        return self.predicted_s / self.measured_s - 1


def one_operator(name: str, inputs: list[tuple[int, ...]], output: tuple[int, ...], **attributes: object) -> Workload:
    """Build a workload of one bfloat16 operator."""
    shapes = [*inputs, output]
    tensors = {
        i: Tensor(id=i, shape=shape, dtype="bfloat16", size_bytes=2 * _elements(shape), storage=i, role="activation")
        for i, shape in enumerate(shapes)
    }
    ids = tuple(range(len(inputs)))
    operator = Operator(
        id=1, name=name, phase=FORWARD, inputs=ids, outputs=(len(inputs),), gpu_time_ps=0, attributes=attributes
    )
    return Workload(
        name=name, source="", format=SYNTHESISED, gpu=None, batch=1, operators=(operator,), tensors=tensors,
        parameters=(),
    )  # fmt: skip


def _elements(shape: tuple[int, ...]) -> int:
    count = 1
    for size in shape:
        count *= size
    return count


def predicted_s(workload: Workload, gpu: str) -> float:
    model = Roofline(workload, load_gpu(gpu), Shares())
    return model.duration(workload.operators[0], Split(1)).ps / 1e12


def kernels(folder: Path) -> Iterator[Case]:
    """Matrix products and causal attention of a prompt in bfloat16."""
    import pyarrow.parquet as parquet

    for gpu, (place, version) in KERNELS.items():
        base = folder / "ops" / "aiconfigurator" / place
        rows = parquet.read_table(base / f"{version}_gemm_perf.parquet").to_pylist()
        for row in rows:
            if row["gemm_dtype"] == "bfloat16":
                m, n, k = (int(row[name]) for name in ("m", "n", "k"))
                work = one_operator("aten::linear", [(m, k), (n, k)], (m, n))
                yield Case(f"{gpu} product", f"{m} x {n} x {k}", row["latency"] / 1e3, predicted_s(work, gpu))
        rows = parquet.read_table(base / f"{version}_context_attention_perf.parquet").to_pylist()
        for row in rows:
            if row["attn_dtype"] == row["kv_cache_dtype"] == "bfloat16" and not row["window_size"]:
                yield _attention(gpu, row)


def _attention(gpu: str, row: dict[str, object]) -> Case:
    names = ("batch_size", "num_heads", "num_key_value_heads", "isl", "head_dim")
    batch, heads, kv, length, size = (int(str(row[name])) for name in names)
    q, k = (batch, heads, length, size), (batch, kv, length, size)
    work = one_operator("scaled_dot_product_flash_attention", [q, k, k], q, causal=True)
    name = f"batch {batch}, {length} tokens, {heads} heads ({kv}) of {size}"
    return Case(f"{gpu} attention", name, float(str(row["latency"])) / 1e3, predicted_s(work, gpu))


def gpt(layers: int, hidden: int, heads: int, ffn: int, vocab: int, positions: int | None) -> Transformer:
    return Transformer(
        name="gpt", layers=layers, hidden=hidden, heads=heads, kv_heads=heads, head_size=hidden // heads, ffn=ffn,
        vocab=vocab, sequence=0, norm="layer", activation="gelu", biases="all", max_positions=positions,
        tied_embeddings=True,
    )  # fmt: skip


def phases_s(spec: Transformer, gpu: str, batch: int, sequence: int, dtype: str) -> dict[str, float]:
    """Seconds of each phase."""
    graph = transformer(spec, batch=batch, sequence=sequence, layers=spec.layers, dtype=dtype)
    untimed = Workload(
        name="", source="", format=SYNTHESISED, gpu=None, batch=batch, operators=tuple(graph.operators),
        tensors=graph.tensors, parameters=graph.parameters(),
    )  # fmt: skip
    timed = with_roofline_times(untimed, load_gpu(gpu), Shares())
    found: dict[str, float] = defaultdict(float)
    for op in timed.operators:
        found[op.phase] += op.gpu_time_ps / 1e12
    return found


def models(folder: Path) -> Iterator[Case]:
    """NeuSight's GPT models, float32, in eager PyTorch, whose attention is not fused."""
    with (folder / "ops" / "neusight" / "e2e_labels.csv").open() as file:
        for row in csv.DictReader(file):
            gpu = NEUSIGHT_GPUS.get(row["gpu"])
            shape = NEUSIGHT_MODELS.get(row["model"])
            if gpu is None or shape is None or row["variant"] or float(row["fw_latency_ms"]) == 0:
                continue
            layers, hidden, heads, positions = shape
            spec = gpt(layers, hidden, heads, 4 * hidden, 50257, positions)
            times = phases_s(spec, gpu, int(row["batch"]), int(row["seq_len"]), "float32")
            name = f"{row['gpu']} {row['case']}"
            yield Case("float32 model forward", name, float(row["fw_latency_ms"]) / 1e3, times[FORWARD])
            if float(row["bwall_latency_ms"]):
                yield Case("float32 model backward", name, float(row["bwall_latency_ms"]) / 1e3, times[BACKWARD])


def training(folder: Path) -> Iterator[Case]:
    """Yield steps of one node without tensor or pipeline parallelism: compute alone against the measured step."""
    with (folder / "training.csv").open() as file:
        for row in csv.DictReader(file):
            gpu, group = (
                TRAINING_GPUS.get(row["gpu"]),
                "MPT" if row["model"].startswith("MPT") else "Megatron-DeepSpeed",
            )
            sixteen = row["precision"].startswith(("amp_bf16", "fp16"))
            plain = row["TP"] == row["PP"] == "1" and row["gpus"].isdigit() and int(row["gpus"]) <= 8
            if gpu is None or not sixteen or not plain or not row["micro_batch"] or not row["layers"]:
                continue
            numbers = {key: int(row[key]) for key in ("layers", "hidden", "heads", "ffn_hidden", "vocab", "seq_len")}
            gpus, micro, total = int(row["gpus"]), int(row["micro_batch"]), int(row["global_batch"])
            per_gpu = total / gpus
            measured = float(row["iteration_s"] or 0) or per_gpu * numbers["seq_len"] / float(
                row["tokens_per_s_per_gpu"]
            )
            positions = None if group == "MPT" else numbers["seq_len"]
            spec = gpt(numbers["layers"], numbers["hidden"], numbers["heads"], numbers["ffn_hidden"], numbers["vocab"],
                       positions)  # fmt: skip
            times = phases_s(spec, gpu, micro, numbers["seq_len"], "bfloat16")
            again = times[FORWARD] if row["recompute"].startswith("full") else 0.0
            # FSDP divides the optimizer over the GPUs; data parallelism without it does not.
            step = times[OPTIMIZER] / (gpus if group == "MPT" else 1)
            predicted = per_gpu / micro * (times[FORWARD] + times[BACKWARD] + again) + step
            shape = f"{numbers['layers']} x {numbers['hidden']}, {numbers['seq_len']} tokens, micro-batch {micro}"
            name = f"{row['model']} {shape}"
            yield Case(f"{gpu} step, {group}", name, measured, predicted)


def show(cases: list[Case], worst: int) -> None:
    groups: dict[str, list[Case]] = defaultdict(list)
    for case in cases:
        groups[case.group].append(case)
        if case.group.endswith(("product", "attention")):
            size = "below 20 us" if case.measured_s < 20e-6 else "20 to 200 us" if case.measured_s < 200e-6 else "above"
            groups[f"{case.group}, {size}"].append(case)
    print(f"{'group':42} {'cases':>7} {'median':>8} {'typical':>8} {'10 % beyond':>12} {'worst':>8}")
    for name in sorted(groups):
        errors = sorted(case.error for case in groups[name])
        sizes = sorted(abs(error) for error in errors)
        at = [sizes[len(sizes) // 2], sizes[int(len(sizes) * 0.9)], max(errors, key=abs)]
        median = errors[len(errors) // 2]
        print(f"{name:42} {len(errors):7} {median:+8.1%} {at[0]:8.1%} {at[1]:12.1%} {at[2]:+8.1%}")
    for name in sorted(groups):
        if "us" in name or name.endswith("above"):
            continue
        print(f"\nworst of {name}")
        for case in sorted(groups[name], key=lambda c: -abs(c.error))[:worst]:
            print(f"  {case.error:+8.1%}  measured {case.measured_s * 1e6:12.1f} us  {case.name}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--worst", type=int, default=5)
    arguments = parser.parse_args()
    show([*kernels(arguments.folder), *models(arguments.folder), *training(arguments.folder)], arguments.worst)


if __name__ == "__main__":
    main()
