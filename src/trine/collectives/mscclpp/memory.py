"""The cells of all buffers of a plan, so that what is in them can be followed."""

from __future__ import annotations

from trine.collectives.mscclpp.assemble import buffer_chunks
from trine.collectives.mscclpp.layout import Layout
from trine.collectives.mscclpp.plan import INPUT, OUTPUT, SCRATCH, KernelPlan
from trine.errors import InputError

MAX_CELLS = 2**23
#: scratch as packets lie in it, beside scratch as plain data does
PACKETS = "packets"


def in_place(plan: KernelPlan, layout: Layout, rank: int, buffer: str, start: int) -> tuple[str, int]:
    """Buffer and start of the memory that a range lies in: in place, input and output share theirs."""
    if not plan.in_place or buffer not in (INPUT, OUTPUT):
        return buffer, start
    gpu, part = plan.gpus[rank], plan.chunks_of_size // plan.num_ranks
    if plan.collective == "all_gather":
        return OUTPUT, start + (layout.at((gpu.input_chunks or part) * rank) if buffer == INPUT else 0)
    if plan.collective == "reduce_scatter":
        return INPUT, start + (layout.at((gpu.output_chunks or part) * rank) if buffer == OUTPUT else 0)
    return INPUT, start


class Memory:
    """Numbers for the cells of all buffers; in place, input and output share theirs."""

    def __init__(self, plan: KernelPlan, layout: Layout) -> None:
        self.plan, self.layout = plan, layout
        self.base: dict[tuple[int, str], int] = {}
        self.owner: list[tuple[int, int, str]] = []
        total = 0
        for rank in range(plan.num_ranks):
            for buffer in (INPUT, OUTPUT, SCRATCH, PACKETS):
                chunks = buffer_chunks(plan, rank, SCRATCH if buffer == PACKETS else buffer)
                units = self._units(chunks, buffer)
                self.base[rank, buffer] = total
                self.owner.append((total, rank, buffer))
                total += units
        if total > MAX_CELLS:
            raise InputError(f"needs {total} cells to be followed, more than {MAX_CELLS}", file=plan.file)
        self.num_cells = total

    def _units(self, chunks: int, buffer: str) -> int:
        window = self.layout.window
        if buffer == SCRATCH and window is not None and window < self.layout.at(1):
            return chunks * window
        return self.layout.at(chunks)

    def cells(self, rank: int, buffer: str, start: int, length: int) -> range:
        """The cells of a range of one rank's buffer."""
        buffer, start = in_place(self.plan, self.layout, rank, buffer, start)
        first = self.base[rank, buffer] + start
        return range(first, first + length)

    def describe(self, cell: int) -> str:
        """A cell for people: buffer, chunk and rank."""
        base, rank, buffer = max(entry for entry in self.owner if entry[0] <= cell)
        chunk = self._chunk_of(cell - base, buffer)
        return (
            f"chunk {chunk} of the {buffer} of rank {rank}" if buffer != PACKETS else f"packet {chunk} of rank {rank}"
        )

    def _chunk_of(self, unit: int, buffer: str) -> int:
        window = self.layout.window
        if buffer == SCRATCH and window is not None and window < self.layout.at(1):
            return unit // window
        chunk = unit * self.layout.group_chunks // max(1, self.layout.group_units)
        while self.layout.at(chunk + 1) <= unit:
            chunk += 1
        return chunk
