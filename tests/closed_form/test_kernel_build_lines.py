"""Do built GPU programs move the cache lines of their algorithms? Is each rank's program rank 0's, turned?"""

from __future__ import annotations

import math

import numpy as np
import pytest
from line_counts import count_lines

from trine.gpu.kernels.build import DETAILED, ROOTED, UNFLAGGED, build_kernel, known_kernels, known_ops
from trine.gpu.program import DATA_OPS

PAYLOAD = {"simple": 128, "ll": 64, "ll128": 120}
#: (op, algorithm) -> lines that a rank reads from and writes to each peer, in chunks or in whole buffers
CHUNKS = {
    ("all_gather", "put"): (0, 1),
    ("all_gather", "get"): (1, 0),
    ("all_gather", "ring"): (0, 1),
    ("all_gather", "ring-get"): (1, 0),
    ("reduce_scatter", "get"): (1, 0),
    ("reduce_scatter", "put"): (0, 1),
    ("reduce_scatter", "ring"): (0, 1),
    ("reduce_scatter", "ring-get"): (1, 0),
    ("all_reduce", "twoshot"): (1, 1),
    ("all_reduce", "twoshot-put"): (0, 2),
    ("all_reduce", "twoshot-get"): (2, 0),
    ("all_reduce", "ring"): (0, 2),
    ("all_reduce", "ring-get"): (2, 0),
    ("all_to_all", "put"): (0, 1),
    ("all_to_all", "get"): (1, 0),
    ("all_gather", "nvls"): (0, 1),
    ("reduce_scatter", "nvls"): (1, 0),
    ("all_reduce", "nvls"): (1, 1),
    ("all_gather", "hierarchical"): (0, 1),
    ("reduce_scatter", "hierarchical"): (1, 0),
    ("all_reduce", "hierarchical"): (1, 1),
    ("all_to_all", "hierarchical"): (0, 1),
    ("all_gather", "peer-put"): (0, 1),
    ("all_gather", "peer-get"): (1, 0),
    ("all_to_all", "peer-put"): (0, 1),
    ("all_to_all", "peer-get"): (1, 0),
}
BUFFERS = {("all_reduce", "oneshot"): (0, 1), ("all_reduce", "oneshot-get"): (1, 0)}
BUILT = [(op, algorithm) for op in known_ops() if op not in (*ROOTED, *DETAILED) for algorithm in known_kernels(op)]


def protocols(op, algorithm):
    return ("simple",) if f"{op}/{algorithm}" in UNFLAGGED else tuple(PAYLOAD)


@pytest.mark.parametrize(("op", "algorithm"), BUILT)
@pytest.mark.parametrize("ranks", [2, 5, 8])
def test_remote_lines(op, algorithm, ranks):
    for protocol in protocols(op, algorithm):
        for size in (1, 128 * ranks, 9_999, 1 << 20):
            parts = 1 if (op, algorithm) in BUFFERS else ranks
            lines = math.ceil(math.ceil(size / parts) / PAYLOAD[protocol])
            read, written = (CHUNKS | BUFFERS)[op, algorithm]
            program = build_kernel(op, ranks, size, algorithm=algorithm, protocol=protocol, workgroups=7)
            counts = count_lines(program)
            assert counts.remote_read().tolist() == [read * (ranks - 1) * lines] * ranks
            assert counts.remote_written().tolist() == [written * (ranks - 1) * lines] * ranks


@pytest.mark.parametrize(("op", "algorithm"), [pair for pair in BUILT if "ring" not in pair[1]])
def test_all_pairs_carry_the_same(op, algorithm):
    counts = count_lines(build_kernel(op, 6, 5000, algorithm=algorithm, workgroups=4))
    for lines in (counts.read, counts.written):
        assert len(np.unique(lines[~np.eye(6, dtype=bool)])) == 1


@pytest.mark.parametrize(("op", "algorithm"), BUILT)
def test_the_program_of_a_rank_is_that_of_rank_0_turned(op, algorithm):
    ranks = 5
    for protocol in protocols(op, algorithm):
        program = build_kernel(op, ranks, 9_999, algorithm=algorithm, protocol=protocol, workgroups=3, sync="both")
        ops = program.num_ops // ranks
        operands = len(program.operand_role) // ranks
        first = slice(0, operands)
        chunked = {b.name for b in program.buffers if b.name in ("input", "output") and b.size_bytes % ranks == 0}
        for rank in range(1, ranks):
            own, own_ops = slice(rank * operands, (rank + 1) * operands), slice(rank * ops, (rank + 1) * ops)
            for column in (program.op_kind, program.op_amount, program.op_unroll, program.op_label):
                assert (column[own_ops] == column[:ops]).all()
            for column in (program.operand_role, program.operand_step, program.operand_semaphore):
                assert (column[own] == column[first]).all()
            assert (program.operand_rank[own] == (program.operand_rank[first] + rank) % ranks).all()
            assert (program.operand_ptr[own_ops] - rank * operands == program.operand_ptr[:ops]).all()
            for buffer in program.buffers:
                at = program.operand_address[first] - buffer.base
                inside = (at >= 0) & (at < buffer.size_bytes)
                there = program.operand_address[own][inside] - buffer.base
                chunk = buffer.size_bytes // ranks
                turned = (at[inside] + rank * chunk) % (chunk * ranks)
                same = (there == at[inside]).all()
                assert same or (buffer.name in chunked and (there == turned).all())


def test_each_workgroup_has_its_slice_and_begins_with_another_peer():
    program = build_kernel("all_gather", 8, 8 * 128 * 100, algorithm="put", workgroups=32)
    firsts = []
    covered = []
    for begin, end in zip(program.workgroup_ptr[:32], program.workgroup_ptr[1:33], strict=True):
        data = [op for op in range(begin, end) if program.op_kind[op] in DATA_OPS]
        firsts.append(int(program.operand_rank[program.operand_ptr[data[0]] + 1]))
        covered.append(int(program.op_amount[data[0]]))
    assert firsts == [1 + i % 7 for i in range(32)]
    assert covered == [4] * 4 + [3] * 28


def test_workgroups_without_lines_have_no_operations():
    program = build_kernel("all_reduce", 4, 3 * 4 * 128, algorithm="twoshot", workgroups=8)
    sizes = np.diff(program.workgroup_ptr).reshape(4, 8)
    assert (sizes[:, :3] > 0).all()
    assert (sizes[:, 3:] == 0).all()
