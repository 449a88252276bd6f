"""Work of a library's kernel besides moving data: it reads flags and channels, computes addresses, counts signals.

The numbers are MSCCL++'s (src/ext/collectives/allreduce/allreduce_packet.cu, include/mscclpp/semaphore_device.hpp),
counted in nvcc 13.0's machine code for sm_90 by the method of :mod:`trine.validation.gpu.kernels`. trine uses them for
all libraries; :class:`trine.gpu.kernels.builder.Workgroup` adds them to programs.
"""

from __future__ import annotations

#: Cycles from the start to the launch flag, including a second line of parameters; from the flag to the channels,
#: including divisions by the numbers of ranks, blocks and scratch buffers; from the channels to the first data access.
FLAG_CYCLES, CHANNEL_CYCLES, DATA_CYCLES = 140, 704, 176
#: Cycles from a signal to the first poll of the peers' signals: one atomic in the L2 for the local count, 262 cycles,
#: plus the code around it; cycles after the last poll.
COUNT_CYCLES, SEEN_CYCLES = 371, 33
#: Cycles of a jump to instructions that are not yet cached: a kernel starts with empty instruction and constant caches.
#: Lines come from the L2 (262 cycles, including 33 for the data L1) through a separate L1, 39 cycles away each way, and
#: bring the next eight lines of 128 bytes along (Huerta et al., MICRO 2025, arXiv 2503.20481: their simulator's
#: configurations of Turing, Ampere, Blackwell).
FETCH_CYCLES = 262 - 33 + 2 * 39
