"""GPU properties for the closed forms of the operator tables, and the GPUs whose measurements stand in for another's.

Dynamic power grows as clock x voltage^2, and the voltage roughly with the clock (Mudge, Power: a first-class
architectural design constraint, IEEE Computer 34(4), 2001). A chip at its power limit therefore runs at a clock that
grows with the cube root of its watts per peak FLOP/s. Chips since Hopper sit at that limit in large 16-bit GEMMs; older
ones mostly run at their top clock. So the law applies within a generation, and between power-limited generations.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from trine.cluster.measured_gpu import measured_gpu
from trine.cluster.presets import GpuSpec
from trine.common.precision import BY_NAME

#: Generations at the power limit in large GEMMs.
POWER_LIMITED = frozenset({"hopper", "blackwell"})
#: GPUs of each generation; GPUs with GDDR memory form separate generations.
GENERATIONS = {
    "pascal": ("p100", "p100-pcie"),
    "volta": ("v100", "v100-pcie"),
    "turing": ("t4",),
    "ampere": ("a100-40gb", "a100-80gb", "a100-pcie-40gb", "a100-pcie-80gb", "a800-sxm"),
    "ampere-gddr": ("a40", "a10", "a10g", "a6000", "rtx3090"),
    "ada": ("l40s", "l4", "rtx4090"),
    "hopper": ("h100-sxm", "h100-sxm-96gb", "h100-pcie", "h800-sxm", "h200", "gh200", "h20"),
    "blackwell": ("b200", "gb200", "b300", "gb300"),
    "blackwell-gddr": ("rtx-pro-6000", "rtx5090", "gb10"),
    "cdna": ("mi100", "mi210", "mi250x"),
    "cdna3": ("mi300x", "mi325x"),
    "cdna4": ("mi350x", "mi355x"),
}
_GENERATION = {gpu: name for name, gpus in GENERATIONS.items() for gpu in gpus}
#: Generation of a GPU file by its architecture: CUDA's compute capability, or the name of AMD's compiler.
_GENERATION_OF_ARCHITECTURE = {
    "sm_60": "pascal", "sm_70": "volta", "sm_75": "turing", "sm_80": "ampere", "sm_86": "ampere-gddr", "sm_89": "ada",
    "sm_90": "hopper", "sm_100": "blackwell", "sm_103": "blackwell", "sm_120": "blackwell-gddr",
    "sm_121": "blackwell-gddr", "gfx908": "cdna", "gfx90a": "cdna", "gfx942": "cdna3", "gfx950": "cdna4",
}  # fmt: skip
#: Stand-ins for GPUs without their own measurements, nearest first; the first with the operator and dtype is used.
_SIBLINGS = {
    "a100-40gb": ("a100-80gb",), "a100-pcie-40gb": ("a100-80gb",), "a100-pcie-80gb": ("a100-80gb",),
    "a800-sxm": ("a100-80gb",), "h800-sxm": ("h100-sxm",), "h100-sxm-96gb": ("h100-sxm",),
    "h100-pcie": ("h100-sxm",), "gh200": ("h200", "h100-sxm"),
    "h20": ("h200", "h100-sxm"), "b200": ("b300", "gb300", "h200"), "gb200": ("gb300", "b300", "h200"),
    "b300": ("gb300", "h200"), "gb300": ("b300", "h200"), "h200": ("h100-sxm",), "h100-sxm": ("h200", "a100-80gb"),
    "l40s": ("rtx-pro-6000", "a100-80gb"), "rtx-pro-6000": ("l40s", "a100-80gb"), "gb10": ("rtx-pro-6000", "l40s"),
    "a40": ("rtx-pro-6000", "l40s"), "rtx3090": ("rtx-pro-6000", "l40s"), "rtx4090": ("rtx-pro-6000", "l40s"),
    "a10": ("rtx-pro-6000", "l40s"), "a10g": ("rtx-pro-6000", "l40s"), "a6000": ("rtx-pro-6000", "l40s"),
    "l4": ("l40s", "rtx-pro-6000"), "rtx5090": ("rtx-pro-6000", "l40s"),
    "v100": ("a100-80gb",), "v100-pcie": ("a100-80gb",), "t4": ("a100-80gb",), "p100": ("a100-80gb",),
    "p100-pcie": ("a100-80gb",), "a100-80gb": ("h100-sxm",),
    "mi100": ("a100-80gb",), "mi210": ("a100-80gb",), "mi250x": ("a100-80gb",), "mi300x": ("h100-sxm",),
    "mi325x": ("h100-sxm",), "mi350x": ("b300", "h200"), "mi355x": ("b300", "h200"),
}  # fmt: skip
#: Share of the peak in large 16-bit GEMMs: medians over m, n >= 1024, k >= 512 of the tables; for MI300X as published
#: (SemiAnalysis, "MI300X vs H100 vs H200 Benchmark Part 1", December 2024: 620 of 1307 TFLOP/s), also for MI325X with
#: the same chip; for T4 (70 W) DeepBench's, m, n, k >= 512.
_SUSTAINED = {
    "a100-80gb": 0.809, "h100-sxm": 0.743, "h200": 0.746, "b300": 0.668, "gb300": 0.7, "l40s": 0.558,
    "rtx-pro-6000": 0.731, "mi300x": 0.474, "mi325x": 0.474, "t4": 0.6,
}  # fmt: skip
_PUBLISHED_ALONE = frozenset({"mi300x", "mi325x", "t4"})
#: Cache of GPUs whose measured GEMMs read weights from it if they fit: bytes (the L40S's AD102), and bytes/s of such
#: GEMMs with up to 16 rows (95th percentile of the table).
_CACHES = {"l40s": (96 << 20, 2.3e12)}
#: Maximum share of the peak in large GEMMs at any power (A100: 0.86 at the 90th percentile).
_MOST = 0.86


def generation_of(gpu: str) -> str:
    """Return the generation of a GPU, or the GPU's own name if it is unknown."""
    measured = measured_gpu(gpu)
    if measured is None:
        return _GENERATION.get(gpu, gpu)
    content = measured.content
    by_preset = _GENERATION.get(content.preset or "")
    return by_preset or _GENERATION_OF_ARCHITECTURE.get(content.architecture, gpu)


