"""Is every fault of a GPU program found and named: kernel, rank, workgroup, operation?"""

from dataclasses import replace

import numpy as np
import pytest
from cpu_time import computes_for_less_than

from trine.errors import InputError
from trine.gpu.kernels.build import build_kernel
from trine.gpu.model.files import load_gpu_model
from trine.gpu.program import Buffer
from trine.gpu.text import parse_program
from trine.gpu.validate import validate_program

PROGRAM = parse_program("""
program p
ranks 2
buffer a 1 KiB
semaphores 4
kernel 'first' rank 0 wavefronts 4
  nop label 'x'
kernel 'second' rank 1 wavefronts 4
workgroups 1
  copy 2 lines own:a -> rank+1:a + 256
workgroups 1
  load 1 lines own:a flagged sem 3
  dma 64 B own:a -> rank+1:a sem 0
  acquire sem 1
  release rank+1 sem 2
  barrier
""")
COPY_AT = "kernel 1 'second' of rank 1, workgroup 0, operation 0 (copy): "


def changed(name, at, value):
    column = getattr(PROGRAM, name).copy()
    column[at] = value
    return replace(PROGRAM, **{name: column})


def test_what_is_right_passes():
    validate_program(PROGRAM, load_gpu_model("astra3-generic"), 2)


@pytest.mark.parametrize(
    ("name", "at", "value", "message"),
    [
        ("op_kind", 1, 13, "(kind 13): there is no kind of operation 13"),
        ("op_kind", 1, 2, None),
        ("op_kind", 1, 0, "operands written: 1, must be at least 0 and at most 0"),
        ("op_kind", 1, 1, "operands read: 1, must be at least 0 and at most 0"),
        ("op_kind", 0, 5, "(acquire): the amount: 0, must be at least 1"),
        ("op_amount", 1, -1, COPY_AT + "the amount: -1, must be at least 0"),
        ("op_amount", 1, 2**31, "must be at least 0 and at most 2147483647"),
        ("op_amount", 4, 0, "workgroup 1, operation 2 (acquire): the amount: 0"),
        ("op_amount", 6, 1, "workgroup 1, operation 4 (barrier): the amount: 1"),
        ("op_unroll", 1, -1, "unroll is of operations with lines, and not negative; got -1"),
        ("op_unroll", 6, 1, "(barrier): unroll is of operations with lines"),
        ("op_label", 1, 1, "there is no label 1"),
        ("op_label", 1, -2, "there is no label -2"),
        ("operand_role", 0, 1, "operands read: 0"),
        ("operand_role", 0, 9, "there is no role of an operand 9"),
        ("operand_role", 5, 2, "(acquire): only operations with lines have flagged operands"),
        ("operand_rank", 1, 2, COPY_AT + "there is no rank 2"),
        ("operand_rank", 5, 0, "must be of the own rank 1, not of rank 0"),
        ("operand_rank", 3, 0, "(dma): must be of the own rank 1, not of rank 0"),
        ("operand_address", 0, -128, "-128 is no address"),
        ("operand_address", 0, 2**62, f"{2**62} is no address"),
        ("operand_address", 0, 1000, "addresses 1000 to 1128 leave one buffer of a (0 to 1024)"),
        ("operand_address", 4, 961, "(dma): addresses 961 to 1024 leave one buffer"),
        ("operand_address", 6, 10**6, None),
        ("operand_step", 1, -512, "-256 is no address"),
        ("operand_semaphore", 0, 0, "semaphore 0 of an operand without semaphores"),
        ("operand_semaphore", 2, -1, "(load): has no semaphore"),
        ("operand_semaphore", 2, 4, "there is no semaphore 4: each rank has 4, from 0"),
        ("operand_semaphore", 4, -1, None),
        ("operand_semaphore", 5, -2, "there is no semaphore -2"),
        ("operand_ptr", 1, 8, "operand_ptr must rise from 0 to 7"),
        ("workgroup_ptr", 3, 8, "workgroup_ptr must rise from 0 to 7"),
        ("kernel_ptr", 0, 1, "kernel_ptr must rise from 0 to 3"),
        ("kernel_ptr", 1, 0, "kernel 0: the number of workgroups must be from 1"),
        ("kernel_rank", 1, 2, "kernel 1: the rank must be from 0 to 1, got 2"),
        ("kernel_wavefronts", 0, 0, "kernel 0: the number of wavefronts of a workgroup must be from 1"),
        ("semaphores", (1, 2), -1, "semaphore 2 of rank 1 must not begin with -1"),
    ],
)
def test_a_number_that_is_wrong(name, at, value, message):
    program = changed(name, at, value)
    if message is None:
        validate_program(program)
        return
    with pytest.raises(InputError) as caught:
        validate_program(program)
    assert "GPU program 'p'" in str(caught.value)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"op_kind": PROGRAM.op_kind.astype(np.int64)}, "op_kind must be an array of int8"),
        ({"operand_rank": PROGRAM.operand_rank[:-1]}, "operand_rank has 6 entries instead of 7"),
        ({"kernel_ptr": PROGRAM.kernel_ptr[:-1]}, "kernel_ptr has 2 entries instead of 3"),
        ({"semaphores": PROGRAM.semaphores[:1]}, "has semaphores of 1 ranks instead of 2"),
        ({"semaphores": PROGRAM.semaphores[0]}, "semaphores must be an array of int32 with 2"),
        ({"kernel_names": ("a",)}, "has 1 names of 2 kernels"),
        ({"line_bytes": 0}, "line_bytes 0"),
        ({"payload_bytes": -1}, "payload_bytes -1"),
        ({"num_ranks": 5000}, "must be for 1 to 4096 ranks, got 5000"),
        ({"buffers": (Buffer(name="a", base=-1, size_bytes=4096),)}, "buffer 'a': 4096 B at -1"),
        ({"buffers": PROGRAM.buffers * 2}, "two buffers 'a'"),
    ],
)
def test_arrays_that_do_not_fit(change, message):
    with pytest.raises(InputError) as caught:
        validate_program(replace(PROGRAM, **change))
    assert message in str(caught.value)


