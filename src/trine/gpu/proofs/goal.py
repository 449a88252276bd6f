"""Inputs and expected results of a collective, as numbers that stand for parts of the ranks' inputs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import NamedTuple

import numpy as np

from trine.errors import InputError, nearest
from trine.gpu.program import Buffer, GpuProgram
from trine.gpu.proofs.memory import NOTHING, Cells, Values

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
        own = slice(rank * part, (rank + 1) * part)
        if self.op == "all_to_all":
            return np.concatenate([values[own] for values in contents])
        if self.op == "scatter":
            return contents[0][own]
        total: Values = np.add.reduce(np.stack(contents), axis=0, dtype=np.uint64)
        return total if self.op in ("all_reduce", "reduce") else total[own]

    def _of_pieces(self, pieces: Sequence[GoalPiece], size_bytes: int, contents: list[Values]) -> Values:
        cell = self.sources[0][1] // len(contents[0])
        found = np.full(size_bytes // cell, NOTHING, np.uint64)
        for piece in pieces:
            count = piece.size_bytes // cell
            parts = [contents[rank][start // cell : start // cell + count] for rank, start in piece.sources]
            found[piece.start // cell : piece.start // cell + count] = np.sum(parts, axis=0, dtype=np.uint64)
        return found


def make_goal(program: GpuProgram, op: str, size_bytes: int | None) -> ProofGoal:
    """Return a collective's goal from the program's buffers ``input`` and ``output`` (only one of them: in place).

    Raises InputError for an unknown collective, missing buffers, or sizes that do not fit it or ``size_bytes``.
    """
    if op not in _CHUNKS:
        raise InputError(f"no known result for {op!r}{nearest(op, _CHUNKS)}", field="op")
    named = {buffer.name: buffer for buffer in program.buffers}
    source, result = named.get("input"), named.get("output")
    ranks = program.num_ranks
    counts = [ranks if count == "ranks" else 1 for count in _CHUNKS[op]]
    if source is None or result is None or source.base == result.base:
        only = max((b for b in (source, result) if b is not None), key=lambda b: b.size_bytes, default=None)
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
        first, *others = goal.results
        goal = replace(goal, results=(first, *((base, 0) for base, _ in others)))
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
        found = np.flatnonzero(values == np.uint64(value))
        if len(found):
            return f"rank {rank}'s input from byte {int(found[0]) * cell_bytes} on"
    if len(inputs) <= _TAKEN_APART:
        stacked = np.stack(inputs)
        for count in range(2, len(inputs) + 1):
            for ranks in combinations(range(len(inputs)), count):
                found = np.flatnonzero(stacked[list(ranks)].sum(0, dtype=np.uint64) == np.uint64(value))
                if len(found):
                    who = ", ".join(str(rank) for rank in ranks)
                    return f"the sum of the inputs of ranks {who} from byte {int(found[0]) * cell_bytes} on"
    return "a sum of other parts of the inputs, or of some of them more than once"
