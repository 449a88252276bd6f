"""Does the check of GPU programs find errors? Correct programs, each changed in one place."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from trine.errors import DeadlockError, InputError, SimulationError
from trine.gpu.kernels.build import DETAILED, ROOTED, build_kernel, known_kernels, known_ops
from trine.gpu.program import (
    ACQUIRE,
    BARRIER,
    COMPUTE,
    COPY,
    DATA_OPS,
    DMA,
    LOAD,
    NOP,
    READ,
    READ_FLAGGED,
    REDUCE,
    RELEASE,
    STORE,
    WAITCNT,
    WRITE,
    WRITE_FLAGGED,
    Buffer,
    GpuProgram,
)
from trine.gpu.proofs import check_program


def program(ranks, rows, wavefronts=2, semaphores=4, buffers=(), initial=0):
    """Return a program of workgroups (rank, [(kind, amount, [(role, rank, address, step, semaphore)])])."""
    rows = sorted(rows, key=lambda row: row[0])
    ops = [op for _, own in rows for op in own]
    operands = np.array([o for _, _, own in ops for o in own], np.int64).reshape(-1, 5)
    per_rank = [sum(1 for rank, _ in rows if rank == r) for r in range(ranks)]
    return GpuProgram(
        name="test",
        num_ranks=ranks,
        kernel_rank=np.arange(ranks, dtype=np.int32),
        kernel_wavefronts=np.full(ranks, wavefronts, np.int32),
        kernel_ptr=np.cumsum([0, *per_rank]),
        workgroup_ptr=np.cumsum([0, *(len(own) for _, own in rows)]),
        op_kind=np.array([kind for kind, _, _ in ops], np.int8),
        op_amount=np.array([amount for _, amount, _ in ops], np.int64),
        op_unroll=np.zeros(len(ops), np.int32),
        op_label=np.full(len(ops), -1, np.int32),
        operand_ptr=np.cumsum([0, *(len(own) for _, _, own in ops)]),
        operand_role=operands[:, 0].astype(np.int8),
        operand_rank=operands[:, 1].astype(np.int32),
        operand_address=operands[:, 2],
        operand_step=operands[:, 3].astype(np.int32),
        operand_semaphore=operands[:, 4].astype(np.int32),
        semaphores=np.full((ranks, semaphores), initial, np.int32),
        buffers=buffers,
    )


def copy(lines, source, target, flagged=False):
    """Return a copy from (rank, address) to (rank, address), with flags from semaphore 0 on if ``flagged``."""
    role, semaphore = (WRITE_FLAGGED, 0) if flagged else (WRITE, -1)
    return COPY, lines, [(READ, *source, 128, -1), (role, *target, 128, semaphore)]


def release(rank, semaphore, amount=1):
    return RELEASE, amount, [(WRITE, rank, 1 << 20, 0, semaphore)]


def acquire(rank, semaphore, amount=1):
    return ACQUIRE, amount, [(READ, rank, 1 << 20, 0, semaphore)]


def dma(amount, source, target, semaphore=-1):
    reads = [(READ, *source, 0, -1)] if source else []
    return DMA, amount, [*reads, (WRITE, *target, 0, semaphore)]


WAIT, MEET = (WAITCNT, 0, []), (BARRIER, 0, [])
IN_OUT = (Buffer(name="input", base=0, size_bytes=512), Buffer(name="output", base=4096, size_bytes=512))


def keep(built: GpuProgram, ops: np.ndarray) -> GpuProgram:
    """Return the program with only these operations."""
    kept = np.zeros(built.num_ops, bool)
    kept[ops] = True
    counts = np.diff(built.operand_ptr)
    operands = np.repeat(kept, counts)
    before = np.append(0, np.cumsum(kept))
    columns = {name: getattr(built, name)[kept] for name in ("op_kind", "op_amount", "op_unroll", "op_label")}
    for name in ("role", "rank", "address", "step", "semaphore"):
        columns[f"operand_{name}"] = getattr(built, f"operand_{name}")[operands]
    return replace(
        built,
        workgroup_ptr=before[built.workgroup_ptr],
        operand_ptr=np.append(0, np.cumsum(counts[kept])),
        **columns,
    )


def is_found(changed: GpuProgram, op: str) -> bool:
    """Return whether the check refuses a program, or reports open ends or late reads."""
    try:
        check = check_program(changed, op, orders=1)
    except (InputError, SimulationError):
        return True
    return bool(check.open_ends or check.late_reads)


def has_sum_of(built: GpuProgram, operand: int, rank: int) -> bool:
    """Return whether the reduction behind an operand's data also writes the data to ``rank``."""
    written = (built.operand_role == WRITE) & (built.operand_address == built.operand_address[operand])
    written &= np.repeat(built.op_kind == REDUCE, np.diff(built.operand_ptr))
    ops = built.operand_op
    here, there = (set(ops[written & (built.operand_rank == r)]) for r in (built.operand_rank[operand], rank))
    return built.operand_role[operand] == READ and not here.isdisjoint(there)


