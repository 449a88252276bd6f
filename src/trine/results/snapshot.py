"""Snapshot of PyTorch's allocator for a replayed program, as ``torch.cuda.memory._dump_snapshot`` writes it.

https://pytorch.org/memory_viz and ``python -m torch.cuda._memory_viz`` open it. The file is a pickle of plain dicts,
lists, texts and numbers. Times follow program order, one microsecond per change; a frame names the module.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from trine.common.outputs import write_bytes
from trine.graph.memory import stream_of
from trine.results.allocator import RESIDENT, CachingAllocator, Piece, Segment


@dataclass(frozen=True, slots=True)
class SnapshotChange:
    """An allocation, or a free (``size`` negative). module, where: module and pass that made it, in words."""

    size: int
    block: int
    module: str
    where: str


def snapshot(changes: Sequence[SnapshotChange], resident: Sequence[tuple[str, int]], rounding: int) -> dict[str, Any]:
    """Return the allocator's state after ``changes``, with all events. resident: name and bytes of lasting blocks."""
    allocator, trace = CachingAllocator(rounding=rounding), list[dict[str, Any]]()
    sizes: dict[int, tuple[int, list[dict[str, Any]]]] = {}  # block -> requested bytes, frames
    lasting = [SnapshotChange(size, RESIDENT + i, name, "before the step") for i, (name, size) in enumerate(resident)]
    for change in (*lasting, *changes):
        if change.size > 0:
            frames = [{"name": change.module or "trine", "filename": change.where, "line": 0}]
            segment = allocator.take(change.block, change.size)
            if segment is not None:
                trace.append(_event("segment_alloc", segment, change.block, len(trace), frames))
            piece = allocator.pieces[change.block]
            sizes[change.block] = change.size, frames
            trace.append(_event("alloc", piece, change.block, len(trace), frames))
        elif change.size < 0 and change.block in allocator.pieces:
            piece = allocator.give(change.block)
            frames = sizes.pop(change.block)[1]
            for action in ("free_requested", "free_completed"):
                trace.append(_event(action, piece, change.block, len(trace), frames))
    segments = [_segment(allocator, segment, sizes) for segment in allocator.segments]
    return {"segments": segments, "device_traces": [trace], "allocator_settings": {"expandable_segments": False}}


def write_snapshot(snapshot: dict[str, Any], path: str | os.PathLike[str]) -> None:
    """Write the snapshot as a pickle, as PyTorch does."""
    write_bytes(path, pickle.dumps(snapshot, protocol=4))


def _event(
    action: str, memory: Piece | Segment, block: int, time_us: int, frames: list[dict[str, Any]]
) -> dict[str, Any]:
    return {
        "action": action, "addr": memory.address, "size": memory.size, "stream": stream_of(block), "time_us": time_us,
        "frames": frames,
    }  # fmt: skip


def _segment(
    allocator: CachingAllocator, segment: Segment, sizes: dict[int, tuple[int, list[dict[str, Any]]]]
) -> dict[str, Any]:
    blocks = [_block(piece, sizes) for piece in allocator.blocks_of(segment)]
    active = sum(block["size"] for block in blocks if block["state"] == "active_allocated")
    requested = sum(block["requested_size"] for block in blocks)
    segment_type = "small" if segment.is_small else "large"
    return {
        "device": 0, "address": segment.address, "total_size": segment.size, "allocated_size": active,
        "active_size": active, "requested_size": requested,
        "stream": segment.stream,
        "segment_type": segment_type, "segment_pool_id": (0, 0), "is_expandable": False,
        "frames": [], "blocks": blocks,
    }  # fmt: skip


def _block(piece: Piece, sizes: dict[int, tuple[int, list[dict[str, Any]]]]) -> dict[str, Any]:
    request, frames = sizes.get(piece.block, (0, []))
    state = "active_allocated" if piece.block >= 0 else "inactive"
    return {"address": piece.address, "size": piece.size, "requested_size": request, "state": state, "frames": frames}
