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
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Generic, TypeVar

import numpy as np

from trine.cluster import load_gpu
from trine.cluster.presets import GpuSpec
from trine.common.arrays import Bool, Float64, Int64
from trine.common.evidence import ASSUMED, INTERPOLATED, MEASURED, TRANSFERRED
from trine.compute.power_curve import PowerCurve, clock_of_run, curve_of, has_tensor_clocks, power_curves
from trine.compute.tables.files import TableTime, known_tables, log_us, read_arrays
from trine.compute.tables.gemm import (
    LAUNCH_US,
    WEIGHT_PRODUCT,
    GemmTable,
    InStep,
    in_step_source,
    load_gemm,
    load_in_step,
)
from trine.compute.tables.kriging import in_chunks, kriged, nearest_few
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

#: Correlation length of the residuals along each coordinate: head size / 64, window (none, long or short), log2 of
#: heads, of heads per key head, of the batch, of the length.
_ATTENTION_LENGTHS = np.array([2.0, 0.025, 6.0, 20.0, 6.0, 4.0])
_ATTENTION_NUGGET, _ATTENTION_NEIGHBOURS = 0.005, 32
_ATTENTION_LAUNCH_US, _ATTENTION_SHARE, _ATTENTION_MEMORY_SHARE = 3.0, 0.6, 0.85


def attention_us(shapes: Float64, machine: Machine) -> Float64:
    """Return closed-form microseconds of (rows, 6) shapes: size, window (0: none), heads, KV heads, batch, length."""
    size, window, heads, kv_heads, batch, length = shapes.T
    keys = np.where(window > 0, np.minimum(window, length), length)
    pairs = length * keys - keys * (keys - 1) / 2
    arithmetic = 4 * batch * heads * size * pairs / (machine.flop_per_s * _ATTENTION_SHARE)
    memory_s = 4 * batch * length * size * (heads + kv_heads) / (machine.bytes_per_s * _ATTENTION_MEMORY_SHARE)
    return np.asarray(np.maximum(arithmetic, memory_s) * 1e6 + _ATTENTION_LAUNCH_US)


def _attention_coordinates(shapes: Float64) -> Float64:
    size, window, heads, kv_heads, batch, length = shapes.T
    kind = np.where(window == 0, 0.0, np.where(window < 1024, 2.0, 1.0))
    parts = [size / 64, kind, np.log2(heads), np.log2(heads / kv_heads), np.log2(batch), np.log2(length)]
    return np.asarray(np.stack(parts, axis=1) / _ATTENTION_LENGTHS)


class AttentionTable:
    """Measured 16-bit attention times of one GPU."""

    def __init__(self, shapes: Int64, times: Float64, machine: Machine) -> None:
        """shapes: (rows, 6) as :func:`attention_us`; times: natural logarithm of microseconds."""
        self.shapes, self.times = shapes, times
        self._machine = machine
        self._points = _attention_coordinates(shapes.astype(float))
        self._residuals = times - np.log(attention_us(shapes.astype(float), machine))

    def without(self, hidden: Bool) -> AttentionTable:
        """Return the table without the rows marked in ``hidden``."""
        return AttentionTable(self.shapes[~hidden], self.times[~hidden], self._machine)

    def measured(self, shape: tuple[int, ...]) -> float | None:
        """Return the measured time of exactly this shape in microseconds, or None."""
        rows = np.flatnonzero((self.shapes == np.array(shape)).all(axis=1))
        return math.exp(float(self.times[rows[0]])) if len(rows) else None

    def estimate_us(self, shapes: Float64, target: Machine | None = None) -> Float64:
        """Return microseconds of (rows, 6) shapes, on this GPU or scaled to ``target`` by the closed form."""

        def answer(part: slice) -> Float64:
            queries = _attention_coordinates(shapes[part])
            distances = np.zeros((len(queries), len(self._points)))
            for axis in range(queries.shape[1]):
                distances += (queries[:, axis, None] - self._points[None, :, axis]) ** 2
            nearest = nearest_few(distances, _ATTENTION_NEIGHBOURS)
            residual = kriged(self._points[nearest], self._residuals[nearest], queries, _ATTENTION_NUGGET)
            return attention_us(shapes[part], target or self._machine) * np.exp(residual)

        return in_chunks(len(shapes), answer)


