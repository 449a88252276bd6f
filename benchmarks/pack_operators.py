"""Write src/trine/presets/operators/ from public tables of operator times (listed in SOURCE.md there).

    python benchmarks/pack_operators.py DATA
    python benchmarks/pack_operators.py in-step

DATA holds the folders ``aiconfigurator``, ``vidur``, ``neusight`` and ``simumax`` as published. The first command
needs pandas and pyarrow, which trine does not. The second needs trine: it extends in_step.npz by the ratios of times
in steps to times in the written tables. Times are stored as integers, 1000 x ln(microseconds), to 0.05 %;
NONE marks shapes of the grid without a measurement. Files hold plain arrays without pickles.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import numpy as np

try:
    import pandas as pd
except ImportError:  # the second command does not need it
    pd = None

NONE = -32768
#: Fewest features per row for norms and softmax, as in transformers; kernels are slower on shorter rows.
MIN_ROW = 2048
#: aiconfigurator's folder -> trine's GPU name, version of the framework that ran it.
GPUS = {
    "a100_sxm": ("a100-80gb", "1.0.0"), "h100_sxm": ("h100-sxm", "1.3.0rc20"), "h200_sxm": ("h200", "1.3.0rc20"),
    "b300_sxm": ("b300", "1.3.0rc20"), "gb300": ("gb300", "1.3.0rc20"), "l40s": ("l40s", "1.3.0rc20"),
    "rtx_pro_6000_server": ("rtx-pro-6000", "1.3.0rc20"),
}  # fmt: skip
DTYPES = {"bfloat16": "bfloat16", "fp8": "float8", "nvfp4": "float4"}
ATTENTION = ["head_dim", "window_size", "num_heads", "num_key_value_heads", "batch_size", "isl"]
#: vidur's and NeuSight's GPU names -> trine's, peak memory bandwidth in GB/s (data sheets).
BANDWIDTH = {
    "a100": ("a100-80gb", 2039), "h100": ("h100-sxm", 3352), "a40": ("a40", 696),
    "NVIDIA A100-PCIE-40GB": ("a100-pcie-40gb", 1555), "Tesla V100-PCIE-32GB": ("v100-pcie", 900),
    "Tesla P100-PCIE-16GB": ("p100-pcie", 732), "Tesla T4": ("t4", 320),
}  # fmt: skip


def logarithm(milliseconds: np.ndarray) -> np.ndarray:
    """Convert milliseconds to 1000 x ln(microseconds)."""
    return np.rint(1000 * np.log(np.asarray(milliseconds, float) * 1e3)).astype(np.int16)


def gemm(table: pd.DataFrame) -> dict[str, np.ndarray]:
    """Return one array over (m, n, k) per dtype, with medians of repeated shapes."""
    found = {}
    for name, dtype in DTYPES.items():
        rows = table[table.gemm_dtype == name]
        if rows.empty:
            continue
        rows = rows.groupby(["m", "n", "k"]).latency.median().reset_index()
        axes = [np.unique(rows[a]) for a in "mnk"]
        grid = np.full([len(a) for a in axes], NONE, np.int16)
        at = [np.searchsorted(axis, rows[a]) for axis, a in zip(axes, "mnk", strict=True)]
        grid[tuple(at)] = logarithm(rows.latency)
        found[f"gemm_{dtype}"] = grid
        for axis, a in zip(axes, "mnk", strict=True):
            found[f"gemm_{dtype}_{a}"] = axis.astype(np.int32)
    return found


def attention(table: pd.DataFrame) -> dict[str, np.ndarray]:
    """Return rows (head_size, window, heads, kv_heads, batch, length) and times; GEMMs and keys in bfloat16."""
    rows = table[(table.attn_dtype == "bfloat16") & (table.kv_cache_dtype == "bfloat16")]
    rows = rows.groupby(ATTENTION).latency.median().reset_index().sort_values(ATTENTION)
    return {"attention": rows[ATTENTION].to_numpy().astype(np.int16), "attention_time": logarithm(rows.latency)}


def memory(data: Path) -> dict[str, np.ndarray]:
    """Return curves GPU/KIND: rows of (log2 of MB moved, share of the memory bandwidth), medians per octave."""
    rows = pd.concat([_scaled(data / "aiconfigurator"), *_vidur(data / "vidur"), *_neusight(data / "neusight")])
    rows["octave"] = np.floor(np.log2(rows.bytes / 1e6))
    found = {}
    for (gpu, kind), group in rows.groupby(["gpu", "kind"]):
        octaves = group.groupby("octave").agg(share=("share", "median"), n=("share", "size"))
        octaves = octaves[octaves.n >= 10]
        found[f"{gpu}/{kind}"] = np.column_stack([octaves.index + 0.5, octaves.share]).astype(np.float32)
    return found


def _scaled(folder: Path):
    """Return the H100's rows: bfloat16 read, scaled, written as fp8. vidur's additions profit more from the cache."""
    table = pd.read_parquet(folder / "h100_sxm" / "trtllm_1.3.0rc20_scale_matrix_perf.parquet")
    gpu, bandwidth = BANDWIDTH["h100"]
    num_bytes = 3.0 * table.m * table.k
    share = num_bytes / (table.latency * 1e-3) / (bandwidth * 1e9)
    return pd.DataFrame({"gpu": gpu, "kind": "elementwise", "bytes": num_bytes, "share": share})


def _vidur(folder: Path):
    for path in sorted(folder.glob("*__mlp.csv.gz")):
        table = pd.read_csv(path)
        gpu, bandwidth = BANDWIDTH[path.name.split("__")[0]]
        if gpu == "h100-sxm":
            continue
        width = table.num_tokens * table.n_embd
        moved = {"add": ("elementwise", 6 * width)}
        for operator, (kind, num_bytes) in moved.items():
            column = f"time_stats.{operator}.median"
            if column not in table:
                continue
            rows = pd.DataFrame({"gpu": gpu, "kind": kind, "bytes": num_bytes, "ms": table[column]}).dropna()
            rows = rows[rows.ms > 0]
            yield rows.assign(share=rows.bytes / (rows.ms * 1e-3) / (bandwidth * 1e9))


def _neusight(folder: Path):
    tensors = {"add": ("elementwise", 3), "ln": ("norm", 2), "softmax": ("softmax", 2)}
    for name in ("elem", "ln", "softmax"):
        table = pd.read_csv(folder / f"nv_train_{name}.csv.gz")
        for operator, (kind, count) in tensors.items():
            least = 1 if kind == "elementwise" else MIN_ROW
            for device, (gpu, bandwidth) in BANDWIDTH.items():
                rows = table[(table.OPName == operator) & (table.Device.str.strip() == device) & (least <= table.H)]
                num_bytes = 4.0 * count * rows.B * rows.H
                share = num_bytes / (rows.Latency * 1e-3) / (bandwidth * 1e9)
                yield pd.DataFrame({"gpu": gpu, "kind": kind, "bytes": num_bytes, "share": share})


#: SimuMax: GEMM layout -> index among a linear layer's three GEMMs.
LAYOUTS = {"TN": 0, "NN": 1, "NT": 2}
STAGES = {"fwd": 0, "bwd_grad_act": 1, "bwd_grad_w": 2}


def in_step(folder: Path) -> dict[str, np.ndarray]:
    """Return GPU/gemm: (product, m, n, k), GPU/grouped: (product, groups, m, n, k), GPU/attention: (batch, length,
    heads, kv_heads, head size of q, of v, backward), each row followed by 10,000 x the share of the peak."""
    found = {}
    for name, gpu in (("b200_bf16_ceperm", "b200"), ("a100_pcie", "a100-pcie-80gb")):
        table = json.loads((folder / f"{name}.json").read_text())["accelerator"]["op"]
        found |= _in_step_of(gpu, table)
    return found


def _numbers(text: str, names: list[str]) -> list[int]:
    return [int(re.search(rf"(?:^|[ ,]){name}=(\d+)", text)[1]) for name in names]


def _in_step_of(gpu: str, table: dict) -> dict[str, np.ndarray]:
    rows: dict[str, list[list[int]]] = {"gemm": [], "grouped": [], "attention": []}
    for text, share in table["matmul"]["accurate_efficient_factor"].items():
        if not text.startswith("b=1,"):
            continue
        product = LAYOUTS[re.search(r"layout=(\w+)", text)[1]]
        rows["gemm"].append([product, *_numbers(text, ["m", "n", "k"]), round(share * 1e4)])
    for text, share in table["group_matmul"]["accurate_efficient_factor"].items():
        product = STAGES[re.search(r"stage=(\w+)", text)[1]]
        rows["grouped"].append([product, *_numbers(text, ["ng", "M", "N", "K"]), round(share * 1e4)])
    shapes = ["batch", "seq_len", "head_num", "kv_head_num", "qk_head_dim", "v_head_dim"]
    for backward, operator in enumerate(("sdp_fwd", "sdp_bwd")):
        for text, share in table[operator]["accurate_efficient_factor"].items():
            if "qkv_contiguous=True" in text:
                rows["attention"].append([*_numbers(text, shapes), backward, round(share * 1e4)])
    return {f"{gpu}/{name}": np.unique(np.array(found, np.int32), axis=0) for name, found in rows.items() if found}


OUT = Path(__file__).parent.parent / "src" / "trine" / "presets" / "operators"


def add_ratios() -> None:
    """Add the ratios of operator times within a step to times of the operator alone."""
    from in_step_ratios import in_step_ratios

    from trine.cluster import load_gpu
    from trine.compute.tables.files import read_arrays
    from trine.compute.tables.in_step import MEASURED_IN_STEP
    from trine.compute.tables.operators import OperatorTables

    arrays = dict(read_arrays("in_step"))
    for gpu in MEASURED_IN_STEP:
        tables = OperatorTables(load_gpu(gpu))
        ratios = in_step_ratios(tables.gpu, tables.products_us, tables.attention_kernels_us)
        arrays |= {name: found.astype(np.float32) for name, found in ratios.items()}
    np.savez_compressed(OUT / "in_step.npz", **arrays)


def main() -> None:
    if sys.argv[1] == "in-step":
        add_ratios()
        return
    data, out = Path(sys.argv[1]), OUT
    for folder, (gpu, version) in GPUS.items():
        source = data / "aiconfigurator" / folder
        arrays = gemm(pd.read_parquet(source / f"trtllm_{version}_gemm_perf.parquet"))
        path = source / f"trtllm_{version}_context_attention_perf.parquet"
        if path.exists():
            arrays |= attention(pd.read_parquet(path))
        np.savez_compressed(out / f"{gpu}.npz", **arrays)
    np.savez_compressed(out / "memory.npz", **memory(data))
    np.savez_compressed(out / "in_step.npz", **in_step(data / "simumax"))
    for path in sorted(out.glob("*.npz")):
        print(f"{path.stat().st_size:9d} {path}")


if __name__ == "__main__":
    main()
