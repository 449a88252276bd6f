"""A Triton kernel of matrix products that occupies a given number of SMs: benchmarks/gpu/power.py."""

from __future__ import annotations

import torch
import triton
import triton.language as tl


@triton.jit
def _product(a_ptr, b_ptr, out_ptr, m, n, k, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, PROGRAMS: tl.constexpr):
    columns = tl.cdiv(n, N)
    tiles = tl.cdiv(m, M) * columns
    for tile in range(tl.program_id(0), tiles, PROGRAMS):
        # groups of 8 rows of tiles share their columns in the L2 cache
        group = tile // (8 * columns)
        row = group * 8 + tile % 8
        column = (tile % (8 * columns)) // 8
        rows = row * M + tl.arange(0, M)
        cols = column * N + tl.arange(0, N)
        inner = tl.arange(0, K)
        a_at = a_ptr + rows[:, None] * k + inner[None, :]
        b_at = b_ptr + inner[:, None] * n + cols[None, :]
        total = tl.zeros((M, N), dtype=tl.float32)
        for _ in range(tl.cdiv(k, K)):
            total = tl.dot(tl.load(a_at), tl.load(b_at), total)
            a_at += K
            b_at += K * n
        tl.store(out_ptr + rows[:, None] * n + cols[None, :], total.to(tl.bfloat16))


def limited_product(a: torch.Tensor, b: torch.Tensor, programs: int):
    """Return a callable that multiplies two bf16 squares with ``programs`` programs, one per SM."""
    n = a.shape[0]
    out = torch.empty_like(a)

    def work() -> None:
        _product[(programs,)](a, b, out, n, n, n, 128, 256, 64, programs, num_warps=8, num_stages=4)

    return work
