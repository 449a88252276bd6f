"""Does each line of a fused kernel's result combine the right inputs at any residency, without races?"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.fused_flow import CASES, Flow, Sizes, results
from trine.errors import InputError
from trine.gpu.kernels.fused.build import build_fused
from trine.gpu.program import ACQUIRE, STORE, WAITCNT, kernels_of_rank
from trine.gpu.proofs import check_program

ALL = [
    (name, case, algorithm, fused)
    for name, cases in CASES.items()
    for case in cases
    for algorithm in (("oneshot", "twoshot") if name.endswith("allreduce") else (None,))
    for fused in (True, False)
]


def built_in_many_ways(name, case, algorithm, fused):
    for i, ranks in enumerate((2, 3, 4)):
        for workgroups in (None, 1, 2):
            waits = ("single", "joint")[(i + (workgroups or 0)) % 2]
            options = {"workgroups": workgroups, "wavefronts": 2, "waits": waits, "fused": fused}
            if algorithm == "twoshot" and case["rows"] % ranks:
                continue
            if workgroups == 2 and case["rows"] // ranks <= case.get("tile", (64,))[0]:
                continue  # a chunk has fewer tiles than workgroups
            yield build_fused(name, ranks, algorithm=algorithm, **options, **case)


@pytest.mark.parametrize(("name", "case", "algorithm", "fused"), ALL)
def test_every_line_of_the_result_has_its_contributions(name, case, algorithm, fused):
    for built in built_in_many_ways(name, case, algorithm, fused):
        # One workgroup at a time on each GPU: no workgroup may wait for a later one.
        flow, sizes, ranks = Flow(built, resident=1).run(), Sizes(built.options), built.options.num_ranks
        for rank, chunk, down, across, address in results(built):
            parts = flow.lines[rank, address]
            if name.startswith("embedding"):
                assert {part[0] for part in parts} == {chunk}
                _check_sum_of_rows(built.options, sizes, parts, across)
                continue
            # In an all-to-all, senders compute the receiving rank's rows.
            computed = rank if name.endswith("alltoall") else chunk
            inputs, line = sizes.inputs(computed, down, across)
            senders = [chunk] if name.endswith("alltoall") else list(range(ranks))
            assert sorted(part[0] for part in parts) == senders
            assert {part[2] for part in parts} == {inputs}
            if fused and not name.endswith("alltoall"):
                assert {part[1] for part in parts} == {line}


def _check_sum_of_rows(options, sizes, parts, across):
    """Check that the sum has ``inner`` table rows, each contributing the line at column ``across``."""
    lines = [next(iter(part[2])) for part in parts]
    assert len(lines) == options.inner
    assert {buffer for buffer, _ in lines} == {"table"}
    assert {line % sizes.width for _, line in lines} == {across}
    assert max(line // sizes.width for _, line in lines) < options.table_rows


@pytest.mark.parametrize(("name", "case", "algorithm", "fused"), [case for case in ALL if case[3]])
def test_there_is_no_race_and_no_deadlock_in_any_order(name, case, algorithm, fused):
    for built in built_in_many_ways(name, case, algorithm, fused):
        if built.options.num_ranks == 4 and built.options.workgroups == 1:
            continue  # a single workgroup is covered by 3 ranks, and 4 is the slowest case
        check = check_program(built.program, orders=int(built.options.num_ranks < 4))
        assert check.late_reads == ()


def test_a_kernel_that_computes_has_no_race():
    for name, (case, *_) in CASES.items():
        built = build_fused(name, 2, fused=False, **case)
        behind = np.arange(built.program.num_kernels) >= 2
        computing = replace(built.program, kernel_rank=np.where(behind, -1, built.program.kernel_rank))
        first = [kernels_of_rank(computing, rank) for rank in range(2)]
        assert all(not (program.op_kind == ACQUIRE).any() for program in first)
        for program in first:
            check_program(program, orders=1)


def test_columns_of_a_matrix_may_be_stored_at_once_but_not_where_they_overlap():
    built = build_fused("gemm-alltoall", 2, rows=8, cols=96, inner=16, tile=(4, 64, 16), wavefronts=2)
    program = built.program
    store = int(np.flatnonzero(program.op_kind == STORE)[0])
    addresses = program.operand_address.copy()
    addresses[program.operand_ptr[store]] += 32
    with pytest.raises(InputError, match="overlaps itself"):
        check_program(replace(program, operand_address=addresses), orders=0)


def test_the_flow_and_the_check_find_what_is_wrong():
    built = build_fused("gemm-reducescatter", 2, rows=8, cols=32, inner=16, tile=(4, 32, 16), wavefronts=2)
    program = built.program
    last_wait = np.flatnonzero(program.op_kind == WAITCNT)[-1]
    kinds = program.op_kind.copy()
    kinds[last_wait] = 10  # nop: the rank's own partial result may be missing
    with pytest.raises(InputError, match="waitcnt 0"):
        check_program(replace(program, op_kind=kinds), orders=1)
    amounts = program.op_amount.copy()
    amounts[program.op_kind == ACQUIRE] = 2
    with pytest.raises(AssertionError, match="nobody can go on"):
        Flow(replace(built, program=replace(program, op_amount=amounts))).run()
