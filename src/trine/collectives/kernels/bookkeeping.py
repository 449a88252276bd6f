"""What a library's kernel does besides moving data: it reads flags and channels, computes addresses, counts signals.

The numbers are MSCCL++'s (src/ext/collectives/allreduce/allreduce_packet.cu, include/mscclpp/semaphore_device.hpp),
counted in the machine code that nvcc 13.0 makes for sm_90 as :mod:`trine.studies.gpu_kernels` says. They stand for any
library's; :class:`trine.collectives.kernels.builder.Workgroup` adds them to programs.
"""

from __future__ import annotations

#: Cycles up to the flag of the launch, with a second line of parameters; from it to the channels, with divisions by the
#: numbers of ranks, blocks and scratch buffers; from these to the first access to data.
FLAG_CYCLES, CHANNEL_CYCLES, DATA_CYCLES = 140, 704, 176
#: From a signal to the first look at those of the peers: the own count is one atomic in the L2, 262 cycles, and what
#: is around it; from the last look on.
COUNT_CYCLES, SEEN_CYCLES = 371, 33
#: Of a jump to instructions that nothing has fetched: a kernel begins with empty caches of instructions and constants,
#: lines come from the L2 (262 cycles, of which 33 are the L1's of data) by an L1 of their own, 39 cycles from it each
#: way, and the next eight of 128 bytes come with them (Huerta et al., MICRO 2025, arXiv 2503.20481: their simulator's
#: configurations of Turing, Ampere, Blackwell).
FETCH_CYCLES = 262 - 33 + 2 * 39
