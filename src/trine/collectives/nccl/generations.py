"""GPU generations as NCCL counts them."""

from __future__ import annotations

from collections.abc import Iterable

VOLTA, AMPERE, HOPPER, BLACKWELL = range(4)

_ARCHITECTURES = (
    ("v100", VOLTA), ("h100", HOPPER), ("h200", HOPPER), ("h20", HOPPER), ("gh200", HOPPER), ("h800", HOPPER),
    ("b200", BLACKWELL), ("b300", BLACKWELL), ("gb200", BLACKWELL), ("gb300", BLACKWELL), ("rtx-pro-6000", BLACKWELL),
    ("gb10", BLACKWELL),
)  # fmt: skip


def architecture(gpu: str) -> int:
    """Return NCCL's index of the GPU's generation; Ada and unknown GPUs have the index of Ampere."""
    return next((index for name, index in _ARCHITECTURES if gpu.startswith(name)), AMPERE)


def oldest(gpus: Iterable[str]) -> str:
    """Return the GPU model of the oldest generation: NCCL tunes a group for it (``minCompCap`` in init.cc)."""
    return min(gpus, key=lambda gpu: (architecture(gpu), gpu))
