"""Times of a GPU's operators from measurements: its own, else those of its nearest sibling, by the data sheets' ratios.

Every answer says what it rests on: ``measured`` (this shape, on this GPU), ``interpolated`` (between shapes measured on
it), ``transferred`` (a sibling's measurements) or ``assumed`` (a GPU of which nobody's measurements are near). None
where no table has the operator: the caller's roofline is the last resort.

*Attention* has measurements of the forward pass over whole sequences under a causal mask, with and without a sliding
window; between them a closed form and kriging, as :mod:`trine.compute.tables.gemm`. Operators that only *move memory*
have measured shares of the memory bandwidth over the bytes moved. These curves are medians of an octave of bytes
(memory.npz). On a GPU without a curve, the nearest one's is read at the bytes that its memory moves in the same time. A
share above the one of the largest sizes means that the cache held what was read: in a step it mostly does not, and that
share is a cap.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Generic, TypeVar

import numpy as np

from trine.arrays import Bool, Float64, Int64
from trine.cluster import load_gpu
from trine.cluster.presets import GpuSpec
from trine.compute.tables import in_step
from trine.compute.tables.files import known_tables, log_us, read_arrays
from trine.compute.tables.gemm import GemmTable, load_gemm
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
from trine.evidence import ASSUMED, INTERPOLATED, MEASURED, TRANSFERRED

#: Over how much of each coordinate residuals correlate: head size / 64, window (told apart), log2 of heads, of heads a
#: key head, of the batch, of the length.
_ATTENTION_LENGTHS = np.array([2.0, 0.025, 6.0, 20.0, 6.0, 4.0])
_ATTENTION_NUGGET, _ATTENTION_NEIGHBOURS = 0.005, 32
_ATTENTION_LAUNCH_US, _ATTENTION_SHARE, _ATTENTION_MEMORY_SHARE = 3.0, 0.6, 0.85


def attention_us(shapes: Float64, machine: Machine) -> Float64:
    """Microseconds of (rows, 6) shapes: head size, window (0: none), heads, heads of keys, batch, length."""
    size, window, heads, kv_heads, batch, length = shapes.T
    seen = np.where(window > 0, np.minimum(window, length), length)
    pairs = length * seen - seen * (seen - 1) / 2
    arithmetic = 4 * batch * heads * size * pairs / (machine.flop_per_s * _ATTENTION_SHARE)
    moved = 4 * batch * length * size * (heads + kv_heads) / (machine.bytes_per_s * _ATTENTION_MEMORY_SHARE)
    return np.asarray(np.maximum(arithmetic, moved) * 1e6 + _ATTENTION_LAUNCH_US)


def _attention_coordinates(shapes: Float64) -> Float64:
    size, window, heads, kv_heads, batch, length = shapes.T
    kind = np.where(window == 0, 0.0, np.where(window < 1024, 2.0, 1.0))
    parts = [size / 64, kind, np.log2(heads), np.log2(heads / kv_heads), np.log2(batch), np.log2(length)]
    return np.asarray(np.stack(parts, axis=1) / _ATTENTION_LENGTHS)


class AttentionTable:
    """Measured attention of one GPU in 16 bits."""

    def __init__(self, shapes: Int64, times: Float64, machine: Machine) -> None:
        """shapes: (rows, 6) as :func:`attention_us`; times: natural logarithm of microseconds."""
        self.shapes, self.times = shapes, times
        self._machine = machine
        self._points = _attention_coordinates(shapes.astype(float))
        self._residuals = times - np.log(attention_us(shapes.astype(float), machine))

    def without(self, hidden: Bool) -> AttentionTable:
        """The table less some of its rows."""
        return AttentionTable(self.shapes[~hidden], self.times[~hidden], self._machine)

    def measured(self, shape: tuple[int, ...]) -> float | None:
        """Microseconds that this very shape took, None if it was not measured."""
        rows = np.flatnonzero((self.shapes == np.array(shape)).all(axis=1))
        return math.exp(float(self.times[rows[0]])) if len(rows) else None

    def estimate_us(self, shapes: Float64, target: Machine | None = None) -> Float64:
        """Microseconds of (rows, 6) shapes; on ``target`` as its closed form says."""

        def answer(part: slice) -> Float64:
            queries = _attention_coordinates(shapes[part])
            distances = np.zeros((len(queries), len(self._points)))
            for axis in range(queries.shape[1]):
                distances += (queries[:, axis, None] - self._points[None, :, axis]) ** 2
            few = nearest_few(distances, _ATTENTION_NEIGHBOURS)
            residual = kriged(self._points[few], self._residuals[few], queries, _ATTENTION_NUGGET)
            return attention_us(shapes[part], target or self._machine) * np.exp(residual)

        return in_chunks(len(shapes), answer)


@lru_cache(maxsize=32)
def load_attention(gpu: str, machine: Machine) -> AttentionTable | None:
    """The measured attention of ``gpu``; None where it has none."""
    arrays = read_arrays(gpu)
    if "attention" not in arrays:
        return None
    return AttentionTable(np.asarray(arrays["attention"], dtype=np.int64), log_us(arrays["attention_time"]), machine)


ELEMENTWISE = "elementwise"
#: Family of operators (trine.compute.kinds) -> curve. All others move memory as elementwise operators do.
_MEMORY_CURVES = {"layer_norm": "norm", "group_norm": "norm", "softmax": "softmax", "loss": "softmax"}
#: Generation -> GPUs whose curves are used, nearest first. An A100 PCIe has no others than NeuSight's.
_MEMORY_SOURCES = {
    "ampere": ("a100-80gb", "a100-pcie-40gb"), "hopper": ("h100-sxm", "a100-pcie-40gb"),
    "blackwell": ("h100-sxm", "a100-pcie-40gb"), "volta": ("v100-pcie",), "pascal": ("p100-pcie",), "turing": ("t4",),
    "ampere-gddr": ("a40", "a100-pcie-40gb"), "ada": ("a40", "a100-pcie-40gb"),
    "blackwell-gddr": ("a40", "a100-pcie-40gb"),
}  # fmt: skip
_DEFAULT = ("a100-80gb", "a100-pcie-40gb")
#: SimuMax, b200_bf16_ceperm.json: share of 8 TB/s that memory-bound operators reach inside steps on B200.
_MEMORY_IN_STEP = {"blackwell": 0.666}
#: Nothing is faster than this, microseconds: the shortest kernel in the measurements.
FLOOR_US = 2.0
#: No curve counts for more: beyond it the cache had the data (HBM reaches about 0.92 of its peak in copies).
_MEMORY_CAP = 0.92


def curve_of(family: str) -> str:
    """Name of the curve for a family of operators."""
    return _MEMORY_CURVES.get(family, ELEMENTWISE)


def memory_sources(gpu: str, curve: str) -> tuple[str, ...]:
    """GPUs that have the curve, nearest to ``gpu`` first."""
    wanted = (gpu, *_MEMORY_SOURCES.get(generation_of(gpu), ()), *_DEFAULT)
    return tuple(name for name in wanted if f"{name}/{curve}" in read_arrays("memory"))


class MemoryTable:
    """Shares of the bandwidth of one GPU."""

    def __init__(self, gpu: GpuSpec) -> None:
        self._gpu = gpu
        self._curves: dict[str, tuple[str, Float64, Float64, float]] = {}

    def source(self, family: str) -> str:
        """The GPU whose curve is used for a family of operators."""
        return self._curve(curve_of(family))[0]

    def time_us(self, num_bytes: float, family: str) -> float:
        """Microseconds to move ``num_bytes``."""
        if num_bytes <= 0:
            return 0.0
        curve = curve_of(family)
        _, octaves, shares, bandwidth = self._curve(curve)
        rate = float(self._gpu.memory_bytes_per_s)
        first = 2.0 ** float(octaves[0]) * 1e6 * rate / bandwidth
        if num_bytes < first and curve != ELEMENTWISE:  # below the curve: as elementwise operators go on
            grown = self.time_us(num_bytes, ELEMENTWISE) / self.time_us(first, ELEMENTWISE)
            return max(FLOOR_US, grown * self.time_us(first, family))
        alike = math.log2(max(num_bytes, first) * bandwidth / rate / 1e6)
        share = float(np.interp(alike, octaves, shares))
        return max(FLOOR_US, float(max(num_bytes, first) * 1e6 / (rate * share)))

    def _curve(self, name: str) -> tuple[str, Float64, Float64, float]:
        found = self._curves.get(name)
        if found is None:
            found = self._curves[name] = self._load(name)
        return found

    def _load(self, name: str) -> tuple[str, Float64, Float64, float]:
        source, octaves, shares, bandwidth = _read_curve(memory_sources(self._gpu.name, name)[0], name)
        limit = _MEMORY_IN_STEP.get(generation_of(self._gpu.name), _MEMORY_CAP)
        return source, octaves, np.minimum(shares, min(float(shares[-1]), limit)), bandwidth


@lru_cache(maxsize=64)
def _read_curve(gpu: str, name: str) -> tuple[str, Float64, Float64, float]:
    rows = np.asarray(read_arrays("memory")[f"{gpu}/{name}"], dtype=float)
    return gpu, rows[:, 0], rows[:, 1], float(load_gpu(gpu).memory_bytes_per_s)


#: Queries that one block of a kernel handles.
_BLOCK = 128
#: Blocks a compute unit from which on attention fills a GPU.
_FULL = 64.0
#: Tokens of a sequence that takes no time but what a prompt does; share of the bandwidth that a pass over tokens
#: reaches; microseconds that a kernel takes to start.
_SHORT, _PASS_SHARE, _START_US = 16.0, 0.85, 3.0


@dataclass(frozen=True, slots=True)
class TableTime:
    """us: microseconds. evidence: one of trine.evidence's words. source: the GPU whose measurements it rests on."""

    us: float
    evidence: str
    source: str


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
        """FLOPs of unmasked scores; backward 2.5 x those forward (scores again, four gradients)."""
        pairs = self.length**2 / 2 if self.causal else self.length**2
        return (10.0 if backward else 4.0) * self.batch * self.heads * self.size * pairs

    @property
    def unmasked(self) -> float:
        """Blocks of scores over those under a causal mask; 1 with one."""
        blocks = math.ceil(self.length / _BLOCK)
        return 1.0 if self.causal else 2 * blocks / (blocks + 1)

    @property
    def row(self) -> tuple[int, ...]:
        """As tables have it."""
        return self.size, self.window, self.heads, self.kv_heads, self.batch, self.length


