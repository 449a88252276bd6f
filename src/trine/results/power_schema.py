"""What presets/power.yaml holds."""

from __future__ import annotations

from typing import Literal

from trine.schema import Field, Spec


class PowerFile(Spec):
    """Parts of a GPU's highest power by what it does; ``sources`` has one entry a field."""

    computing: float = Field(gt=0, le=1)
    communicating: float = Field(gt=0, le=1)
    idle: float = Field(gt=0, le=1)
    evidence: Literal["measured", "interpolated", "modelled", "assumed"]
    sources: dict[str, str]
