"""What presets/contention.yaml holds."""

from __future__ import annotations

from typing import Literal

from trine.schema import Field, Spec


class ByReach(Spec):
    """A number within a domain (``scale-up``), and one between domains."""

    scale_up: int = Field(alias="scale-up", ge=1)
    scale_out: int = Field(alias="scale-out", ge=1)


class Accesses(Spec):
    """Bytes read and written in memory for each byte sent; where switches add up, for each byte of the payload."""

    collective: int = Field(ge=1)
    in_network: int = Field(alias="in-network", ge=1)
    message: int = Field(ge=1)


class ContentionFile(Spec):
    """The file; ``sources`` has one entry a field."""

    channels: ByReach
    message_channels: ByReach
    accesses: Accesses
    waves_from: float = Field(alias="waves-from", gt=0, lt=1)
    most: float = Field(gt=0, lt=1)
    evidence: Literal["measured", "interpolated", "modelled", "assumed"]
    sources: dict[str, str]
