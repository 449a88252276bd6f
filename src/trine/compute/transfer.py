"""From one GPU to another: a recorded or predicted time, scaled by what the two data sheets say.

Each GPU has a roofline: an operator cannot take less than FLOPs / peak or bytes / bandwidth, whichever is more. The
operator is taken to stay as far above its roofline on the other GPU as it was on its own, apart from the fixed part of
its time, which does not change. An assumption, and marked as one: efficiency differs from GPU to GPU.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from trine.compute.cost import Work, work
from trine.compute.kinds import family_of, is_compute_bound, kind_of
from trine.errors import InputError, nearest
from trine.model.device import GpuSpec
from trine.model.workload import Operator, Workload
from trine.units import PS_PER_S

_DTYPES = {
    "float": "float32", "double": "float64", "half": "float16", "bfloat16": "bfloat16", "float32": "float32",
    "float64": "float64", "float16": "float16", "tfloat32": "tfloat32", "float8_e4m3fn": "float8",
    "float8_e5m2": "float8", "float8": "float8",
}  # fmt: skip


class Transfer:
    """Scales times of a workload's operators from ``source``, where it was recorded, to ``target``."""

    def __init__(self, source: GpuSpec, target: GpuSpec, workload: Workload) -> None:
        for gpu in (source, target):
            if gpu.memory_bytes_per_s <= 0 or any(rate <= 0 for rate in gpu.flop_per_s.values()):
                raise InputError(f"GPU {gpu.name} has a peak that is not positive", field="gpu")
        self._source, self._target, self._workload = source, target, workload
        self._tf32_products = self._runs_above_float32()
        self.notes: tuple[str, ...] = (
            f"times were scaled from {source.name} to {target.name} by the ratio of their rooflines; products of "
            f"float32 matrices taken to run in {'TF32' if self._tf32_products else 'float32'}, convolutions in TF32",
        )

    def time_ps(self, operator: Operator, sizes_work: Work, ps: int, fixed_ps: float) -> int:
        """Picoseconds on the target of an operator that takes ``ps`` on the source, ``fixed_ps`` of it at any size."""
        precision = self._precision(operator)
        before, after = _bound(self._source, sizes_work, precision), _bound(self._target, sizes_work, precision)
        if before <= 0.0:
            return ps
        fixed = min(float(ps), fixed_ps)
        return math.ceil(fixed + (ps - fixed) * (after / before))

    def _runs_above_float32(self) -> bool:
        """Whether some product of float32 matrices ran faster than float32 can on the source, so that it was TF32."""
        peak = self._source.flop_per_s.get("float32", 0)
        for op in self._workload.operators:
            kind = kind_of(op)
            is_product = is_compute_bound(kind) and family_of(kind) != "conv" and self._dtype(op) == "float32"
            if is_product and work(op, self._workload).flops * PS_PER_S > peak * op.gpu_time_ps > 0:
                return True
        return False

    def _precision(self, operator: Operator) -> str:
        """Precision of its arithmetic: PyTorch lets convolutions use TF32, and matrix products only if asked."""
        dtype = self._dtype(operator)
        uses_tf32 = family_of(kind_of(operator)) == "conv" or (
            is_compute_bound(kind_of(operator)) and self._tf32_products
        )
        return "tfloat32" if dtype == "float32" and uses_tf32 else dtype

    def _dtype(self, operator: Operator) -> str:
        """Floating-point type of the first tensor that has one, outputs first; float32 if none has."""
        for i in (*operator.outputs, *operator.inputs):
            tensor = self._workload.tensors.get(i)
            found = (
                None
                if tensor is None
                else _DTYPES.get(tensor.dtype.removeprefix("torch.").removeprefix("c10::").lower())
            )
            if found is not None:
                return found
        return "float32"


def _bound(gpu: GpuSpec, amount: Work, precision: str) -> float:
    """Roofline of ``gpu``: the least time, in seconds, that ``amount`` can take."""
    return max(amount.flops / _peak(gpu, precision), amount.bytes / gpu.memory_bytes_per_s)


def _peak(gpu: GpuSpec, precision: str) -> int:
    """Peak FLOP/s; a GPU without TF32 runs it as float32."""
    rates: Mapping[str, int] = gpu.flop_per_s
    for name in (precision, "float32") if precision == "tfloat32" else (precision,):
        if name in rates:
            return rates[name]
    raise InputError(f"GPU {gpu.name} has no peak for {precision}{nearest(precision, rates)}", field="gpu")