@lru_cache(maxsize=32)
def load_attention(gpu: str, machine: Machine) -> AttentionTable | None:
    """Return the measured attention of ``gpu``, or None."""
    arrays = read_arrays(gpu)
    if "attention" not in arrays:
        return None
    return AttentionTable(np.asarray(arrays["attention"], dtype=np.int64), log_us(arrays["attention_time"]), machine)


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
QUANTISED = {"float8": 5.0, "float4": 4.5}
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
        return TableTime(self._alone_us(entry, m, n, k), entry.evidence, entry.source)

    def gemm_in_step(self, m: int, n: int, k: int, dtype: str, product: int, groups: int = 1) -> TableTime | None:
        """Return the time of a linear layer's GEMM inside a step; with ``groups`` experts, the time of all of them.

        product: 0 the output (m tokens, n outputs); 1 the input gradient (m tokens, n inputs); 2 the weight gradient
        (m outputs, n inputs, k tokens), accumulated in float32. Pass 1 for a weight gradient that is not accumulated.
        On GPUs with known clocks (``tensor`` in presets/power_curves.yaml) this is the time at the table's clock, and
        :mod:`trine.compute.clock` scales it to the clock of the step.
        """
        base = self.gemm(m, n, k, dtype)
        if base is None:
            return None
        work = max(0.0, base.us - LAUNCH_US)
        if dtype in QUANTISED:
            work = self._without_quantisation(work, (m, n, k), dtype, base.source)
            if (in_16_bits := self.gemm(m, n, k, "bfloat16")) is not None and in_16_bits.source == base.source:
                work = min(work, max(0.0, in_16_bits.us - LAUNCH_US))  # half the bytes, at least twice the peak
        if self._curve is not None:
            work *= self._to_one_clock(work, base.source, dtype)
        if dtype in QUANTISED:
            work = max(work, 2e6 * m * n * k / (HIGHEST_SHARE * peak_of(self.gpu, dtype)))
        if self._curve is not None:
            slower = self._in_step.accumulation if product == WEIGHT_PRODUCT else 1.0
            if groups > 1:
                slower = groups * self._in_step.groups[product] / self._in_step.product(product)
        elif groups > 1:
            slower = groups * self._in_step.groups[product]
        else:
            slower = self._in_step.product(product, (m, n, k) if self._in_step.gpu == self.gpu.name else None)
            slower /= self._same_chip
        us = LAUNCH_US + work * slower
        return TableTime(us, INTERPOLATED if base.evidence == MEASURED else base.evidence, base.source)

    def _without_quantisation(self, work_us: float, shape: tuple[int, int, int], dtype: str, source: str) -> float:
        """Return the time of a GEMM alone: the tables' FP8 and FP4 calls first quantise their 16-bit input.

        A pass finds the maximum, and another one casts. The caller limits the result to HIGHEST_SHARE of the peak.
        """
        m, _, k = shape
        machine = load_gpu(source)
        cast_us = QUANTISED[dtype] * m * k / (QUANTISED_SHARE * machine.memory_bytes_per_s) * 1e6 + QUANTISED_START_US
        scale = 1.0 if source == self.gpu.name else machine.memory_bytes_per_s / self.gpu.memory_bytes_per_s
        return max(work_us - cast_us * scale, 0.0)

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
            self._products[dtype] = self._find(load_gemm, dtype, dtype)
        return self._products[dtype]

    def _find(self, load, dtype: str, *args: str):  # type: ignore[no-untyped-def]
        """Return the GPU's own table, else its nearest sibling's with a machine scaled by the data sheets."""
        if peak_of(self.gpu, dtype) <= 0:
            return None
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
        return self._find(load_attention, "bfloat16")  # type: ignore[no-any-return]

    def attention(self, shape: AttentionShape) -> TableTime | None:
        """Return forward attention's time alone, by the measured kernel; without a mask, scaled by the extra blocks."""
        entry = self._attention_table
        if entry is None:
            return None
        key = shape.row
        measured_us = entry.table.measured(key) if entry.source == self.gpu.name else None
        if measured_us is not None:
            return TableTime(measured_us * shape.unmasked, MEASURED if shape.causal else INTERPOLATED, entry.source)
        return TableTime(self._attention_us(entry, key) * shape.unmasked, entry.evidence, entry.source)

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

    def attention_in_step(self, shape: AttentionShape, *, backward: bool, kernel: str = "") -> TableTime | None:
        """Return attention's time inside a step with ``kernel`` (names: :func:`kernel_share`)."""
        base = self.attention(shape)
        if base is None:
            return None
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

    # Memory -----------------------------------------------------------------------------------------------------

    def memory(self, num_bytes: float, family: str) -> TableTime:
        """Return the time of a memory-bound operator of a family (trine.compute.kinds)."""
        source = self.memory_table.source(family)
        if is_foreign(self.gpu.name):
            evidence = ASSUMED
        else:
            evidence = INTERPOLATED if source == self.gpu.name else TRANSFERRED
        return TableTime(self.memory_table.time_us(num_bytes, family), evidence, source)


