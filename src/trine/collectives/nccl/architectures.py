"""NCCL's index of a GPU's architecture."""

from __future__ import annotations

from collections.abc import Iterable

VOLTA, AMPERE, HOPPER, BLACKWELL = range(4)

_ARCHITECTURES = (
    ("v100", VOLTA), ("h100", HOPPER), ("h200", HOPPER), ("h20", HOPPER), ("gh200", HOPPER), ("h800", HOPPER),
    ("b200", BLACKWELL), ("b300", BLACKWELL), ("gb200", BLACKWELL), ("gb300", BLACKWELL), ("rtx-pro-6000", BLACKWELL),
    ("gb10", BLACKWELL),
)  # fmt: skip


def architecture(gpu: str) -> int:
    """NCCL's index of the GPU's generation; Ampere and Ada share one with all unknown ones."""
    return next((index for name, index in _ARCHITECTURES if gpu.startswith(name)), AMPERE)


def oldest(gpus: Iterable[str]) -> str:
    """Return the GPU model that a group of several is tuned for: of the lowest architecture, of these the first name.

    NCCL tunes by ``minCompCap`` of all ranks (github.com/NVIDIA/nccl, src/graph/tuning.cc).
    """
    return min(gpus, key=lambda gpu: (architecture(gpu), gpu), default="")
