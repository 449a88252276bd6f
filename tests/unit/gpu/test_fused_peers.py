"""Are the peer writes derived from one rank's kernels exactly the writes of the peers' kernels?"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from cpu_time import computes_for_less_than
from fused_lines import expected_flags, expected_remote_writes

from tests.fused_flow import CASES
from trine.errors import InputError
from trine.gpu.kernels.fused.build import build_fused
from trine.gpu.kernels.fused.expected import waiting_wavefronts
from trine.gpu.kernels.fused.peers import flags_of, peer_writes_of
from trine.gpu.program import ACQUIRE, COPY, REDUCE, RELEASE, STORE, WRITE

BUILT = [
    (name, case, algorithm, fused, waits, workgroups)
    for name, (*_, case) in CASES.items()
    for algorithm in (("oneshot", "twoshot") if name.endswith("allreduce") else (None,))
    for fused in (True, False)
    for waits, workgroups in (("single", None), ("joint", 1))
]


def built(name, case, algorithm, fused, waits, workgroups, **how):
    small = {} if fused else {"collective_workgroups": 3}
    return build_fused(
        name, 4, algorithm=algorithm, fused=fused, waits=waits, workgroups=workgroups, **small, **case, **how
    )


def operations(program, rank, kinds):
    """Yield (workgroup, operation) of a rank, in order."""
    for kernel in np.flatnonzero(program.kernel_rank == rank):
        for group in range(program.kernel_ptr[kernel], program.kernel_ptr[kernel + 1]):
            for op in range(program.workgroup_ptr[group], program.workgroup_ptr[group + 1]):
                if program.op_kind[op] in kinds:
                    yield group, op


def writes(program, op, target):
    """Yield the operands of an operation that write to a rank."""
    for i in range(program.operand_ptr[op], program.operand_ptr[op + 1]):
        if program.operand_role[i] == WRITE and program.operand_rank[i] == target:
            yield i


def sent_flags(program, sender, target):
    """Return (semaphore, address, value) of each release by a rank's kernels at another rank."""
    return sorted(
        (int(program.operand_semaphore[i]), int(program.operand_address[i]), int(program.op_amount[op]))
        for _, op in operations(program, sender, (RELEASE,))
        for i in writes(program, op, target)
    )


def sent_lines(program, sender, target):
    """Count the addresses of all lines that a rank's kernels write to another rank."""
    return Counter(
        int(program.operand_address[i]) + line * int(program.operand_step[i])
        for _, op in operations(program, sender, (STORE, COPY, REDUCE))
        for i in writes(program, op, target)
        for line in range(program.op_amount[op])
    )


@pytest.mark.parametrize(("name", "case", "algorithm", "fused", "waits", "workgroups"), BUILT)
def test_they_are_what_the_peers_send(name, case, algorithm, fused, waits, workgroups):
    how = name, case, algorithm, fused, waits, workgroups
    whole, one = built(*how).program, built(*how, only_rank=2)
    flags, data = flags_of(one.program, 2), peer_writes_of(one, 2)
    found = np.stack([flags.semaphore, flags.address, flags.value], axis=1)
    for sender in (0, 1, 3):
        assert sorted(map(tuple, found[flags.peer == sender].tolist())) == sent_flags(whole, sender, 2)
        chosen = data.peer == sender
        lines = Counter(
            line
            for address, size in zip(data.address[chosen].tolist(), data.size_bytes[chosen].tolist(), strict=True)
            for line in range(address, address + size, 64)
        )
        assert lines == sent_lines(whole, sender, 2)
    assert 2 not in flags.peer
    assert 2 not in data.peer


@pytest.mark.parametrize(("name", "case", "algorithm", "fused", "waits", "workgroups"), BUILT)
def test_from_all_kernels_they_are_the_same(name, case, algorithm, fused, waits, workgroups):
    how = name, case, algorithm, fused, waits, workgroups
    whole, one = built(*how), built(*how, only_rank=2)
    shift = whole.program.kernel_ptr[:-1][whole.program.kernel_rank == 2] - one.program.kernel_ptr[:-1]
    for of_whole, of_one in zip(
        (flags_of(whole.program, 2), peer_writes_of(whole, 2)),
        (flags_of(one.program, 2), peer_writes_of(one, 2)),
        strict=True,
    ):
        kernel = np.searchsorted(one.program.kernel_ptr, of_one.workgroup, "right") - 1
        moved = of_one._replace(workgroup=of_one.workgroup + shift[kernel])
        assert [column.tolist() for column in moved] == [column.tolist() for column in of_whole]


