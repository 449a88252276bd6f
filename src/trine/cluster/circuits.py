"""GPUs that are joined by optical circuits, set up while they are needed, in place of wires."""

from __future__ import annotations

from dataclasses import dataclass

from trine.errors import SpecError
from trine.units import format_bandwidth, format_bytes, format_time

#: Largest numbers that the engines compute with exactly; see ``engine/_limits.py``.
MAX_PS = 9_223_371 * 10**12
MAX_BYTES_PER_S = 10**18
MAX_PORTS = 1 << 16


@dataclass(frozen=True, kw_only=True, slots=True)
class Circuits:
    """What joins the GPUs of a cluster that no links join.

    setup_ps: from the request for a circuit between two GPUs until it carries bytes. ports: circuits that a GPU can
    have at a time. bytes_per_s: of one circuit, each way. latency_ps: from the last byte sent to the last received.
    buffer_bytes: what a GPU reserves of its receive buffer before bytes leave for it; None: there is always room.

    Source of the parameters: TrioSim (ISCA'25), section 7.1.

    Raises
    ------
    SpecError: a number out of range.
    """

    setup_ps: int
    ports: int
    bytes_per_s: int
    latency_ps: int
    buffer_bytes: int | None = None

    def __post_init__(self) -> None:
        limits = {
            "setup_ps": (0, MAX_PS),
            "ports": (1, MAX_PORTS),
            "bytes_per_s": (1, MAX_BYTES_PER_S),
            "latency_ps": (0, MAX_PS),
            "buffer_bytes": (1, 2**53),
        }
        for name, (least, most) in limits.items():
            value = getattr(self, name)
            if value is None and name == "buffer_bytes":
                continue
            if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
                raise SpecError(
                    f"must be a whole number from {least} to {most}, got {value!r}", field=f"circuits.{name}"
                )

    def describe(self) -> str:
        """``8 circuits a GPU of 60.5 GB/s, set up in 20 ms``, and what else was given."""
        text = f"{self.ports} circuits a GPU of {format_bandwidth(self.bytes_per_s)}, set up in "
        text += format_time(self.setup_ps)
        if self.latency_ps:
            text += f", latency {format_time(self.latency_ps)}"
        if self.buffer_bytes is not None:
            text += f", receive buffer {format_bytes(self.buffer_bytes)}"
        return text
