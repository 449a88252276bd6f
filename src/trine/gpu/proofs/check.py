"""Proof of a GPU program: every rank ends with the collective's result for any order of its wavefronts."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import NamedTuple

import numpy as np

from trine.errors import InputError, nearest
from trine.gpu.builder import Operand
from trine.gpu.program import DATA_OPS, DMA, OP_NAMES, Buffer, GpuProgram
from trine.gpu.proofs.memory import NOTHING, Cells, Index, Values, make_cells
from trine.gpu.proofs.run import ProofRun
from trine.gpu.proofs.state import DecodedOp, decode

# Inputs and expected results of a collective, as numbers that stand for parts of the ranks' inputs.

#: Chunks of the input and the output of a rank: one per rank ("ranks") or a single one ("one").
_CHUNKS = {
    "all_gather": ("one", "ranks"),
    "reduce_scatter": ("ranks", "one"),
    "all_reduce": ("one", "one"),
    "all_to_all": ("ranks", "ranks"),
    "broadcast": ("one", "one"),
    "reduce": ("one", "one"),
    "gather": ("one", "ranks"),
    "scatter": ("ranks", "one"),
    "send_recv": ("one", "one"),
}
#: Collectives with a result on rank 0 only.
_TO_ROOT = ("reduce", "gather")
#: Largest number of ranks at which :func:`describe` decomposes a wrong sum.
_TAKEN_APART = 12


class GoalPiece(NamedTuple):
    """Bytes ``start`` to ``start + size_bytes`` of a result: the sum of equally long input parts (rank, first byte)."""

    start: int
    size_bytes: int
    sources: tuple[tuple[int, int], ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class ProofGoal:
    """Expected results. chunk_bytes: size of a chunk. sources, results: (address, bytes) of each rank's input, result.

    pieces: pieces of each rank's result, overriding the meaning of ``op``; no rank may write between them. constants:
    (address, bytes) of data that all ranks have from the start.
    """

    op: str
    num_ranks: int
    chunk_bytes: int
    sources: tuple[tuple[int, int], ...]
    results: tuple[tuple[int, int], ...]
    pieces: tuple[tuple[GoalPiece, ...], ...] | None = None
    constants: tuple[tuple[int, int], ...] = ()

    def wanted(self, rank: int, contents: list[Values], root: int) -> Values:
        """Return the result of a rank. ``contents``: uint64, one per cell of each rank's input."""
        if self.pieces is not None:
            return self._of_pieces(self.pieces[rank], self.results[rank][1], contents)
        if self.op == "broadcast":
            return contents[root]
        if self.op in _TO_ROOT and rank:
            return contents[rank][:0]
        if self.op == "send_recv":
            return contents[rank - 1]
        if self.op in ("all_gather", "gather"):
            return np.concatenate(contents)
        part = len(contents[0]) // self.num_ranks
        segment = slice(rank * part, (rank + 1) * part)
        if self.op == "all_to_all":
            return np.concatenate([values[segment] for values in contents])
        if self.op == "scatter":
            return contents[0][segment]
        total: Values = np.add.reduce(np.stack(contents), axis=0, dtype=np.uint64)
        return total if self.op in ("all_reduce", "reduce") else total[segment]

    def _of_pieces(self, pieces: Sequence[GoalPiece], size_bytes: int, contents: list[Values]) -> Values:
        cell = self.sources[0][1] // len(contents[0])
        result = np.full(size_bytes // cell, NOTHING, np.uint64)
        for piece in pieces:
            count = piece.size_bytes // cell
            parts = [contents[rank][start // cell : start // cell + count] for rank, start in piece.sources]
            result[piece.start // cell : piece.start // cell + count] = np.sum(parts, axis=0, dtype=np.uint64)
        return result


def make_goal(program: GpuProgram, op: str, size_bytes: int | None) -> ProofGoal:
    """Return a collective's goal from the program's buffers ``input`` and ``output`` (only one of them: in place).

    Raises InputError for an unknown collective, missing buffers, or sizes that do not fit it or ``size_bytes``.
    """
    if op not in _CHUNKS:
        raise InputError(f"no known result for {op!r}{nearest(op, _CHUNKS)}", field="op")
    buffers = {buffer.name: buffer for buffer in program.buffers}
    source, result = buffers.get("input"), buffers.get("output")
    ranks = program.num_ranks
    counts = []
    for count in _CHUNKS[op]:
        counts.append(ranks if count == "ranks" else 1)
    if source is None or result is None or source.base == result.base:
        known_buffers = [b for b in (source, result) if b is not None]
        only = max(known_buffers, key=lambda b: b.size_bytes, default=None)
        if only is None:
            raise InputError(f"{program.name}: a collective needs a buffer 'input' or 'output'", field="buffers")
        goal = _in_place(op, ranks, only, counts)
    else:
        chunk = _chunk(source, counts[0])
        if _chunk(result, counts[1]) != chunk:
            raise InputError(
                f"{program.name}: {op} on {ranks} ranks does not fit an input of {source.size_bytes} bytes and "
                f"an output of {result.size_bytes}",
                field="buffers",
            )
        places = [((b.base, b.size_bytes),) * ranks for b in (source, result)]
        goal = ProofGoal(op=op, num_ranks=ranks, chunk_bytes=chunk, sources=places[0], results=places[1])
    if op in _TO_ROOT:
        first, *rest = goal.results
        goal = replace(goal, results=(first, *((base, 0) for base, _ in rest)))
    if size_bytes is not None and goal.chunk_bytes * max(counts) < size_bytes:
        raise InputError(
            f"{program.name}: buffers of {goal.chunk_bytes * max(counts)} bytes are too small for {op} of "
            f"{size_bytes} bytes",
            field="size_bytes",
        )
    return goal


def _in_place(op: str, ranks: int, buffer: Buffer, counts: list[int]) -> ProofGoal:
    chunk = _chunk(buffer, max(counts))

    def places(count: int) -> tuple[tuple[int, int], ...]:
        if count == max(counts):
            return ((buffer.base, buffer.size_bytes),) * ranks
        return tuple((buffer.base + rank * chunk, chunk) for rank in range(ranks))

    return ProofGoal(op=op, num_ranks=ranks, chunk_bytes=chunk, sources=places(counts[0]), results=places(counts[1]))


def _chunk(buffer: Buffer, count: int) -> int:
    if buffer.size_bytes % count:
        raise InputError(f"{buffer.size_bytes} bytes are not {count} equal chunks", field=f"buffers.{buffer.name}")
    return buffer.size_bytes // count


def contents(goal: ProofGoal, cells: Cells, seed: int) -> list[Values]:
    """Return a random number for each cell of each rank's input."""
    random = np.random.default_rng(seed)
    count = goal.sources[0][1] // cells.size
    return [random.integers(0, 1 << 64, count, np.uint64) for _ in range(goal.num_ranks)]


def describe(value: int, cell_bytes: int, inputs: list[Values]) -> str:
    """Describe the input parts that a value consists of."""
    if value == NOTHING:
        return "no part of an input"
    for rank, values in enumerate(inputs):
        matches = np.flatnonzero(values == np.uint64(value))
        if len(matches):
            return f"rank {rank}'s input from byte {int(matches[0]) * cell_bytes} on"
    if len(inputs) <= _TAKEN_APART:
        stacked = np.stack(inputs)
        for count in range(2, len(inputs) + 1):
            for ranks in combinations(range(len(inputs)), count):
                matches = np.flatnonzero(stacked[list(ranks)].sum(0, dtype=np.uint64) == np.uint64(value))
                if len(matches):
                    rank_names = ", ".join(str(rank) for rank in ranks)
                    return f"the sum of the inputs of ranks {rank_names} from byte {int(matches[0]) * cell_bytes} on"
    return "a sum of other parts of the inputs, or of some of them more than once"


OWN, ALL = "own", "all"


@dataclass(frozen=True, kw_only=True, slots=True)
class ProgramProof:
    """Result of a proof, with findings for the caller.

    num_ops: operations run, counted per wavefront. num_cells: memory cells tracked. num_runs: execution orders.
    open_ends: ranks that can end before a write to their memory outside the result. late_reads: ranks that can end
    while another actor still reads their memory. Both name the actor, with at most one entry per rank.
    """

    program: str
    op: str | None
    num_ranks: int
    num_ops: int
    num_cells: int
    num_runs: int
    open_ends: tuple[str, ...] = ()
    late_reads: tuple[str, ...] = ()


def check_program(
    program: GpuProgram,
    op: str | None = None,
    size_bytes: int | None = None,
    seed: int = 0,
    *,
    orders: int = 3,
    inputs: str = OWN,
    open_ends: bool = False,
    goal: ProofGoal | None = None,
) -> ProgramProof:
    """Run a program on symbols, first in a fixed order, then in ``orders`` random but reproducible ones.

    Every read must happen after the write it needs, and every write after the last read of the old contents. The
    semantics (docs/design/gpu-model.md) must guarantee this order: requests complete at ``waitcnt 0``, only wavefront 0
    learns from an acquire, the others learn at a barrier. An operation's line size is its smallest step in bytes.
    The orders differ only if several wavefronts release, or acquire, one semaphore. Each order is checked for every
    timing that keeps the order of the acquires.

    Parameters
    ----------
    op: the collective, or None to check only races, semaphores and deadlocks. Input and result are the buffers
        ``input`` and ``output``; the collective is in place if one is missing or both have the same base.
    size_bytes: payload as nccl-tests counts it; checked against the buffers.
    inputs: ``own``: a rank's input is ready when the rank begins, and other ranks need a signal; ``all``: all inputs
        are ready from the start, as after a barrier.
    open_ends: allow results that arrive after the rank's end.
    goal: initial and final contents of the ranks, in place of the collective's.

    Raises
    ------
    DeadlockError: wavefronts wait forever; names them and the semaphores they wait for.
    InputError: a race, a read of unwritten memory, a semaphore that does not return to its initial value, a wrong or
        late result; names the place and the actor. Also if the check is impossible: an unknown collective, buffers
        of the wrong size, a program too large.
    """
    if inputs not in (OWN, ALL):
        raise InputError(f"unknown {inputs!r}{nearest(inputs, (OWN, ALL))}", field="inputs")
    if goal is None and op is not None:
        goal = make_goal(program, op, size_bytes)
    spans = [] if goal is None else sorted({*goal.sources, *goal.results, *goal.constants})
    parts = [] if goal is None else [(goal.sources[0][0], goal.chunk_bytes)]
    cells, ops = make_cells(program, [*spans, *parts]), decode(program)
    _refuse_overlaps(program, ops)
    ends: dict[int, str] = {}
    late: dict[int, str] = {}
    for number in range(orders + 1):
        run = ProofRun(
            program, cells, ops, random.Random(f"{seed} {number}") if number else None, blank=goal is not None
        )
        _run(run, goal, inputs == ALL, seed, open_ends)
        for rank in range(program.num_gpus):  # hosts do not end
            _look_at_end(run, rank, ends, late)
    return ProgramProof(
        program=program.name, op=op if goal is None else goal.op, num_ranks=program.num_ranks, num_ops=run.num_done,
        num_cells=cells.count * program.num_ranks, num_runs=orders + 1, open_ends=tuple(ends.values()),
        late_reads=tuple(late.values()),
    )  # fmt: skip


def _run(run: ProofRun, goal: ProofGoal | None, ready: bool, seed: int, open_ends: bool) -> None:
    """Run the program once, from the inputs to the results, and check the results."""
    if goal is None:
        run.run()
        return
    cells = run.memory.cells
    inputs = contents(goal, cells, seed)
    for rank, ((address, length), values) in enumerate(zip(goal.sources, inputs, strict=True)):
        run.enter(rank, cells.span(rank, address, length), values, ready)
        for constant in goal.constants:
            run.enter(rank, cells.span(rank, *constant), np.uint64(rank), True)
    run.run()
    results = [run.memory.values[cells.span(rank, *place)] for rank, place in enumerate(goal.results)]
    root = 0
    if goal.op == "broadcast":
        root = next((r for r, values in enumerate(inputs) if np.array_equal(results[0], values)), 0)
    for rank, (address, length) in enumerate(goal.results):
        wrong = np.flatnonzero(results[rank] != goal.wanted(rank, inputs, root))
        place = cells.span(rank, address, length)
        if len(wrong):
            cell = int(wrong[0])
            raise InputError(
                f"{run.program.name}: {goal.op} ends with {describe(int(results[rank][cell]), cells.size, inputs)} at "
                f"{run.words.place(int(place[cell]))}, not with "
                f"{describe(int(goal.wanted(rank, inputs, root)[cell]), cells.size, inputs)}"
            )
        if not open_ends:
            _check_end(run, rank, place)


def _check_end(run: ProofRun, rank: int, place: Index) -> None:
    """Raise InputError if a part of a rank's result can arrive after the rank's end."""
    memory, knows = run.memory, run.ends(rank)
    late = np.flatnonzero(memory.unknown(place, knows))
    if len(late):
        cell = int(place[late[0]])
        writer = run.words.actor(int(memory.wrote_by[cell]), int(memory.wrote_at[cell]))
        raise InputError(
            f"{run.program.name}: rank {rank} can end before {writer} has written {run.words.place(cell)}, "
            "part of its result"
        )


def _look_at_end(run: ProofRun, rank: int, ends: dict[int, str], late: dict[int, str]) -> None:
    """Record the first write and the first read of a rank's memory that may happen after its end."""
    memory, knows = run.memory, run.ends(rank)
    memory_of_rank = slice(rank * memory.cells.count, (rank + 1) * memory.cells.count)
    open_writes = np.flatnonzero(memory.unknown(memory_of_rank, knows))
    if len(open_writes) and rank not in ends:
        cell = memory_of_rank.start + int(open_writes[0])
        writer = run.words.actor(int(memory.wrote_by[cell]), int(memory.wrote_at[cell]))
        ends[rank] = f"rank {rank} can end before {writer} has written {run.words.place(cell)}"
    reads = memory.read_at[memory_of_rank].max(0, initial=0)
    late_reads = np.flatnonzero(reads > knows)
    if len(late_reads) and rank not in late:
        actor = int(late_reads[0])
        late[rank] = f"rank {rank} can end before {run.words.actor(actor, int(reads[actor]))} has read its memory"


def _refuse_overlaps(program: GpuProgram, ops: Sequence[DecodedOp]) -> None:
    """Raise InputError if an operation writes bytes that another of its lines or targets touches."""
    for number, op in enumerate(ops):
        if op.kind not in DATA_OPS and op.kind != DMA:
            continue
        for i, target in enumerate(op.writes):
            for second in (*op.reads, *op.writes[:i]):
                if target.rank == second.rank and _overlap(op, target, second):
                    size = f"{op.amount} {'bytes' if op.kind == DMA else 'lines'}"
                    raise InputError(
                        f"{program.name}: operation {number} of the program ({OP_NAMES[op.kind]}) overlaps itself in "
                        f"the memory of rank {target.rank}: {size} at addresses {second.address} and {target.address}"
                    )


def _overlap(op: DecodedOp, target: Operand, second: Operand) -> bool:
    """Return True if two operands share bytes; reading a line and writing it in place is allowed."""
    if op.kind != DMA and second.step == target.step != 0:
        distance = (second.address - target.address) % abs(target.step)
        if op.width <= distance <= abs(target.step) - op.width:  # columns of one matrix
            return False
    if second in op.reads and (second.address, second.step) == (target.address, target.step):
        return False
    (low, high), (start, end) = _range(op, target), _range(op, second)
    return low < end and start < high


def _range(op: DecodedOp, operand: Operand) -> tuple[int, int]:
    if op.kind == DMA:
        return operand.address, operand.address + op.amount
    last = (op.amount - 1) * operand.step
    return operand.address + min(0, last), operand.address + max(0, last) + op.width
