"""What data sheets say about an operator: its precision, and the least time that it can take.

Each GPU has a roofline: an operator cannot take less than FLOPs / peak or bytes / bandwidth, whichever is more.
"""

from __future__ import annotations

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


def dtype_name(tensor: Tensor) -> str:
    """The floating-point type of a tensor; float32 for what is none."""
    return _DTYPES.get(tensor.dtype.removeprefix("torch.").removeprefix("c10::").lower(), "float32")


def dtype_of(operator: Operator, tensors: Mapping[int, Tensor]) -> str:
    """Floating-point type of the first tensor of ``operator`` that has one, outputs first; float32 if none has.

    A product that makes the gradient of a weight may add it up in another type than that of its factors, which counts.
    """
    made = operator.attributes.get("gradient_of") != "weight"
    for i in (*operator.outputs, *operator.inputs) if made else (*operator.inputs, *operator.outputs):
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


def precision_of(operator: Operator, tensors: Mapping[int, Tensor], tf32_products: bool) -> str:
    """Precision of its arithmetic: PyTorch lets convolutions use TF32, and matrix products only if asked.

    tf32_products: whether it was asked (:func:`has_tf32_products`). A stated precision counts before both.
    """
    stated = stated_precision(operator)
    if stated:
        return stated
    dtype, kind = dtype_of(operator, tensors), kind_of(operator)
    uses_tf32 = family_of(kind) == "conv" or (is_compute_bound(kind) and tf32_products)
    return "tfloat32" if dtype == "float32" and uses_tf32 else dtype


def has_tf32_products(workload: Workload, source: GpuSpec) -> bool:
    """Whether some product of float32 matrices ran faster than float32 can on the source, so that it was TF32."""
    most = source.flop_per_s.get("float32", 0)
    for op in workload.operators:
        kind = kind_of(op)
        is_product = (
            is_compute_bound(kind) and family_of(kind) != "conv" and dtype_of(op, workload.tensors) == "float32"
        )
        if is_product and work(op, workload).flops * PS_PER_S > most * op.gpu_time_ps > 0:
            return True
    return False


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
