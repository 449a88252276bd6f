"""GPU generations as NCCL counts them."""

from __future__ import annotations

from collections.abc import Iterable

VOLTA, AMPERE, HOPPER, BLACKWELL = range(4)

#: Compute capability by the first letters of the name (NVIDIA, CUDA GPUs); of other GPUs that of A100.
_CAPABILITIES = (
    ("p100", 60), ("v100", 70), ("t4", 75), ("a100", 80), ("a800", 80), ("a40", 86), ("rtx3090", 86), ("l40s", 89),
    ("rtx4090", 89), ("h100", 90), ("h200", 90), ("h20", 90), ("gh200", 90), ("h800", 90), ("b200", 100),
    ("gb200", 100), ("b300", 103), ("gb300", 103), ("rtx-pro-6000", 120), ("gb10", 121),
)  # fmt: skip
_GENERATIONS = ((100, BLACKWELL), (90, HOPPER), (80, AMPERE), (0, VOLTA))


def _capability(gpu: str) -> int:
    return next((number for name, number in _CAPABILITIES if gpu.startswith(name)), 80)


def architecture(gpu: str) -> int:
    """Return NCCL's index of the GPU's generation; Ada and unknown GPUs have the index of Ampere."""
    return next(index for least, index in _GENERATIONS if _capability(gpu) >= least)


def oldest(gpus: Iterable[str]) -> str:
    """Return the GPU model of the oldest generation: NCCL tunes a group for it (``minCompCap`` in init.cc)."""
    return min(gpus, key=lambda gpu: (_capability(gpu), gpu))


def is_of_one(gpus: Iterable[str]) -> bool:
    """Whether all have one compute capability: NCCL up to 2.29 takes LL128 only then (tuning.cc)."""
    return len({_capability(gpu) for gpu in gpus}) == 1
