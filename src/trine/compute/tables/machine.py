"""What of a GPU the forms below look at, and which GPUs' measurements stand in for those of another.

Dynamic power grows as clock x voltage^2 and the voltage about with the clock (Mudge, Power: a first-class architectural
design constraint, IEEE Computer 34(4), 2001), so a chip at its power limit runs at a clock that goes with the cube root
of the watts it has for each of its peak FLOP/s. Chips since Hopper sit at that limit in large products of 16 bits;
older ones mostly at their top clock, so that the law is used within a generation and between those that have it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from trine.cluster.presets import GpuSpec

#: Generations whose large products run at the power limit.
POWER_LIMITED = frozenset({"hopper", "blackwell"})
#: Which GPUs are of which generation, those with GDDR memory by themselves.
GENERATIONS = {
    "pascal": ("p100", "p100-pcie"),
    "volta": ("v100", "v100-pcie"),
    "turing": ("t4",),
    "ampere": ("a100-40gb", "a100-80gb", "a100-pcie-40gb", "a100-pcie-80gb", "a800-sxm"),
    "ampere-gddr": ("a40", "rtx3090"),
    "ada": ("l40s", "rtx4090"),
    "hopper": ("h100-sxm", "h100-sxm-96gb", "h100-pcie", "h800-sxm", "h200", "gh200", "h20"),
    "blackwell": ("b200", "gb200", "b300", "gb300"),
    "blackwell-gddr": ("rtx-pro-6000", "gb10"),
    "cdna": ("mi100", "mi210", "mi250x"),
    "cdna3": ("mi300x", "mi325x"),
    "cdna4": ("mi350x", "mi355x"),
}
_GENERATION = {gpu: name for name, gpus in GENERATIONS.items() for gpu in gpus}
#: GPUs without measurements of their own -> whose are used, nearest first (the first that has the operator and dtype).
_SIBLINGS = {
    "a100-40gb": ("a100-80gb",), "a100-pcie-40gb": ("a100-80gb",), "a100-pcie-80gb": ("a100-80gb",),
    "a800-sxm": ("a100-80gb",), "h800-sxm": ("h100-sxm",), "h100-sxm-96gb": ("h100-sxm",),
    "h100-pcie": ("h100-sxm",), "gh200": ("h200", "h100-sxm"),
    "h20": ("h200", "h100-sxm"), "b200": ("b300", "gb300", "h200"), "gb200": ("gb300", "b300", "h200"),
    "b300": ("gb300", "h200"), "gb300": ("b300", "h200"), "h200": ("h100-sxm",), "h100-sxm": ("h200", "a100-80gb"),
    "l40s": ("rtx-pro-6000", "a100-80gb"), "rtx-pro-6000": ("l40s", "a100-80gb"), "gb10": ("rtx-pro-6000", "l40s"),
    "a40": ("rtx-pro-6000", "l40s"), "rtx3090": ("rtx-pro-6000", "l40s"), "rtx4090": ("rtx-pro-6000", "l40s"),
    "v100": ("a100-80gb",), "v100-pcie": ("a100-80gb",), "t4": ("a100-80gb",), "p100": ("a100-80gb",),
    "p100-pcie": ("a100-80gb",), "a100-80gb": ("h100-sxm",),
    "mi100": ("a100-80gb",), "mi210": ("a100-80gb",), "mi250x": ("a100-80gb",), "mi300x": ("h100-sxm",),
    "mi325x": ("h100-sxm",), "mi350x": ("b300", "h200"), "mi355x": ("b300", "h200"),
}  # fmt: skip
#: Share of the peak in large products of 16 bits: medians over m, n >= 1024, k >= 512 of the tables; of MI300X as
#: published (SemiAnalysis, "MI300X vs H100 vs H200 Benchmark Part 1", December 2024: 620 of 1307 TFLOP/s), which
#: stands for MI325X of the same chip; of T4 (70 W) DeepBench's, m, n, k >= 512.
_SUSTAINED = {
    "a100-80gb": 0.809, "h100-sxm": 0.743, "h200": 0.746, "b300": 0.668, "gb300": 0.7, "l40s": 0.558,
    "rtx-pro-6000": 0.731, "mi300x": 0.474, "mi325x": 0.474, "t4": 0.6,
}  # fmt: skip
_PUBLISHED_ALONE = frozenset({"mi300x", "mi325x", "t4"})
#: Cache of GPUs whose measured products found their weights there where these fitted: bytes (AD102 as the L40S has
#: it), and bytes/s of such products of up to 16 rows (95th percentile of the table).
_CACHES = {"l40s": (96 << 20, 2.3e12)}
#: No GPU reaches more of its peak in large products, whatever its power (A100: 0.86 at the 90th percentile).
_MOST = 0.86


def generation_of(gpu: str) -> str:
    """The generation of a GPU; its own name where it is not known."""
    return _GENERATION.get(gpu, gpu)


def siblings_of(gpu: str) -> tuple[str, ...]:
    """GPUs whose measurements may stand in for those of ``gpu``, nearest first; by default the H100's."""
    return _SIBLINGS.get(gpu, ("h100-sxm",))


