"""Do fused kernels load and store exactly the lines of each buffer that their matrices and tiles need?"""

from __future__ import annotations

import math

import numpy as np
import pytest
from fused_lines import expected_flags, expected_remote_writes, expected_writes
from line_counts import count_lines

from tests.fused_flow import CASES, Flow
from trine.gpu.kernels.fused.build import build_fused
from trine.gpu.kernels.fused.expected import expected_reads
from trine.gpu.program import ACQUIRE, COMPUTE, DATA_OPS, READ, RELEASE

BUILT = [
    (name, case, algorithm, fused, ranks, workgroups)
    for name, cases in CASES.items()
    for case in (*cases, {"rows": 240, "cols": 333, "dtype_bytes": 2, "line_bytes": 128})
    for algorithm in (("oneshot", "twoshot") if name.endswith("allreduce") else (None,))
    for fused in (True, False)
    for ranks, workgroups in ((2, None), (3, 1), (4, None))
    if algorithm != "twoshot" or case["rows"] % ranks == 0
]


def touched(program, rank):
    """Return {buffer: lines} that a rank reads, writes, and writes remotely, counted operand by operand."""
    op = program.operand_op
    own = np.isin(program.op_kind[op], DATA_OPS) & (program.op_rank[op] == rank)
    found = [{}, {}, {}]
    for buffer in program.buffers:
        inside = (program.operand_address >= buffer.base) & (program.operand_address < buffer.base + buffer.size_bytes)
        reads = program.operand_role == READ
        far = own & inside & ~reads & (program.operand_rank != rank)
        for counts, chosen in zip(found, (own & inside & reads, own & inside & ~reads, far), strict=True):
            lines = int(program.op_amount[op][chosen].sum())
            if lines:
                counts[buffer.name] = lines
    return found


@pytest.mark.parametrize(("name", "case", "algorithm", "fused", "ranks", "workgroups"), BUILT)
def test_lines_of_each_buffer(name, case, algorithm, fused, ranks, workgroups):
    if "dtype_bytes" in case and not name.startswith("gemv"):
        case = case | {"inner": 30}
    built = build_fused(name, ranks, fused=fused, algorithm=algorithm, workgroups=workgroups, **case)
    expected = [f(built.options) for f in (expected_reads, expected_writes, expected_remote_writes)]
    assert [touched(built.program, rank) for rank in range(ranks)] == [expected] * ranks
    counts = count_lines(built.program)
    assert counts.remote_read().tolist() == [0] * ranks
    assert counts.remote_written().tolist() == [sum(expected[2].values())] * ranks
    assert len(np.unique(counts.written[~np.eye(ranks, dtype=bool)])) == 1


def test_fused_and_unfused_send_the_same():
    for name, (case, *_) in CASES.items():
        one, two = (build_fused(name, 4, fused=fused, **case) for fused in (True, False))
        sent = [expected_remote_writes(built.options) for built in (one, two)]
        assert sorted(sent[0].values()) == sorted(sent[1].values())


def test_the_matrix_of_eidolas_first_figure_is_65536_lines():
    # About 66 K non-flag reads in the paper: the matrix, the vector per tile, and the partial sums of four GPUs.
    reads = expected_reads(build_fused("gemv-allreduce", 4, rows=1024, cols=1024).options)
    assert reads == {"matrix": 65536, "vector": 16 * 64, "partials": 4 * 64}
    assert sum(reads.values()) == 66816


def test_by_hand():
    # 8 x 32 = (8 x 64)(64 x 32) of 4 B on 2 ranks; a line has 16 elements. Tiles of 2 x 16: 4 down, 2 across.
    options = build_fused("gemm-reducescatter", 2, rows=8, cols=32, inner=64, tile=(2, 16, 32)).options
    assert expected_reads(options) == {"a": 8 * 4 * 2, "b": 64 * 2 * 4, "partials": 2 * 4 * 2}
    assert expected_writes(options) == {"partials": 8 * 2, "output": 4 * 2}
    assert expected_remote_writes(options) == {"partials": 4 * 2}
    assert expected_flags(options) == (4, 4)


def flags_of(program, rank):
    """Return (number of flags that a rank releases, number of its acquires)."""
    own = program.op_rank == rank
    return (
        int(np.diff(program.operand_ptr)[own & (program.op_kind == RELEASE)].sum()),
        int((own & (program.op_kind == ACQUIRE)).sum()),
    )