_Table = TypeVar("_Table", GemmTable, AttentionTable)


@dataclass(frozen=True)
class _Found(Generic[_Table]):
    """A table, the machine that it is asked for, and whose it is."""

    table: _Table
    machine: Machine
    source: str
    evidence: str


class OperatorTables:
    """Times of operators on one GPU, alone and inside a step. Never raises: None where nothing is known."""

    def __init__(self, gpu: GpuSpec) -> None:
        self.gpu = gpu
        self.memory_table = MemoryTable(gpu)
        self._products: dict[str, _Found[GemmTable] | None] = {}
        self._known: dict[tuple[object, ...], float] = {}

    # Products ---------------------------------------------------------------------------------------------------

    def gemm(self, m: int, n: int, k: int, dtype: str = "bfloat16") -> TableTime | None:
        """(m, k) x (k, n) alone, in bfloat16 or float16, float8 or float4."""
        if not runs(self.gpu, dtype):
            return None
        found = self._product_table("bfloat16" if dtype == "float16" else dtype)
        if found is None:
            return None
        if found.source == self.gpu.name:
            own = found.table.measured(m, n, k)
            if own is not None:
                return TableTime(own, MEASURED, found.source)
        return TableTime(self._alone_us(found, m, n, k), found.evidence, found.source)

    def gemm_in_step(self, m: int, n: int, k: int, dtype: str, product: int, groups: int = 1) -> TableTime | None:
        """One of the three products of a linear layer inside a step; of ``groups`` experts, all of them.

        product: 0 the result (m tokens, n outputs), 1 the gradient of the input (m tokens, n inputs), 2 that of the
        weight (m outputs, n inputs, k tokens), added to one in float32; where it is not added, it is asked as 1.
        """
        alone = self.gemm(m, n, k, dtype)
        if alone is None:
            return None
        work = max(0.0, alone.us - in_step.LAUNCH_US)
        if groups > 1:
            slower = groups * self._in_step.groups[product]
        else:
            slower = self._in_step.product(product, (m, n, k) if self._in_step.gpu == self.gpu.name else None)
            slower /= self._same_chip
        us = in_step.LAUNCH_US + work * slower
        return TableTime(us, INTERPOLATED if alone.evidence == MEASURED else alone.evidence, alone.source)

    def product_source(self) -> str | None:
        """Whose products in 16 bits are used; None where nobody's are."""
        found = self._product_table("bfloat16")
        return None if found is None else found.source

    def _alone_us(self, found: _Found[GemmTable], m: int, n: int, k: int) -> float:
        key = found.table.dtype, m, n, k
        if key not in self._known:
            shape = np.array([[m, n, k]], dtype=float)
            self._known[key] = float(found.table.estimate_us(shape, found.machine)[0])
        return self._known[key]

    def _product_table(self, dtype: str) -> _Found[GemmTable] | None:
        if dtype not in self._products:
            self._products[dtype] = self._find(load_gemm, dtype, dtype)
        return self._products[dtype]

    def _find(self, load, dtype: str, *about: str):  # type: ignore[no-untyped-def]
        """The GPU's own table, else its nearest sibling's with the machine that the data sheets make of it."""
        if peak_of(self.gpu, dtype) <= 0:
            return None
        for name in (self.gpu.name, *siblings_of(self.gpu.name)):
            if name not in known_tables():
                continue
            spec = self.gpu if name == self.gpu.name else load_gpu(name)
            table = load(name, *about, Machine.of(spec, dtype))
            if table is None:
                continue
            if name == self.gpu.name:
                return _Found(table, Machine.of(spec, dtype), name, INTERPOLATED)
            machine = Machine.of(self.gpu, dtype, sustained_ratio(self.gpu, spec, dtype), name)
            return _Found(table, machine, name, ASSUMED if is_foreign(self.gpu.name) else TRANSFERRED)
        return None

    # Inside a step ----------------------------------------------------------------------------------------------

    @cached_property
    def _in_step(self) -> in_step.InStep:
        return in_step.load_in_step(in_step.in_step_source(self.gpu.name))

    @cached_property
    def _same_chip(self) -> float:
        """What takes back the power limit between two cards of one chip that runs at its top clock.

        Of A100 as a module and as a card inside steps only the card was measured, alone only the module: a module is
        taken to reach the share of the peak inside a step that the card was seen to reach.
        """
        measured = self._in_step.gpu
        if measured == self.gpu.name or generation_of(self.gpu.name) in POWER_LIMITED:
            return 1.0
        if generation_of(measured) != generation_of(self.gpu.name):
            return 1.0
        return sustained_ratio(load_gpu(measured), self.gpu, "bfloat16")

    def products_us(self, shapes: Float64) -> Float64:
        """Microseconds of products alone in bfloat16, (rows, 3) of m, n, k."""
        found = self._product_table("bfloat16")
        assert found is not None
        return found.table.estimate_us(shapes, found.machine)

    def attentions_us(self, shapes: Float64) -> Float64:
        """Microseconds of attention alone, (rows, 6) as :mod:`trine.compute.tables.operators`."""
        found = self._attention_table
        assert found is not None
        return found.table.estimate_us(shapes, found.machine)

    # Attention --------------------------------------------------------------------------------------------------

    @cached_property
    def _attention_table(self) -> _Found[AttentionTable] | None:
        return self._find(load_attention, "bfloat16")  # type: ignore[no-any-return]

    def attention(self, shape: AttentionShape) -> TableTime | None:
        """Forward attention alone, by the kernel that was measured; without a mask as so many more blocks take."""
        found = self._attention_table
        if found is None:
            return None
        key = shape.row
        own = found.table.measured(key) if found.source == self.gpu.name else None
        if own is not None:
            return TableTime(own * shape.unmasked, MEASURED if shape.causal else INTERPOLATED, found.source)
        return TableTime(self._attention_us(found, key) * shape.unmasked, found.evidence, found.source)

    def _attention_us(self, found: _Found[AttentionTable], row: tuple[int, ...]) -> float:
        if row not in self._known:
            self._known[row] = float(found.table.estimate_us(np.array([row], dtype=float), found.machine)[0])
        return self._known[row]

    def attention_kernels_us(self, shapes: Float64) -> Float64:
        """Microseconds of the kernel alone, (rows, 6): without what the measured call does besides.

        That call is of an inference server. It has a fixed part for each prompt, which sequences of 16 tokens show, and
        turns queries and keys and writes them to a cache: one more pass over the three (which training has as operators
        of its own). No kernel is faster than its memory and :func:`most_of_peak` allow.
        """
        size, _, heads, kv_heads, batch, length = shapes.T
        short = shapes.copy()
        short[:, 5] = np.minimum(length, _SHORT)
        tokens = 2.0 * batch * length * size
        least = tokens * (2 * heads + 2 * kv_heads) / (self.gpu.memory_bytes_per_s * _PASS_SHARE) * 1e6 + _START_US
        turned = 2 * tokens * (heads + 2 * kv_heads) / (self.gpu.memory_bytes_per_s * _PASS_SHARE) * 1e6
        return np.asarray(np.maximum(self.attentions_us(shapes) - self.attentions_us(short) - turned, least))

    def attention_in_step(self, shape: AttentionShape, *, backward: bool, kernel: str = "") -> TableTime | None:
        """Attention inside a step, by a generation of kernels (:mod:`trine.compute.tables.operators`)."""
        alone = self.attention(shape)
        if alone is None:
            return None
        blocks = shape.batch * shape.heads * math.ceil(shape.length / _BLOCK) / self.gpu.num_compute_units
        generation = generation_of(self.gpu.name)
        if generation == "hopper":  # neither of the two measured ran Hopper's kernels: the ratio of a full GPU alone
            slower, ratio = 1.0, self._in_step.attention(_FULL)[1]
        else:
            slower, ratio = self._in_step.attention(blocks)
        kernel_us = float(self.attention_kernels_us(np.array([shape.row], dtype=float))[0]) * shape.unmasked
        us = kernel_us * slower * (ratio if backward else 1.0) / kernel_share(generation, kernel, backward=backward)
        most = most_of_peak(generation, kernel, backward=backward) * peak_of(self.gpu, "bfloat16")
        us = max(us, 1e6 * shape.flops(backward=backward) / most)
        return TableTime(us, INTERPOLATED if alone.evidence == MEASURED else alone.evidence, alone.source)

    # Memory -----------------------------------------------------------------------------------------------------

    def memory(self, num_bytes: float, family: str) -> TableTime:
        """Operators of a family (trine.compute.kinds) that move memory alone."""
        source = self.memory_table.source(family)
        if is_foreign(self.gpu.name):
            evidence = ASSUMED
        else:
            evidence = INTERPOLATED if source == self.gpu.name else TRANSFERRED
        return TableTime(self.memory_table.time_us(num_bytes, family), evidence, source)