@pytest.mark.parametrize(("name", "case", "algorithm", "fused", "waits", "workgroups"), BUILT)
def test_who_waits(name, case, algorithm, fused, waits, workgroups):
    one = built(name, case, algorithm, fused, waits, workgroups, only_rank=1)
    program, flags, data = one.program, flags_of(one.program, 1), peer_writes_of(one, 1)
    acquired = {
        (group, int(program.operand_semaphore[program.operand_ptr[op]])): int(program.op_amount[op])
        for group, op in operations(program, 1, (ACQUIRE,))
    }
    value = Counter()
    for group, semaphore, added in zip(flags.workgroup, flags.semaphore, flags.value, strict=True):
        value[int(group), int(semaphore)] += int(added)
    assert value == acquired
    if fused:
        assert len(flags.peer) == expected_flags(one.options)[0]
        assert len(set(flags.workgroup.tolist())) == waiting_wavefronts(one.options)
    assert data.size_bytes.sum() == 64 * sum(expected_remote_writes(one.options).values())
    for peer in (0, 2, 3):  # a wait for data is also a wait for a flag of the same peer
        assert set(data.workgroup[data.peer == peer].tolist()) == set(flags.workgroup[flags.peer == peer].tolist())


def test_workgroups_wait_for_the_data_that_they_add_up():
    one = build_fused("gemm-reducescatter", 4, only_rank=3, **CASES["gemm-reducescatter"][0])
    program, data = one.program, peer_writes_of(one, 3)
    used = {}
    for group, op in operations(program, 3, (REDUCE,)):
        for i in range(program.operand_ptr[op], program.operand_ptr[op + 1]):
            for line in range(program.op_amount[op]):
                used[int(program.operand_address[i]) + line * int(program.operand_step[i])] = group
    for group, address, size in zip(data.workgroup, data.address, data.size_bytes, strict=True):
        assert {used[line] for line in range(address, address + size, 64)} == {group}


def test_runs_end_where_buffers_end():
    one = build_fused("gemm-allreduce", 2, rows=4096, cols=64, inner=16, only_rank=0, workgroups=1)
    data, buffers = peer_writes_of(one, 0), one.program.buffers
    sizes = [b.size_bytes for b in buffers if b.name in ("partials", "output")]
    assert sizes == [1 << 20, 1 << 20]  # the two buffers are adjacent
    assert data.size_bytes.tolist() == [1 << 19, 1 << 19]


def test_255_peers_are_told_at_once():
    one = build_fused("gemv-allreduce", 256, rows=24576, cols=1024, only_rank=0)
    with computes_for_less_than(0.5):
        flags, data = flags_of(one.program, 0), peer_writes_of(one, 0)
    assert len(flags.peer) == len(data.peer) == 384 * 255
    assert set(data.size_bytes.tolist()) == {4 * 64}


def test_wrong_input_is_refused():
    one = build_fused("gemv-allreduce", 4, rows=64, cols=64, only_rank=1)
    with pytest.raises(InputError, match="gemv-allreduce has no kernel of rank 2"):
        flags_of(one.program, 2)
    with pytest.raises(InputError, match="rank: gemv-allreduce has no kernel of rank -1"):
        peer_writes_of(one, -1)


def test_too_many_lines_apart_are_refused():
    one = build_fused("gemm-alltoall", 2, rows=64, cols=256, inner=16, only_rank=1, tile=(32, 16, 16))
    amount = np.where(one.program.op_kind == STORE, 1 << 24, one.program.op_amount)
    with pytest.raises(InputError, match="more than 8388608 lines apart: take larger tiles"):
        peer_writes_of(replace(one, program=replace(one.program, op_amount=amount)), 1)


def test_nobody_may_wait():
    one = build_fused("gemv-allreduce", 3, rows=64, cols=64, only_rank=1)
    kinds = np.where(one.program.op_kind == ACQUIRE, 10, one.program.op_kind).astype(np.int8)
    program = replace(one.program, op_kind=kinds)
    assert flags_of(program, 1).workgroup.tolist() == [-1, -1]
    assert set(peer_writes_of(replace(one, program=program), 1).workgroup.tolist()) == {-1}
    silent = np.where(kinds == RELEASE, 10, kinds).astype(np.int8)
    program = replace(one.program, op_kind=silent)
    assert len(flags_of(program, 1).peer) == 0
    assert set(peer_writes_of(replace(one, program=program), 1).workgroup.tolist()) == {-1}
