"""What data sheets say about an operator: its precision, and the least time that it can take.

Each GPU has a roofline: an operator cannot take less than FLOPs / peak or bytes / bandwidth, whichever is more.
"""

from __future__ import annotations

from collections.abc import Mapping

from trine.cluster.presets import GpuSpec
from trine.compute.cost import Work
from trine.errors import InputError, nearest
from trine.graph.workload import Operator, Tensor

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
