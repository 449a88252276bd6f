"""The data sheet of a GPU model, as bundled presets and GPU files hold it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from trine.common.precision import BY_NAME
from trine.common.schema import Bandwidth, BeforeValidator, Field, Power, Rate, Size, one_of
from trine.common.shown import OneLine

Dtype = Annotated[str, BeforeValidator(one_of(tuple(BY_NAME)))]


@dataclass(frozen=True, kw_only=True, slots=True)
class GpuSpec(OneLine):
    """One GPU model (presets/gpus).

    ``flop_per_s`` maps a dtype (``float32``, ``tfloat32``, ``float16``, ``bfloat16``, ``float64``) to its dense peak.
    ``power_w``: the vendor's maximum power, None if not published.
    ``nvlink``, ``pcie``: entries of the link catalogue, None if absent or unknown.
    ``l2_bytes``, ``l2_bytes_per_s``: capacity and read bandwidth of the L2, None if no measurement is bundled.
    ``step_slowdown``: operator time in a step over the tables' time, at the GPU's sustained clock.
    ``sources`` maps each field to the source of its number.
    """

    name: str
    memory_bytes: Annotated[Size, Field(alias="memory")]
    memory_bytes_per_s: Annotated[Bandwidth, Field(alias="memory_bandwidth")]
    flop_per_s: Annotated[dict[Dtype, Rate], Field(alias="compute", min_length=1)]
    num_compute_units: Annotated[int, Field(alias="compute_units", ge=1)]
    sources: dict[str, str] = field(default_factory=dict)
    aliases: tuple[str, ...] = ()
    power_w: Annotated[Power | None, Field(alias="power")] = None
    nvlink: str | None = None
    pcie: str | None = None
    step_slowdown: Annotated[float, Field(ge=1, le=2)] = 1.0
    l2_bytes: Annotated[Size | None, Field(alias="l2")] = None
    l2_bytes_per_s: Annotated[Bandwidth | None, Field(alias="l2_bandwidth")] = None
