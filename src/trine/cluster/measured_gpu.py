"""GPU files: the data sheet and the measured kernels of one GPU, as ``trine measure`` writes them.

Everything that takes the name of a GPU also takes the path of such a file (:func:`trine.cluster.load_gpu`). The name of
that GPU is then the path, so that answers quote the file. Format: docs/guides/measure-a-gpu.md.
"""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import sha256
from typing import Annotated, Any, Literal

from trine.cluster.gpu_spec import GpuSpec
from trine.common.inputs import PRESETS, preset_names
from trine.common.precision import BY_WORD
from trine.common.schema import BeforeValidator, Field, Spec, one_of
from trine.errors import SpecError, nearest

FORMAT = "trine-gpu-1"
#: Attention kernels: FlashAttention-2, which trine requests, and PyTorch's default.
FLASH_KERNEL, DEFAULT_KERNEL = "flash-2", "default"
_SUFFIXES = (".yaml", ".yml", ".json")
_MAX_KERNELS = 10_000
_MAX_SIZE = 1 << 40

#: Kind of a measured kernel -> names of the numbers of its shape. Attention is causal.
SHAPES: dict[str, tuple[str, ...]] = {
    "gemm": ("m", "n", "k"),
    "attention": ("batch", "heads", "kv_heads", "length", "size"),
    "attention_backward": ("batch", "heads", "kv_heads", "length", "size"),
    "elementwise": ("rows", "width"),
    "copy": ("rows", "width"),
    "norm": ("rows", "width"),
    "softmax": ("rows", "width"),
    "launch": (),
}
#: Kinds whose closed form needs the peak of their precision.
_WITH_PEAK = frozenset({"gemm", "attention", "attention_backward"})

_Kind = Annotated[str, BeforeValidator(one_of(tuple(SHAPES)))]
_Dtype = Annotated[str, BeforeValidator(one_of(tuple(precision.name for precision in BY_WORD.values())))]


class MeasuredKernel(Spec):
    """One row: median time, interquartile range over median, and number of timed repeats."""

    kind: _Kind
    dtype: _Dtype
    shape: list[int] = Field(max_length=8)
    us: float = Field(gt=0, le=1e9, strict=False)
    spread: float = Field(ge=0, le=1e6, strict=False)
    repeats: int = Field(ge=1, le=10**9)


class LeftOutKernel(Spec):
    """A kernel that was not measured, and the reason."""

    kind: str
    dtype: str
    shape: list[int] = Field(max_length=8)
    reason: str


class GpuFile(Spec):
    """The content of a GPU file.

    gpu: the fields of a file in presets/gpus. architecture: ``sm_89``, ``gfx942`` or ``cpu``. preset: the bundled GPU
    of the same model, whose data sheet ``gpu`` repeats. attention_kernel: ``flash-2``, or ``default`` for PyTorch's
    choice. versions, clocks: texts for the reader.
    """

    format: Literal["trine-gpu-1"]
    name: str
    architecture: str
    preset: str | None = None
    device: str = ""
    date: str = ""
    attention_kernel: Literal["flash-2", "default"] = "default"
    versions: dict[str, str] = Field(default_factory=dict)
    clocks: dict[str, str] = Field(default_factory=dict)
    gpu: dict[str, Any]
    kernels: list[MeasuredKernel] = Field(min_length=1, max_length=_MAX_KERNELS)
    left_out: list[LeftOutKernel] = Field(default_factory=list, max_length=_MAX_KERNELS)


