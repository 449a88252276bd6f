"""Names of the bundled models: the files of presets/models."""

from __future__ import annotations

from functools import cache

from trine.common.inputs import PRESETS, preset_names

FOLDER = PRESETS / "models"


@cache
def known_models() -> tuple[str, ...]:
    """Return the names of the bundled models, sorted."""
    return preset_names(FOLDER)
