"""Track the contributions to each line through a program, workgroup by workgroup.

This depends only on the meaning of operations, not on how fused kernels are built. A workgroup's registers hold the
lines that it has loaded since it began its tile; a store writes line i of the result computed from them. So a line is
a list of parts, each (rank that computed it or had it as input, line of its tile or None, input lines that it was
computed from, as (buffer, line)).
"""

from __future__ import annotations

from collections import Counter

import numpy as np

from trine.gpu.program import ACQUIRE, BARRIER, COMPUTE, COPY, LOAD, READ, REDUCE, RELEASE, STORE, WAITCNT

CASES = {
    "gemv-allreduce": ({"rows": 200, "cols": 70}, {"rows": 96, "cols": 40, "tile": (32, 16)}),
    "gemm-allreduce": ({"rows": 36, "cols": 40, "inner": 50, "tile": (5, 16, 32)},),
    "gemm-reducescatter": (
        {"rows": 36, "cols": 40, "inner": 50, "tile": (5, 32, 32)},
        {"rows": 24, "cols": 200, "inner": 9, "tile": (2, 64, 16)},
    ),
    "gemm-alltoall": (
        {"rows": 36, "cols": 40, "inner": 20, "tile": (5, 16, 16)},
        {"rows": 24, "cols": 100, "inner": 20, "tile": (7, 64, 16)},
    ),
    "embedding-alltoall": ({"rows": 36, "cols": 40, "inner": 5, "tile": (5,), "table_rows": 100},),
}


class Flow:
    """Interpreter of a program. ``resident``: workgroups of each GPU that run at once, in order."""

    def __init__(self, built, resident=None):
        self.program, self.after, self.resident = built.program, built.after, resident
        self.lines = {}
        self.semaphores = Counter()
        self.ends = Counter()
        for name in ("rank", "address", "step", "semaphore", "role"):
            setattr(self, name, getattr(self.program, f"operand_{name}").tolist())

    def run(self):
        program = self.program
        waiting = {rank: [] for rank in range(program.num_ranks)}
        for kernel, rank in enumerate(program.kernel_rank.tolist()):
            for group in range(program.kernel_ptr[kernel], program.kernel_ptr[kernel + 1]):
                waiting[rank].append((kernel, group, self.work(rank, group)))
        while any(waiting.values()):
            moved = False
            for groups in waiting.values():
                for kernel, group, work in list(groups[: self.resident]):
                    before = self.after[kernel]
                    if before >= 0 and any(other == before for other, _, _ in groups):
                        continue
                    step = next(work, None)
                    moved |= step != "waits"
                    if step is None:
                        groups.remove((kernel, group, work))
            assert moved, "nobody can go on"
        assert not any(self.semaphores.values())
        return self

    def parts(self, rank, address):
        """Return the parts of a line; an input line is its only part."""
        if (rank, address) in self.lines:
            return self.lines[rank, address]
        buffer = next(b for b in self.program.buffers if b.base <= address < b.base + b.size_bytes)
        return ((rank, None, frozenset({(buffer.name, (address - buffer.base) // self.program.line_bytes)})),)

    def work(self, rank, group):
        program, loaded, fresh = self.program, set(), True
        for op in range(program.workgroup_ptr[group], program.workgroup_ptr[group + 1]):
            kind, amount = int(program.op_kind[op]), int(program.op_amount[op])
            operands = range(program.operand_ptr[op], program.operand_ptr[op + 1])
            reads = [i for i in operands if self.role[i] == READ]
            writes = [i for i in operands if self.role[i] != READ]
            if kind == ACQUIRE:
                key = rank, self.semaphore[reads[0]], self.address[reads[0]]
                while self.semaphores[key] < amount:
                    yield "waits"
                self.semaphores[key] -= amount
            elif kind == RELEASE:
                for i in writes:
                    self.semaphores[self.rank[i], self.semaphore[i], self.address[i]] += amount
            elif kind == LOAD:
                loaded, fresh = set() if fresh else loaded, False
                for i in reads:
                    for line in range(amount):
                        ((whose, _, sources),) = self.parts(self.rank[i], self.address[i] + line * self.step[i])
                        assert whose == rank
                        loaded |= sources
            elif kind in (STORE, REDUCE, COPY):
                for line in range(amount):
                    found = (((rank, line, frozenset(loaded)),) if kind == STORE else ()) + tuple(
                        part for i in reads for part in self.parts(self.rank[i], self.address[i] + line * self.step[i])
                    )
                    for i in writes:
                        self.lines[self.rank[i], self.address[i] + line * self.step[i]] = found
                fresh = True
            else:
                assert kind in (WAITCNT, BARRIER, COMPUTE)
            yield "goes on"


class Sizes:
    """Expected positions, derived from the sizes alone."""

    def __init__(self, options):
        self.o, line = options, options.line_bytes // options.dtype_bytes
        self.elements = line
        self.pitch = {name: -(-getattr(options, name) // line) for name in ("cols", "inner")}
        self.chunks = 1 if options.algorithm == "oneshot" else options.num_ranks
        self.chunk_rows = options.rows // self.chunks
        self.gemv = options.name.startswith("gemv")
        self.height = -(-self.chunk_rows // line) if self.gemv else self.chunk_rows
        self.width = 1 if self.gemv else self.pitch["cols"]

    def tile(self, down, across):
        """Return the tile of a chunk's line, as rows of the chunk and columns in lines, and the line's index in it."""
        tall = self.o.tile[0] // (self.elements if self.gemv else 1)
        wide = 1 if self.gemv else self.o.tile[1] // self.elements
        top, left = down // tall * tall, across // wide * wide
        rows = range(top, min(top + tall, self.height))
        columns = range(left, min(left + wide, self.width))
        return rows, columns, (down - top) * len(columns) + across - left

    def inputs(self, chunk, down, across):
        """Return the input lines that a line's tile is computed from, and the line's index in its tile."""
        rows, columns, number = self.tile(down, across)
        if self.gemv:
            first = chunk * self.chunk_rows + rows.start * self.elements
            last = min(first + len(rows) * self.elements, (chunk + 1) * self.chunk_rows)
            found = {
                ("matrix", r * self.pitch["cols"] + c) for r in range(first, last) for c in range(self.pitch["cols"])
            }
            return frozenset(found | {("vector", c) for c in range(self.pitch["cols"])}), number
        first = chunk * self.chunk_rows
        found = {("a", (first + r) * self.pitch["inner"] + c) for r in rows for c in range(self.pitch["inner"])}
        found |= {("b", r * self.pitch["cols"] + c) for r in range(self.o.inner) for c in columns}
        return frozenset(found), number


def buffer(program, name):
    return next(b for b in program.buffers if b.name == name)


def results(built):
    """Yield (rank, chunk of rows or source, line down, line across, address) of each line expected at the end."""
    sizes, o = Sizes(built.options), built.options
    output = buffer(built.program, "output")
    scatter = o.name.endswith("reducescatter")
    for rank in range(o.num_ranks):
        for chunk in range(1 if scatter else sizes.chunks):
            for down, across in np.ndindex(sizes.height, sizes.width):
                line = (chunk * sizes.height + down) * sizes.width + across
                yield rank, rank if scatter else chunk, down, across, output.base + line * o.line_bytes
