"""The kernels that ``trine measure`` runs, in a fixed order.

A table of about 200 kernels predicts other shapes because each kind has a closed form (docs/guides/measure-a-gpu.md
states the errors). Shapes span the sizes of transformer layers, by factors of two to four.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from math import prod

from trine.common.precision import BY_WORD
from trine.compute.tables.measured_file import ITEM_BYTES, moved_bytes

#: Precision as typed -> dtype of the rows.
PRECISIONS = {word: precision.name for word, precision in BY_WORD.items()}
_GOLDEN = 0.6180339887498949


@dataclass(frozen=True, slots=True)
class Kernel:
    """One kernel; ``shape`` as in :data:`trine.cluster.measured_gpu.SHAPES`."""

    kind: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def num_bytes(self) -> int:
        """Bytes of its tensors."""
        item = ITEM_BYTES[self.dtype]
        if self.kind == "gemm":
            m, n, k = self.shape
            return item * (m * k + k * n) + max(item, 2) * m * n
        if self.kind.startswith("attention"):
            batch, heads, kv_heads, length, size = self.shape
            forward = 2 * item * batch * length * size * (heads + kv_heads)
            return forward if self.kind == "attention" else 2 * forward
        return 0 if self.kind == "launch" else moved_bytes(self.kind, self.dtype, self.shape)

    @property
    def flops(self) -> int:
        """FLOPs of a GEMM; 0 for other kinds."""
        return 2 * prod(self.shape) if self.kind == "gemm" else 0


def gpu_kernels(dtypes: Collection[str]) -> tuple[Kernel, ...]:
    """Return about 200 kernels of a GPU that runs ``dtypes``, in the order of :func:`in_order`."""
    half = "bfloat16" if "bfloat16" in dtypes else "float16"
    kernels = [Kernel("launch", "float32", ())]
    if half in dtypes:
        kernels += [Kernel("gemm", half, shape) for shape in _sixteen_bit_gemms()]
        kernels += [Kernel("attention", half, shape) for shape in _attentions(_FORWARD_HEADS)]
        kernels += [Kernel("attention_backward", half, shape) for shape in _attentions(_BACKWARD_HEADS)]
    if "float8" in dtypes:
        kernels += [Kernel("gemm", "float8", shape) for shape in _grid((16, 512, 8192), _SIDES, _SIDES)]
    for dtype in ("tfloat32", "float32"):
        if dtype in dtypes:
            sides = [(n, k) for n in _SIDES[:2] for k in _SIDES[:2]]
            kernels += [Kernel("gemm", dtype, (m, n, k)) for m in (128, 1024, 4096) for n, k in sides]
    memory_dtype = half if half in dtypes else "float32"
    kernels += _memory_bound(memory_dtype, tuple(4**power for power in range(9)), (16, 256, 4096, 65536))
    return in_order(kernels)


def cpu_kernels(dtypes: Collection[str]) -> tuple[Kernel, ...]:
    """Return a smaller set for the CPU, in the order of :func:`in_order`."""
    kernels = [Kernel("launch", "float32", ())]
    for dtype in ("bfloat16", "float32"):
        if dtype in dtypes:
            kernels += [Kernel("gemm", dtype, shape) for shape in _grid((1, 32, 512), (256, 1024), (256, 1024))]
    if "bfloat16" in dtypes:
        shapes = [(1, heads, heads, length, 64) for heads in (4, 8) for length in (128, 512)]
        kernels += [Kernel("attention", "bfloat16", shape) for shape in shapes]
        kernels += [Kernel("attention_backward", "bfloat16", shape) for shape in shapes[:2]]
    kernels += _memory_bound("float32", (4, 64, 1024), (64, 1024))
    return in_order(kernels)


_SIDES = (1024, 4096, 16384)
_BETWEEN = (512, 2048, 8192)
#: Length -> (batch, heads, KV heads), from a few blocks of queries to many for each compute unit.
_FORWARD_HEADS = {
    16: ((1, 32, 8),),
    128: ((1, 32, 8),),
    512: ((1, 8, 8), (4, 32, 8), (32, 16, 16)),
    1024: ((2, 64, 8), (16, 8, 8)),
    2048: ((1, 16, 4), (4, 32, 32), (16, 8, 8)),
    4096: ((1, 40, 8), (4, 4, 4)),
    8192: ((1, 32, 8), (4, 16, 16)),
}
_BACKWARD_HEADS = {
    512: ((1, 8, 8), (8, 32, 8)),
    2048: ((1, 16, 4), (4, 32, 32)),
    8192: ((1, 32, 8), (2, 16, 16)),
}


def _grid(*axes: Iterable[int]) -> list[tuple[int, ...]]:
    shapes: list[tuple[int, ...]] = [()]
    for axis in axes:
        shapes = [(*shape, size) for shape in shapes for size in axis]
    return shapes


def _sixteen_bit_gemms() -> list[tuple[int, ...]]:
    """Return 75 shapes: a grid over four octaves of each side, sides between them, and the vocabulary's product."""
    shapes = _grid((1, 16, 128, 512, 2048, 8192), _SIDES, _SIDES)
    shapes += _grid((1024, 4096), _BETWEEN, _BETWEEN)
    return shapes + _grid((16, 512, 4096), (65536,), (4096,))


def _attentions(heads_at: Mapping[int, tuple[tuple[int, int, int], ...]]) -> list[tuple[int, ...]]:
    """Return attentions with head sizes of 64 and 128; heads_at: length -> (batch, heads, KV heads) there."""
    shapes: list[tuple[int, ...]] = []
    for size in (64, 128):
        for length, choices in heads_at.items():
            for batch, heads, kv_heads in choices:
                shapes.append((batch, heads, kv_heads, length, size))
    return shapes


def _memory_bound(dtype: str, all_rows: Iterable[int], some_rows: Iterable[int]) -> list[Kernel]:
    """Return memory-bound kernels: sums and copies of ``all_rows`` x 4,096, norms and softmaxes of ``some_rows``."""
    kernels = [Kernel(kind, dtype, (rows, 4096)) for kind in ("elementwise", "copy") for rows in all_rows]
    for kind, widths in (("norm", (1024, 4096, 8192)), ("softmax", (1024, 4096))):
        kernels += [Kernel(kind, dtype, (rows, width)) for rows in some_rows for width in widths]
    return kernels


def in_order(kernels: Iterable[Kernel]) -> tuple[Kernel, ...]:
    """Return the kernels so that any first part of them covers all kinds and sizes alike; the order never varies."""
    groups: dict[tuple[str, str], list[Kernel]] = {}
    for kernel in kernels:
        groups.setdefault((kernel.kind, kernel.dtype), []).append(kernel)
    placed = []
    for number, group in enumerate(groups.values()):
        spread = sorted(range(len(group)), key=lambda index: (index * _GOLDEN) % 1)
        for position, index in enumerate(spread):
            placed.append(((position + 0.5) / len(group), number, group[index]))
    placed.sort(key=lambda entry: entry[:2])
    return tuple(kernel for _, _, kernel in placed)
