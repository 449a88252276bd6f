"""Write src/trine/presets/operators/serving/ from aiconfigurator's public kernel tables (SOURCE.md there).

    python benchmarks/pack_serving.py FOLDER [FOLDER ...]

Each folder holds one folder per GPU with its tables (``h100_sxm/trtllm_1.3.0rc20_moe_perf.parquet``). The script needs
pandas and pyarrow, which trine does not. Times are integers, 1000 x ln(microseconds); NONE marks missing measurements.

Arrays of one GPU, with the engine's name E and the precision P in their names:

    generation/E/P/H/G   median of a decode attention over (octave of the KV cache's kilobytes, octave of sequences x
                         KV heads); P: of the KV cache, H: head size, G: queries per key (1, 4: two to eight, 16: more)
    context/E/P/H        median of a causal prefill attention over octaves of its mega-FLOPs
    latent_generation/E/P, latent_context/E/P   over (heads, batch, length), with the axes in .../axes
    experts/E/P          over (configuration, tokens); configurations in .../rows: hidden, ffn, top_k, experts, ways of
                         tensor parallelism, ways of expert parallelism; tokens in .../tokens
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pandas as pd

NONE = -32768
TARGET = Path(__file__).resolve().parents[1] / "src/trine/presets/operators/serving"
GPUS = {"a100_sxm": "a100-80gb", "h100_sxm": "h100-sxm", "h200_sxm": "h200", "b300_sxm": "b300", "l40s": "l40s"}
PRECISIONS = {"bfloat16": "bf16", "fp8": "fp8"}
OCTAVES, ITEM_OCTAVES, FLOP_OCTAVES = 24, 18, 32
ROWS = ["hidden_size", "inter_size", "topk", "num_experts", "moe_tp_size", "moe_ep_size"]
EXPERTS = {
    "bfloat16": "bf16", "fp8": "fp8", "fp8_block": "fp8-block", "nvfp4": "nvfp4", "w4a16_mxfp4": "mxfp4",
    "w4a8_mxfp4_mxfp8": "mxfp8", "int4_wo": "int4",
}  # fmt: skip
#: Kernels that are left out on a GPU. FlashInfer's CUTLASS kernel for FP8 with a scale per tensor takes 1.7 to 3.4
#: times the engine's own 16-bit kernel on Hopper in every shape: it ran without the engine's tuning at start.
LEFT_OUT = {"h100_sxm": "vllm_modeloptfp8moe_flashinfer_cutlass", "h200_sxm": "vllm_modeloptfp8moe_flashinfer_cutlass"}
#: Share of the experts' loads that aiconfigurator's text calls typical: a power law with exponent 1.01.
LOADS = "power_law_1.01"


def logarithm(milliseconds: pd.Series | np.ndarray) -> np.ndarray:
    """Convert milliseconds to 1000 x ln(microseconds)."""
    return np.rint(1000 * np.log(np.asarray(milliseconds, float) * 1e3)).astype(np.int16)


def generation(table: pd.DataFrame, engine: str) -> dict[str, np.ndarray]:
    """Return medians of decode attention over octaves of kilobytes read, and of sequences x KV heads."""
    rows = table[(table.window_size == 0) & table.kv_cache_dtype.isin(PRECISIONS)].copy()
    item = rows.kv_cache_dtype.map({"bfloat16": 2, "fp8": 1})
    items = rows.batch_size * rows.num_key_value_heads
    rows["octave"] = np.rint(np.log2(2.0 * items * (rows.step + 1) * rows.head_dim * item / 1024)).astype(int)
    rows["items"] = np.rint(np.log2(items)).astype(int)
    group = rows.num_heads // rows.num_key_value_heads
    rows["group"] = np.where(group == 1, 1, np.where(group <= 8, 4, 16))
    found = {}
    for (kv, head, group), part in rows.groupby(["kv_cache_dtype", "head_dim", "group"]):
        grid = np.full((OCTAVES, ITEM_OCTAVES), NONE, np.int16)
        for (octave, items), cell in part.groupby(["octave", "items"]):
            if 0 <= octave < OCTAVES and items < ITEM_OCTAVES:
                grid[octave, items] = logarithm([cell.latency.median()])[0]
        found[f"generation/{engine}/{PRECISIONS[kv]}/{head}/{group}"] = grid
    return found


def context(table: pd.DataFrame, engine: str) -> dict[str, np.ndarray]:
    """Return medians of causal prefill attention over octaves of mega-FLOPs."""
    rows = table[(table.window_size == 0) & (table.isl >= 128) & table.attn_dtype.isin(PRECISIONS)].copy()
    flops = 2.0 * rows.batch_size * rows.num_heads * rows.head_dim * rows.isl.astype(float) ** 2
    rows["octave"] = np.rint(np.log2(flops / 1e6)).astype(int)
    found = {}
    for (kind, head), part in rows.groupby(["attn_dtype", "head_dim"]):
        grid = np.full(FLOP_OCTAVES, NONE, np.int16)
        for octave, cell in part.groupby("octave"):
            if 0 <= octave < FLOP_OCTAVES:
                scaled = cell.latency.median()
                grid[octave] = logarithm([scaled])[0]
        found[f"context/{engine}/{PRECISIONS[kind]}/{head}"] = grid
    return found


def latent(table: pd.DataFrame, engine: str, length: str, name: str) -> dict[str, np.ndarray]:
    """Return latent attention over (heads, batch, length)."""
    found = {}
    for kv, part in table.groupby("kv_cache_dtype"):
        if kv not in PRECISIONS:
            continue
        part = part.groupby(["num_heads", "batch_size", length]).latency.median().reset_index()
        axes = [np.unique(part[a]) for a in ("num_heads", "batch_size", length)]
        grid = np.full([len(a) for a in axes], NONE, np.int16)
        at = [np.searchsorted(axis, part[a]) for axis, a in zip(axes, ("num_heads", "batch_size", length), strict=True)]
        grid[tuple(at)] = logarithm(part.latency)
        key = f"{name}/{engine}/{PRECISIONS[kv]}"
        found[key] = grid
        for axis, label in zip(axes, ("heads", "batch", "length"), strict=True):
            found[f"{key}/{label}"] = axis.astype(np.int32) + (1 if label == "length" and length == "step" else 0)
    return found


def experts(table: pd.DataFrame, engine: str) -> dict[str, np.ndarray]:
    """Return grouped GEMMs of experts over (configuration, tokens)."""
    found = {}
    rows = table[(table.distribution == LOADS) & ~table.kernel_source.str.contains("nongated")]
    for kind, part in rows.groupby("moe_dtype"):
        if kind not in EXPERTS:
            continue
        part = part.groupby([*ROWS, "num_tokens"]).latency.min().unstack()  # the engine picks its fastest kernel
        key = f"experts/{engine}/{EXPERTS[kind]}"
        times = part.to_numpy()
        grid = np.full(times.shape, NONE, np.int16)
        known = ~np.isnan(times)
        grid[known] = logarithm(times[known])
        found[key] = grid
        found[f"{key}/rows"] = np.array(part.index.to_list(), np.int32)
        found[f"{key}/tokens"] = part.columns.to_numpy().astype(np.int32)
    return found


def of_gpu(folders: list[Path], name: str) -> dict[str, np.ndarray]:
    """Return all arrays of one GPU."""
    found: dict[str, np.ndarray] = {}
    for path in sorted(file for folder in folders for file in (folder / name).glob("*.parquet")):
        engine, table = path.name.split("_")[0], path.name.split("_", 2)[2].removesuffix("_perf.parquet")
        if table not in ("generation_attention", "context_attention", "generation_mla", "context_mla", "moe"):
            continue
        rows = pd.read_parquet(path)
        if table == "generation_attention":
            found |= generation(rows, engine)
        elif table == "context_attention":
            found |= context(rows, engine)
        elif table == "moe":
            if name in LEFT_OUT:
                rows = rows[~rows.kernel_source.str.startswith(LEFT_OUT[name])]
            found |= experts(rows, engine) if not path.name.startswith("trtllm_1.3.0rc23") else {}
        elif engine != "vllm":  # vLLM's tables of latent attention contain 140 us of CPU launches
            length = "step" if table == "generation_mla" else "isl"
            found |= latent(rows, engine, length, f"latent_{table.removesuffix('_mla')}")
    return found


def main(folders: list[str]) -> None:
    """Write one file per GPU."""
    TARGET.mkdir(exist_ok=True)
    for name, gpu in GPUS.items():
        arrays = of_gpu([Path(folder) for folder in folders], name)
        np.savez_compressed(TARGET / f"{gpu}.npz", **arrays)
        print(gpu, len(arrays), (TARGET / f"{gpu}.npz").stat().st_size)


if __name__ == "__main__":
    main(sys.argv[1:])
