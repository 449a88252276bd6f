"""All-to-all of unequal parts: how many bytes each rank has for each other is a table.

Parts lie behind each other in the input of the sender and in the output of the receiver, in the order of ranks, each in
whole lines. Ranks do different things, so each has a kernel of its own; where all rows of the table are the same seen
from their rank, the load-store level finds that by itself, and folds.
"""

from __future__ import annotations

from itertools import accumulate

from trine.collectives.kernels.builder import Workgroup
from trine.collectives.kernels.options import KernelOptions
from trine.collectives.kernels.peers import slice_of
from trine.collectives.kernels.rooted import PerRankBuilder
from trine.errors import InputError
from trine.gpu.builder import Operand
from trine.gpu.program import READ, WRITE, GpuProgram

MatrixLines = tuple[tuple[int, ...], ...]


def all_to_all_v_put(options: KernelOptions) -> GpuProgram:
    """Each workgroup writes its slice of each part into the output of its receiver, signals, and waits for senders."""
    parts = _lines(options)
    builder = PerRankBuilder("all_to_all_v/put", options)
    columns = tuple(zip(*parts, strict=True))
    step = builder.line_bytes
    source = builder.buffer("input", max(map(sum, parts)) * step)
    result = builder.buffer("output", max(map(sum, columns)) * step)
    arrived = builder.signals(1)
    for rank, group in builder.kernels([max(*row, *column) for row, column in zip(parts, columns, strict=True)]):
        starts, peers = list(accumulate(parts[rank], initial=0)), []
        for distance in (*group.rotated(options.distances), 0):
            peer = (rank + distance) % builder.num_ranks
            first, lines = slice_of(parts[rank][peer], group.number, options.workgroups)
            if lines:
                there = sum(columns[peer][:rank]) + first
                Workgroup(builder, group.number, first, lines).copy(
                    Operand(READ, 0, source + (starts[peer] + first) * step, step),
                    Operand(WRITE, distance, result + there * step, step),
                    label="put" if distance else "copy",
                )
                peers += [distance] if distance else []
        builder.signal(group, arrived, peers)
        come = [slice_of(lines, group.number, options.workgroups)[1] for lines in columns[rank]]
        senders = sum(bool(lines) for other, lines in enumerate(come) if other != rank)
        if senders:
            builder.expect(group, arrived, senders, last=True)
    return builder.finished()


def _lines(options: KernelOptions) -> MatrixLines:
    """Lines from each rank (row) to each. Raises InputError where there is no table, or one for other ranks."""
    matrix = options.matrix
    if matrix is None:
        raise InputError("all_to_all_v needs the bytes from each rank to each", field="matrix")
    if len(matrix) != options.num_ranks or any(len(row) != options.num_ranks for row in matrix):
        raise InputError(f"has {len(matrix)} rows, and there are {options.num_ranks} ranks", field="matrix")
    if not any(any(row) for row in matrix):
        raise InputError("nobody sends anything", field="matrix")
    return tuple(tuple(-(-size // options.step_bytes) for size in row) for row in matrix)
