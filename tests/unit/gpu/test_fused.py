"""Building and running fused kernels: names, options, refusals, one rank of many, order of kernels, times."""

from __future__ import annotations

import numpy as np
import pytest
from cpu_time import computes_for_less_than
from fused_lines import expected_flags

from tests.fused_flow import CASES
from trine.cluster.load import load_cluster
from trine.errors import InputError
from trine.gpu.kernels.fused.build import build_fused, fused_tasks, known_fused
from trine.gpu.model.files import load_gpu_model
from trine.gpu.model.options import ModelOptions
from trine.gpu.program import ACQUIRE, RELEASE
from trine.gpu.run import GpuRunOptions, run_gpus
from trine.gpu.validate import validate_program

GEMV = {"name": "gemv-allreduce", "num_ranks": 4, "rows": 256, "cols": 64}
GEMM = {"name": "gemm-alltoall", "num_ranks": 4, "rows": 256, "cols": 64, "inner": 32}
TABLE = {"name": "embedding-alltoall", "num_ranks": 4, "rows": 64, "cols": 64, "inner": 4}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (GEMV | {"name": "gemv-alreduce"}, "did you mean 'gemv-allreduce'"),
        (GEMV | {"num_ranks": 1}, "num_ranks: must be a whole number from 2"),
        (GEMV | {"rows": 0}, "rows: must be"),
        (GEMV | {"cols": True}, "cols: must be"),
        (GEMV | {"dtype_bytes": 3}, "dtype_bytes: must be one of 1, 2, 4 and 8"),
        (GEMV | {"tile": (64, 64, 64)}, r"tile: of gemv-allreduce is \(rows, cols\), got \(64, 64, 64\)"),
        (GEMV | {"tile": (24, 64)}, "tile.rows: 24 elements of 4 B are not whole lines of 64 B; take 32"),
        (GEMM | {"tile": (4, 40, 32)}, "tile.cols: 40 elements .* take 48"),
        (GEMM | {"tile": (4, 32, 8)}, "tile.inner: 8 elements .* take 16"),
        (TABLE | {"tile": (0,)}, "tile.rows: must be"),
        (GEMV | {"line_bytes": 100}, "line_bytes: must be a multiple of 16"),
        (GEMV | {"flag_spacing": 6}, "flag_spacing: must be a multiple of 4"),
        (GEMV | {"waits": "singel"}, "waits: unknown waits 'singel'; did you mean 'single'"),
        (GEMV | {"algorithm": "ring"}, "algorithm: unknown algorithm 'ring'; known: oneshot, twoshot"),
        (GEMV | {"only_rank": 4}, "only_rank: must be a whole number from 0 to 3"),
        (GEMV | {"inner": 8}, "inner: cannot matter here: a GEMV has one vector; take gemm-allreduce"),
        (GEMV | {"table_rows": 8}, "table_rows: cannot matter here: gemv-allreduce has no table"),
        (GEMV | {"seed": 1}, "seed: cannot matter here"),
        (GEMM | {"algorithm": "twoshot"}, "algorithm: cannot matter here: gemm-alltoall has one algorithm"),
        (TABLE | {"macs_per_cycle": 8}, "macs_per_cycle: cannot matter here"),
        (GEMV | {"fused": False, "flag_spacing": 8}, "flag_spacing: cannot matter here"),
        (GEMV | {"collective_workgroups": 8}, "collective_workgroups: cannot matter here"),
        (GEMM | {"rows": 254}, "rows: gemm-alltoall needs a number of rows that 4 ranks divide evenly, not 254"),
        (GEMV | {"rows": 254, "algorithm": "twoshot"}, "rows: gemv-allreduce in two steps needs"),
        (GEMV | {"workgroups": 5}, "workgroups: the tiles of each chunk go to 1 to 4 workgroups, got 5"),
        (GEMM | {"tile": (8, 16, 32), "workgroups": 33}, r"go to 1 to 32 workgroups or 128 \(one a tile\), got 33"),
        (GEMM | {"rows": 1 << 24, "cols": 1 << 24, "inner": 1 << 24}, "take larger tiles, or only one rank"),
        (
            TABLE | {"rows": 1 << 24, "inner": 1 << 24, "only_rank": 0},
            "more than 8388608 operands: take larger tiles$",
        ),
        (GEMV | {"num_ranks": 4096, "rows": 1 << 16, "only_rank": 0}, "flags: take fewer workgroups, or waits='joint'"),
        (GEMV | {"num_ranks": 1024, "rows": 1 << 16}, "operands"),
    ],
)
def test_wrong_input_is_refused(change, message):
    with pytest.raises(InputError, match=message):
        build_fused(**change)


def test_names():
    assert known_fused() == tuple(CASES)


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("name", CASES)
def test_programs_are_well_formed(name, fused):
    program = build_fused(name, 4, fused=fused, **CASES[name][0]).program
    validate_program(program)
    assert program.num_kernels == (4 if fused else 8)
    assert all(buffer.base % (1 << 20) == 0 for buffer in program.buffers)
    assert program.payload_bytes > 0
    assert len(program.notes) == 1


