"""The compute model ``tables``: each operator of a workload is looked up in the tables of a GPU.

Covers GEMMs, forward and both gradients, grouped GEMMs of experts, fused attention and its backward, and memory-bound
operators; float32 GEMMs and convolutions use :mod:`trine.compute.tables.fp32`. Operators in no table take the roofline
time, with evidence 'assumed'.
"""

from __future__ import annotations

import math
import re
from dataclasses import replace
from fractions import Fraction
from typing import TYPE_CHECKING, NamedTuple

from trine.cluster.measured_gpu import measured_gpu
from trine.cluster.presets import GpuSpec
from trine.common.evidence import ASSUMED
from trine.common.kept import keep
from trine.common.precision import HALVES
from trine.compute.cost import (
    elements,
    factors,
    is_gradient,
    passes_of,
    uneven_notes,
    wants,
    work_of,
)
from trine.compute.documents import document_shares
from trine.compute.kinds import family_of, kind_of
from trine.compute.resize import Resized, Split, is_expert_product, resized
from trine.compute.roofline import TABLES, Duration, Roofline, Shares, alike_in, dtype_name, stated_precision
from trine.compute.tables.files import TableTime, summed
from trine.compute.tables.in_step import FORWARD_PRODUCT, INPUT_PRODUCT, WEIGHT_PRODUCT
from trine.compute.tables.machine import generation_of, is_foreign, left_out_error
from trine.compute.tables.operators import FLOOR_US, AttentionShape, OperatorTables
from trine.compute.tables.traffic import traffic
from trine.graph.workload import Operator, Workload

if TYPE_CHECKING:
    from trine.compute.law import FitReport

# Table look-ups for operators with known tensors: as a matrix product, an attention or memory traffic.
#
# Operators may have further attributes (software profiles set them): ``attention_kernel``, the generation of a fused
# attention; ``attention_precision``, ``mxfp8`` if it casts its inputs; ``grouped_kernel``, ``one`` if a single kernel
# does the GEMMs of all experts; ``passes``, the number of times an unfused operator moves its bytes
# (:mod:`trine.compute.cost` counts them); ``kernels``, its number of launches.

#: Row alignment of 16-bit batched products, in elements, and the GPU generations with measurements of it.
_ALIGNED, _MISALIGNED_ON = 8, ("ampere",)
#: FLOP/s per compute unit of 16-bit products whose rows are not a multiple of 8 elements, for the three products of a
#: linear layer: odd and even row lengths. Measured on an H100 (tests/data/h100/unaligned.csv). On A100 they reproduce
#: the 25 % that nanoGPT gains with a vocabulary of 50,304 instead of 50,257 (A. Karpathy, 2023).
_ODD_ROWS, _EVEN_ROWS = (0.70e12, 1.04e12, 1.12e12), (2.0e12,) * 3
#: Bytes/s per SM of kernels that the SMs limit rather than the memory, measured on an H100 (tests/data/h100: casts and
#: softmax in pointwise.csv, kernels of unfused norms and losses, which broadcast one value per row, in the capture of
#: Llama 3.2 1B) and an H200 (layer norm and GELU in power.csv, as fast there as on the H100). Other generations are not
#: measured.
_SM_BYTES_PER_S = {
    "cast": 1.95e12 / 132, "softmax": 1.29e12 / 132, "loss": 1.51e12 / 132, "unfused rows": 2.35e12 / 132,
    "layer_norm": 2.6e12 / 132, "activation": 2.95e12 / 132,
}  # fmt: skip
_ACTIVATION = re.compile("gelu|silu|glu")
#: Families whose unfused kernels broadcast a value per row.
_ROWWISE = frozenset({"layer_norm", "softmax", "loss"})
#: Microseconds between two kernels of a stream, in which no operator runs: (step_ms - gpu_busy_ms) / kernels of the
#: steps with a fused optimizer in tests/data/h100/steps.csv, median (1.3 to 2.3). The GEMM tables contain it.
GAP_US = 1.9
#: Bytes that the casts before attention in MXFP8 move per element: 16 bits read, and 8 bits written by rows and by
#: columns (NVIDIA/TransformerEngine, pytorch/attention/dot_product_attention/backends.py: queries, keys and values,
#: and backward the gradient of the result).
_CAST_BYTES = 4
#: Maximum number of launches of an operator; larger attribute values are ignored.
_MAX_KERNELS = 1e9


