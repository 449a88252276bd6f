"""The bytes that nccl-tests sends for a size, and its bus bandwidths.

The file doc/PERFORMANCE.md of nccl-tests defines the bus bandwidths.
"""

from __future__ import annotations

from trine.errors import InputError

#: Element size of nccl-tests' default data type (float32), and the alignment it rounds a rank's part down to.
ELEMENT_BYTES, ALIGN_BYTES = 4, 16
MAX_BYTES = 1 << 50
#: Collectives that give every rank a separate part.
_PARTS = ("all_gather", "reduce_scatter", "all_to_all", "all_to_all_v", "gather", "scatter")


def sent_bytes(op: str, size_bytes: int, num_ranks: int) -> int:
    """Return the bytes that nccl-tests sends for ``-b size``: whole float32 elements; equal parts of whole 16 bytes.

    Raises InputError for a size below 0 or above 1 PiB.
    """
    if not 0 <= size_bytes <= MAX_BYTES:
        raise InputError(f"a collective has 0 to {MAX_BYTES} bytes, got {size_bytes}", field="size")
    if op in _PARTS:
        return size_bytes // num_ranks // ALIGN_BYTES * ALIGN_BYTES * num_ranks
    return size_bytes // ELEMENT_BYTES * ELEMENT_BYTES


def bus_factor(op: str, num_ranks: int) -> float:
    """Return busbw / algbw (nccl-tests, doc/PERFORMANCE.md)."""
    if op in ("all_reduce", "barrier"):
        return 2 * (num_ranks - 1) / num_ranks
    if op in _PARTS:
        return (num_ranks - 1) / num_ranks
    return 1.0