@pytest.mark.parametrize("waits", ["single", "joint"])
@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("name", CASES)
def test_flags_and_nothing_else_are_in_uncached_memory(name, fused, waits):
    """As in Eidola; of both forms, so that comparing them is fair."""
    program = build_fused(name, 4, fused=fused, waits=waits, **CASES[name][0]).program
    kind = np.repeat(program.op_kind, np.diff(program.operand_ptr))
    uncached = np.zeros(len(kind), bool)
    for buffer in program.buffers:
        inside = (program.operand_address >= buffer.base) & (program.operand_address < buffer.base + buffer.size_bytes)
        uncached |= inside & buffer.uncached
    assert (uncached == np.isin(kind, (ACQUIRE, RELEASE))).all()


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("name", CASES)
def test_one_rank_is_that_of_all(name, fused):
    whole, one = (build_fused(name, 4, fused=fused, only_rank=r, **CASES[name][0]) for r in (None, 2))
    validate_program(one.program)
    assert one.program.num_ranks == 4
    assert set(one.program.kernel_rank.tolist()) == {2}
    assert one.program.semaphores.shape == whole.program.semaphores.shape
    assert one.after.tolist() == ([-1] if fused else [-1, 0])
    for i in range(one.program.num_kernels):
        assert _kernel(one.program, i) == _kernel(whole.program, 2 + 4 * i)


def _kernel(program, i):
    """Everything that a kernel does, as lists."""
    group = slice(program.kernel_ptr[i], program.kernel_ptr[i + 1])
    op = slice(program.workgroup_ptr[group.start], program.workgroup_ptr[group.stop])
    part = slice(program.operand_ptr[op.start], program.operand_ptr[op.stop])
    ops = [getattr(program, f"op_{c}")[op] for c in ("kind", "amount", "unroll", "label")]
    parts = [getattr(program, f"operand_{c}")[part] for c in ("role", "rank", "address", "step", "semaphore")]
    ptrs = [np.diff(program.workgroup_ptr[group]), np.diff(program.operand_ptr[op])]
    return [column.tolist() for column in (*ops, *parts, *ptrs)]


def test_one_of_256_ranks_is_built_at_once():
    with computes_for_less_than(0.5):
        built = build_fused("gemv-allreduce", 256, rows=24576, cols=1024, only_rank=0)
    program = built.program
    # 384 tiles: 4 x (2 loads, waitcnt, barrier, compute), barrier, store, waitcnt, barrier, release; 255
    # acquires; waitcnt, barrier, reduce.
    assert program.num_ops == 384 * (4 * 5 + 5 + 255 + 3)
    assert expected_flags(built.options) == (384 * 255, 384 * 255)


def test_operations_to_several_peers_are_one():
    program = build_fused("gemv-allreduce", 64, rows=64, cols=64, only_rank=3).program
    releases = np.flatnonzero(program.op_kind == RELEASE)
    assert np.diff(program.operand_ptr)[releases].tolist() == [63]
    assert (program.op_kind == ACQUIRE).sum() == 63


def test_the_draw_of_rows_is_that_of_its_seed():
    first, same, other = (build_fused(**TABLE, seed=seed).program.operand_address for seed in (0, 0, 1))
    assert (first == same).all()
    assert (first != other).any()


def test_the_second_kernel_waits_for_the_first():
    built = build_fused("gemm-alltoall", 3, rows=96, cols=64, inner=32, tile=(16, 32, 32), fused=False)
    assert built.after.tolist() == [-1, -1, -1, 0, 1, 2]
    graph, task_kernel = fused_tasks(built)
    assert task_kernel.tolist() == [0, 1, 2, 3, 4, 5]
    assert graph.predecessor_idx.tolist() == [0, 1, 2]
    assert graph.num_required.tolist() == [0, 0, 0, 1, 1, 1]
    fused, _ = fused_tasks(build_fused("gemm-alltoall", 3, rows=96, cols=64, inner=32))
    assert len(fused.predecessor_idx) == 0


def _run(built, **how):
    cluster = load_cluster("astra3-generic", gpus=built.options.num_ranks)
    model = ModelOptions(**how.pop("model", {})).of(load_gpu_model("astra3-generic"))
    return run_gpus(built.program, cluster, cluster.gpus, model, tasks=fused_tasks(built), options=GpuRunOptions(**how))


SIZES = {
    "gemv-allreduce": {"rows": 512, "cols": 256},
    "gemm-allreduce": {"rows": 128, "cols": 256, "inner": 64, "tile": (32, 64, 32)},
    "gemm-reducescatter": {"rows": 128, "cols": 256, "inner": 64, "tile": (32, 64, 32)},
    "gemm-alltoall": {"rows": 128, "cols": 256, "inner": 64, "tile": (32, 64, 32)},
    "embedding-alltoall": {"rows": 256, "cols": 64, "inner": 16},
}


@pytest.mark.parametrize("ranks", [2, 4, 8])
@pytest.mark.parametrize("name", SIZES)
def test_they_run_and_fold(name, ranks):
    run = _run(build_fused(name, ranks, line_bytes=128, **SIZES[name]), verify=True)
    assert run.finished
    assert run.fold.classes == 1


@pytest.mark.parametrize("name", SIZES)
def test_unfused_the_collective_begins_when_the_rank_has_computed(name):
    records = _run(build_fused(name, 4, line_bytes=128, fused=False, **SIZES[name])).records
    assert (records.start_ps[4:] >= records.end_ps[:4]).all()


def test_few_places_do_not_make_them_wait_for_ever():
    # One workgroup at a time on each of two CUs: no workgroup waits for one that comes after it.
    for name, size in SIZES.items():
        model = {"num_cus": 2, "workgroups_per_cu": 1}
        assert _run(build_fused(name, 4, line_bytes=128, **size), model=model).finished


def test_computing_takes_as_long_as_its_multiply_adds():
    slow, fast = (
        _run(build_fused("gemv-allreduce", 2, rows=64, cols=64, line_bytes=128, macs_per_cycle=n)).end_ps
        for n in (1, 64)
    )
    assert slow - fast == (64 * 64 - 64) * 1000  # cycles of 1 ns on one CU