# Generations of attention kernels: how fast each is, compared with the one that stands in the tables.
#
# The tables' kernel is TensorRT-LLM's on Hopper (FlashAttention-3's methods), and inside steps on A100 PCIe and B200
# Transformer Engine's choice: FlashAttention-2, cuDNN. Shares:
#
# - FlashAttention-2 on H100 reaches 35 % of the peak at best (Shah et al., FlashAttention-3, arXiv:2407.08608,
#   abstract), the tables' kernel 54 % (causal, 16 384 tokens, head size 128): 0.65. FlashAttention-3 is 1.5 to 2.0 x
#   as fast as it forward and 1.5 to 1.75 x backward (ibid.): the middles, 1.75 and 1.62, give 1.13 forward; backward
#   FlashAttention-3 stands for the ratio measured on B200, so FlashAttention-2 has 1.13 / 1.62 = 0.70.
# - FlashAttention is half as fast as FlashAttention-2, Triton's 1.3 to 1.5 x slower forward and 2 x backward (Dao,
#   arXiv:2307.08691, section 4.1).
# - FlashAttention-2 reaches at most 73 % of an A100's peak forward and 63 % backward (ibid., section 1).
# - cuDNN's on Hopper is about FlashAttention-3's (arXiv:2407.08608, figures 5 and 6).
_Shares = dict[str, tuple[float, float]]