@dataclass(frozen=True, slots=True, eq=False)
class MeasuredGpu:
    """A GPU file that was read: its content, and the data sheet under the file's path as the name."""

    content: GpuFile
    spec: GpuSpec = field(repr=False)

    @property
    def words(self) -> str:
        """The file and its origin: ``my-gpu.yaml (NVIDIA RTX A6000, 201 kernels measured on 2026-11-29)``."""
        content = self.content
        when = f" on {content.date[:10]}" if content.date else ""
        return f"{self.spec.name} ({content.name[:60]}, {len(content.kernels)} kernels measured{when})"

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the measured kernels, shortened to 16 digits."""
        rows = [(row.kind, row.dtype, tuple(row.shape), float(row.us)) for row in self.content.kernels]
        return sha256(repr(rows).encode()).hexdigest()[:16]


def is_gpu_file(name: str) -> bool:
    """Return whether the name of a GPU is the path of a GPU file."""
    return name.endswith(_SUFFIXES)


def declares_gpu(path: str) -> bool:
    """Return whether the field ``format`` of a file marks a GPU file. Raises SpecError if it cannot be read."""
    from trine.common.spec import load_mapping

    content = load_mapping(path)
    return isinstance(content, dict) and content.get("format") == FORMAT


def measured_gpu(name: str) -> MeasuredGpu | None:
    """Return the GPU file of this path, or None if ``name`` is no path. Raises SpecError for a wrong file."""
    if not is_gpu_file(name):
        return None
    signature: tuple[int, ...] = ()
    with suppress(OSError, ValueError):
        status = os.stat(name)
        signature = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)
    return _read(name, os.path.abspath(name), signature)


@lru_cache(maxsize=64)
def _read(path: str, absolute: str, signature: tuple[int, ...]) -> MeasuredGpu:
    """Read a file. absolute, signature: keys of the cache; a file that was written again is read again."""
    from trine.common.schema import Fault, read_as
    from trine.common.spec import check, load_mapping

    content = check(GpuFile, load_mapping(path), path)
    _check_kernels(content, path)
    known = preset_names(PRESETS / "gpus")
    if content.preset is not None and content.preset not in known:
        hint = nearest(content.preset, known)
        raise SpecError(f"no bundled GPU {content.preset[:60]!r}{hint}", file=path, field="preset")
    for key in ("name", "aliases"):
        if key in content.gpu:
            raise SpecError("is not a field of a GPU file: the name comes from 'name'", file=path, field=f"gpu.{key}")
    try:
        spec = read_as(GpuSpec, content.gpu, name=path, aliases=(content.name,))
    except ValueError as error:
        place = error.path if isinstance(error, Fault) else ""
        raise SpecError(str(error), file=path, field=f"gpu.{place}".rstrip(".")) from None
    _check_peaks(content, spec, path)
    return MeasuredGpu(content=content, spec=spec)


def _check_peaks(content: GpuFile, spec: GpuSpec, path: str) -> None:
    """Raise SpecError for a peak of zero, and for a GEMM or an attention in a precision without a peak."""
    for dtype, rate in spec.flop_per_s.items():
        if rate <= 0:
            raise SpecError(f"must be positive, got {rate}", file=path, field=f"gpu.compute.{dtype}")
    if spec.memory_bytes_per_s <= 0:
        raise SpecError("must be positive, got 0", file=path, field="gpu.memory_bandwidth")
    for kernel in content.kernels:
        if kernel.kind in _WITH_PEAK and kernel.dtype not in spec.flop_per_s:
            text = f"has no peak of {kernel.dtype}, but the file has a {kernel.kind} in it"
            raise SpecError(text, file=path, field="gpu.compute")


def _check_kernels(content: GpuFile, path: str) -> None:
    """Raise SpecError for a shape with a wrong number of sizes, or a kernel that comes twice."""
    seen: set[tuple[object, ...]] = set()
    for number, kernel in enumerate(content.kernels):
        place = f"kernels[{number}]"
        columns = SHAPES[kernel.kind]
        if len(kernel.shape) != len(columns):
            form = ", ".join(columns) or "no numbers"
            raise SpecError(
                f"a {kernel.kind} has {len(columns)} sizes ({form}), got {len(kernel.shape)}",
                file=path, field=f"{place}.shape",
            )  # fmt: skip
        for position, size in enumerate(kernel.shape):
            if not 1 <= size <= _MAX_SIZE:
                raise SpecError(f"must be 1 to 2^40, got {size}", file=path, field=f"{place}.shape[{position}]")
        key = (kernel.kind, kernel.dtype, *kernel.shape)
        if key in seen:
            raise SpecError(f"{kernel.kind} {kernel.shape} in {kernel.dtype} comes twice", file=path, field=place)
        seen.add(key)
