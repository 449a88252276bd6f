"""Lowering of plans to GPU programs, operation by operation, and refused plans."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from plan_lower_cases import DATA, LOWERED, NVLS, bundled, pipeline_plan, smallest

from trine.errors import InputError
from trine.gpu.kernels.lower import emit
from trine.gpu.kernels.lower import plan as lower
from trine.gpu.kernels.lower.plan import lower_plan, padded_bytes
from trine.gpu.plans import load_plan
from trine.gpu.plans.plan import PAIRS, KernelPlan
from trine.gpu.program import (
    ACQUIRE,
    BARRIER,
    DATA_OPS,
    DMA,
    OP_NAMES,
    READ_MEMBER,
    READ_SUM,
    RELEASE,
    WAITCNT,
    WRITE_ALL,
    WRITE_MEMBER,
    GpuProgram,
)
from trine.gpu.validate import validate_program

MIB = 2**20


def operations(program: GpuProgram, workgroup: int) -> list[tuple[str, int]]:
    """Return (name, amount) of each operation of one workgroup."""
    low, high = program.workgroup_ptr[workgroup : workgroup + 2]
    return [(OP_NAMES[program.op_kind[op]], int(program.op_amount[op])) for op in range(low, high)]


@pytest.mark.parametrize("name", NVLS)
def test_sums_and_stores_of_a_group_have_a_row_for_each_member(name: str) -> None:
    """Each rank lists itself first, then the ranks behind it, so the rows of all ranks are alike."""
    plan = bundled(name)
    program = lower_plan(plan, MIB)
    for op in np.flatnonzero(np.isin(program.op_kind, DATA_OPS)).tolist():
        rows = range(*program.operand_ptr[op : op + 2].tolist())
        roles = program.operand_role[rows].tolist()
        if READ_SUM not in roles:
            continue
        n = plan.num_ranks
        assert roles == [READ_SUM, *[READ_MEMBER] * (n - 1), WRITE_ALL, *[WRITE_MEMBER] * (n - 1)]
        ranks = program.operand_rank[rows].tolist()
        assert ranks == 2 * [(ranks[0] + distance) % n for distance in range(n)]
        assert len(set(program.operand_address[rows].tolist())) == 1


def test_packets_to_all_are_refused_by_name() -> None:
    plan = bundled(NVLS[0])
    number = next(n for n, op in enumerate(plan.gpus[0].blocks[0].operations) if op.name == "glres")
    source = dataclasses.replace(plan.gpus[0].blocks[0].operations[number].sources[0], packet=True)
    with pytest.raises(InputError, match=r"gpus\[0\]\.threadblocks\[\d\]\.ops\[\d\].*'glres' multicasts packets.*oper"):
        lower_plan(_changed(plan, 0, number, sources=(source,)), MIB)


@pytest.mark.parametrize("name", LOWERED)
def test_programs_are_well_formed(name: str) -> None:
    plan = bundled(name)
    for size in (smallest(plan), 7 * smallest(plan), MIB):
        program = lower_plan(plan, size)
        validate_program(program)
        assert program.payload_bytes == size
        assert program.num_workgroups == sum(len(gpu.blocks) for gpu in plan.gpus)


@pytest.mark.parametrize("name", LOWERED)
def test_wavefronts_wait_before_they_publish_and_after_they_acquire(name: str) -> None:
    """After data, a release follows waitcnt 0 and a barrier; after an acquire, data follows a barrier."""
    program = lower_plan(bundled(name), MIB)
    for first, last in zip(program.workgroup_ptr[:-1], program.workgroup_ptr[1:], strict=True):
        moved = waited = taken = False
        for kind, amount in zip(program.op_kind[first:last], program.op_amount[first:last], strict=True):
            if kind == WAITCNT:
                assert amount == 0
                waited = True
            elif kind == BARRIER:
                moved, taken = moved and not waited, False
            elif kind in DATA_OPS:
                assert not taken
                moved, waited = True, False
            elif kind == ACQUIRE:
                taken = True
            elif kind in (RELEASE, DMA):
                assert not moved


def test_a_put_and_its_signal() -> None:
    program = lower_plan(bundled("v2_HEAD_allgather_2gpu.json"), 64 * 1024)
    sync, ready = ("barrier", 0), [("release", 1), ("barrier", 0), ("acquire", 1)]
    settled = [("waitcnt", 0), ("barrier", 0), ("release", 1), ("acquire", 1)]
    assert operations(program, 0) == [sync, *ready, sync, ("copy", 256), *settled, sync]
    assert program.labels[program.op_label[5]] == "op 5 put"


def test_a_wait_for_several_peers_is_one_acquire() -> None:
    program = lower_plan(bundled("v2_HEAD_allreduce_allpairs_4gpu.json"), MIB)
    amounts = program.op_amount[program.op_kind == ACQUIRE]
    assert amounts.tolist() == [3] * (4 * 8 * 2)
    assert program.semaphores.shape == (4, 16)


def test_signals_that_several_blocks_wait_for_share_a_semaphore() -> None:
    """Two thread blocks wait on one connection and cannot tell their signals apart, so they acquire one at a time."""
    plan = bundled("v2_HEAD_allreduce_allpairs_4gpu.json")
    gpus = tuple(
        dataclasses.replace(
            gpu,
            blocks=tuple(
                dataclasses.replace(
                    block,
                    operations=tuple(
                        dataclasses.replace(op, connections=plan.gpus[0].blocks[0].connections)
                        if op.connections
                        else op
                        for op in block.operations
                    ),
                )
                for block in gpu.blocks
            ),
        )
        for gpu in plan.gpus
    )
    program = lower_plan(dataclasses.replace(plan, gpus=gpus), MIB)
    assert set(program.op_amount[program.op_kind == ACQUIRE].tolist()) == {1}
    assert program.semaphores.shape == (4, 3)


def test_wavefronts_follow_the_threads_of_a_block() -> None:
    def wavefronts(name: str, given: int | None = None) -> list[int]:
        return np.unique(lower_plan(bundled(name), MIB, wavefronts=given).kernel_wavefronts).tolist()

    assert wavefronts("v1_v0.6.0_allreduce_pairs_2gpu_Simple.json") == [16]
    assert wavefronts("allgather_ring_4_1_1.xml") == [8]
    assert wavefronts("allgather_ring_4_1_1.xml", 3) == [3]


def test_ports_become_dmas() -> None:
    program = lower_plan(bundled("v1_v0.6.0_sendrecv_proxy_2gpu.json"), 4096)
    assert operations(program, 0)[:2] == [("dma", 4096), ("waitcnt", 0)]
    assert operations(program, 1)[2:4] == [("acquire", 1), ("barrier", 0)]


def test_packets_of_several_readers_are_gated_and_said_so() -> None:
    program = lower_plan(bundled("v2_HEAD_allreduce_2node_8gpu_LL_default_algo.json"), 2048)
    assert any("waited for as a whole" in note for note in program.notes)
    zero_bytes = (program.op_kind == DMA) & (program.op_amount == 0)
    assert int(zero_bytes.sum()) == 8 * 2  # three thread blocks wait for each transfer, which signals one itself


def test_chunks_that_are_no_whole_lines_are_rounded_up() -> None:
    plan = bundled("v2_HEAD_allgather_2gpu.json")
    assert padded_bytes(plan, 32) == 256
    program = lower_plan(plan, 32)
    assert program.payload_bytes == 32
    assert any("256 bytes are moved as 32" in note for note in program.notes)


def _changed(plan: KernelPlan, block: int, op: int, **changes: object) -> KernelPlan:
    """Return the plan with one operation of GPU 0 changed."""
    gpu = plan.gpus[0]
    operations = list(gpu.blocks[block].operations)
    operations[op] = dataclasses.replace(operations[op], **changes)  # type: ignore[arg-type]
    blocks = list(gpu.blocks)
    blocks[block] = dataclasses.replace(blocks[block], operations=tuple(operations))
    return dataclasses.replace(plan, gpus=(dataclasses.replace(gpu, blocks=tuple(blocks)), *plan.gpus[1:]))


def test_barriers_with_other_blocks_each_time_are_refused() -> None:
    plan = _changed(bundled("v1_v0.7.0_allgather_barrier_4gpu.json"), 0, 1, num_blocks=3)
    with pytest.raises(InputError, match=r"gpus\[0\].*meet at barrier 0, which is for 3 or 4"):
        lower_plan(plan, MIB)


def test_packets_that_nobody_writes_are_refused() -> None:
    plan = bundled("v2_HEAD_allreduce_packet_repo_testfile.json")
    number = next(n for n, op in enumerate(plan.gpus[0].blocks[0].operations) if op.name == "ppkt")
    with pytest.raises(InputError, match="polls packets that nobody writes"):
        lower_plan(_changed(plan, 0, number, sources=(), targets=(), action=PAIRS), MIB)


def test_fifos_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    text = (DATA / "allgather_ring_4_1_1.xml").read_text()
    lines = text.splitlines(keepends=True)
    last = max(n for n, line in enumerate(lines) if 'type="r"' in line)
    path = tmp_path / "short.xml"
    path.write_text("".join(lines[:last] + lines[last + 1 :]))
    with pytest.raises(InputError, match="channel 0 from rank 2 to rank 3: 3 slices are sent and 2 received"):
        lower_plan(load_plan(path), MIB)


@pytest.mark.parametrize(("option", "value"), [("line_bytes", 100), ("line_bytes", 8), ("wavefronts", 0)])
def test_options_out_of_range_are_refused(option: str, value: int) -> None:
    with pytest.raises(InputError, match=f"^{option}: .* got {value}"):
        lower_plan(bundled("v2_HEAD_allgather_2gpu.json"), MIB, **{option: value})  # type: ignore[arg-type]


def test_sizes_that_the_plan_does_not_take_are_refused() -> None:
    with pytest.raises(InputError, match="needs a multiple of 32 bytes, not 33; the next is 64"):
        lower_plan(bundled("v2_HEAD_allgather_2gpu.json"), 33)


def test_programs_that_become_too_large_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="pipelines are more than 2000000 operations"):
        lower_plan(pipeline_plan(tmp_path / "rounds.json"), 2**31)
    monkeypatch.setattr(lower, "MAX_SEMAPHORES", 2**20)
    with pytest.raises(InputError, match="8388608 flags and semaphores on each of 2 GPUs"):
        lower_plan(bundled("v2_HEAD_allreduce_packet_repo_testfile.json"), 2**29)
    monkeypatch.setattr(emit, "MAX_OPERATIONS", 20)
    with pytest.raises(InputError, match="needs more than 20 operations"):
        lower_plan(bundled("v2_HEAD_allgather_2gpu.json"), 1024)
