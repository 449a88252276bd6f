"""What a GPU can do, as its data sheet says. Frozen data without logic."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True, slots=True)
class GpuSpec:
    """One GPU model.

    ``flop_per_s`` maps a dtype (``float32``, ``tfloat32``, ``float16``, ``bfloat16``, ``float64``) to its dense peak.
    ``power_w``: what the vendor says that it takes at most, None where nobody does.
    ``sources`` maps each field to where its number comes from.
    """

    name: str
    memory_bytes: int
    memory_bytes_per_s: int
    flop_per_s: Mapping[str, int]
    num_compute_units: int
    sources: Mapping[str, str] = field(default_factory=dict)
    aliases: tuple[str, ...] = ()
    power_w: int | None = None