class SizedTimes:
    """Times of operators in a step on one GPU.

    fused: products accumulate their float32 gradients themselves, without a separate operator.
    ``slow_rows``: row length that is not a multiple of 8 -> largest slowdown of a product with it so far.
    """

    def __init__(self, gpu: GpuSpec, *, fused: bool = True) -> None:
        self._gpu = gpu
        self._fused = fused
        self.tables = OperatorTables(gpu)
        self.slow_rows: dict[int, float] = {}

    def time(self, sizes: Resized) -> TableTime | None:
        """Return the time of an operator, or None if no table covers its kind or dtype."""
        family = family_of(kind_of(sizes.operator))
        if family in ("linear", "matmul"):
            return self._product(sizes) or self._single(sizes)
        if family == "attention":
            return self._attention(sizes) or self._single(sizes)
        return self._single(sizes) if family == "conv" else self._moving(sizes, family)

    def _single(self, sizes: Resized) -> TableTime | None:
        """Return the time of a float32 product or a convolution from the float32 tables."""
        tensors = [t for t in (*sizes.outputs, *sizes.inputs) if "float" in t.dtype or "half" in t.dtype.lower()]
        dtype = dtype_name(tensors[0]) if tensors else "float32"
        is_conv = family_of(kind_of(sizes.operator)) == "conv"
        precision = stated_precision(sizes.operator) or ("tfloat32" if is_conv and dtype == "float32" else dtype)
        return self._in_float32(sizes, precision)

    def _in_float32(self, sizes: Resized, precision: str) -> TableTime | None:
        """Return the time from the tables of float32 products and of convolutions."""
        from trine.compute.tables.fp32_times import operator_time

        return operator_time(self._gpu, sizes, work_of(sizes), precision)

    def _moving(self, sizes: Resized, family: str) -> TableTime:
        """Return the time of a memory-bound operator: its bytes times its passes, and at least its launches' time."""
        work = work_of(sizes)
        if not work.bytes and not work.flops:
            return TableTime(0.0, ASSUMED, "data sheet")
        kernels = max(1.0, number_of(sizes.operator.attributes.get("kernels")))
        passes = traffic(sizes, family, work.bytes, self._gpu.num_compute_units)
        is_unfused = _is_unfused(sizes)
        num_bytes = work.bytes * passes
        time = self.tables.memory(num_bytes, "other" if is_unfused else family)
        slowest_us = 1e6 * num_bytes / self._highest_rate(sizes, family, is_unfused)
        us = max(time.us, slowest_us, FLOOR_US * kernels) + GAP_US * kernels
        return TableTime(us, time.evidence, time.source)

    def _highest_rate(self, sizes: Resized, family: str, is_unfused: bool) -> float:
        """Return the highest bytes/s of a memory-bound operator whose kernels the SMs limit; inf without a limit."""
        if generation_of(self._gpu.name) != "hopper":
            return math.inf
        dtypes = {dtype_name(tensor) for tensor in (*sizes.inputs, *sizes.outputs)}
        if is_gradient(sizes) and not is_unfused:
            return math.inf
        if family in _ROWWISE:
            key = "unfused rows" if is_unfused else family
        elif {"bfloat16", "float32"} <= dtypes and _widens(sizes) and (family == "copy" or _accumulates(sizes)):
            key = "cast"
        else:
            key = "activation" if _ACTIVATION.search(sizes.operator.name.lower()) else family
        return _SM_BYTES_PER_S.get(key, math.inf) * self._gpu.num_compute_units

    def _product(self, sizes: Resized) -> TableTime | None:
        """Return the time of a product, or of the gradients of one."""
        source = sizes.forward or sizes
        operands = factors(source) if source.outputs and source.outputs[0].shape else None
        if operands is None or not operands[1].shape or (is_gradient(sizes) and sizes.forward is None):
            return self._moving(sizes, "other")
        x, weight = operands
        y = source.outputs[0]
        groups = weight.shape[0] if is_expert_product(source.operator) and len(weight.shape) == 3 else 1
        rows, inner = math.ceil(elements(y) / y.shape[-1] / groups), x.shape[-1]
        outer = y.shape[-1]
        dtype = dtype_name(x)
        if dtype == "float32" and stated_precision(source.operator) == "tfloat32":
            dtype = "tfloat32"
        if self._is_misaligned(len(weight.shape) > 2 and groups == 1, inner, outer, dtype):
            # Without tensor cores: the float32 time, from NeuSight's bmm on A100. Tested on BigScience's head size 108.
            return self._in_float32(sizes, "float32")
        rates = self._rates(inner, outer, dtype)

        one_kernel = source.operator.attributes.get("grouped_kernel") == "one"

        def gemm(m: int, n: int, k: int, product: int, style: int) -> TableTime | None:
            style = product if one_kernel else style
            time = self.tables.gemm_in_step(m, n, k, dtype, style, groups, one_kernel=one_kernel)
            return self._no_faster(time, 2 * groups * m * n * k, rates[product] if rates else math.inf, (inner, outer))

        if not is_gradient(sizes):
            time = gemm(rows, outer, inner, FORWARD_PRODUCT, FORWARD_PRODUCT)
            return self._at_least_moved(time, sizes) if len(weight.shape) > 2 and groups == 1 else time
        parts = []
        if wants(sizes, x):
            parts.append(gemm(rows, inner, outer, INPUT_PRODUCT, INPUT_PRODUCT))
        if wants(sizes, weight):
            dtypes = [dtype_name(t) for t in sizes.outputs]
            style = WEIGHT_PRODUCT if self._fused and "float32" in dtypes else INPUT_PRODUCT
            parts.append(gemm(outer, inner, rows, WEIGHT_PRODUCT, style))
            if sizes.operator.attributes.get("bias_gradient") == "separate":
                parts.append(self.tables.memory(y.size_bytes, "reduction"))  # a sum over the tokens
        return summed(parts)

    def _rates(self, inner: int, outer: int, dtype: str) -> tuple[float, ...]:
        """Return the highest FLOP/s of a linear layer's three products with such rows; () without a limit."""
        is_half = dtype in HALVES
        if not is_half or (inner | outer) % _ALIGNED == 0 or is_foreign(self._gpu.name):
            return ()
        return tuple(rate * self._gpu.num_compute_units for rate in (_ODD_ROWS if (inner | outer) % 2 else _EVEN_ROWS))

    def _no_faster(
        self, time: TableTime | None, flops: int, flop_per_s: float, sides: tuple[int, int]
    ) -> TableTime | None:
        """Return ``time``, or the time at ``flop_per_s`` if that is longer; remember which side made it longer."""
        us = 1e6 * flops / flop_per_s
        if time is None or time.us >= us:
            return time
        for side in sides:
            if side % _ALIGNED:
                self.slow_rows[side] = max(us / time.us, self.slow_rows.get(side, 1.0))
        return TableTime(us, time.evidence if generation_of(self._gpu.name) == "hopper" else ASSUMED, time.source)

    def _is_misaligned(self, is_batched: bool, inner: int, outer: int, dtype: str) -> bool:
        """Return whether a 16-bit product of two activations has rows that tensor cores cannot load.

        On A100 cuBLAS then uses kernels without tensor cores (pytorch/pytorch#146817, #106469). Other GPUs are not
        measured.
        """
        aligned = inner % _ALIGNED == 0 and outer % _ALIGNED == 0
        is_half = dtype in HALVES
        return is_batched and is_half and not aligned and generation_of(self._gpu.name) in _MISALIGNED_ON

    def _at_least_moved(self, product: TableTime | None, sizes: Resized) -> TableTime | None:
        """Return ``product``, or the memory time if longer: each batch reads a second factor, which it omits."""
        if product is None:
            return None
        return max(product, self._moving(sizes, "other"), key=lambda time: time.us)

    def _attention(self, sizes: Resized) -> TableTime | None:
        """Return the time of fused attention on queries (batch, heads, length, size), scaled by query / key length."""
        source = sizes.forward or sizes
        parts = [t for t in source.inputs if len(t.shape) == 4][:3]
        if len(parts) < 3 or (is_gradient(sizes) and sizes.forward is None) or dtype_name(parts[0]) == "float32":
            return None
        q, k, v = parts
        length = k.shape[-2]
        attributes = source.operator.attributes
        window = attributes.get("window")
        shape = AttentionShape(
            batch=q.shape[0], heads=q.shape[1], kv_heads=max(1, min(k.shape[1], q.shape[1])), length=length,
            size=(q.shape[-1] + v.shape[-1]) // 2, causal=attributes.get("causal") is True,
            window=window if isinstance(window, int) and 0 < window < length else 0,
        )  # fmt: skip
        is_cast = attributes.get("attention_precision") == "mxfp8"
        square = self._packed(shape, sizes, is_cast)
        if square is None:
            return None
        gaps_us = GAP_US * max(1.0, number_of(sizes.operator.attributes.get("kernels")))
        if is_cast:
            cast_elements = elements(source.outputs[0]) if is_gradient(sizes) else sum(map(elements, parts))
            gaps_us += self.tables.memory(_CAST_BYTES * cast_elements, "copy").us
        return TableTime(square.us * q.shape[-2] / length + gaps_us, square.evidence, square.source)

    def _packed(self, shape: AttentionShape, sizes: Resized, is_mxfp8: bool) -> TableTime | None:
        """Return the time of attention over ``shape``, or over the documents packed into it."""
        attributes, backward = (sizes.forward or sizes).operator.attributes, is_gradient(sizes)
        kernel, documents = str(attributes.get("attention_kernel", "")), document_shares(attributes)
        if not documents:
            return self.tables.attention_in_step(shape, backward=backward, kernel=kernel, is_mxfp8=is_mxfp8)
        parts: list[TableTime | None] = []
        for share in documents:
            length = max(1, round(shape.length * share.length))
            count = Fraction(shape.batch * shape.length, length)  # documents of this length with as many tokens
            each = replace(shape, batch=max(1, round(count)), length=length)
            time = self.tables.attention_in_step(each, backward=backward, kernel=kernel, is_mxfp8=is_mxfp8)
            if time is None:
                return None
            part = float(share.tokens * count / each.batch)
            parts.append(TableTime(time.us * part, time.evidence, time.source))
        return summed(parts)


