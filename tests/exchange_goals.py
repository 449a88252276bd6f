"""Proof goals: the final contents after an all-to-all of unequal parts, and a dispatch and combine of experts."""

from __future__ import annotations

from collections.abc import Sequence

from trine.errors import InputError
from trine.gpu.kernels.moe.builder import NodeGrid, Routes, draw_routes
from trine.gpu.kernels.moe.options import MoeOptions
from trine.gpu.program import GpuProgram
from trine.gpu.proofs.check import GoalPiece, ProofGoal

#: Buffers that an exchange only reads: the experts of each token, and heads of queues that never fill.
CONSTANTS = ("routing", "heads")


def uneven_goal(program: GpuProgram, matrix: Sequence[Sequence[int]]) -> ProofGoal:
    """Return the goal of all_to_all_v: parts in rank order, in whole lines. matrix: bytes from row to column."""
    line = program.line_bytes
    sizes = [[-(-size // line) * line for size in row] for row in matrix]
    pieces = [
        tuple(
            GoalPiece(sum(row[rank] for row in sizes[:other]), sizes[other][rank], ((other, sum(sizes[other][:rank])),))
            for other in range(program.num_ranks)
        )
        for rank in range(program.num_ranks)
    ]
    return exchange_goal(program, "all_to_all_v", pieces, line)


def moe_goal(program: GpuProgram, moe: MoeOptions, num_nodes: int = 1) -> ProofGoal:
    """Return the goal of ``moe_dispatch/ALGORITHM`` or ``moe_combine/ALGORITHM``, by the name of the program.

    Low-latency: each expert of a rank has separate rows, one expert after another; else a token has one row at each
    rank that it goes to. Rows of a sender are in the order of its tokens.
    """
    op, _, algorithm = program.name.partition("/")
    grid = NodeGrid(num_nodes, program.num_ranks // num_nodes)
    top = moe.top_nodes or (num_nodes if algorithm == "low-latency" else min(num_nodes, 4))
    drawn = draw_routes(moe, grid, top)
    routes = [drawn[rank if len(drawn) > 1 else 0] for rank in range(program.num_ranks)]
    by_expert = algorithm == "low-latency"
    rows = _rows(routes, grid, moe, by_expert)
    named = {buffer.name: buffer.size_bytes for buffer in program.buffers}
    wide = moe.experts * moe.tokens if by_expert else program.num_ranks * moe.tokens
    sent, gone = (moe.tokens, wide) if op == "moe_dispatch" else (wide, moe.tokens)
    source, target = named["input"] // sent, named["output"] // gone
    size = min(source, target)
    pieces: list[list[GoalPiece]] = [[] for _ in routes]
    for rank in range(program.num_ranks):
        for token in range(moe.tokens):
            places = rows[rank, token]
            if op == "moe_dispatch":
                for peer, row in places:
                    pieces[peer].append(GoalPiece(row * target, size, ((rank, token * source),)))
            else:
                pieces[rank].append(
                    GoalPiece(token * target, size, tuple((peer, row * source) for peer, row in places))
                )
    return exchange_goal(program, op, pieces, program.line_bytes)


def exchange_goal(program: GpuProgram, op: str, pieces: Sequence[Sequence[GoalPiece]], unit_bytes: int) -> ProofGoal:
    """Return the goal of a program with buffers ``input`` and ``output``. pieces: per rank's output, in ``unit_bytes``.

    Raises
    ------
    InputError: a buffer is missing.
    """
    named = {buffer.name: (buffer.base, buffer.size_bytes) for buffer in program.buffers}
    if not {"input", "output"} <= set(named):
        raise InputError(f"{program.name}: an exchange needs buffers 'input' and 'output'", field="buffers")
    return ProofGoal(
        op=op,
        num_ranks=program.num_ranks,
        chunk_bytes=unit_bytes,
        sources=(named["input"],) * program.num_ranks,
        results=(named["output"],) * program.num_ranks,
        pieces=tuple(map(tuple, pieces)),
        constants=tuple(named[name] for name in CONSTANTS if name in named),
    )


def _rows(
    routes: Sequence[Routes], grid: NodeGrid, moe: MoeOptions, by_expert: bool
) -> dict[tuple[int, int], list[tuple[int, int]]]:
    """Return the destinations of each (rank, token), as (rank, row there)."""
    ranks = len(routes)
    each = moe.experts // ranks if by_expert else 1
    found: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for here in range(ranks):
        for local in range(each):
            row = local * ranks * moe.tokens
            for distance in range(ranks):
                sender = grid.at(here, distance, -1)
                for token, places in enumerate(routes[sender].tokens):
                    if (distance, local) in places if by_expert else any(place[0] == distance for place in places):
                        found.setdefault((sender, token), []).append((here, row))
                        row += 1
    return found
