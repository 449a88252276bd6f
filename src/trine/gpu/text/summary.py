"""Count the parts of a GPU program: kernels, operations, local and remote bytes."""

from __future__ import annotations

from typing import Any

import numpy as np

from trine.common.units import format_bytes
from trine.gpu import program as isa
from trine.gpu.program import GpuProgram, has_multimem, is_flagged, is_member


def count_program(program: GpuProgram) -> dict[str, Any]:
    """Count the operations and bytes of a well-formed program: the JSON of ``trine kernel show``.

    Bytes are sums over all ranks, in whole lines, of local and remote memory. multimem: bytes of requests that switches
    reduce or multicast; only in programs with such operations.
    """
    groups = np.diff(program.kernel_ptr)
    op_of = program.operand_op
    lines = np.where(np.isin(program.op_kind, isa.DATA_OPS), program.op_amount, 0)[op_of]
    role = program.operand_role
    loads, stores = np.isin(role, (isa.READ, isa.READ_FLAGGED)), np.isin(role, (isa.WRITE, isa.WRITE_FLAGGED))
    stays = program.operand_rank == program.op_rank[op_of]
    size = program.line_bytes
    counts: dict[str, Any] = {
        "name": program.name,
        "ranks": program.num_gpus,
        "line_bytes": size,
        "payload_bytes": program.payload_bytes,
        "kernels": program.num_kernels,
        "workgroups": program.num_workgroups,
        "wavefronts": int((groups * program.kernel_wavefronts).sum()),
        "operations": {
            name: int(count)
            for name, count in zip(isa.OP_NAMES, np.bincount(program.op_kind, minlength=len(isa.OP_NAMES)), strict=True)
            if count
        },
        "own_load_bytes": int(lines[loads & stays].sum()) * size,
        "own_store_bytes": int(lines[stores & stays].sum()) * size,
        "remote_load_bytes": int(lines[loads & ~stays].sum()) * size,
        "remote_store_bytes": int(lines[stores & ~stays].sum()) * size,
        "dma_bytes": int(program.op_amount[program.op_kind == isa.DMA].sum()),
        "compute_cycles": int(program.op_amount[program.op_kind == isa.COMPUTE].sum()),
        "semaphores": program.semaphores.shape[1],
        "flagged_lines": int(lines[is_flagged(program) & ~is_member(program)].sum()),
        "buffers": {buffer.name: buffer.size_bytes for buffer in program.buffers},
        "uncached_buffers": [buffer.name for buffer in program.buffers if buffer.uncached],
        "notes": list(program.notes),
    }
    if program.num_hosts:
        counts["hosts"] = program.num_hosts
    if has_multimem(program):
        counts["multimem_load_bytes"] = int(lines[role == isa.READ_SUM].sum()) * size
        counts["multimem_store_bytes"] = int(lines[np.isin(role, (isa.WRITE_ALL, isa.ADD_ALL))].sum()) * size
    return counts


def summary_text(counts: dict[str, Any]) -> str:
    """Return the counts as readable text."""
    operations = ", ".join(f"{count:,} {name}" for name, count in counts["operations"].items()) or "nothing"
    traffic = ", ".join(
        f"{format_bytes(size)} {words}"
        for size, words in (
            (counts["own_load_bytes"], "loaded from the own memory"),
            (counts["own_store_bytes"], "stored there"),
            (counts["remote_load_bytes"], "loaded from other ranks"),
            (counts["remote_store_bytes"], "stored at other ranks"),
            (counts["dma_bytes"], "by copy engines"),
            (counts.get("multimem_load_bytes", 0), "added up by switches"),
            (counts.get("multimem_store_bytes", 0), "multicast by switches"),
        )
        if size
    )
    hosts = f" and {counts['hosts']} hosts" if "hosts" in counts else ""
    lines = [
        f"{counts['name']}: {counts['ranks']} ranks{hosts}, lines of {counts['line_bytes']} B",
        f"  {counts['kernels']:,} kernels, {counts['workgroups']:,} workgroups, {counts['wavefronts']:,} wavefronts",
        f"  operations: {operations}",
        f"  of all ranks: {traffic or 'no bytes'}",
        f"  semaphores of a rank: {counts['semaphores']:,}; lines that carry a flag: {counts['flagged_lines']:,}",
    ]
    if counts["buffers"]:
        uncached = counts["uncached_buffers"]
        buffer_texts = []
        for name, size in counts["buffers"].items():
            buffer_texts.append(f"{name} {format_bytes(size)}{' (uncached)' if name in uncached else ''}")
        sizes = ", ".join(buffer_texts)
        lines.append(f"  buffers: {sizes}")
    return "\n".join([*lines, *(f"  note: {note}" for note in counts["notes"])])
