"""Operator times from measurements of the GPU itself, or of its nearest sibling scaled by data-sheet ratios.

Each time carries its evidence: ``measured`` (this shape, on this GPU), ``interpolated`` (between shapes measured on
it), ``transferred`` (a sibling's measurements) or ``assumed`` (no measured GPU is close to this one). If no table
covers an operator, the result is None and the caller falls back to its roofline.

*Attention* was measured for the forward pass over whole sequences under a causal mask, with and without a sliding
window. Other shapes use a closed form and kriging, as in :mod:`trine.compute.tables.gemm`. *Memory-bound* operators use
measured curves: achieved share of the memory bandwidth over the bytes moved, one median per octave (memory.npz). A GPU
without a curve uses the nearest GPU's, read at the size that GPU's memory moves in the same time. Shares above the
largest size's come from cache hits, which are rare inside a step, so the largest size's share is a cap.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Generic, TypeVar

import numpy as np

from trine.cluster import load_gpu
from trine.cluster.measured_gpu import DEFAULT_KERNEL
from trine.cluster.presets import GpuSpec
from trine.common.arrays import Float64
from trine.common.evidence import ASSUMED, INTERPOLATED, MEASURED, MODELLED, TRANSFERRED
from trine.common.precision import BY_NAME, CASTS
from trine.compute.power_curve import PowerCurve, clock_of_run, curve_of, has_tensor_clocks, power_curves
from trine.compute.tables.attention import AttentionTable, load_attention
from trine.compute.tables.attention_kernels import kernel_share, most_of_peak, mxfp8_speedup
from trine.compute.tables.files import TableTime, known_tables, read_arrays
from trine.compute.tables.gemm import GemmTable, load_gemm
from trine.compute.tables.in_step import LAUNCH_US, ONE_KERNEL, WEIGHT_PRODUCT, InStep, in_step_source, load_in_step
from trine.compute.tables.machine import (
    POWER_LIMITED,
    Machine,
    generation_of,
    is_foreign,
    peak_of,
    runs,
    siblings_of,
    sustained_ratio,
)
from trine.compute.tables.measured_file import FileTables, file_tables

ELEMENTWISE = "elementwise"
#: Operator family (trine.compute.kinds) -> curve. All other families use the elementwise curve.
_MEMORY_CURVES = {"layer_norm": "norm", "group_norm": "norm", "softmax": "softmax", "loss": "softmax"}
#: Generation -> GPUs whose curves are used, nearest first. The only curves of the A100 PCIe are NeuSight's.
_MEMORY_SOURCES = {
    "ampere": ("a100-80gb", "a100-pcie-40gb"), "hopper": ("h100-sxm", "a100-pcie-40gb"),
    "blackwell": ("h100-sxm", "a100-pcie-40gb"), "volta": ("v100-pcie",), "pascal": ("p100-pcie",), "turing": ("t4",),
    "ampere-gddr": ("a40", "a100-pcie-40gb"), "ada": ("a40", "a100-pcie-40gb"),
    "blackwell-gddr": ("a40", "a100-pcie-40gb"),
}  # fmt: skip
_DEFAULT = ("a100-80gb", "a100-pcie-40gb")
#: SimuMax, b200_bf16_ceperm.json: share of 8 TB/s that memory-bound operators reach inside steps on B200.
_MEMORY_IN_STEP = {"blackwell": 0.666}
#: Lower bound of every time, microseconds: the shortest kernel in the measurements.
FLOOR_US = 2.0
#: Upper bound of every share. Higher shares come from the cache; HBM reaches about 0.92 of its peak in copies.
_MEMORY_CAP = 0.92


def memory_curve_of(family: str) -> str:
    """Return the name of the curve for an operator family."""
    return _MEMORY_CURVES.get(family, ELEMENTWISE)


def memory_sources(gpu: str, curve: str) -> tuple[str, ...]:
    """Return the GPUs that have the curve, nearest to ``gpu`` first."""
    candidates = (gpu, *_MEMORY_SOURCES.get(generation_of(gpu), ()), *_DEFAULT)
    return tuple(name for name in candidates if f"{name}/{curve}" in read_arrays("memory"))


class MemoryTable:
    """Achieved shares of one GPU's memory bandwidth."""

    def __init__(self, gpu: GpuSpec) -> None:
        self._gpu = gpu
        self._curves: dict[str, tuple[str, Float64, Float64, float]] = {}

    def source(self, family: str) -> str:
        """Return the GPU whose curve is used for an operator family."""
        return self._curve(memory_curve_of(family))[0]

    def time_us(self, num_bytes: float, family: str) -> float:
        """Return the microseconds to move ``num_bytes``."""
        if num_bytes <= 0:
            return 0.0
        curve = memory_curve_of(family)
        _, octaves, shares, bandwidth = self._curve(curve)
        rate = float(self._gpu.memory_bytes_per_s)
        first = 2.0 ** float(octaves[0]) * 1e6 * rate / bandwidth
        if num_bytes < first and curve != ELEMENTWISE:  # below the curve: follow the elementwise one
            grown = self.time_us(num_bytes, ELEMENTWISE) / self.time_us(first, ELEMENTWISE)
            return max(FLOOR_US, grown * self.time_us(first, family))
        alike = math.log2(max(num_bytes, first) * bandwidth / rate / 1e6)
        share = float(np.interp(alike, octaves, shares))
        return max(FLOOR_US, float(max(num_bytes, first) * 1e6 / (rate * share)))

    def _curve(self, name: str) -> tuple[str, Float64, Float64, float]:
        curve = self._curves.get(name)
        if curve is None:
            curve = self._curves[name] = self._load(name)
        return curve

    def _load(self, name: str) -> tuple[str, Float64, Float64, float]:
        measured = file_tables(self._gpu.name)
        curve = None if measured is None else measured.memory_curve(name)
        if curve is not None:
            source, (octaves, shares), bandwidth = self._gpu.name, curve, float(self._gpu.memory_bytes_per_s)
        else:
            source, octaves, shares, bandwidth = _read_curve(memory_sources(self._gpu.name, name)[0], name)
        limit = _MEMORY_IN_STEP.get(generation_of(self._gpu.name), _MEMORY_CAP)
        return source, octaves, np.minimum(shares, min(float(shares[-1]), limit)), bandwidth


