"""Building GPU programs of collectives: names, options, refusals."""

from __future__ import annotations

import numpy as np
import pytest
from cpu_time import computes_for_less_than
from gpu_cases import counting_words

from trine.errors import InputError
from trine.gpu.kernels.build import KERNELS, ROOTED, automatic, build_kernel, known_kernels, known_ops
from trine.gpu.kernels.moe.options import MOE
from trine.gpu.kernels.options import KernelOptions
from trine.gpu.program import ACQUIRE, DATA_OPS, DELAY, FENCE, RELEASE
from trine.gpu.proofs import check_program


def test_every_collective_has_both_directions():
    alike = ("all_gather", "reduce_scatter", "all_reduce", "all_to_all")
    assert known_ops() == (*alike, "all_to_all_v", *ROOTED, *MOE)
    for op in (*alike, *ROOTED):
        assert any("get" in name for name in known_kernels(op))
        assert any("get" not in name for name in known_kernels(op))
    assert known_kernels("all_gathr") == ()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"op": "all_gathr"}, "did you mean 'all_gather'"),
        ({"algorithm": "putt"}, "did you mean 'put'"),
        ({"algorithm": "oneshot"}, "all_gather has no GPU program 'oneshot'"),
        ({"protocol": "ll12"}, "protocol: unknown protocol 'll12'; did you mean 'll128'"),
        ({"sync": "begin"}, "sync: unknown sync"),
        ({"waits": "all"}, "waits: unknown waits 'all'; known: joint, single"),
        ({"num_ranks": 1}, "num_ranks: must be a whole number from 2"),
        ({"size_bytes": 0}, "size_bytes"),
        ({"workgroups": 0}, "workgroups"),
        ({"wavefronts": 2**15 + 1}, "wavefronts"),
        ({"line_bytes": 100}, "line_bytes: must be a multiple of 16"),
        ({"unroll": -1}, "unroll"),
        ({"num_ranks": 4096, "workgroups": 4096}, "take fewer workgroups"),
        ({"algorithm": "get", "protocol": "ll"}, "only be waited for in the own memory.* needs one of put, ring"),
    ],
)
def test_wrong_input_is_refused(change, message):
    options = {"op": "all_gather", "num_ranks": 4, "size_bytes": 4096 * 4096} | change
    with pytest.raises(InputError, match=message):
        build_kernel(options.pop("op"), options.pop("num_ranks"), options.pop("size_bytes"), **options)


@pytest.mark.parametrize(
    ("op", "ranks", "size", "protocol", "algorithm"),
    [
        ("all_gather", 8, 1 << 20, "simple", "put"),
        ("all_to_all", 8, 1 << 20, "ll", "put"),
        ("reduce_scatter", 8, 1 << 20, "simple", "get"),
        ("reduce_scatter", 8, 1 << 20, "ll128", "put"),
        ("all_reduce", 2, 1 << 30, "simple", "oneshot"),
        ("all_reduce", 4, 512 << 10, "simple", "oneshot"),
        ("all_reduce", 8, 256 << 10, "ll", "oneshot"),
        ("all_reduce", 8, (256 << 10) + 1, "simple", "twoshot"),
        ("all_reduce", 8, 1 << 20, "ll", "twoshot-put"),
    ],
)
def test_auto(op, ranks, size, protocol, algorithm):
    options = KernelOptions(op=op, num_ranks=ranks, size_bytes=size, protocol=protocol)
    assert automatic(options) == algorithm
    if size < 1 << 30:
        assert build_kernel(op, ranks, size, protocol=protocol).name == f"{op}/{algorithm}"


def test_options_are_in_the_program():
    program = build_kernel("all_gather", 3, 3 * 256, workgroups=2, wavefronts=5, line_bytes=64, unroll=4)
    assert program.payload_bytes == 3 * 256
    assert program.line_bytes == 64
    assert program.kernel_wavefronts.tolist() == [5] * 3
    assert program.num_workgroups == 6
    has_lines = np.isin(program.op_kind, DATA_OPS)
    np.testing.assert_array_equal(program.op_unroll, np.where(has_lines, 4, 0))


def test_arrays_have_the_types_of_the_contract():
    program = build_kernel("all_reduce", 3, 4000, protocol="ll128")
    for name in ("kernel_rank", "kernel_wavefronts", "op_unroll", "op_label", "operand_rank", "operand_step"):
        assert getattr(program, name).dtype == np.int32
    for name in ("kernel_ptr", "workgroup_ptr", "op_amount", "operand_ptr", "operand_address"):
        assert getattr(program, name).dtype == np.int64
    for name in ("op_kind", "operand_role"):
        assert getattr(program, name).dtype == np.int8
    assert program.operand_semaphore.dtype == program.semaphores.dtype == np.int32
    assert program.operand_semaphore.max() < program.semaphores.shape[1]
    assert all(buffer.base % (1 << 20) == 0 for buffer in program.buffers)


def test_waits():
    joint = build_kernel("all_gather", 4, 4096, workgroups=2)
    single = build_kernel("all_gather", 4, 4096, workgroups=2, waits="single")
    assert joint.op_amount[joint.op_kind == ACQUIRE].tolist() == [3] * 8
    assert single.op_amount[single.op_kind == ACQUIRE].tolist() == [1] * 24
    assert (joint.semaphores.shape[1], single.semaphores.shape[1]) == (2, 6)


def test_flags_need_no_semaphores_behind_the_data():
    program = build_kernel("all_reduce", 4, 4000, algorithm="oneshot", protocol="ll")
    assert not np.isin(program.op_kind, (ACQUIRE, RELEASE)).any()


@pytest.mark.parametrize("algorithm", ["oneshot", "twoshot", "ring", "twoshot-get"])
def test_bookkeeping_comes_beside_the_data(algorithm):
    bare = build_kernel("all_reduce", 4, 8192, algorithm=algorithm, workgroups=2)
    books = build_kernel("all_reduce", 4, 8192, algorithm=algorithm, workgroups=2, bookkeeping=True)
    assert not np.isin(bare.op_kind, (FENCE, DELAY)).any()
    signals = int((books.op_kind == RELEASE).sum())
    assert 0 < (books.op_kind == FENCE).sum() <= signals == (bare.op_kind == RELEASE).sum()
    # Two loads of handles, one store of the next launch's flag, and delays before them.
    assert np.isin(books.op_kind, DATA_OPS).sum() == np.isin(bare.op_kind, DATA_OPS).sum() + 8 * 3
    check_program(counting_words(books), "all_reduce", 8192)


def test_a_builder_of_ones_own():
    def silent(options):
        return build_kernel(options.op, options.num_ranks, options.size_bytes, algorithm="get", sync="none")

    KERNELS.register("all_gather/silent", silent)
    try:
        assert "silent" in known_kernels("all_gather")
        program = build_kernel("all_gather", 4, 4096, algorithm="silent")
        assert not (program.op_kind == ACQUIRE).any()
    finally:
        KERNELS._registered.remove("all_gather/silent")
        del KERNELS._loaded["all_gather/silent"]


def test_128_ranks_are_built_at_once():
    with computes_for_less_than(0.5):
        program = build_kernel("all_gather", 128, 256 << 20, algorithm="put", waits="single")
    assert program.num_ops > 1_000_000