#: Kernel -> shares forward and backward. Where a GPU has no such kernel, its forerunner's.
_HOPPER: _Shares = {
    "flash-1": (0.325, 0.35), "triton": (0.46, 0.35), "flash-2": (0.65, 0.7), "flash-3": (1.13, 1.13),
    "cudnn": (1.13, 1.13),
}  # fmt: skip
#: Against FlashAttention-2, which A100 PCIe ran inside steps; the later ones need Hopper.
_OLDER: _Shares = {"flash-1": (0.5, 0.5), "triton": (0.71, 0.5)}
#: Against cuDNN's, which B200 ran inside steps. FlashAttention-2 runs there as on Hopper, without its new instructions.
_BLACKWELL: _Shares = {
    "flash-1": (0.29, 0.31), "triton": (0.41, 0.31), "flash-2": (0.57, 0.62), "flash-3": (1.0, 1.0),
}  # fmt: skip
#: Most of the peak that FlashAttention-2 reaches on GPUs whose warps compute tiles by themselves.
_MOST_OLDER = (0.73, 0.63)


def kernel_share(generation: str, kernel: str, *, backward: bool) -> float:
    """Speed of a kernel over that of the one in the tables; 1 where none is named, or the GPU has no other."""
    of = {"hopper": _HOPPER, "blackwell": _BLACKWELL}.get(generation, _OLDER)
    return of.get(kernel, (1.0, 1.0))[backward]


def most_of_peak(generation: str, kernel: str, *, backward: bool) -> float:
    """The largest share of a GPU's peak that the kernel was seen to reach; 1 where nobody says."""
    if generation in ("hopper", "blackwell"):
        return 1.0
    return _MOST_OLDER[backward] * kernel_share(generation, kernel, backward=backward)
