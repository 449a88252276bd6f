"""Memory of the hosts that a job offloads to."""

from __future__ import annotations

from dataclasses import dataclass

from trine.common.units import format_bytes
from trine.results.memory import DOES_NOT_FIT, FITS, TIGHT

#: Part of a host's memory for the operating system, data loaders, pinned staging buffers and page cache. Assumed.
OTHER_USES = 0.1


@dataclass(frozen=True, kw_only=True, slots=True)
class HostMemory:
    """Offloaded data on the fullest host.

    host: name of its node or memory. bytes_per_host: optimizer states, gradients and activations of its ranks, at
    their peak. ranks: the number of ranks on it. hosts: the number of hosts with ranks.
    """

    host: str
    bytes_per_host: int
    capacity_bytes: int
    ranks: int
    hosts: int

    @property
    def margin_bytes(self) -> int:
        """Free capacity in bytes; negative if exceeded."""
        return self.capacity_bytes - self.bytes_per_host

    @property
    def verdict(self) -> str:
        """``fits``; ``tight``: fits only without the memory for :data:`OTHER_USES`; ``does not fit``."""
        if self.margin_bytes < 0:
            return DOES_NOT_FIT
        return FITS if self.bytes_per_host <= (1 - OTHER_USES) * self.capacity_bytes else TIGHT

    @property
    def words(self) -> str:
        """The verdict with the free or missing memory and the place."""
        state = "left" if self.margin_bytes >= 0 else "over"
        return f"{self.verdict.upper()}: {format_bytes(abs(self.margin_bytes))} {state} on host {self.host}"

    @property
    def warning(self) -> str:
        """A sentence if the data does not fit, else an empty text."""
        if self.verdict != DOES_NOT_FIT:
            return ""
        return (
            f"host memory: {self.ranks} ranks offload {format_bytes(self.bytes_per_host)} to host {self.host}, "
            f"which has {format_bytes(self.capacity_bytes)}"
        )