def is_foreign(gpu: str) -> bool:
    """Whether nothing of the vendor or kind of ``gpu`` was measured: then what others do is no more than assumed."""
    return generation_of(gpu) not in GENERATIONS or generation_of(gpu).startswith("cdna")


#: Mean error of large products of a GPU that was left out: from one of its generation, from another one
#: (left_out.GPUS_LEFT_OUT, rounded up).
_LEFT_OUT = (0.08, 0.14)


def left_out_error(gpu: str, source: str | None) -> float | None:
    """How far large products of ``gpu`` may be off by the measurements of ``source``; None where nobody knows."""
    if source is None or gpu == source or is_foreign(gpu):
        return None
    return _LEFT_OUT[generation_of(gpu) != generation_of(source)]


def sustained_ratio(gpu: GpuSpec, source: GpuSpec, dtype: str) -> float:
    """Share of the peak that ``gpu`` reaches in large products over the share that ``source`` reaches."""
    if gpu.name in _PUBLISHED_ALONE and source.name in _SUSTAINED:
        return _SUSTAINED[gpu.name] / _SUSTAINED[source.name]
    of, other = generation_of(gpu.name), generation_of(source.name)
    if of != other and not {of, other} <= POWER_LIMITED:
        return 1.0
    if not gpu.power_w or not source.power_w:
        return 1.0
    watts = [spec.power_w / peak_of(spec, dtype) for spec in (gpu, source) if spec.power_w]
    most = _MOST / _SUSTAINED.get(source.name, _MOST)
    return min(math.pow(watts[0] / watts[1], 1 / 3), max(most, 1.0))


def peak_of(gpu: GpuSpec, dtype: str) -> float:
    """Peak FLOP/s of tensor cores; bfloat16 stands for 16 bits of either kind; 0 where the GPU has none."""
    rates = gpu.flop_per_s
    if dtype == "float4":
        return float(rates.get("float4", 2 * rates.get("float8", 0)))
    if dtype == "bfloat16" and dtype not in rates:
        return float(rates.get("float16", 0))
    return float(rates.get(dtype, 0))


def runs(gpu: GpuSpec, dtype: str) -> bool:
    """Whether the data sheet has this very dtype."""
    return dtype in gpu.flop_per_s or (dtype == "float4" and peak_of(gpu, dtype) > 0)


@dataclass(frozen=True, slots=True)
class Machine:
    """Rates that the closed forms divide by.

    flop_per_s: sustained by one tile of a large product on all compute units; bytes_per_s: of the memory.
    tiled: products run in tiles that warps compute by themselves (mma; all but Hopper and Blackwell of data centres,
    whose kernels are persistent and share the last wave out). cache_bytes: of the cache that weights were found in,
    cache_bytes_per_s: at this rate; 0: all came from memory.
    """

    flop_per_s: float
    bytes_per_s: float
    units: int
    tiled: bool
    cache_bytes: float = 0.0
    cache_bytes_per_s: float = 0.0

    @staticmethod
    def of(gpu: GpuSpec, dtype: str, ratio: float = 1.0, like: str | None = None) -> Machine:
        """The machine of ``gpu``; ratio: of its sustained share to that of ``like``, whose kernels it runs."""
        tiled = generation_of(like or gpu.name) not in POWER_LIMITED
        rates = peak_of(gpu, dtype) * ratio, float(gpu.memory_bytes_per_s)
        return Machine(*rates, gpu.num_compute_units, tiled, *_CACHES.get(gpu.name, (0.0, 0.0)))
