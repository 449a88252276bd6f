"""Random well-formed GPU programs, made operation by operation."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from trine.gpu.program import (
    ACQUIRE,
    BARRIER,
    COMPUTE,
    COPY,
    DATA_OPS,
    DMA,
    FENCE,
    LOAD,
    NOP,
    READ,
    READ_FLAGGED,
    REDUCE,
    RELEASE,
    STORE,
    WAITCNT,
    WRITE,
    WRITE_FLAGGED,
    Buffer,
    GpuProgram,
)

BUFFERS = (
    Buffer(name="input", base=0, size_bytes=2**16),
    Buffer(name="it's a\tbuffer", base=2**20, size_bytes=2**17 + 5),
)
NAMES = ("", "k", "a kernel\nof 'two'", "rank")
LABELS = ("first", "a 'quoted' # label", "unused", "ä")


def random_program(seed: int) -> GpuProgram:
    """A program of a few ranks and kernels; ``seed`` decides everything."""
    rng = np.random.default_rng(seed)
    ranks, num_semaphores, line = int(rng.integers(1, 5)), int(rng.integers(40, 60)), int(rng.choice([64, 128]))
    columns = {name: [] for name in ("kind", "amount", "unroll", "label", "count")}
    operands = {name: [] for name in ("role", "rank", "address", "step", "semaphore")}
    groups, kernels = [], []
    for _ in range(rng.integers(1, 6)):
        own = int(rng.integers(ranks))
        kernels.append((own, int(rng.integers(1, 5)), int(rng.integers(1, 4)), str(rng.choice(NAMES))))
        for _ in range(kernels[-1][2]):
            groups.append(int(rng.integers(0, 5)))
            for _ in range(groups[-1]):
                _operation(rng, ranks, own, num_semaphores, columns, operands)
    kernels_named = bool(rng.integers(2))
    initial = rng.integers(0, 3, (ranks, num_semaphores)) if rng.integers(2) else np.zeros((ranks, num_semaphores))
    return GpuProgram(
        name="random 1" if rng.integers(2) else "random",
        num_ranks=ranks,
        kernel_rank=np.array([k[0] for k in kernels], np.int32),
        kernel_wavefronts=np.array([k[1] for k in kernels], np.int32),
        kernel_ptr=offsets([k[2] for k in kernels]),
        workgroup_ptr=offsets(groups),
        op_kind=np.array(columns["kind"], np.int8),
        op_amount=np.array(columns["amount"], np.int64),
        op_unroll=np.array(columns["unroll"], np.int32),
        op_label=np.array(columns["label"], np.int32),
        operand_ptr=offsets(columns["count"]),
        operand_role=np.array(operands["role"], np.int8),
        operand_rank=np.array(operands["rank"], np.int32),
        operand_address=np.array(operands["address"], np.int64),
        operand_step=np.array(operands["step"], np.int32),
        operand_semaphore=np.array(operands["semaphore"], np.int32),
        semaphores=initial.astype(np.int32),
        buffers=(BUFFERS[0], replace(BUFFERS[1], uncached=seed % 2 == 1)),
        kernel_names=tuple(k[3] for k in kernels) if kernels_named else (),
        labels=LABELS,
        line_bytes=line,
        payload_bytes=int(rng.integers(2)) * 1000,
        notes=("a note", "another's") if rng.integers(2) else (),
    )


def offsets(sizes):
    return np.concatenate(([0], np.cumsum(np.array(sizes, np.int64)))).astype(np.int64)


def _operation(rng, ranks, own, num_semaphores, columns, operands):
    kind = int(rng.integers(13))
    counts = {LOAD: (rng.integers(1, 3), 0), STORE: (0, rng.integers(1, 3)), COPY: (1, rng.integers(1, 3)),
              REDUCE: (rng.integers(1, 4), rng.integers(0, 3)), DMA: (rng.integers(2), 1), ACQUIRE: (1, 0),
              RELEASE: (0, rng.integers(1, 4))}  # fmt: skip
    reads, writes = (int(count) for count in counts.get(kind, (0, 0)))
    amounts = {WAITCNT: rng.integers(4), COMPUTE: rng.integers(1000), BARRIER: 0, NOP: 0, FENCE: 0,
               ACQUIRE: rng.integers(1, 3), RELEASE: rng.integers(1, 3),
               DMA: rng.integers(1, 5000) * reads}  # fmt: skip
    columns["kind"].append(kind)
    columns["amount"].append(int(amounts.get(kind, rng.integers(0, 33))))
    columns["unroll"].append(int(rng.integers(3)) if kind in DATA_OPS else 0)
    columns["label"].append(int(rng.integers(-1, len(LABELS))))
    columns["count"].append(reads + writes)
    for write in [False] * reads + [True] * writes:
        flagged = kind in DATA_OPS and not rng.integers(3)
        alone = kind == DMA and not reads
        has_one = flagged or kind in (ACQUIRE, RELEASE) or alone or (kind == DMA and write and rng.integers(2))
        stays = kind == ACQUIRE or (kind == DMA and not write)
        buffer = BUFFERS[int(rng.integers(2))]
        operands["role"].append((WRITE_FLAGGED if write else READ_FLAGGED) if flagged else WRITE if write else READ)
        operands["rank"].append(own if stays else int(rng.integers(ranks)))
        operands["address"].append(buffer.base + int(rng.integers(4096, 16384)))
        operands["step"].append(int(rng.choice([64, 128, 0, -16])) if kind in DATA_OPS else 0)
        operands["semaphore"].append(int(rng.integers(num_semaphores - 32)) if has_one else -1)
