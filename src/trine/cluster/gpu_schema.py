"""What a GPU preset holds. Imports pydantic, so it is itself imported only when a file is read."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from trine.spec import Bandwidth, Power, Rate, Size, Spec

Dtype = Literal["float64", "float32", "tfloat32", "float16", "bfloat16", "float8"]


class GpuFile(Spec):
    """One GPU model; ``compute`` is the dense peak of each dtype, ``power`` what the vendor says it takes at most (TDP,
    TBP), ``sources`` has one entry a field."""

    aliases: list[str] = Field(default_factory=list)
    memory: Size
    memory_bandwidth: Bandwidth
    compute_units: int = Field(ge=1)
    power: Power | None = None
    compute: dict[Dtype, Rate] = Field(min_length=1)
    sources: dict[str, str]