@lru_cache(maxsize=64)
def _read_curve(gpu: str, name: str) -> tuple[str, Float64, Float64, float]:
    rows = np.asarray(read_arrays("memory")[f"{gpu}/{name}"], dtype=float)
    return gpu, rows[:, 0], rows[:, 1], float(load_gpu(gpu).memory_bytes_per_s)


#: Bytes that the tables' calls move for each element of the input before an FP8 or FP4 GEMM: two passes read 16 bits,
#: one writes. Share of the memory's peak and start-up time: least squares over the 147 FP8 products of
#: tests/data/h100/products.csv, which have no quantisation (measured / rest: median 1.01, quartiles 0.95 and 1.06).
QUANTISED = {name: precision.quantised_bytes or 0.0 for name, precision in CASTS.items()}
QUANTISED_SHARE, QUANTISED_START_US = 0.70, 3.6
#: Highest share of the peak that a GEMM reaches: 8,192 cubed in FP8 with zeros, tests/data/h100/power.csv.
HIGHEST_SHARE = 0.78
#: Queries per thread block of an attention kernel.
_BLOCK = 128
#: Blocks per compute unit at which attention fills a GPU.
_FULL = 64.0
#: Tokens of a sequence so short that only the fixed time per prompt counts; share of the bandwidth that a pass over
#: tokens reaches; kernel start-up time in microseconds.
_SHORT, _PASS_SHARE, _START_US = 16.0, 0.85, 3.0


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """Self-attention: queries (batch, heads, length, size), keys (batch, kv_heads, length, size); window 0: none."""

    batch: int
    heads: int
    kv_heads: int
    length: int
    size: int
    causal: bool = True
    window: int = 0

    def flops(self, *, backward: bool) -> float:
        """Return the FLOPs of unmasked scores; backward 2.5 x forward (recomputed scores, four gradients)."""
        pairs = self.length**2 / 2 if self.causal else self.length**2
        if 0 < self.window < self.length:
            pairs = self.length * self.window - self.window * (self.window - 1) / 2
        return (10.0 if backward else 4.0) * self.batch * self.heads * self.size * pairs

    @property
    def unmasked(self) -> float:
        """Number of score blocks relative to a causal mask; 1 if the mask is causal."""
        blocks = math.ceil(self.length / _BLOCK)
        return 1.0 if self.causal else 2 * blocks / (blocks + 1)

    @property
    def row(self) -> tuple[int, ...]:
        """The shape as a row of the tables."""
        return self.size, self.window, self.heads, self.kv_heads, self.batch, self.length


