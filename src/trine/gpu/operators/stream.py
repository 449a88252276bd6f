"""An operator that only moves bytes as a GPU kernel: workgroups that load lines, and store others.

After PyTorch's vectorised elementwise kernels (aten/src/ATen/native/cuda/CUDALoops.cuh): each thread moves 16 bytes at
a time, so that a warp's access has four lines of 128 bytes. Kernels that reduce rows (norms, softmax) keep a row on
chip, and wait for all of it before they store. Another kernel runs before: in a step, the L2 is full of lines that
earlier operators wrote, so that each new line pushes one out to memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from trine.common.shown import OneLine
from trine.common.units import PS_PER_S
from trine.gpu import program as isa
from trine.gpu.builder import Operand, ProgramBuilder
from trine.gpu.model import GpuModel
from trine.gpu.program import GpuProgram

WAVEFRONTS, WORKGROUPS_PER_CU = 8, 8
#: Lines of a warp's 16-byte access; bytes of a thread's access x threads of a warp.
_ACCESS_BYTES = 16 * 32


@dataclass(frozen=True, kw_only=True, slots=True)
class StreamShape(OneLine):
    """Bytes that a kernel reads and writes. has_rows: whether it stores a row only after it has read all of it."""

    read_bytes: int
    written_bytes: int
    has_rows: bool = False

    @property
    def size_bytes(self) -> int:
        return self.read_bytes + self.written_bytes

    def part(self, size_bytes: int) -> StreamShape:
        """Return the first ``size_bytes`` of the stream, with the same share of reads."""
        read = self.read_bytes * size_bytes // self.size_bytes
        return StreamShape(read_bytes=read, written_bytes=size_bytes - read, has_rows=self.has_rows)


class _Lines(NamedTuple):
    """``number`` cache lines from address ``first`` on."""

    first: int
    number: int

    def part(self, place: int, parts: int, line_bytes: int) -> _Lines:
        """Return one of equal parts."""
        begin, end = self.number * place // parts, self.number * (place + 1) // parts
        return _Lines(self.first + begin * line_bytes, end - begin)


@dataclass(frozen=True, kw_only=True)
class StreamKernel:
    """A stream on one GPU: workgroups take slices of the bytes in turn, until all are done."""

    shape: StreamShape
    model: GpuModel

    @property
    def memory_ps(self) -> int:
        """Time of all bytes at the bandwidth of the memory."""
        memory = self.model.memory
        return self.shape.size_bytes * PS_PER_S // (memory.num_channels * memory.bytes_per_s)

    @property
    def num_lines(self) -> int:
        return -(-self.shape.size_bytes // self.model.line_bytes)

    @property
    def _cache_bytes(self) -> int:
        return 0 if self.model.l2 is None else self.model.l2.capacity_bytes

    def program(self) -> GpuProgram:
        """Return two kernels: one that fills the L2 with the same mix of read and written lines, and the operator's."""
        builder = ProgramBuilder("stream", 1, line_bytes=self.model.line_bytes)
        self._add_kernel(builder, "before", self.shape.part(self._cache_bytes))
        self._add_kernel(builder, "stream", self.shape)
        return builder.program(payload_bytes=self.shape.size_bytes)

    def _add_kernel(self, builder: ProgramBuilder, name: str, shape: StreamShape) -> None:
        """Add a kernel whose workgroups take slices of a warp's access for each wavefront, in turn."""
        line = self.model.line_bytes
        read, written = (
            _Lines(builder.buffer(f"{name} {what}", max(1, count) * line), count)
            for what, count in (("reads", -(-shape.read_bytes // line)), ("writes", -(-shape.written_bytes // line)))
        )
        access = WAVEFRONTS * max(1, _ACCESS_BYTES // line)
        slices = max(1, -(-max(read.number, written.number) // access))
        workgroups = min(slices, self.model.num_cus * WORKGROUPS_PER_CU)
        for number in range(workgroups):
            for place in range(number, slices, workgroups):
                self._add_slice(builder, read.part(place, slices, line), written.part(place, slices, line))
            builder.end_workgroup()
        builder.end_kernel(0, WAVEFRONTS, name)

    def _add_slice(self, builder: ProgramBuilder, read: _Lines, written: _Lines) -> None:
        line = self.model.line_bytes
        if read.number:
            builder.add(isa.LOAD, read.number, (Operand(isa.READ, 0, read.first, line),), "load", read.number)
            builder.add(isa.WAITCNT, 0, (), "wait for loads")
        if self.shape.has_rows:
            builder.add(isa.BARRIER, 0, (), "reduce row")
        if written.number:
            builder.add(
                isa.STORE, written.number, (Operand(isa.WRITE, 0, written.first, line),), "store", written.number
            )