BUILT = [(op, algorithm) for op in known_ops() if op not in DETAILED for algorithm in known_kernels(op)]


def shape_of(algorithm):
    """Return the numbers of ranks and nodes."""
    return (4, 2) if algorithm == "hierarchical" else (3, 1)


@pytest.mark.parametrize(("op", "algorithm"), BUILT)
@pytest.mark.parametrize("kind", [WAITCNT, BARRIER, ACQUIRE, RELEASE, COPY, REDUCE, DMA])
@pytest.mark.parametrize("waits", ["joint", "single"])
def test_an_operation_that_is_missing(op, algorithm, kind, waits):
    ranks, nodes = shape_of(algorithm)
    if op in ROOTED and waits == "single":
        return
    built = build_kernel(
        op, ranks, 3 * 128 * 5, algorithm=algorithm, num_nodes=nodes, workgroups=1, wavefronts=2, waits=waits
    )
    assert not is_found(built, op)
    own = np.flatnonzero(built.op_kind[: built.num_ops // (1 if op in ROOTED else ranks)] == kind)
    missed = [int(i) for i in own if not is_found(keep(built, np.delete(np.arange(built.num_ops), i)), op)]
    assert missed == []


@pytest.mark.parametrize(("op", "algorithm"), BUILT)
@pytest.mark.parametrize("protocol", ["simple", "ll"])
def test_a_wrong_operand(op, algorithm, protocol):
    ranks, nodes = shape_of(algorithm)
    try:
        built = build_kernel(
            op, ranks, 3 * 128 * 5, algorithm=algorithm, workgroups=1, wavefronts=2, protocol=protocol,
            sync="auto" if op in ROOTED else "both",
            num_nodes=nodes,
        )  # fmt: skip
    except InputError:
        return
    first = built.operand_ptr[built.num_ops // (1 if op in ROOTED else ranks)]
    some = built.semaphores.shape[1] > 1
    kinds = np.repeat(built.op_kind, np.diff(built.operand_ptr))
    missed = []
    for operand in range(int(first)):
        changes = [("operand_semaphore", 1)] if some and built.operand_semaphore[operand] >= 0 else []
        if kinds[operand] in DATA_OPS:
            changes += [("operand_address", 128)]
        # A NIC may read a sum from each rank that the reduction writes it to.
        is_sum = kinds[operand] == DMA and has_sum_of(built, operand, (built.operand_rank[operand] + 1) % ranks)
        if built.operand_role[operand] not in (READ_FLAGGED,) and kinds[operand] != ACQUIRE and not is_sum:
            changes += [("operand_rank", 1)]
        for name, by in changes:
            column = getattr(built, name).copy()
            column[operand] += by
            if name == "operand_rank":
                column[operand] %= ranks
            if name == "operand_semaphore":
                column[operand] %= built.semaphores.shape[1]
            if not is_found(replace(built, **{name: column}), op):
                missed.append((operand, name))
    assert missed == []


def test_a_release_needs_waitcnt_and_barrier():
    def handed_over(*between):
        sender = [copy(4, (0, 0), (1, 4096)), *between, release(1, 0)]
        receiver = [acquire(1, 0), MEET, copy(4, (1, 4096), (1, 8192))]
        return program(2, [(0, sender), (1, receiver)])

    check_program(handed_over(WAIT, MEET))
    with pytest.raises(
        InputError, match=r"rank 1 workgroup 0 wavefront . .* but rank 0 .* may not have written it yet"
    ):
        check_program(handed_over())
    with pytest.raises(InputError, match=r"rank 1 workgroup 0 wavefront 1 .*rank 0 workgroup 0 wavefront 1"):
        check_program(handed_over(WAIT))
    with pytest.raises(InputError):
        check_program(handed_over(MEET, WAIT))
    with pytest.raises(InputError):
        check_program(handed_over((WAITCNT, 1, []), MEET))


def test_other_wavefronts_do_not_wait_with_an_acquire():
    sender = [copy(4, (0, 0), (1, 4096)), WAIT, MEET, release(1, 0)]
    receiver = [acquire(1, 0), copy(4, (1, 4096), (1, 8192))]
    with pytest.raises(InputError, match="rank 1 workgroup 0 wavefront 1"):
        check_program(program(2, [(0, sender), (1, receiver)]))
    check_program(program(2, [(0, sender), (1, receiver)], wavefronts=1))


def test_a_wavefront_does_not_wait_for_its_own_stores():
    rows = [copy(4, (0, 0), (0, 4096)), copy(4, (0, 4096), (0, 8192))]
    with pytest.raises(InputError, match="waitcnt 0"):
        check_program(program(1, [(0, rows)]))
    check_program(program(1, [(0, [rows[0], WAIT, rows[1]])]))
    with pytest.raises(InputError, match="wavefront"):
        check_program(program(1, [(0, [rows[0], WAIT, copy(4, (0, 4096 + 128), (0, 8192))])]))


def test_a_write_must_wait_for_readers():
    reader = [copy(2, (0, 0), (0, 8192)), WAIT, MEET, release(1, 0)]
    writer = [acquire(1, 0), MEET, copy(2, (1, 0), (0, 0))]
    check_program(program(2, [(0, reader), (1, writer)]))
    with pytest.raises(InputError, match=r"writes address 0 of rank 0, but rank 0 .* may not have read it yet"):
        check_program(program(2, [(0, reader[:1]), (1, writer[2:])]))


def test_a_flag_orders_its_line_alone():
    sender = [copy(2, (0, 0), (1, 4096)), copy(2, (0, 0), (1, 8192), flagged=True)]
    flagged = COPY, 2, [(READ_FLAGGED, 1, 8192, 128, 0), (WRITE, 1, 12288, 128, -1)]
    check_program(program(2, [(0, sender), (1, [flagged])]))
    with pytest.raises(InputError, match=r"but rank 0 .* operation 0 .*may not have"):
        check_program(program(2, [(0, sender), (1, [flagged, WAIT, MEET, copy(2, (1, 4096), (1, 0))])]))
    finished = [sender[0], WAIT, MEET, sender[1]]
    check_program(program(2, [(0, finished), (1, [flagged, WAIT, MEET, copy(2, (1, 4096), (1, 0))])]))
    with pytest.raises(InputError, match="may not have"):
        check_program(program(2, [(0, finished), (1, [flagged, copy(2, (1, 4096), (1, 0))])]))


def test_packets_may_be_used_again_when_they_have_been_read():
    put = copy(2, (0, 0), (1, 8192), flagged=True)
    take = COPY, 2, [(READ_FLAGGED, 1, 8192, 128, 0), (WRITE, 1, 12288, 128, -1)]
    sender = [put, WAIT, acquire(0, 3), MEET, put]
    check_program(program(2, [(0, sender), (1, [take, WAIT, MEET, release(0, 3), take])]))
    with pytest.raises(InputError, match=r"may not have (written|read) it yet"):
        check_program(program(2, [(0, [put, WAIT, MEET, put]), (1, [take, WAIT, MEET, take])]))


def test_deadlock_says_who_waits_for_what():
    rows = [(0, [acquire(0, 0), release(1, 0)]), (1, [acquire(1, 0, 2), release(0, 0)])]
    with pytest.raises(DeadlockError) as error:
        check_program(program(2, rows))
    text = str(error.value)
    assert "rank 0 workgroup 0 wavefront 0 operation 0 (acquire) waits for semaphore 0 of rank 0" in text
    assert "which has 0 of 2: rank 0 workgroup 0 wavefront 0 operation 1 (release) would release it" in text
    with pytest.raises(DeadlockError, match="its releasers have ended"):
        check_program(program(1, [(0, [acquire(0, 1)])]))
    with pytest.raises(
        DeadlockError, match=r"wavefront 1 operation 1 .barrier. waits for wavefronts 0 of its workgroup"
    ):
        check_program(program(1, [(0, [acquire(0, 1), MEET])]))
    waits = LOAD, 1, [(READ_FLAGGED, 0, 0, 128, 2)]
    with pytest.raises(DeadlockError, match=r"load.* waits for semaphore 2 of rank 0"):
        check_program(program(1, [(0, [waits])]))


def test_who_came_first_is_served_first():
    rows = [(0, [acquire(0, 0, 2)]), (0, [acquire(0, 0, 1), release(0, 0, 2)]), (0, [release(0, 0, 1)])]
    with pytest.raises(DeadlockError):
        check_program(program(1, rows))


def test_semaphores_come_back():
    with pytest.raises(
        InputError, match=r"semaphore 2 of rank 0 ends with 1, not as it began, with 0: rank 0 .* releases"
    ):
        check_program(program(1, [(0, [release(0, 2)])]))
    check_program(program(1, [(0, [acquire(0, 1), release(0, 1)])], initial=1))
    with pytest.raises(
        InputError, match="semaphore 1 of rank 0 ends with 0, not as it began, with 1: nobody releases it"
    ):
        check_program(program(1, [(0, [acquire(0, 1)])], initial=1))


def test_copy_engine():
    buffers = IN_OUT
    move = dma(512, (0, 0), (1, 4096))
    back = dma(512, (1, 0), (0, 4096))
    signal = [dma(0, None, (1, 4096), 0), dma(0, None, (0, 4096), 0)]
    good = [(0, [move, signal[0], acquire(0, 0)]), (1, [back, signal[1], acquire(1, 0)])]
    check = check_program(program(2, good, buffers=buffers), "send_recv", 512)
    assert check.late_reads == ()
    early = [(0, [signal[0], move, acquire(0, 0)]), (1, [back, signal[1], acquire(1, 0)])]
    with pytest.raises(InputError, match="rank 1 can end before copy 2 of the copy engine of rank 0 to rank 1"):
        check_program(program(2, early, buffers=buffers), "send_recv", 512)
    behind = [copy(4, (0, 0), (0, 8192)), dma(512, (0, 8192), (0, 12288))]
    with pytest.raises(InputError, match="copy"):
        check_program(program(1, [(0, behind)]))
    check_program(program(1, [(0, [behind[0], WAIT, MEET, behind[1], WAIT, MEET, copy(4, (0, 12288), (0, 16384))])]))
    with pytest.raises(InputError, match="dma"):
        check_program(program(1, [(0, [behind[0], WAIT, MEET, behind[1], copy(4, (0, 12288), (0, 16384))])]))


def test_registers():
    load = LOAD, 4, [(READ, 0, 0, 128, -1)]
    both = REDUCE, 4, [(READ, 0, 0, 128, -1), (READ, 1, 0, 128, -1)]
    store = STORE, 4, [(WRITE, 0, 4096, 128, -1)]
    alone = [(0, [load, WAIT, store]), (1, [])]
    with pytest.raises(InputError, match="send_recv ends with rank 0's input"):
        check_program(program(2, alone, buffers=IN_OUT), "send_recv")
    two = [(0, [both, WAIT, store]), (1, [both, WAIT, (STORE, 4, [(WRITE, 1, 4096, 128, -1)])])]
    check_program(program(2, two, buffers=IN_OUT), "all_reduce", inputs="all")
    with pytest.raises(InputError, match="stores data that the load before it may not have brought yet"):
        check_program(program(2, [(0, [load, store]), (1, [])], buffers=IN_OUT))
    with pytest.raises(InputError, match="ends with no part of an input"):
        check_program(program(2, [(0, [store]), (1, [])], buffers=IN_OUT), "all_reduce")


def test_results_are_named():
    own = [(r, [copy(4, (r, 0), (r, 4096))]) for r in range(2)]
    with pytest.raises(
        InputError,
        match="with rank 0's input from byte 0 on at byte 0 of the output of rank 0, not with "
        "the sum of the inputs of ranks 0, 1 from byte 0 on",
    ):
        check_program(program(2, own, buffers=IN_OUT), "all_reduce")
    twice = REDUCE, 4, [(READ, 0, 0, 128, -1), (READ, 0, 0, 128, -1), (WRITE, 0, 4096, 128, -1)]
    with pytest.raises(InputError, match="or of some of them more than once"):
        check_program(program(2, [(0, [twice]), (1, [])], buffers=IN_OUT), "all_reduce")
    empty = [(0, [copy(4, (0, 8192), (0, 4096))]), (1, [])]
    with pytest.raises(InputError, match="reads address 8192 of rank 0, which was never written"):
        check_program(program(2, empty, buffers=IN_OUT), "all_reduce")


def test_in_place_and_broadcast():
    buffers = (Buffer(name="output", base=0, size_bytes=256),)
    gather = [
        (r, [COMPUTE_OP, copy(1, (r, 128 * r), (1 - r, 128 * r)), WAIT, release(1 - r, 0), acquire(r, 0)])
        for r in range(2)
    ]
    check = check_program(program(2, gather, buffers=buffers), "all_gather", 256)
    assert (check.num_cells, check.num_runs) == (4, 4)
    send = [(0, [copy(2, (0, 0), (1, 0)), WAIT, MEET, release(1, 0)]), (1, [acquire(1, 0)])]
    with pytest.raises(InputError, match="writes byte 0 of the output of rank 1 before it knows that rank 1 is there"):
        check_program(program(2, send, buffers=buffers), "broadcast")
    check_program(program(2, send, buffers=buffers), "broadcast", inputs="all")


COMPUTE_OP = (COMPUTE, 100, [])


def test_what_cannot_be_checked_is_refused():
    nothing = program(2, [(0, [(NOP, 0, [])]), (1, [])], buffers=IN_OUT)
    with pytest.raises(InputError, match="did you mean 'all_gather'"):
        check_program(nothing, "all_gathr")
    with pytest.raises(InputError, match="does not fit an input of 512 bytes and an output of 512"):
        check_program(nothing, "all_gather")
    with pytest.raises(InputError, match="are too small for all_reduce of 513 bytes"):
        check_program(nothing, "all_reduce", 513)
    with pytest.raises(InputError, match="needs a buffer 'input' or 'output'"):
        check_program(replace(nothing, buffers=()), "all_reduce")
    with pytest.raises(InputError, match="inputs: unknown 'none'"):
        check_program(nothing, inputs="none")
    with pytest.raises(InputError, match="too large to check"):
        check_program(build_kernel("all_gather", 8, 64 << 20, algorithm="put"), "all_gather")
    with pytest.raises(InputError, match="overlaps itself in the memory of rank 0: 4 lines at addresses 0 and 128"):
        check_program(program(1, [(0, [copy(4, (0, 0), (0, 128))])]))


def test_checks_repeat():
    built = build_kernel("all_reduce", 4, 4096, workgroups=2, wavefronts=2)
    assert check_program(built, "all_reduce", 4096, seed=3) == check_program(built, "all_reduce", 4096, seed=3)
