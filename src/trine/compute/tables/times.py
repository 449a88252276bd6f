"""The compute model ``tables``: operators of a workload as questions to the tables of a GPU.

Products, forward and both gradients, grouped products of experts, fused attention and its backward, and all that moves
memory; products of float32 and convolutions by the tables of :mod:`trine.compute.tables.fp32`. What no table has takes
the time of the roofline, and is 'assumed'.

Operators may say more of themselves (software profiles do): ``attention_kernel``, the generation of a fused attention;
``passes``, how many times its own bytes an operator moves where it is not fused (:mod:`trine.compute.cost` counts
them); ``kernels``, how many launches it is.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from trine.cluster.presets import GpuSpec
from trine.compute.alike import Alike
from trine.compute.calibration import Calibration
from trine.compute.cost import Sizing, elements, factors, is_gradient, wants, work_of
from trine.compute.data_sheet import dtype_name, dtype_of, stated_precision
from trine.compute.kinds import family_of, kind_of
from trine.compute.law import FitReport
from trine.compute.resize import Resized, Split, is_expert_product, resized
from trine.compute.roofline import Duration, Roofline, Shares
from trine.compute.tables.fp32_operators import operator_time
from trine.compute.tables.in_step import FORWARD_PRODUCT, INPUT_PRODUCT, WEIGHT_PRODUCT
from trine.compute.tables.memory import FLOOR_US
from trine.compute.tables.operators import AttentionShape, OperatorTables, TableTime
from trine.errors import InputError
from trine.evidence import ASSUMED, EVIDENCE
from trine.graph.workload import Operator, Workload

if TYPE_CHECKING:
    from collections.abc import Callable

    from trine.compute.transfer import Transfer

#: Name of the model, and value of ``Workload.metadata["times"]`` of a workload whose times are its.
TABLES = "tables"
_PS_PER_US = 1e6


class TableTimes:
    """Times of one workload's operators on one GPU. Times are kept by (operator, split)."""

    name = TABLES

    def __init__(self, workload: Workload, gpu: GpuSpec) -> None:
        self._workload = workload
        self._gpu = gpu
        self._tables = OperatorTables(gpu)
        self._roofline = Roofline(workload, gpu, Shares())
        self._sizing = Sizing(workload)
        self._alike = Alike(workload)
        self._known: dict[tuple[int, Split], Duration] = {}
        self._sources: dict[str, None] = {}
        self._by_family: dict[str, Callable[[Resized], TableTime | None]] = {
            "linear": self._product, "matmul": self._product, "attention": self._attention,
        }  # fmt: skip

    @property
    def notes(self) -> tuple[str, ...]:
        whose = ", ".join(self._sources) or "no table"
        return (f"operator times on the {self._gpu.name} are interpolated between measurements of: {whose}",)

    def fit_report(self) -> FitReport | None:
        return None

    def duration(self, operator: Operator, split: Split) -> Duration:
        """Picoseconds, rounded up, inside a step. Raises InputError where the GPU has no peak for the dtype."""
        key = self._alike.first(operator), split
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self._duration(operator, split)
        return found

    def _duration(self, operator: Operator, split: Split) -> Duration:
        sizes = resized(operator, self._workload, split, self._alike.forward_of(operator))
        family = family_of(kind_of(operator))
        ask = self._by_family.get(family)
        if ask is not None:
            found = ask(sizes)
            found = found or self._single(sizes)
        elif family == "conv":
            found = self._single(sizes)
        else:
            found = self._moving(sizes, family)
        if found is None:
            return self._roofline.duration(operator, split)
        self._sources[found.source] = None
        return Duration(math.ceil(found.us * _PS_PER_US), found.evidence)

    def _single(self, sizes: Resized) -> TableTime | None:
        """A product of float32 or a convolution, by the tables that have those."""
        dtype = dtype_of(sizes.operator, self._workload.tensors)
        is_conv = family_of(kind_of(sizes.operator)) == "conv"
        precision = stated_precision(sizes.operator) or ("tfloat32" if is_conv and dtype == "float32" else dtype)
        found = operator_time(self._gpu, sizes, work_of(sizes), precision)
        return None if found is None else TableTime(found.us, found.evidence, "float32 tables")

    def _moving(self, sizes: Resized, family: str) -> TableTime:
        """An operator that moves memory: its bytes as often as it says, and no less than its launches take."""
        work = work_of(sizes)
        if not work.bytes and not work.flops:
            return TableTime(0.0, ASSUMED, "data sheet")
        attributes = sizes.operator.attributes
        found = self._tables.memory(work.bytes, family)
        floor = FLOOR_US * max(1.0, number_of(attributes.get("kernels")))
        return TableTime(max(found.us, floor), found.evidence, found.source)

    def _product(self, sizes: Resized) -> TableTime | None:
        """A product, or the gradients of one that its operator computes."""
        source = sizes.forward or sizes
        both = factors(source) if source.outputs else None
        if both is None or (is_gradient(sizes) and sizes.forward is None):
            return self._moving(sizes, "other")
        x, weight = both
        y = source.outputs[0]
        groups = weight.shape[0] if is_expert_product(source.operator) and len(weight.shape) == 3 else 1
        rows, inner = math.ceil(elements(y) / y.shape[-1] / groups), x.shape[-1]
        outer = y.shape[-1]
        dtype = dtype_name(x)
        if not is_gradient(sizes):
            return self._tables.gemm_in_step(rows, outer, inner, dtype, FORWARD_PRODUCT, groups)
        parts = []
        if wants(sizes, x):
            parts.append(self._tables.gemm_in_step(rows, inner, outer, dtype, INPUT_PRODUCT, groups))
        if wants(sizes, weight):
            parts.append(self._tables.gemm_in_step(outer, inner, rows, dtype, WEIGHT_PRODUCT, groups))
        return _sum(parts)

    def _attention(self, sizes: Resized) -> TableTime | None:
        """Fused attention on queries (batch, heads, length, size); keys of another length in proportion."""
        source = sizes.forward or sizes
        parts = [t for t in source.inputs if len(t.shape) == 4][:3]
        if len(parts) < 3 or (is_gradient(sizes) and sizes.forward is None) or dtype_name(parts[0]) == "float32":
            return None
        q, k, v = parts
        length = k.shape[-2]
        attributes = source.operator.attributes
        shape = AttentionShape(
            batch=q.shape[0], heads=q.shape[1], kv_heads=max(1, min(k.shape[1], q.shape[1])), length=length,
            size=(q.shape[-1] + v.shape[-1]) // 2, causal=attributes.get("causal") is True,
        )  # fmt: skip
        kernel = str(attributes.get("attention_kernel", ""))
        found = self._tables.attention_in_step(shape, backward=is_gradient(sizes), kernel=kernel)
        if found is None:
            return None
        return TableTime(found.us * q.shape[-2] / length, found.evidence, found.source)