@pytest.mark.parametrize("waits", ["single", "joint"])
@pytest.mark.parametrize("workgroups", [None, 1])
def test_flags(waits, workgroups):
    for name, (case, *_) in CASES.items():
        for ranks in (2, 4):
            built = build_fused(name, ranks, waits=waits, workgroups=workgroups, **case)
            program, flags = built.program, expected_flags(built.options)
            assert [flags_of(program, rank) for rank in range(ranks)] == [flags] * ranks
            base = next(buffer for buffer in program.buffers if buffer.name == "flags")
            assert base.size_bytes == program.semaphores.shape[1] * 8
            with_flag = program.operand_semaphore >= 0
            assert (program.operand_address[with_flag] == base.base + 8 * program.operand_semaphore[with_flag]).all()
            # Each flag is waited for once, and has one releaser per peer or one for all.
            waited = program.operand_semaphore[program.operand_ptr[:-1][program.op_kind == ACQUIRE]]
            assert sorted(waited.tolist()) == sorted(list(range(program.semaphores.shape[1])) * ranks)


def test_flag_spacing():
    near, far = (build_fused("gemv-allreduce", 4, rows=256, cols=64, flag_spacing=n).program for n in (4, 256))
    moved = near.operand_semaphore >= 0
    bases = [next(b.base for b in p.buffers if b.name == "flags") for p in (near, far)]
    assert (far.operand_address[moved] - bases[1] == 64 * (near.operand_address[moved] - bases[0])).all()


@pytest.mark.parametrize(("name", "macs"), [("gemv-allreduce", 256 * 96), ("gemm-alltoall", 256 * 96 * 64)])
def test_cycles_follow_from_multiply_adds(name, macs):
    sizes = {"rows": 256, "cols": 96} | ({"inner": 64} if name.startswith("gemm") else {})
    tile = (64, 32) if name.startswith("gemv") else (64, 32, 32)
    program = build_fused(name, 4, tile=tile, wavefronts=4, macs_per_cycle=16, **sizes).program
    own = (program.op_rank == 2) & (program.op_kind == COMPUTE)
    assert program.op_amount[own].sum() * 4 * 16 == macs
    # Cycles are rounded up per wavefront and piece; edge tiles count only their own elements.
    odd = build_fused(name, 4, tile=tile, wavefronts=4, macs_per_cycle=16, **(sizes | {"rows": 4, "cols": 7})).program
    cycles = odd.op_amount[odd.op_kind == COMPUTE]
    pieces = [4 * 7] if name.startswith("gemv") else [7 * 32, 7 * 32]
    times = 1 if name.startswith("gemv") else 4
    assert cycles.tolist() == [math.ceil(n / 64) for n in pieces] * times * 4


@pytest.mark.parametrize("name", CASES)
def test_the_program_of_a_rank_is_that_of_rank_0_turned(name):
    built = build_fused(name, 4, **CASES[name][0])
    program, ranks = built.program, 4
    ops, operands = program.num_ops // ranks, len(program.operand_role) // ranks
    for rank in range(1, ranks):
        own, own_ops = slice(rank * operands, (rank + 1) * operands), slice(rank * ops, (rank + 1) * ops)
        for column in (program.op_kind, program.op_amount, program.op_label):
            assert (column[own_ops] == column[:ops]).all()
        for column in (program.operand_role, program.operand_step, program.operand_semaphore):
            assert (column[own] == column[:operands]).all()
        assert (program.operand_rank[own] == (program.operand_rank[:operands] + rank) % ranks).all()
        for buffer in program.buffers:
            at = program.operand_address[:operands] - buffer.base
            inside = (at >= 0) & (at < buffer.size_bytes)
            there = program.operand_address[own][inside] - buffer.base
            turned = (at[inside] + rank * buffer.size_bytes // ranks) % buffer.size_bytes
            by_rank = buffer.name in ("a", "indices") or (buffer.name == "output" and "scatter" not in name)
            chunked = by_rank and built.options.chunks > 1
            assert (there == (turned if chunked else at[inside])).all()


def test_all_lines_of_the_output_are_written_once():
    for name, (case, *_) in CASES.items():
        built = build_fused(name, 4, **case)
        output = next(buffer for buffer in built.program.buffers if buffer.name == "output")
        written = Flow(built).run().lines
        found = {key for key in written if output.base <= key[1] < output.base + output.size_bytes}
        assert len(found) * 64 == output.size_bytes * 4
        assert len(found) == 4 * expected_writes(built.options)["output"]
