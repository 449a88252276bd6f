"""A small target with buffers and flags, for tests of the writes that its peers do."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from gpu_cases import Programmer, read, read_flagged

from trine.gpu.program import Buffer

INPUT, FLAGS = 0x10000, 0x20000
LINE = 128
#: Each rank loads, tells all others, and waits for them.
TURN = """program turn
ranks 3
line 64 B
buffer data 4 KiB
semaphores 3
kernel 'turn' ranks all wavefronts 1
  load 4 lines own:data
  for d in 1..ranks-1
    release rank+d sem d
  end
  for d in 1..ranks-1
    acquire sem d
  end
"""


def flag(number):
    return FLAGS + 64 * number


def target_program(num_ranks=4, target=1, peers=(0, 2, 3), wait_twice=()):
    """Kernel of ``target`` alone: two workgroups, each waits for a flag of each peer, then reads its input.

    Semaphore workgroup * num_ranks + peer, at flags + 64 * that.
    """
    programmer = Programmer(num_ranks, num_semaphores=2 * num_ranks + 4)
    programmer.kernel(target, wavefronts=1)
    for group in range(2):
        programmer.workgroup()
        for peer in peers:
            number = group * num_ranks + peer
            programmer.acquire(target, number, 2 if number in wait_twice else 1, address=flag(number))
        programmer.load(4, read(target, INPUT))
    return with_buffers(programmer.build())


def flagged_program(lines=4):
    """Rank 0 of 2 loads ``lines`` flagged lines of its input, semaphores from 3."""
    programmer = Programmer(2, num_semaphores=3 + lines)
    programmer.kernel(0, wavefronts=1)
    programmer.workgroup()
    programmer.load(lines, read_flagged(0, 3, INPUT))
    return with_buffers(programmer.build())


def with_buffers(program):
    buffers = (
        Buffer(name="input", base=INPUT, size_bytes=0x8000),
        Buffer(name="flags", base=FLAGS, size_bytes=0x1000, uncached=True),
    )
    return replace(program, buffers=buffers, kernel_names=("gemv",))


def all_flags(table, num_ranks=4, peers=(0, 2, 3), time_ps=5_000_000):
    """Register every flag that :func:`target_program` waits for."""
    for group in range(2):
        for peer in peers:
            number = group * num_ranks + peer
            table.register_write(
                peer=peer, address=f"flags+{64 * number}", size_bytes=8, value=1, time_ps=time_ps + number
            )
    return table


def same(a, b):
    """Whether two PeerWrites are equal."""
    names = ("peer", "address", "size_bytes", "semaphore", "value", "time_ps")
    return a.fabric == b.fabric and all(np.array_equal(getattr(a, name), getattr(b, name)) for name in names)