def siblings_of(gpu: str) -> tuple[str, ...]:
    """Return the GPUs whose measurements may stand in for ``gpu``, nearest first; by default the H100.

    The first stand-in for a GPU file is the bundled GPU of the same model, else one of its generation.
    """
    measured = measured_gpu(gpu)
    if measured is None:
        return _SIBLINGS.get(gpu, ("h100-sxm",))
    nearest = measured.content.preset or next(iter(GENERATIONS.get(generation_of(gpu), ())), "h100-sxm")
    return (nearest, *siblings_of(nearest))


def is_foreign(gpu: str) -> bool:
    """Return whether ``gpu`` is of an unmeasured vendor or kind, so that stand-ins are only an assumption."""
    return generation_of(gpu) not in GENERATIONS or generation_of(gpu).startswith("cdna")


#: Mean leave-one-out error of a GPU's large GEMMs: from its own generation, from another one (left_out.GPUS_LEFT_OUT,
#: rounded up).
_LEFT_OUT = (0.08, 0.14)


def left_out_error(gpu: str, source: str | None) -> float | None:
    """Return the expected error of large GEMMs on ``gpu`` by the measurements of ``source``, or None if unknown."""
    if source is None or gpu == source or is_foreign(gpu):
        return None
    return _LEFT_OUT[generation_of(gpu) != generation_of(source)]


def sustained_ratio(gpu: GpuSpec, source: GpuSpec, dtype: str) -> float:
    """Return the peak share of ``gpu`` in large GEMMs relative to ``source``."""
    if gpu.name in _PUBLISHED_ALONE and source.name in _SUSTAINED:
        return _SUSTAINED[gpu.name] / _SUSTAINED[source.name]
    generation, source_generation = generation_of(gpu.name), generation_of(source.name)
    if generation == source_generation == "hopper":
        return 1.0  # short GEMMs run at one clock whatever the limit; the step's clock follows from its power balance
    if generation != source_generation and not {generation, source_generation} <= POWER_LIMITED:
        return 1.0
    if not gpu.power_w or not source.power_w:
        return 1.0
    watts = [spec.power_w / peak_of(spec, dtype) for spec in (gpu, source) if spec.power_w]
    limit = _MOST / _SUSTAINED.get(source.name, _MOST)
    return min(math.pow(watts[0] / watts[1], 1 / 3), max(limit, 1.0))


def peak_of(gpu: GpuSpec, dtype: str) -> float:
    """Return peak FLOP/s of the tensor cores, 0 if unsupported; bfloat16 stands for both 16-bit types."""
    rates = gpu.flop_per_s
    precision = BY_NAME.get(dtype)
    if precision is not None and precision.peak_from is not None:
        name, factor = precision.peak_from
        return float(rates.get(dtype, factor * rates.get(name, 0)))
    if dtype == "bfloat16" and dtype not in rates:
        return float(rates.get("float16", 0))
    return float(rates.get(dtype, 0))


def runs(gpu: GpuSpec, dtype: str) -> bool:
    """Return whether the data sheet lists this exact dtype."""
    has_substitute = dtype in BY_NAME and BY_NAME[dtype].peak_from is not None
    return dtype in gpu.flop_per_s or (has_substitute and peak_of(gpu, dtype) > 0)


@dataclass(frozen=True, slots=True)
class Machine:
    """Rates in the closed forms.

    flop_per_s: sustained by one tile of a large GEMM on all compute units; bytes_per_s: of the memory. tiled: warps
    compute GEMM tiles independently (mma; everything but data-centre Hopper and Blackwell, whose persistent kernels
    even out the last wave). cache_bytes, cache_bytes_per_s: size and rate of the cache that held the weights; 0 if all
    came from memory.
    """

    flop_per_s: float
    bytes_per_s: float
    units: int
    tiled: bool
    cache_bytes: float = 0.0
    cache_bytes_per_s: float = 0.0

    @staticmethod
    def of(gpu: GpuSpec, dtype: str, ratio: float = 1.0, source: str | None = None) -> Machine:
        """Return the machine of ``gpu``; ratio: its sustained share relative to ``source``, whose kernels it runs."""
        tiled = generation_of(source or gpu.name) not in POWER_LIMITED
        rates = peak_of(gpu, dtype) * ratio, float(gpu.memory_bytes_per_s)
        return Machine(*rates, gpu.num_compute_units, tiled, *_CACHES.get(gpu.name, (0.0, 0.0)))