def number_of(value: object) -> float:
    """A positive number that an attribute gives; 1 where it gives none."""
    return float(value) if isinstance(value, int | float) and value > 0 else 1.0


def _sum(parts: list[TableTime | None]) -> TableTime | None:
    """Times one after another, as sure as the least sure; None where one is not known."""
    known = [part for part in parts if part is not None]
    if not known or len(known) < len(parts):
        return None
    least = max(known, key=lambda part: EVIDENCE.index(part.evidence))
    return TableTime(sum(part.us for part in known), least.evidence, least.source)


def make_tables(workload: Workload, transfer: Transfer | None, calibration: Calibration | None) -> TableTimes:
    """The tables of the GPU that is asked for, else of the trace's.

    Raises InputError for a calibration, which it has no use for, and where neither GPU is known.
    """
    from trine.cluster import load_gpu

    if transfer is None and workload.gpu is None:
        raise InputError("the tables of which GPU? The trace does not say: --gpu NAME does", field="gpu")
    return tables_of(workload, transfer.target if transfer is not None else load_gpu(workload.gpu or ""), calibration)


def tables_of(workload: Workload, gpu: GpuSpec, calibration: Calibration | None = None) -> TableTimes:
    """The tables of ``gpu``, whatever the trace was recorded on. Raises InputError for a calibration."""
    if calibration is not None:
        raise InputError("the model 'tables' uses no calibration; use 'auto' or 'linear'", field="compute")
    return TableTimes(workload, gpu)
