"""Programs for groups with NICs between them: copy engines carry all writes to ranks behind a NIC.

Loads and stores stay inside a scale-up domain. So a copy to another domain becomes a dma, a reduce one into local
memory and a dma from there, and a release a dma of 0 bytes, which waits for no data: dmas to a peer arrive in order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from trine.errors import InputError
from trine.gpu import program as isa
from trine.gpu.builder import ALIGN_BYTES, Operand, Operation, ProgramBuilder, operations_of
from trine.gpu.program import Buffer, GpuProgram

#: Returns whether a message from one rank to another leaves its scale-up domain.
Crosses = Callable[[int, int], bool]

STAGING = "staging"


def through_nics(program: GpuProgram, crosses: Crosses) -> GpuProgram:
    """Return the program with dmas for all traffic that leaves a scale-up domain.

    Raises InputError: it reads from behind a NIC, has flags in lines that cross one, or releases more than 1 there.
    """
    rewriter = _NicRewriter(program, crosses)
    builder = ProgramBuilder.like(program)
    names = program.kernel_names or ("",) * program.num_kernels
    for kernel, rank in enumerate(program.kernel_rank.tolist()):
        for group in range(*program.kernel_ptr[kernel : kernel + 2].tolist()):
            for operation in rewriter.workgroup(rank, group):
                builder.add(*operation)
            builder.end_workgroup()
        builder.end_kernel(rank, int(program.kernel_wavefronts[kernel]), names[kernel])
    builder.buffers += rewriter.staging()
    return builder.program(
        semaphores=program.semaphores,
        payload_bytes=program.payload_bytes,
        notes=(*program.notes, "copy engines move what crosses NICs"),
    )


class _NicRewriter:
    """Rewriter of workgroups; sums to be sent lie in a buffer after all others."""

    def __init__(self, program: GpuProgram, crosses: Crosses) -> None:
        self._program, self._crosses = program, crosses
        end = max((buffer.base + buffer.size_bytes for buffer in program.buffers), default=0)
        self._base = -(-(end + program.line_bytes) // ALIGN_BYTES) * ALIGN_BYTES
        self._staged = [0] * program.num_ranks
        self._operations = operations_of(program)

    def staging(self) -> list[Buffer]:
        """Return the buffer of sums to be sent, if any."""
        size = max(self._staged)
        return [Buffer(name=STAGING, base=self._base, size_bytes=size)] if size else []

    def workgroup(self, rank: int, group: int) -> Iterator[Operation]:
        """Yield the operations of a workgroup of ``rank``."""
        first, end = self._program.workgroup_ptr[group : group + 2].tolist()
        operations = self._operations[first:end]
        has_lines = False
        for place, operation in enumerate(operations):
            if operation.kind == isa.WAITCNT and not has_lines and self._signals_by_nic(rank, operations[place + 1 :]):
                continue
            for result in self._rewritten(rank, operation):
                has_lines = result.kind in isa.DATA_OPS or (has_lines and result.kind != isa.WAITCNT)
                yield result

    def _signals_by_nic(self, rank: int, following: Sequence[Operation]) -> bool:
        """Return whether the next operation after barriers is a release whose targets are all behind NICs."""
        follower = next((operation for operation in following if operation.kind not in (isa.BARRIER, isa.FENCE)), None)
        if follower is None or follower.kind != isa.RELEASE:
            return False
        return all(self._leaves(rank, operand) for operand in follower.operands)

    def _leaves(self, rank: int, operand: Operand) -> bool:
        return operand.rank != rank and self._crosses(rank, operand.rank)

    def _rewritten(self, rank: int, operation: Operation) -> Iterator[Operation]:
        reads = tuple(operand for operand in operation.operands if operand.role in isa.READ_ROLES)
        writes = operation.operands[len(reads) :]
        remote = tuple(operand for operand in writes if self._leaves(rank, operand))
        if any(operand.role >= isa.READ_SUM and self._leaves(rank, operand) for operand in operation.operands):
            raise self._refused("has multimem operations with ranks behind a NIC, and no switch adds up over one")
        if any(self._leaves(rank, operand) for operand in reads):
            raise self._refused("reads from behind a NIC, and loads do not cross one: take an algorithm that puts")
        if not remote or operation.kind == isa.DMA:
            yield operation
            return
        if any(operand.role == isa.WRITE_FLAGGED for operand in remote):
            raise self._refused("has flags in lines that cross a NIC: take protocol 'simple'")
        local = tuple(operand for operand in writes if operand not in remote)
        if operation.kind == isa.RELEASE:
            yield from self._release(operation, local, remote)
        else:
            yield from self._data(rank, operation, (reads, local, remote))

    def _release(
        self, operation: Operation, local: tuple[Operand, ...], remote: tuple[Operand, ...]
    ) -> Iterator[Operation]:
        if operation.amount != 1:
            raise self._refused(f"releases {operation.amount} behind a NIC, but a dma adds 1")
        if local:
            yield operation._replace(operands=local)
        for target in remote:
            yield operation._replace(kind=isa.DMA, amount=0, operands=(target,))

    def _data(self, rank: int, operation: Operation, parts: tuple[tuple[Operand, ...], ...]) -> Iterator[Operation]:
        """Send a copy of local memory directly; first write other copies, and sums, to local memory."""
        reads, local, remote = parts
        if operation.kind == isa.STORE:
            raise self._refused("stores data behind a NIC that is in no memory")
        if operation.kind == isa.COPY and reads[0].rank == rank and reads[0].role == isa.READ:
            source = reads[0]
            if local:
                yield operation._replace(operands=(source, *local))
        else:
            own_write = next((operand for operand in local if operand.rank == rank and operand.role == isa.WRITE), None)
            source = own_write or self._staging(rank, operation.amount)
            yield operation._replace(operands=(*reads, *local, *(() if own_write else (source,))))
            yield operation._replace(kind=isa.WAITCNT, amount=0, unroll=0, operands=())
            yield operation._replace(kind=isa.BARRIER, amount=0, unroll=0, operands=())
        for target in remote:
            yield self._dma(operation, source, target)

    def _staging(self, rank: int, lines: int) -> Operand:
        line_bytes = self._program.line_bytes
        address = self._base + self._staged[rank]
        self._staged[rank] += lines * line_bytes
        return Operand(isa.WRITE, rank, address, line_bytes)

    def _dma(self, operation: Operation, source: Operand, target: Operand) -> Operation:
        line_bytes = self._program.line_bytes
        if source.step != line_bytes or target.step != line_bytes:
            raise self._refused("moves lines that do not lie behind each other")
        ends = (source._replace(role=isa.READ, step=0), target._replace(step=0))
        return operation._replace(kind=isa.DMA, amount=operation.amount * line_bytes, unroll=0, operands=ends)

    def _refused(self, why: str) -> InputError:
        return InputError(f"GPU program {self._program.name!r} {why}")
