"""Symbols instead of numbers: whose data, from which place of its input, how often."""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce

from trine.collectives.mscclpp.memory import Memory
from trine.collectives.mscclpp.plan import INPUT, OUTPUT, KernelPlan
from trine.errors import InputError

#: (unit of the input, how often each rank's is in it: 16 bits a rank); unit MIXED where different units were added up
Value = tuple[int, int]
MIXED = -1
_BITS = 16


def single(rank: int, unit: int) -> Value:
    """One rank's input at one unit."""
    return unit, 1 << (_BITS * rank)


def add(values: list[Value]) -> Value:
    """The sum."""
    return reduce(lambda a, b: (a[0] if a[0] == b[0] else MIXED, a[1] + b[1]), values)


def describe(value: Value | None, plan: KernelPlan) -> str:
    """A value for people."""
    if value is None:
        return "nothing"
    unit, packed = value
    counts = [(rank, packed >> (_BITS * rank) & 0xFFFF) for rank in range(plan.num_ranks)]
    ranks = ", ".join(f"{rank}" if count == 1 else f"{rank} x {count}" for rank, count in counts if count)
    where = "different places" if unit == MIXED else f"place {unit}"
    return f"the input of ranks {ranks} at {where}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Goal:
    """The cells of a rank that must hold ``wanted`` at the end, one value a cell."""

    rank: int
    cells: range
    wanted: list[Value]


def input_range(plan: KernelPlan, memory: Memory, rank: int) -> range:
    """The cells of a rank's input."""
    chunks = plan.gpus[rank].input_chunks
    if not chunks:
        chunks = plan.chunks_of_size // (plan.num_ranks if plan.collective == "all_gather" else 1)
    return memory.cells(rank, INPUT, 0, memory.layout.at(chunks))


def goals(plan: KernelPlan, memory: Memory, root: int = 0) -> list[Goal]:
    """What every rank must end with.

    Raises
    ------
    InputError: the collective's result is not defined here (custom collectives), or its buffers do not fit it.
    """
    units = {len(input_range(plan, memory, rank)) for rank in range(plan.num_ranks)}
    if len(units) != 1:
        raise InputError(f"ranks have inputs of different sizes: {sorted(units)} units", file=plan.file)
    size = units.pop()
    return [_goal(plan, memory, rank, size, root) for rank in range(plan.num_ranks)]


def _goal(plan: KernelPlan, memory: Memory, rank: int, size: int, root: int) -> Goal:
    ranks = plan.num_ranks
    everyone = sum(1 << (_BITS * other) for other in range(ranks))
    if plan.collective in ("all_reduce", "reduce_scatter"):
        first, length = (0, size) if plan.collective == "all_reduce" else (rank * (size // ranks), size // ranks)
        wanted = [(first + unit, everyone) for unit in range(length)]
    elif plan.collective == "all_gather":
        wanted = [single(other, unit) for other in range(ranks) for unit in range(size)]
    elif plan.collective == "all_to_all":
        part = size // ranks
        wanted = [single(other, rank * part + unit) for other in range(ranks) for unit in range(part)]
    elif plan.collective == "send_recv":
        wanted = [single((rank - 1) % ranks, unit) for unit in range(size)]
    elif plan.collective == "broadcast":
        wanted = [single(root, unit) for unit in range(size)]
    else:
        raise InputError(f"cannot say what a {plan.collective!r} must end with, so it cannot be proven", file=plan.file)
    return Goal(rank=rank, cells=_result_cells(plan, memory, rank, len(wanted)), wanted=wanted)


def _result_cells(plan: KernelPlan, memory: Memory, rank: int, length: int) -> range:
    gpu = plan.gpus[rank]
    if not plan.in_place and memory.layout.at(gpu.output_chunks) < length:
        raise InputError(f"rank {rank} has {gpu.output_chunks} output chunks, too few for the result", file=plan.file)
    return memory.cells(rank, OUTPUT, 0, length)
