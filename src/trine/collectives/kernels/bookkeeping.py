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
