"""Which run a record is of, so that it is not taken for one of another program or machine without a word."""

from __future__ import annotations

import hashlib

import numpy as np

from trine.cluster.cluster import Cluster
from trine.gpu.model_fields import values
from trine.gpu.target import of_rank
from trine.model.gpumodel import GpuModel
from trine.model.gpuprogram import GpuProgram

#: What a record's origin has a fingerprint of, in this order.
PARTS = ("program", "GPU model", "cluster")
_COLUMNS = (
    "kernel_wavefronts", "kernel_ptr", "workgroup_ptr", "op_kind", "op_amount", "op_unroll", "operand_ptr",
    "operand_role", "operand_address", "operand_step", "operand_semaphore", "semaphores",
)  # fmt: skip
_DIGITS = 16


def origin_of(program: GpuProgram, rank: int, model: GpuModel, cluster: Cluster) -> str:
    """Fingerprints of what one rank runs, of the numbers of its GPU, and of the cluster; names do not count."""
    own = of_rank(program, rank)
    columns = [np.ascontiguousarray(getattr(own, name)).tobytes() for name in _COLUMNS]
    buffers = [(buffer.base, buffer.size_bytes, buffer.uncached) for buffer in program.buffers]
    numbers = [(field.path, value) for field, value in values(model)]
    described = repr((program.num_ranks, program.line_bytes, buffers)).encode()
    return " ".join((_digest(described, *columns), _digest(repr(numbers).encode()), cluster.fingerprint[:_DIGITS]))


def differing(one: str, other: str) -> tuple[str, ...]:
    """The PARTS in which two origins differ; none where one is not known."""
    if not one or not other:
        return ()
    pairs = zip(PARTS, one.split(), other.split(), strict=True)
    return tuple(part for part, here, there in pairs if here != there)


def _digest(*texts: bytes) -> str:
    whole = hashlib.sha256()
    for text in texts:
        whole.update(len(text).to_bytes(8, "little") + text)
    return whole.hexdigest()[:_DIGITS]
