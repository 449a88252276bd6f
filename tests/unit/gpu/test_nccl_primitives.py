"""Do the programs of NCCL's primitives behave like NCCL, as far as its sources and NPKit's samples show?"""

from __future__ import annotations

from collections import Counter

import pytest

from trine.gpu.model.files import load_gpu_model
from trine.gpu.proofs import check_program
from validation.gpu.nccl_primitives import (
    LL,
    LL_CODE,
    MESSAGES,
    PRIMITIVES,
    RECV,
    RECV_COPY_SEND,
    RECV_REDUCE_COPY_SEND,
    RECV_REDUCE_SEND,
    SEND,
    SIMPLE,
    RingProgram,
    primitive_time_ps,
    primitive_times,
    ring_shape,
    slices,
)

KIB = 1 << 10
#: Sends of each size in one benchmark run over all messages: NPKit's samples divided by its runs (10; for Simple
#: 8 to 10, because some were lost).
SAMPLES = {
    LL: {**dict.fromkeys((4, 8, 16, 32, 64, 128), 1), 256: 2, 512: 2, 768: 3, 1024: 4, 2048: 4, 4096: 12, 8192: 8,
         16384: 8, 32768: 504},
    SIMPLE: {**{1 << i: 1 for i in range(2, 12)}, 4096: 15, 8192: 8, 16384: 8, 32768: 24,
             **{1 << i: 16 for i in range(16, 21)}},
}  # fmt: skip
#: The largest message with samples: 16 MiB, but LL left no samples at that size.
LARGEST = {LL: 8 << 20, SIMPLE: 16 << 20}


def parts(protocol, size):
    """Return the bytes of all sends of an all-reduce, each on all channels."""
    shape = ring_shape(protocol, size)
    chunks = [chunk for loop in shape.loops for chunk in loop if chunk]
    cut = chunks if protocol == LL else [part for chunk in chunks for part in slices(chunk)]
    return shape.channels * cut


@pytest.mark.parametrize("protocol", [LL, SIMPLE])
def test_chunks_and_slices_are_as_many_and_as_large_as_npkit_saw(protocol):
    messages = (1 << i for i in range(2, LARGEST[protocol].bit_length()))
    assert Counter(part for size in messages for part in parts(protocol, size)) == SAMPLES[protocol]


@pytest.mark.parametrize(("protocol", "size"), [(LL, 8 * KIB), (LL, 64 * KIB), (SIMPLE, KIB), (SIMPLE, 512 * KIB)])
def test_nobody_reads_what_may_not_be_there_or_writes_where_somebody_may_still_read(protocol, size):
    ring = RingProgram(protocol, size)
    proof = check_program(ring.program, None)
    assert proof.open_ends == proof.late_reads == ()
    assert ring.program.num_hosts == 1
    per_call = Counter(each.primitive for each in ring.stretches)
    assert per_call == {
        name: per_call[SEND] * (2 if name in (PRIMITIVES[1], RECV_COPY_SEND) else 1) for name in PRIMITIVES
    }


def test_a_buffer_that_is_too_full_would_be_noticed():
    """With room for four slices instead of a chunk's one, the next lap overwrites unread data."""
    ring = RingProgram(SIMPLE, 32 * KIB)
    program = ring.program
    program.semaphores[4, ring.heads : ring.tails] = 4
    with pytest.raises(Exception, match="fifo of rank 4"):
        check_program(program, None)


def test_receives_of_ll_take_their_instructions_and_leave_out_what_they_wait_for():
    cycle_ps = load_gpu_model("rtx3090").cycle_ps
    code = LL_CODE[RECV]
    cycles = primitive_time_ps(LL, RECV, KIB) / cycle_ps
    assert code.before + code.store + code.end <= cycles <= code.before + code.store + code.end + 8
    load_ps = 900_000  # round trip over PCIe
    assert max(each.time_ps for each in primitive_times(LL, 4 * KIB) if each.primitive == RECV) < load_ps / 8


def test_what_the_machine_code_reads_in_rounds_takes_as_many_trips_to_the_host():
    trip_ps = 990_000
    times = [primitive_time_ps(SIMPLE, name, 4 * KIB) for name in (SEND, RECV, RECV_REDUCE_SEND, RECV_REDUCE_COPY_SEND)]
    assert [round((time - times[0]) / trip_ps) for time in times] == [0, 1, 2, 4]


def test_every_measured_size_has_a_message():
    for protocol, messages in MESSAGES.items():
        assert all(num_bytes in parts(protocol, size) for num_bytes, size in messages.items())
