"""Do programs whose copy engines cross NICs compute the collective's result, and do only copy engines cross NICs?"""

from __future__ import annotations

import numpy as np
import pytest

from trine.cluster import load_cluster
from trine.errors import InputError
from trine.gpu.kernels.build import ACROSS, DETAILED, READING, SWITCHED, build_kernel, known_kernels, known_ops
from trine.gpu.kernels.nics import through_nics
from trine.gpu.model.files import load_gpu_model
from trine.gpu.model.options import ModelOptions
from trine.gpu.program import DMA
from trine.gpu.proofs import check_program
from trine.gpu.run import run_gpus
from trine.gpu.validate import validate_program

RANKS, SIZE = 4, 1 << 14
PUTTING = [
    (op, name)
    for op in known_ops()
    if op not in DETAILED
    for name in known_kernels(op)
    if f"{op}/{name}" not in READING | SWITCHED | ACROSS
]


def everywhere(_, __):
    return True


def between_pairs(one, other):
    return one // 2 != other // 2


def kernel(op, algorithm, **how):
    return build_kernel(op, RANKS, SIZE, algorithm=algorithm, workgroups=2, wavefronts=2, **how)


@pytest.mark.parametrize("crosses", [everywhere, between_pairs])
@pytest.mark.parametrize(("op", "algorithm"), PUTTING)
def test_the_result_is_proven_and_nothing_else_crosses(op, algorithm, crosses):
    program = through_nics(kernel(op, algorithm), crosses)
    validate_program(program)
    check_program(program, op, SIZE, orders=1)
    ops = program.operand_op
    own = program.op_rank[ops]
    away = [a != b and crosses(a, b) for a, b in zip(own.tolist(), program.operand_rank.tolist(), strict=True)]
    assert any(away)
    assert (program.op_kind[ops[np.array(away)]] == DMA).all()


def test_without_nics_nothing_changes():
    before = kernel("all_reduce", "ring")
    after = through_nics(before, lambda *_: False)
    for name in ("op_kind", "op_amount", "operand_rank", "operand_address", "operand_semaphore", "workgroup_ptr"):
        assert (getattr(before, name) == getattr(after, name)).all()
    assert before.buffers == after.buffers


@pytest.mark.parametrize(("op", "algorithm"), [tuple(name.split("/")) for name in sorted(READING)])
def test_those_that_read_are_refused(op, algorithm):
    with pytest.raises(InputError, match="an algorithm that puts"):
        through_nics(kernel(op, algorithm), everywhere)


@pytest.mark.parametrize("name", sorted(SWITCHED))
def test_switches_between_nodes_are_refused(name):
    with pytest.raises(InputError, match="no switch adds up over one"):
        through_nics(kernel(*name.split("/")), between_pairs)


def test_flags_are_refused():
    with pytest.raises(InputError, match="protocol 'simple'"):
        through_nics(kernel("all_gather", "put", protocol="ll"), everywhere)


def test_it_runs_on_two_nodes():
    cluster = load_cluster("dgx-h100", gpus=9)
    group = (cluster.gpus[0], cluster.gpus[1], cluster.gpus[8])
    model = ModelOptions(num_cus=4).of(load_gpu_model("h100-sxm"))
    program = build_kernel("all_reduce", 3, SIZE, algorithm="ring", workgroups=2)
    with pytest.raises(InputError, match="loads and stores cannot cross"):
        run_gpus(program, cluster, group, model)
    apart = through_nics(program, lambda one, other: (one == 2) != (other == 2))
    done = run_gpus(apart, cluster, group, model)
    assert done.finished
    assert done.gpu.packets.sum() > 0
