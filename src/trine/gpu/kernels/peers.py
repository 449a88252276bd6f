"""All-gather and all-to-all with one peer per workgroup, or several peers if there are fewer workgroups than peers.

Workgroup g serves the peer at distance g % (ranks - 1) + 1; several workgroups may share a peer's lines. It signals and
awaits only its peer.

:func:`all_to_all_v_put` has unequal parts: a table holds the bytes from each rank to each other rank. Parts are
contiguous in the sender's input and in the receiver's output, in the order of ranks, each in whole lines. Ranks differ,
so each has a separate kernel. If all rows of the table are equal relative to their rank, the load-store level detects
this and folds.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate

from trine.errors import InputError
from trine.gpu.builder import Operand
from trine.gpu.kernels.builder import CollectiveBuilder, Workgroup
from trine.gpu.kernels.direct import Division, PeerWork, get, put
from trine.gpu.kernels.options import KernelOptions
from trine.gpu.kernels.rooted import PerRankBuilder
from trine.gpu.program import READ, WRITE, GpuProgram


def peer_put(options: KernelOptions) -> GpuProgram:
    """Build a program whose workgroups write their input slices to their peers' outputs, then signal the peers."""
    return put(options, "peer-put", _ONE_PEER)


def peer_get(options: KernelOptions) -> GpuProgram:
    """Build a program whose workgroups wait for their peers, read slices of the peers' inputs, and signal the reads."""
    return get(options, "peer-get", _ONE_PEER)


def _served(options: KernelOptions) -> range:
    """Return the range 1 to the largest number of peers of a workgroup."""
    return range(1, 1 - (options.num_ranks - 1) // -options.workgroups)


def _serve_one(builder: CollectiveBuilder, lines: int) -> Iterator[PeerWork]:
    """Yield the work of each workgroup; idle workgroups get no operations."""
    count, peers = builder.options.workgroups, builder.options.num_ranks - 1
    for number in range(count):
        distances: Sequence[int] = range(number + 1, peers + 1, count)
        share, shares = 0, 1
        if count >= peers:
            distances = (number % peers + 1,)
            share, shares = number // peers, (count - number % peers + peers - 1) // peers
        first, num_lines = slice_of(lines, share, shares)
        own_first, own_lines = slice_of(lines, number, count)
        remote = tuple((Workgroup(builder, number, first, num_lines), d) for d in distances if num_lines)
        local = (Workgroup(builder, number, own_first, own_lines),) if own_lines else ()
        numbered_peers = [(d, index) for index, d in enumerate(distances)]
        yield PeerWork(remote=remote, local=local, peers=numbered_peers)
        builder.end_workgroup()


_ONE_PEER = Division(_served, _serve_one)


def slice_of(lines: int, number: int, num_slices: int) -> tuple[int, int]:
    """Return (first, lines) of one of ``num_slices`` slices; the first slices get the remainder, one line each."""
    per_slice, remainder = divmod(lines, num_slices)
    return number * per_slice + min(number, remainder), per_slice + (number < remainder)


MatrixLines = tuple[tuple[int, ...], ...]


def all_to_all_v_put(options: KernelOptions) -> GpuProgram:
    """Build a program whose workgroups write their slices of all parts to the receivers, signal, and await senders."""
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
                offset = sum(columns[peer][:rank]) + first
                Workgroup(builder, group.number, first, lines).copy(
                    Operand(READ, 0, source + (starts[peer] + first) * step, step),
                    Operand(WRITE, distance, result + offset * step, step),
                    label="put" if distance else "copy",
                )
                peers += [distance] if distance else []
        builder.signal(group, arrived, peers)
        received_lines = [slice_of(lines, group.number, options.workgroups)[1] for lines in columns[rank]]
        num_senders = sum(bool(lines) for sender, lines in enumerate(received_lines) if sender != rank)
        if num_senders:
            builder.expect(group, arrived, num_senders, last=True)
    return builder.finished()


def _lines(options: KernelOptions) -> MatrixLines:
    """Return the lines from each rank (row) to each. Raises InputError for a missing or mismatched table."""
    matrix = options.matrix
    if matrix is None:
        raise InputError("all_to_all_v needs the bytes from each rank to each", field="matrix")
    if len(matrix) != options.num_ranks or any(len(row) != options.num_ranks for row in matrix):
        raise InputError(f"has {len(matrix)} rows, and there are {options.num_ranks} ranks", field="matrix")
    if not any(any(row) for row in matrix):
        raise InputError("nobody sends anything", field="matrix")
    rows = []
    for row in matrix:
        rows.append(tuple(-(-size // options.step_bytes) for size in row))
    return tuple(rows)
