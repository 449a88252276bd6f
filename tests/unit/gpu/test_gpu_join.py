"""Does a joined program consist of its parts, each in its place?"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from gpu_cases import Programmer, small_model
from line_counts import count_lines

from trine.cluster.topologies import build_topology
from trine.errors import InputError
from trine.gpu.join import PlacedProgram, join_programs
from trine.gpu.kernels.build import build_kernel
from trine.gpu.program import ACQUIRE, READ
from trine.gpu.run import GpuRunOptions, run_gpus
from trine.gpu.validate import validate_program

CLUSTER = build_topology("full", "10 GB/s", "1 us", 4)
#: a multiple of the period of the small model's channels and ports
FAR = 1 << 30


def kernel(op, ranks, **how):
    return build_kernel(op, ranks, 4096, workgroups=2, wavefronts=2, **how)


def test_lines_between_ranks_are_those_of_the_parts():
    first, second = kernel("all_reduce", 4, algorithm="twoshot"), kernel("all_gather", 2, algorithm="put")
    shift = first.semaphores.shape[1]
    joined = join_programs(
        [
            PlacedProgram(program=first, ranks=(2, 0, 3, 1)),
            PlacedProgram(program=second, ranks=(3, 1), address_shift=FAR, semaphore_shift=shift),
        ],
        4,
    )
    validate_program(joined, small_model(), 4)
    one, other, whole = (count_lines(program) for program in (first, second, joined))
    wanted = np.zeros((2, 4, 4), np.int64)
    wanted[0][np.ix_((2, 0, 3, 1), (2, 0, 3, 1))] = one.read
    wanted[1][np.ix_((2, 0, 3, 1), (2, 0, 3, 1))] = one.written
    wanted[0][np.ix_((3, 1), (3, 1))] += other.read
    wanted[1][np.ix_((3, 1), (3, 1))] += other.written
    assert (whole.read == wanted[0]).all()
    assert (whole.written == wanted[1]).all()
    assert joined.kernel_rank.tolist() == [2, 0, 3, 1, 3, 1]
    assert joined.payload_bytes == 0


def test_each_operation_keeps_its_kind_label_and_operands():
    part = kernel("all_reduce", 2)
    joined = join_programs(
        [
            PlacedProgram(program=part, ranks=(0, 1), name="a"),
            PlacedProgram(
                program=part, ranks=(1, 0), address_shift=FAR, semaphore_shift=part.semaphores.shape[1], name="b"
            ),
        ],
        2,
    )
    n, m = part.num_ops, len(part.operand_role)
    for name in ("op_kind", "op_amount", "op_unroll"):
        assert (getattr(joined, name) == np.tile(getattr(part, name), 2)).all()
    assert [joined.labels[i] for i in joined.op_label[:n]] == [f"a {part.labels[i]}" for i in part.op_label]
    assert [joined.labels[i] for i in joined.op_label[n:]] == [f"b {part.labels[i]}" for i in part.op_label]
    assert (joined.operand_address[m:] == part.operand_address + FAR).all()
    assert (joined.operand_rank[m:] == 1 - part.operand_rank).all()
    moved = part.operand_semaphore >= 0
    assert (joined.operand_semaphore[m:][moved] == part.operand_semaphore[moved] + part.semaphores.shape[1]).all()
    assert (joined.operand_semaphore[m:][~moved] == -1).all()
    assert {buffer.name for buffer in joined.buffers} >= {"a input", "b input"}


def test_one_part_on_its_own_ranks_takes_what_it_took():
    program = kernel("all_reduce", 4)
    joined = join_programs([PlacedProgram(program=program, ranks=(0, 1, 2, 3))], 4)
    assert joined.payload_bytes == program.payload_bytes
    alone, again = (
        run_gpus(p, CLUSTER, CLUSTER.gpus, small_model(), options=GpuRunOptions(fold="off")) for p in (program, joined)
    )
    assert (alone.gpu.op_end_ps == again.gpu.op_end_ps).all()


def test_parts_on_other_ranks_far_away_do_not_meet():
    program = kernel("all_gather", 2, algorithm="put")
    parts = [
        PlacedProgram(program=program, ranks=(0, 1)),
        PlacedProgram(program=program, ranks=(2, 3), address_shift=FAR, semaphore_shift=5),
    ]
    both = run_gpus(join_programs(parts, 4), CLUSTER, CLUSTER.gpus, small_model(), options=GpuRunOptions(fold="off"))
    alone = run_gpus(program, CLUSTER, CLUSTER.gpus[:2], small_model(), options=GpuRunOptions(fold="off"))
    assert both.records.end_ps.tolist() == alone.records.end_ps.tolist() * 2


def test_semaphores_begin_as_each_part_says():
    waits = Programmer(1, 2)
    waits.semaphores[0] = (3, 4)
    waits.kernel(0, workgroups=1)
    waits.acquire(0, 1, 4)
    parts = [PlacedProgram(program=waits.build(), ranks=(rank,), semaphore_shift=2 * rank) for rank in (0, 1)]
    joined = join_programs(parts, 2)
    assert joined.semaphores.tolist() == [[3, 4, 0, 0], [0, 0, 3, 4]]
    read = joined.operand_role == READ
    assert joined.operand_semaphore[read].tolist() == [1, 3]
    assert (joined.op_kind == ACQUIRE).all()


def test_buffers_of_one_name_get_numbers_and_shared_ones_stay_one():
    part = kernel("all_gather", 2, algorithm="put")
    size = part.semaphores.shape[1]
    shared = [
        PlacedProgram(program=part, ranks=(0, 1)),
        PlacedProgram(program=part, ranks=(0, 1), semaphore_shift=size),
    ]
    assert join_programs(shared, 2).buffers == part.buffers
    apart = [shared[0], replace(shared[1], address_shift=FAR)]
    names = [buffer.name for buffer in join_programs(apart, 2).buffers]
    assert len(names) == len(set(names)) == 2 * len(part.buffers)
    assert "input 2" in names
    bare = replace(part, buffers=())
    assert join_programs([shared[0], replace(shared[1], program=bare)], 2).buffers == ()


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ([], "nothing to join"),
        ([{"ranks": (0, 4)}], "rank 4, there are ranks 0 to 3"),
        ([{"ranks": (0, 1)}, {"ranks": (1, 2), "semaphore_shift": 1}], "both have semaphore 1 of rank 1"),
        ([{"ranks": (0, 1), "address_shift": 2**61}], "beyond the last address"),
        ([{"ranks": (0, 1), "semaphore_shift": 2**27}], "semaphores of all ranks"),
        ([{"ranks": (0,)}], "is for 2 ranks, got 1"),
        ([{"ranks": (1, 1)}], "a rank twice"),
        ([{"ranks": (0, 1), "address_shift": -1}], "must not be negative"),
    ],
)
def test_what_does_not_go_together_is_refused(parts, message):
    program = kernel("all_gather", 2, algorithm="put")
    with pytest.raises(InputError, match=message):
        join_programs([PlacedProgram(program=program, **part) for part in parts], 4)


def test_lines_of_two_sizes_are_refused():
    parts = [
        PlacedProgram(program=kernel("all_gather", 2, line_bytes=size), ranks=(0, 1), semaphore_shift=size)
        for size in (128, 64)
    ]
    with pytest.raises(InputError, match=r"lines of 64 B, .* of 128"):
        join_programs(parts, 2)