def test_sources_come_before_targets():
    roles = PROGRAM.operand_role.copy()
    roles[:2] = 1, 0
    with pytest.raises(InputError, match="operands that are read come before those that are written"):
        validate_program(replace(PROGRAM, operand_role=roles))


def test_without_buffers_any_address_will_do():
    validate_program(replace(changed("operand_address", 0, 10**9), buffers=()))


FLAGS = "program p\nranks 1\nline 64 B\n{}semaphores 4 at {}\nkernel rank 0\nacquire sem 1\n"


@pytest.mark.parametrize(
    ("buffers", "where", "message"),
    [
        ("buffer f 100 B uncached\nbuffer x 64 B at 128\n", "0", None),
        ("buffer f 100 B uncached\nbuffer x 64 B at 127\n", "0", "buffer 'x' is cached"),
        ("buffer x 64 B at 1\nbuffer f 100 B at 64 uncached\n", "64", "lines of f, 64 to 192, must be of no other"),
        ("buffer x 64 B\nbuffer f 100 B at 64 uncached\n", "64", None),
        ("buffer x 0 B at 100\nbuffer f 200 B at 64 uncached\n", "64", None),
        ("buffer f 64 B uncached\nbuffer x 1 B at 4096\nbuffer g 64 B at 8192 uncached\n", "0", "buffer 'x' is cached"),
        ("buffer f 64 B uncached\nbuffer g 64 B at 8192 uncached\n", "0", "semaphore 1 at 64 lies among uncached"),
        ("buffer f 64 B uncached\nbuffer g 64 B at 8192 uncached\n", "8192 - 64", None),
        ("buffer f 80 B uncached\n", "30", "semaphore 1 at 94 lies among uncached buffers, in none"),
        ("buffer f 80 B\n", "30", None),
    ],
)
def test_uncached_memory_is_of_whole_lines_without_cached_memory_between(buffers, where, message):
    text = FLAGS.format(buffers, where)
    if message is None:
        validate_program(parse_program(text))
        return
    with pytest.raises(InputError, match=message):
        parse_program(text)


def test_the_gpu_must_have_room_and_the_same_lines():
    model = load_gpu_model("astra3-generic")
    with pytest.raises(
        InputError, match=r"kernel 0: its workgroups have 4 wavefronts, and a CU of GPU .* no more than 3"
    ):
        validate_program(PROGRAM, replace(model, wavefronts_per_cu=3))
    with pytest.raises(InputError, match=r"lines of 128 B, but GPU .* has lines of 64"):
        validate_program(PROGRAM, replace(model, line_bytes=64))
    with pytest.raises(InputError, match="is for 2 ranks, not for 3"):
        validate_program(PROGRAM, num_ranks=3)


def test_half_a_million_operations_take_a_moment():
    program = build_kernel("all_to_all", 128, 2**26, algorithm="put", workgroups=32)
    assert program.num_ops > 500_000
    validate_program(program)
    with computes_for_less_than(1.5):
        validate_program(program)