# Speed of each generation of attention kernels relative to the kernel in the tables.
#
# The tables measure TensorRT-LLM's kernel on Hopper (FlashAttention-3's methods). Inside steps, Transformer Engine
# picked FlashAttention-2 on A100 PCIe and cuDNN on B200. Shares:
#
# - FlashAttention-2 on H100 reaches 35 % of the peak at best (Shah et al., FlashAttention-3, arXiv:2407.08608,
#   abstract), the tables' kernel 54 % (causal, 16 384 tokens, head size 128): 0.65. FlashAttention-3 is 1.5 to 2.0 x
#   as fast as FlashAttention-2 forward and 1.5 to 1.75 x backward (ibid.). The middles are 1.75 and 1.62, which gives
#   1.13 forward. Backward, the ratio measured on B200 counts as FlashAttention-3's, so FlashAttention-2 has
#   1.13 / 1.62 = 0.70.
# - FlashAttention is half as fast as FlashAttention-2, Triton's 1.3 to 1.5 x slower forward and 2 x backward (Dao,
#   arXiv:2307.08691, section 4.1).
# - FlashAttention-2 reaches at most 73 % of an A100's peak forward and 63 % backward (ibid., section 1).
# - cuDNN on Hopper is about as fast as FlashAttention-3 (arXiv:2407.08608, figures 5 and 6).
_Shares = dict[str, tuple[float, float]]

#: Kernel -> shares forward and backward. A GPU without a kernel runs its predecessor.
_HOPPER: _Shares = {
    "flash-1": (0.325, 0.35), "triton": (0.46, 0.35), "flash-2": (0.65, 0.7), "flash-3": (1.13, 1.13),
    "cudnn": (1.13, 1.13),
}  # fmt: skip
#: Relative to FlashAttention-2, which A100 PCIe ran inside steps. Later kernels need Hopper.
_OLDER: _Shares = {"flash-1": (0.5, 0.5), "triton": (0.71, 0.5)}
#: Relative to cuDNN, which B200 ran inside steps. FlashAttention-2 runs there as on Hopper, without new instructions.
_BLACKWELL: _Shares = {
    "flash-1": (0.29, 0.31), "triton": (0.41, 0.31), "flash-2": (0.57, 0.62), "flash-3": (1.0, 1.0),
}  # fmt: skip
#: Highest share of the peak that FlashAttention-2 reaches (forward, backward) on GPUs older than Hopper.
_MOST_OLDER = (0.73, 0.63)


def kernel_share(generation: str, kernel: str, *, backward: bool) -> float:
    """Return a kernel's speed relative to the tables' kernel; 1 for no name and for kernels the GPU lacks."""
    shares = {"hopper": _HOPPER, "blackwell": _BLACKWELL}.get(generation, _OLDER)
    return shares.get(kernel, (1.0, 1.0))[backward]


def most_of_peak(generation: str, kernel: str, *, backward: bool) -> float:
    """Return the highest published share of the GPU's peak for the kernel, or 1 if no source gives one."""
    if generation in ("hopper", "blackwell"):
        return 1.0
    return _MOST_OLDER[backward] * kernel_share(generation, kernel, backward=backward)
