"""The cells of all buffers of a plan, and their symbolic content: rank, position in its input, and multiplicity."""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce

from trine.errors import InputError
from trine.gpu.plans.layout import ChunkLayout
from trine.gpu.plans.plan import INPUT, OUTPUT, SCRATCH, KernelPlan
from trine.gpu.plans.reading import buffer_chunks

MAX_CELLS = 2**23
#: scratch for packets, separate from scratch for plain data
PACKETS = "packets"


def in_place(plan: KernelPlan, layout: ChunkLayout, rank: int, buffer: str, start: int) -> tuple[str, int]:
    """Return buffer and start of a range's memory; in-place plans share it between input and output."""
    if not plan.in_place or buffer not in (INPUT, OUTPUT):
        return buffer, start
    gpu, rank_chunks = plan.gpus[rank], plan.chunks_of_size // plan.num_ranks
    if plan.collective == "all_gather":
        return OUTPUT, start + (layout.at((gpu.input_chunks or rank_chunks) * rank) if buffer == INPUT else 0)
    if plan.collective == "reduce_scatter":
        return INPUT, start + (layout.at((gpu.output_chunks or rank_chunks) * rank) if buffer == OUTPUT else 0)
    return INPUT, start


class PlanMemory:
    """Cell numbers of all buffers; in-place plans share them between input and output."""

    def __init__(self, plan: KernelPlan, layout: ChunkLayout) -> None:
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
        """Return the cells of a range of one rank's buffer."""
        buffer, start = in_place(self.plan, self.layout, rank, buffer, start)
        first = self.base[rank, buffer] + start
        return range(first, first + length)

    def describe(self, cell: int) -> str:
        """Return a readable name of a cell: buffer, chunk and rank."""
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


#: (unit of the input, multiplicity of each rank's input: 16 bits per rank); unit MIXED for sums of different units
Value = tuple[int, int]
MIXED = -1
_BITS = 16


def single(rank: int, unit: int) -> Value:
    """Return the value of one rank's input at one unit."""
    return unit, 1 << (_BITS * rank)


def add(values: list[Value]) -> Value:
    """Return the sum."""
    return reduce(lambda a, b: (a[0] if a[0] == b[0] else MIXED, a[1] + b[1]), values)


def describe(value: Value | None, plan: KernelPlan) -> str:
    """Return a readable text for a value."""
    if value is None:
        return "nothing"
    unit, packed = value
    counts = [(rank, packed >> (_BITS * rank) & 0xFFFF) for rank in range(plan.num_ranks)]
    ranks = ", ".join(f"{rank}" if count == 1 else f"{rank} x {count}" for rank, count in counts if count)
    where = "different places" if unit == MIXED else f"place {unit}"
    return f"the input of ranks {ranks} at {where}"


@dataclass(frozen=True, kw_only=True, slots=True)
class PlanGoal:
    """The cells of a rank that must hold ``expected`` at the end, one value per cell."""

    rank: int
    cells: range
    expected: list[Value]


def input_range(plan: KernelPlan, memory: PlanMemory, rank: int) -> range:
    """Return the cells of a rank's input."""
    chunks = plan.gpus[rank].input_chunks
    if not chunks:
        chunks = plan.chunks_of_size // (plan.num_ranks if plan.collective == "all_gather" else 1)
    return memory.cells(rank, INPUT, 0, memory.layout.at(chunks))


def goals(plan: KernelPlan, memory: PlanMemory, root: int = 0) -> list[PlanGoal]:
    """Return the required result of every rank.

    Raises InputError: the collective's result is not defined here (custom collectives), or its buffers do not fit it.
    """
    units = {len(input_range(plan, memory, rank)) for rank in range(plan.num_ranks)}
    if len(units) != 1:
        raise InputError(f"ranks have inputs of different sizes: {sorted(units)} units", file=plan.file)
    size = units.pop()
    return [_goal(plan, memory, rank, size, root) for rank in range(plan.num_ranks)]


def _goal(plan: KernelPlan, memory: PlanMemory, rank: int, size: int, root: int) -> PlanGoal:
    ranks = plan.num_ranks
    all_inputs = sum(1 << (_BITS * source) for source in range(ranks))
    if plan.collective in ("all_reduce", "reduce_scatter"):
        start, length = (0, size) if plan.collective == "all_reduce" else (rank * (size // ranks), size // ranks)
        expected = [(start + unit, all_inputs) for unit in range(length)]
    elif plan.collective == "all_gather":
        expected = [single(source, unit) for source in range(ranks) for unit in range(size)]
    elif plan.collective == "all_to_all":
        chunk_units = size // ranks
        expected = [single(source, rank * chunk_units + unit) for source in range(ranks) for unit in range(chunk_units)]
    elif plan.collective == "send_recv":
        expected = [single((rank - 1) % ranks, unit) for unit in range(size)]
    elif plan.collective == "broadcast":
        expected = [single(root, unit) for unit in range(size)]
    else:
        raise InputError(f"no proof for {plan.collective!r}: its result is not defined", file=plan.file)
    return PlanGoal(rank=rank, cells=_result_cells(plan, memory, rank, len(expected)), expected=expected)


def _result_cells(plan: KernelPlan, memory: PlanMemory, rank: int, length: int) -> range:
    gpu = plan.gpus[rank]
    if not plan.in_place and memory.layout.at(gpu.output_chunks) < length:
        raise InputError(f"rank {rank} has {gpu.output_chunks} output chunks, too few for the result", file=plan.file)
    return memory.cells(rank, OUTPUT, 0, length)