_Table = TypeVar("_Table", GemmTable, AttentionTable)


@dataclass(frozen=True)
class _Found(Generic[_Table]):
    """A table, the machine to predict for, the GPU that was measured, and the evidence."""

    table: _Table
    machine: Machine
    source: str
    evidence: str


class OperatorTables:
    """Times of operators on one GPU, alone and inside a step. Methods return None instead of raising."""

    def __init__(self, gpu: GpuSpec) -> None:
        self.gpu = gpu
        self.memory_table = MemoryTable(gpu)
        self._file = file_tables(gpu.name)
        self._products: dict[str, _Found[GemmTable] | None] = {}
        self._known: dict[tuple[object, ...], float] = {}

    # Products ---------------------------------------------------------------------------------------------------

    def gemm(self, m: int, n: int, k: int, dtype: str = "bfloat16") -> TableTime | None:
        """Return the time of (m, k) x (k, n) alone, in bfloat16 or float16, float8 or float4."""
        if not runs(self.gpu, dtype):
            return None
        entry = self._product_table("bfloat16" if dtype == "float16" else dtype)
        if entry is None:
            return None
        if entry.source == self.gpu.name:
            measured_us = entry.table.measured(m, n, k)
            if measured_us is not None:
                return TableTime(measured_us, MEASURED, entry.source)
        evidence = self._evidence_at(entry, "gemm", dtype, (m, n, k))
        return TableTime(self._alone_us(entry, m, n, k), evidence, entry.source)

    def gemm_in_step(
        self, m: int, n: int, k: int, dtype: str, product: int, groups: int = 1, *, one_kernel: bool = False
    ) -> TableTime | None:
        """Return the time of a linear layer's GEMM inside a step; with ``groups`` experts, the time of all of them.

        product: 0 the output (m tokens, n outputs); 1 the input gradient (m tokens, n inputs); 2 the weight gradient
        (m outputs, n inputs, k tokens), accumulated in float32. Pass 1 for a weight gradient that is not accumulated.
        one_kernel: one kernel computes the GEMMs of all experts (:data:`ONE_KERNEL`), instead of one for each.
        On GPUs with known clocks (``tensor`` in presets/power_curves.yaml) this is the time at the table's clock, and
        :mod:`trine.compute.clock` scales it to the clock of the step.
        """
        base = self.gemm(m, n, k, dtype)
        if base is None:
            return None
        work = max(0.0, base.us - LAUNCH_US)
        if dtype in QUANTISED and not self._is_of_file(base.source):
            work = self._without_quantisation(work, (m, n, k), dtype, base.source)
            work = min(work, self._most_of_a_cast_product(m, n, k, dtype, base.source))
        if self._curve is not None:
            work *= self._to_one_clock(work, base.source, dtype)
        if dtype in QUANTISED:
            work = max(work, 2e6 * m * n * k / (HIGHEST_SHARE * peak_of(self.gpu, dtype)))
        if self._curve is not None:
            slower = self._in_step.accumulation if product == WEIGHT_PRODUCT else 1.0
            if groups > 1:
                slower = groups * self._in_step.groups[product] / self._in_step.product(product)
        elif groups > 1:
            slower = groups * (ONE_KERNEL if one_kernel else self._in_step.groups)[product]
        else:
            slower = self._in_step.product(product, (m, n, k) if self._in_step.gpu == self.gpu.name else None)
            slower /= self._same_chip
        us = LAUNCH_US + work * slower
        return TableTime(us, INTERPOLATED if base.evidence == MEASURED else base.evidence, base.source)

    def _is_of_file(self, source: str) -> bool:
        """Return whether a time comes from the GPU's own file, which holds single kernels."""
        return self._file is not None and source == self.gpu.name

    def _evidence_at(self, entry: _Found[_Table], kind: str, dtype: str, shape: tuple[int, ...]) -> str:
        """Return the evidence of an estimate; ``modelled`` for a shape far beyond all measured shapes of a GPU file."""
        if self._file is not None and entry.source == self.gpu.name:
            return entry.evidence if self._file.reaches(kind, dtype, shape) else MODELLED
        return entry.evidence

    def _without_quantisation(self, work_us: float, shape: tuple[int, int, int], dtype: str, source: str) -> float:
        """Return the time of a GEMM alone: the tables' FP8 and FP4 calls first quantise their 16-bit input.

        A pass finds the maximum, and another one casts. The caller limits the result to HIGHEST_SHARE of the peak.
        """
        m, _, k = shape
        machine = load_gpu(source)
        cast_us = QUANTISED[dtype] * m * k / (QUANTISED_SHARE * machine.memory_bytes_per_s) * 1e6 + QUANTISED_START_US
        scale = 1.0 if source == self.gpu.name else machine.memory_bytes_per_s / self.gpu.memory_bytes_per_s
        return max(work_us - cast_us * scale, 0.0)

    def _most_of_a_cast_product(self, m: int, n: int, k: int, dtype: str, source: str) -> float:
        """Return the longest work of an FP8 or FP4 GEMM, microseconds: that in bfloat16, on Hopper less the savings.

        These are the roofline's: both kernels have the same tiles, so what a GEMM takes beyond its roofline is no
        longer in FP8. The tables' FP8 calls cannot show that for short GEMMs, whose casts take as long as they do.
        Measured on an H100 (tests/unit/compute/test_fp8_products.py). Blackwell's kernels also read scales of blocks,
        and gain less: 1.33 times in MXFP8 on GB200 (marin-community/marin issue 7282).

        ``source``: the GPU of the FP8 times; infinity if the ones in bfloat16 are another's.
        """
        in_16_bits = self.gemm(m, n, k, "bfloat16")
        if in_16_bits is None or in_16_bits.source != source:
            return math.inf
        work = in_16_bits.us - LAUNCH_US
        if generation_of(self.gpu.name) == "hopper":
            work -= max(0.0, self._roofline_us(m, n, k, "bfloat16") - self._roofline_us(m, n, k, dtype))
        return max(0.0, work)

    def _roofline_us(self, m: int, n: int, k: int, dtype: str) -> float:
        """Return the least microseconds of (m, k) x (k, n) with a result in 16 bits, by the data sheet."""
        operands = float(BY_NAME[dtype].bytes) * (m * k + k * n)
        moved_s = (operands + BY_NAME[dtype].result_bytes * m * n) / self.gpu.memory_bytes_per_s
        return 1e6 * max(2.0 * m * n * k / peak_of(self.gpu, dtype), moved_s)

    @cached_property
    def _curve(self) -> PowerCurve | None:
        """The power curve of a GPU whose tables have a known clock, or None."""
        return curve_of(self.gpu) if has_tensor_clocks(self.gpu) else None

    def _to_one_clock(self, work_us: float, source: str, dtype: str) -> float:
        """Return the factor from a table's time to the time at ``table``: long GEMMs were measured at less."""
        curve = power_curves().get(source)
        precision = dtype if dtype == "float8" else "bfloat16"
        if curve is None or curve.tensor is None:
            return 1.0
        return clock_of_run(curve, precision, work_us * 1e-6) / curve.tensor.table[precision]

    def product_source(self) -> str | None:
        """Return the GPU whose 16-bit GEMMs are used, or None."""
        entry = self._product_table("bfloat16")
        return None if entry is None else entry.source

    def _alone_us(self, entry: _Found[GemmTable], m: int, n: int, k: int) -> float:
        key = entry.table.dtype, m, n, k
        if key not in self._known:
            shape = np.array([[m, n, k]], dtype=float)
            self._known[key] = float(entry.table.estimate_us(shape, entry.machine)[0])
        return self._known[key]

    def _product_table(self, dtype: str) -> _Found[GemmTable] | None:
        if dtype not in self._products:
            in_file = None if self._file is None else self._file.gemm(dtype, Machine.of(self.gpu, dtype))
            self._products[dtype] = self._find(in_file, load_gemm, dtype, dtype)
        return self._products[dtype]

    def _find(self, in_file, load, dtype: str, *args: str):  # type: ignore[no-untyped-def]
        """Return the GPU's own table, else its nearest sibling's with a machine scaled by the data sheets.

        in_file: the table of the GPU's file, None without one.
        """
        if peak_of(self.gpu, dtype) <= 0:
            return None
        if in_file is not None:
            return _Found(in_file, Machine.of(self.gpu, dtype), self.gpu.name, INTERPOLATED)
        for name in (self.gpu.name, *siblings_of(self.gpu.name)):
            if name not in known_tables():
                continue
            spec = self.gpu if name == self.gpu.name else load_gpu(name)
            table = load(name, *args, Machine.of(spec, dtype))
            if table is None:
                continue
            if name == self.gpu.name:
                return _Found(table, Machine.of(spec, dtype), name, INTERPOLATED)
            machine = Machine.of(self.gpu, dtype, sustained_ratio(self.gpu, spec, dtype), name)
            return _Found(table, machine, name, ASSUMED if is_foreign(self.gpu.name) else TRANSFERRED)
        return None

    # Inside a step ----------------------------------------------------------------------------------------------

    @cached_property
    def _in_step(self) -> InStep:
        return load_in_step(in_step_source(self.gpu.name))

    @cached_property
    def _same_chip(self) -> float:
        """Correction for the power limit between two cards of one chip, if the chip runs at its top clock.

        The A100 PCIe card was measured only inside steps, the A100 module only alone. The module is assumed to reach
        the same share of its peak inside a step as the card.
        """
        measured = self._in_step.gpu
        if measured == self.gpu.name or generation_of(self.gpu.name) in POWER_LIMITED:
            return 1.0
        if generation_of(measured) != generation_of(self.gpu.name):
            return 1.0
        return sustained_ratio(load_gpu(measured), self.gpu, "bfloat16")

    def products_us(self, shapes: Float64, dtype: str = "bfloat16") -> Float64:
        """Return microseconds of GEMMs alone; ``shapes``: (rows, 3) of m, n, k. See :meth:`has_products`."""
        entry = self._product_table(dtype)
        assert entry is not None
        return entry.table.estimate_us(shapes, entry.machine)

    def has_products(self, dtype: str) -> bool:
        """Return whether GEMMs of the dtype were measured on this GPU or a sibling."""
        return runs(self.gpu, dtype) and self._product_table(dtype) is not None

    def attentions_us(self, shapes: Float64) -> Float64:
        """Return microseconds of attention alone; ``shapes``: (rows, 6) as for :func:`attention_us`."""
        entry = self._attention_table
        assert entry is not None
        return entry.table.estimate_us(shapes, entry.machine)

    # Attention --------------------------------------------------------------------------------------------------

    @cached_property
    def _attention_table(self) -> _Found[AttentionTable] | None:
        in_file = None if self._file is None else self._file.attention(Machine.of(self.gpu, "bfloat16"))
        return self._find(in_file, load_attention, "bfloat16")  # type: ignore[no-any-return]

    def attention(self, shape: AttentionShape) -> TableTime | None:
        """Return forward attention's time alone, by the measured kernel; without a mask, scaled by the extra blocks."""
        entry = self._attention_table
        if entry is None:
            return None
        key = shape.row
        measured_us = entry.table.measured(key) if entry.source == self.gpu.name else None
        if measured_us is not None:
            return TableTime(measured_us * shape.unmasked, MEASURED if shape.causal else INTERPOLATED, entry.source)
        sizes = (shape.batch, shape.heads, shape.kv_heads, shape.length, shape.size)
        evidence = self._evidence_at(entry, "attention", "bfloat16", sizes)
        return TableTime(self._attention_us(entry, key) * shape.unmasked, evidence, entry.source)

    def _attention_us(self, entry: _Found[AttentionTable], row: tuple[int, ...]) -> float:
        if row not in self._known:
            self._known[row] = float(entry.table.estimate_us(np.array([row], dtype=float), entry.machine)[0])
        return self._known[row]

    def attention_kernels_us(self, shapes: Float64) -> Float64:
        """Return microseconds of the attention kernel alone for (rows, 6) shapes, less the rest of the measured call.

        The measured call comes from an inference server. Besides the kernel it has a fixed time per prompt, which
        sequences of 16 tokens reveal, and it rotates queries and keys and writes the cache: one more pass over queries,
        keys and values, which training runs as separate operators. The kernel is never faster than its memory traffic.
        """
        size, _, heads, kv_heads, batch, length = shapes.T
        short = shapes.copy()
        short[:, 5] = np.minimum(length, _SHORT)
        tokens = 2.0 * batch * length * size
        least = tokens * (2 * heads + 2 * kv_heads) / (self.gpu.memory_bytes_per_s * _PASS_SHARE) * 1e6 + _START_US
        turned = 2 * tokens * (heads + 2 * kv_heads) / (self.gpu.memory_bytes_per_s * _PASS_SHARE) * 1e6
        return np.asarray(np.maximum(self.attentions_us(shapes) - self.attentions_us(short) - turned, least))

    def attention_in_step(
        self, shape: AttentionShape, *, backward: bool, kernel: str = "", is_mxfp8: bool = False
    ) -> TableTime | None:
        """Return attention's time inside a step with ``kernel`` (names: :func:`kernel_share`).

        is_mxfp8: in MXFP8 instead of 16 bits, without the casts (:func:`mxfp8_speedup`).
        """
        if is_mxfp8:
            in_16_bits = self.attention_in_step(
                replace(shape, window=0) if backward else shape, backward=backward, kernel=kernel
            )
            if in_16_bits is None:
                return None
            return replace(in_16_bits, us=in_16_bits.us / mxfp8_speedup(self.gpu.name, shape.size, backward=backward))
        base = self.attention(shape)
        if base is None:
            return None
        if self._file is not None and self._is_of_file(base.source):
            return self._attention_of_file(self._file, base, shape, backward, kernel)
        blocks = shape.batch * shape.heads * math.ceil(shape.length / _BLOCK) / self.gpu.num_compute_units
        generation = generation_of(self.gpu.name)
        if generation == "hopper":  # neither GPU measured in steps ran Hopper's kernels: use a full GPU's ratio only
            slower, ratio = 1.0, self._in_step.attention(_FULL)[1]
        else:
            slower, ratio = self._in_step.attention(blocks)
        kernel_us = float(self.attention_kernels_us(np.array([shape.row], dtype=float))[0]) * shape.unmasked
        us = kernel_us * slower * (ratio if backward else 1.0) / kernel_share(generation, kernel, backward=backward)
        limit = most_of_peak(generation, kernel, backward=backward) * peak_of(self.gpu, "bfloat16")
        us = max(us, 1e6 * shape.flops(backward=backward) / limit)
        return TableTime(us, INTERPOLATED if base.evidence == MEASURED else base.evidence, base.source)

    def _attention_of_file(
        self, file: FileTables, forward: TableTime, shape: AttentionShape, backward: bool, kernel: str
    ) -> TableTime:
        """Return attention's time by the GPU's own file, which holds kernels of PyTorch without a server's call."""
        generation, us = generation_of(self.gpu.name), forward.us
        if backward:
            table = self._backward_table
            if table is None:
                us *= self._in_step.attention(_FULL)[1]
            else:
                us = table.measured(shape.row) or float(table.estimate_us(np.array([shape.row], dtype=float))[0])
                us *= shape.unmasked
        measured_kernel = file.gpu.content.attention_kernel
        if kernel and measured_kernel != DEFAULT_KERNEL:
            us *= kernel_share(generation, measured_kernel, backward=backward)
            us /= kernel_share(generation, kernel, backward=backward)
        return TableTime(us, forward.evidence, forward.source)

    @cached_property
    def _backward_table(self) -> AttentionTable | None:
        """Backward attention of the GPU's file."""
        if self._file is None:
            return None
        return self._file.attention(Machine.of(self.gpu, "bfloat16"), "attention_backward")

    # Memory -----------------------------------------------------------------------------------------------------

    def memory(self, num_bytes: float, family: str) -> TableTime:
        """Return the time of a memory-bound operator of a family (trine.compute.kinds)."""
        source = self.memory_table.source(family)
        if source == self.gpu.name:
            evidence = INTERPOLATED
        else:
            evidence = ASSUMED if is_foreign(self.gpu.name) else TRANSFERRED
        return TableTime(self.memory_table.time_us(num_bytes, family), evidence, source)
