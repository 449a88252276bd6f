"""Limits of the arithmetic, shared by the kernels and their plain-Python twin."""

from __future__ import annotations

#: Latest instant of a run, about 106 days: whole seconds of it times 10**12 still fit into an int64.
MAX_PS = 9_223_371 * 10**12

#: Largest transfer in bytes. Bytes and bytes/s up to here divide exactly: they are whole in float64, and 1000 times as
#: much still fits into an int64.
MAX_WHOLE = 2**53

#: Largest bandwidth in bytes/s. Beyond MAX_WHOLE, which no wire reaches ("free" links do), times are float64 quotients.
MAX_BYTES_PER_S = 10**18

#: A quotient of two floats is off by a few units in the last place; this part of it is not worth another picosecond.
SLACK = 2.0**-50

#: Speed of a compute task that nothing slows down, in millionths, and the least that is left to it.
FULL_PPM = 1_000_000
MIN_PPM = 10_000

#: Longest compute task, in ps, on a stream that may be slowed down: its attoseconds still fit into an int64.
MAX_PACED_PS = 9 * 10**12
