"""Subjects that trine does not model (``presets/not_modelled.yaml``), by the words that people type for them."""

from __future__ import annotations

from functools import cache
from typing import Any

from trine.common.inputs import PRESETS
from trine.common.spec import load_mapping

#: Kinds of words: names of commands, of options without dashes, and values of precisions.
COMMANDS, OPTIONS, VALUES = "commands", "options", "values"


def not_modelled(kind: str, word: str) -> str | None:
    """Return the sentence about a word that belongs to a subject without a model, or None."""
    word = word.lower().lstrip("-").replace("_", "-")
    return next((f"{row['subject']}; {row['instead']}" for row in _rows() if word in row[kind]), None)


@cache
def _rows() -> list[dict[str, Any]]:
    rows: Any = load_mapping(PRESETS / "not_modelled.yaml")
    return list(rows)
