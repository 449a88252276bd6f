"""Failures, checkpoints and restarts of a training run, as the user gives them."""

from __future__ import annotations

import math
from dataclasses import dataclass

from trine.common.arguments import option
from trine.errors import InputError

#: Fields of a failure model, their units, and the allowed values. A mean time of ``inf`` means no failures.
ALLOWED = {
    "mtbf_per_gpu": ("hours", 1.0, math.inf),
    "checkpoint": ("seconds", 0.0, 86_400.0),
    "restart": ("seconds", 0.0, 604_800.0),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Failures:
    """Failures of a run, as the user gives them; None: the default of presets/failures.yaml.

    mtbf_per_gpu: mean hours between failures of one GPU. checkpoint: seconds that a checkpoint blocks training.
    restart: seconds from a failure to the first new step.

    Raises InputError for a value out of range.
    """

    mtbf_per_gpu: float | None = option(None, "Set the mean hours between failures of one GPU; inf: none [50000].")
    checkpoint: float | None = option(None, "Set the seconds that a checkpoint blocks training [5].")
    restart: float | None = option(None, "Set the seconds from a failure to the next step [600].")

    def __post_init__(self) -> None:
        for name, (unit, least, most) in ALLOWED.items():
            value = getattr(self, name)
            if value is None:
                continue
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            if not is_number or not least <= value <= most:  # also refuses NaN
                end = "to inf (no failures)" if most == math.inf else f"to {most:g}"
                raise InputError(f"must be {unit} from {least:g} {end}, got {value!r:.40}", field=name)
