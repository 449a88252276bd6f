"""Times of long messages: the load-store level runs the first parts, and extends their last rate to the whole.

A long message repeats the same chunks: once caches, requests in flight and staging buffers are full, each further byte
costs the same time. The rates of the parts show whether that point is reached.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from trine.common.units import format_bytes

#: Messages up to this size run whole.
WHOLE_BYTES = 32 << 20
#: The first parts of a longer message; parts follow until two rates differ by at most this share.
PARTS_BYTES = (4 << 20, 8 << 20, 16 << 20, 24 << 20, 32 << 20)
MAX_DIFFERENCE = 0.01
#: Two rates need three parts.
MIN_PARTS = 3
#: Of a kernel that moves a long message in rounds, the largest part has at least this many rounds and bytes; the others
#: are its half and quarter, because two groups of warps take turns at the rounds.
_ROUNDS, _ROUNDS_BYTES = 4, 32 << 20


@dataclass(frozen=True, kw_only=True, slots=True)
class RunPart:
    """The first ``size_bytes`` of a message, and their time in ps."""

    size_bytes: int
    time_ps: int


@dataclass(frozen=True, kw_only=True, slots=True)
class ExtendedTime:
    """A message of ``size_bytes``, of which at least three parts were run, the smallest first."""

    size_bytes: int
    parts: tuple[RunPart, ...]

    @property
    def rates(self) -> tuple[float, ...]:
        """Time per byte between one part and the next, in ps."""
        rates = []
        for one, next_part in pairwise(self.parts):
            rates.append((next_part.time_ps - one.time_ps) / (next_part.size_bytes - one.size_bytes))
        return tuple(rates)

    @property
    def time_ps(self) -> int:
        """Time of the whole message, at the last rate beyond the largest part."""
        last = self.parts[-1]
        return last.time_ps + round((self.size_bytes - last.size_bytes) * self.rates[-1])

    @property
    def difference(self) -> float:
        """Change from the last rate but one to the last, as a share; 0 if both are 0."""
        before, last = self.rates[-2:]
        return last / before - 1 if before else 0.0

    @property
    def words(self) -> str:
        """The size that was run, and how far the rate is from steady."""
        largest = format_bytes(self.parts[-1].size_bytes)
        change = f"the rates of its last two parts differ by {100 * abs(self.difference):.1f} %"
        if abs(self.difference) <= MAX_DIFFERENCE:
            return f"extended from {largest}; {change}"
        return f"extended from {largest}, where the rate is not yet steady: {change}"


def part_sizes(size_bytes: int, round_bytes: int | None) -> tuple[int, ...]:
    """Return the parts of a message to run, in bytes, the smallest first; empty for a message to run whole.

    A message that is not longer than the first three parts together runs whole.

    round_bytes: bytes of the whole message that the kernel moves at a time; None: it has no rounds.
    """
    sizes: tuple[int, ...] = PARTS_BYTES
    if round_bytes is not None:
        largest = max(_ROUNDS * round_bytes, _ROUNDS_BYTES)
        sizes = (largest // 4, largest // 2, largest)
    if size_bytes <= max(WHOLE_BYTES, sum(sizes[:MIN_PARTS])):
        return ()
    return tuple(size for size in sizes if size < size_bytes)


def extend(size_bytes: int, sizes: Sequence[int], time_at: Callable[[int], int]) -> ExtendedTime:
    """Run parts of a message until the time per byte is steady, and return the extension to ``size_bytes``.

    sizes: of :func:`part_sizes`. time_at: returns the time in ps of the first bytes of the message.
    """
    extension = ExtendedTime(size_bytes=size_bytes, parts=())
    for size in sizes:
        part = RunPart(size_bytes=size, time_ps=time_at(size))
        extension = ExtendedTime(size_bytes=size_bytes, parts=(*extension.parts, part))
        if len(extension.parts) >= MIN_PARTS and abs(extension.difference) <= MAX_DIFFERENCE:
            break
    return extension
