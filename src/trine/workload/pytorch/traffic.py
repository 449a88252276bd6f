"""Memory traffic of operators that run several kernels: each kernel reads and writes its own tensors.

An autograd node such as PowBackward0 runs three kernels, whose intermediate results are no tensors of the operator.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from trine.compute.kinds import BACKWARD_SUFFIX, family_of, kind_of
from trine.graph.workload import BACKWARD, Operator
from trine.workload.pytorch.calls import NO_KERNEL
from trine.workload.raw_trace import RawCall, RawTensor, RawTrace

#: Families whose time is the traffic of their tensors. The laws of the others count their kernels' traffic.
_MOVING = frozenset({"elementwise", "reduction", "copy", "softmax", "index"})


def with_traffic(raw: RawTrace) -> RawTrace:
    """Return ``raw`` with the traffic of its kernels.

    An operator of several kernels gets the attribute ``passes``, their bytes over the bytes of its own tensors. The
    gradient of a view that computes (it adds a second gradient, or copies) takes the name of its kernel.
    """
    kernels: dict[int, list[RawCall]] = {}
    for call in raw.calls:
        if call.operator is not None and call.inner and call.outputs and call.kind not in NO_KERNEL:
            kernels.setdefault(call.operator, []).append(call)
    sizes = _sizes(raw.tensors)
    operators = tuple(_with_kernels(op, kernels.get(place, []), sizes) for place, op in enumerate(raw.operators))
    return replace(raw, operators=operators)


def _with_kernels(op: Operator, kernels: list[RawCall], sizes: Mapping[int, int]) -> Operator:
    if not kernels:
        return op
    if op.phase == BACKWARD and kind_of(op) == "view" + BACKWARD_SUFFIX:
        return replace(op, name=f"aten::{kernels[-1].kind}")
    own_bytes = _moved((*op.inputs, *op.outputs), sizes)
    if family_of(kind_of(op)) not in _MOVING or len(kernels) < 2 or not own_bytes:
        return op
    kernel_bytes = sum(_moved(call.inputs, sizes) + _moved(call.outputs, sizes) for call in kernels)
    passes = round(kernel_bytes / own_bytes, 3)
    return op if passes <= 1 else replace(op, attributes={**op.attributes, "passes": passes})


def _sizes(tensors: Mapping[int, RawTensor]) -> dict[int, int]:
    """Return the bytes that a kernel reads of each tensor: an expanded one has more elements than its storage."""
    of_storage: dict[int, int] = {}
    for tensor in tensors.values():
        of_storage.setdefault(tensor.storage, tensor.size_bytes)
    return {i: min(tensor.size_bytes, of_storage[tensor.storage]) for i, tensor in tensors.items()}


def _moved(tensors: Iterable[int | None], sizes: Mapping[int, int]) -> int:
    return sum(sizes[i] for i in dict.fromkeys(tensors) if i is not None)
