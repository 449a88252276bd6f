"""All-reduces of small tensors as durations of GPU programs, run load by load and store by store."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from trine.common.units import PS_PER_S

_US_PER_PS = 1e6 / PS_PER_S


class _Durations(Protocol):
    """Durations of collectives at the load-store level (:class:`trine.LoadStoreCosts`)."""

    def duration(
        self, kind: str, size_bytes: int, ranks: tuple[int, ...], algorithm: str | None = None
    ) -> tuple[int, str] | None:
        """Return picoseconds and the program, or None without a program."""


@dataclass(frozen=True, slots=True)
class SimulatedAllReduce:
    """All-reduces of at most ``most_bytes`` at the load-store level; the faster of one-shot and two-shot."""

    durations: _Durations
    most_bytes: float

    def time_us(self, num_bytes: float, ways: int) -> float:
        """Return the time to sum ``num_bytes`` on the first ``ways`` GPUs."""
        return self._run(num_bytes, ways)[0] * _US_PER_PS

    def program(self, num_bytes: float, ways: int) -> str:
        """Return the name of the program."""
        return self._run(num_bytes, ways)[1]

    def _run(self, num_bytes: float, ways: int) -> tuple[int, str]:
        found = self.durations.duration("all_reduce", max(1, round(num_bytes)), tuple(range(ways)))
        assert found is not None, "scale-up links join the GPUs of an engine's kernel"
        return found
