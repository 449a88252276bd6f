"""What data sheets say about an operator: its precision, the least time that it can take, and its time on another GPU.

Each GPU has a roofline: an operator cannot take less than FLOPs / peak or bytes / bandwidth, whichever is more. The
operator is taken to stay as far above its roofline on the other GPU as it was on its own, apart from the fixed part of
its time, which does not change. An assumption, and marked as one: efficiency differs from GPU to GPU.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from trine.cluster.presets import GpuSpec
from trine.compute.cost import Work, work
from trine.compute.kinds import family_of, is_compute_bound, kind_of
from trine.errors import InputError, nearest
from trine.graph.workload import Operator, Tensor, Workload
from trine.units import PS_PER_S

_DTYPES = {
    "float": "float32", "double": "float64", "half": "float16", "bfloat16": "bfloat16", "float32": "float32",
    "float64": "float64", "float16": "float16", "tfloat32": "tfloat32", "float8_e4m3fn": "float8",
    "float8_e5m2": "float8", "float8": "float8",
}  # fmt: skip


def check_peaks(gpu: GpuSpec) -> None:
    """Raise InputError if a peak of ``gpu`` is not positive."""
    if gpu.memory_bytes_per_s <= 0 or any(rate <= 0 for rate in gpu.flop_per_s.values()):
        raise InputError(f"GPU {gpu.name} has a peak that is not positive", field="gpu")


def dtype_of(operator: Operator, tensors: Mapping[int, Tensor]) -> str:
    """Floating-point type of the first tensor of ``operator`` that has one, outputs first; float32 if none has."""
    for i in (*operator.outputs, *operator.inputs):
        tensor = tensors.get(i)
        if tensor is not None:
            found = _DTYPES.get(tensor.dtype.removeprefix("torch.").removeprefix("c10::").lower())
            if found is not None:
                return found
    return "float32"


def stated_precision(operator: Operator) -> str:
    """Precision of its arithmetic as the attribute ``precision`` has it (``float32``, ``tfloat32``), else ``""``."""
    stated = operator.attributes.get("precision")
    return stated if isinstance(stated, str) and stated in ("float32", "tfloat32") else ""


def least_time_s(gpu: GpuSpec, amount: Work, precision: str) -> float:
    """Roofline of ``gpu``: the least time, in seconds, that ``amount`` can take."""
    return max(amount.flops / peak(gpu, precision), amount.bytes / gpu.memory_bytes_per_s)


def peak(gpu: GpuSpec, precision: str) -> int:
    """Peak FLOP/s; a GPU without TF32 runs it as float32. Raises InputError for a precision that it does not have."""
    rates: Mapping[str, int] = gpu.flop_per_s
    for name in (precision, "float32") if precision == "tfloat32" else (precision,):
        if name in rates:
            return rates[name]
    raise InputError(f"GPU {gpu.name} has no peak for {precision}{nearest(precision, rates)}", field="gpu")


class Transfer:
    """Scales times of a workload's operators from ``source``, where it was recorded, to ``target``."""

    def __init__(self, source: GpuSpec, target: GpuSpec, workload: Workload) -> None:
        check_peaks(source)
        check_peaks(target)
        self.source, self.target = source, target
        self._workload = workload
        self._tf32_products = self._runs_above_float32()
        self.notes: tuple[str, ...] = (
            f"times were scaled from {source.name} to {target.name} by the ratio of their rooflines; products of "
            f"float32 matrices taken to run in {'TF32' if self._tf32_products else 'float32'}, convolutions in TF32",
        )

    def time_ps(self, operator: Operator, sizes_work: Work, ps: int, fixed_ps: float) -> int:
        """Picoseconds on the target of an operator that takes ``ps`` on the source, ``fixed_ps`` of it at any size."""
        precision = self._precision(operator)
        before = least_time_s(self.source, sizes_work, precision)
        after = least_time_s(self.target, sizes_work, precision)
        if before <= 0.0:
            return ps
        fixed = min(float(ps), fixed_ps)
        return math.ceil(fixed + (ps - fixed) * (after / before))

    def _runs_above_float32(self) -> bool:
        """Whether some product of float32 matrices ran faster than float32 can on the source, so that it was TF32."""
        peak = self.source.flop_per_s.get("float32", 0)
        for op in self._workload.operators:
            kind = kind_of(op)
            is_product = (
                is_compute_bound(kind)
                and family_of(kind) != "conv"
                and dtype_of(op, self._workload.tensors) == "float32"
            )
            if is_product and work(op, self._workload).flops * PS_PER_S > peak * op.gpu_time_ps > 0:
                return True
        return False

    def _precision(self, operator: Operator) -> str:
        """Precision of its arithmetic: PyTorch lets convolutions use TF32, and matrix products only if asked."""
        stated = stated_precision(operator)
        if stated:
            return stated
        dtype = dtype_of(operator, self._workload.tensors)
        uses_tf32 = family_of(kind_of(operator)) == "conv" or (
            is_compute_bound(kind_of(operator)) and self._tf32_products
        )
        return "tfloat32" if dtype == "float32" and uses_tf32 else dtype