def _is_unfused(sizes: Resized) -> bool:
    """Return whether an operator, or its forward operator, runs as elementwise kernels and plain reductions.

    More than one of ``passes`` indicates this. The norm and softmax curves come from fused kernels.
    """
    forward = () if sizes.forward is None else (sizes.forward.operator,)
    return any(passes_of(operator) > 1 for operator in (sizes.operator, *forward))


def _widens(sizes: Resized) -> bool:
    """Return whether an operator writes float32 from 16-bit tensors."""
    return any(dtype_name(tensor) == "float32" for tensor in sizes.outputs)


def _accumulates(sizes: Resized) -> bool:
    """Return whether an operator adds 16-bit gradients to float32 sums: one kernel with casts."""
    return sizes.operator.attributes.get("cost") == "accumulation"


def number_of(value: object) -> float:
    """Return the attribute's value as a positive number, or 1 if it is not one."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= _MAX_KERNELS:
        return 1.0
    return float(value)


_PS_PER_US = 1e6


class _Timed(NamedTuple):
    """A time, and what the notes say of it.

    source: of the tables, "" without one. uneven: the layer of an operator with a dimension that does not divide.
    slow_rows: pairs of :attr:`SizedTimes.slow_rows`.
    """

    duration: Duration
    source: str = ""
    uneven: str = ""
    slow_rows: tuple[tuple[int, float], ...] = ()


@keep
def _known_times(workload: Workload, gpu: GpuSpec) -> dict[tuple[int, Split], _Timed]:
    """Return the known times of a workload on a GPU, by operator and split: all jobs of the workload share them."""
    return {}


class TableTimes:
    """Times of one workload's operators on one GPU, cached by (operator, split)."""

    name = TABLES

    def __init__(self, workload: Workload, gpu: GpuSpec) -> None:
        self._workload = workload
        self._gpu = gpu
        is_unfused = any(op.attributes.get("cost") == "accumulation" for op in workload.operators)
        self._times = SizedTimes(gpu, fused=not is_unfused)
        self._roofline = Roofline(workload, gpu, Shares())
        self._alike = alike_in(workload)
        self._known: dict[tuple[int, Split], Duration] = {}
        self._known_of_jobs = _known_times(workload, gpu)
        self._sources: dict[str, None] = {}
        self._uneven: dict[str, None] = {}
        self._slow_rows: dict[int, float] = {}

    @property
    def notes(self) -> tuple[str, ...]:
        sources = " and ".join(self._sources) or "no table"
        measured = measured_gpu(self._gpu.name)
        subject = f"the {self._gpu.name}" if measured is None else measured.words
        text = f"kernel times on {subject}: benchmarks of {sources}"
        products = self._times.tables.product_source()
        error = left_out_error(self._gpu.name, products) if products in self._sources else None
        if error is not None:
            text += f"; GEMMs from {products}, {error:.0%} off on a held-out GPU"
        if self._gpu.step_slowdown > 1:
            text += f"; x {self._gpu.step_slowdown:g} for its sustained clock"
        basis = "measured on" if generation_of(self._gpu.name) == "hopper" else "assumed from"
        slow = [
            f"GEMMs with rows of {side} elements, not {-(-side // 64) * 64}, take up to {factor:.1f}x the time "
            f"({basis} an H100)"
            for side, factor in sorted(self._slow_rows.items())
        ]
        return (text, *slow, *uneven_notes(self._uneven))

    def fit_report(self) -> FitReport | None:
        return None

    def duration(self, operator: Operator, split: Split) -> Duration:
        """Return picoseconds, rounded up, inside a step. Raises InputError if the GPU has no peak for the dtype."""
        key = self._alike.first(operator), split
        duration = self._known.get(key)
        if duration is None:
            timed = self._known_of_jobs.get(key)
            if timed is None:
                timed = self._known_of_jobs[key] = self._timed(operator, split)
            self._note(timed)
            duration = self._known[key] = timed.duration
        return duration

    def forget_notes(self) -> None:
        """Begin the notes on sizes anew: so far, times were of whole operators, as for a step's power."""
        self._known.clear()
        self._uneven.clear()
        self._slow_rows.clear()

    def _note(self, timed: _Timed) -> None:
        """Remember what the notes of this job say of a time."""
        if timed.source:
            self._sources[timed.source] = None
        if timed.uneven:
            self._uneven[timed.uneven] = None
        for side, factor in timed.slow_rows:
            self._slow_rows[side] = max(factor, self._slow_rows.get(side, 1.0))

    def _timed(self, operator: Operator, split: Split) -> _Timed:
        sizes = resized(operator, self._workload, split, self._alike.forward_of(operator))
        uneven = (operator.layer or operator.name) if sizes.uneven else ""
        self._times.slow_rows.clear()
        time = self._times.time(sizes)
        slow_rows = tuple(self._times.slow_rows.items())
        if time is None:
            return _Timed(self._roofline.duration(operator, split), "", uneven, slow_rows)
        source = time.source if time.us else ""
        duration = Duration(math.ceil(time.us * self._gpu.step_slowdown * _PS_PER_US), time.evidence)
        return _Timed(duration, source, uneven, slow_rows)
