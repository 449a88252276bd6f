"""PyTorch, which only captures need."""

from __future__ import annotations

from typing import Any

from trine.errors import MissingExtraError


def import_torch() -> Any:
    """Return PyTorch. Raises MissingExtraError if it is not installed."""
    try:
        import torch
    except ImportError as error:
        raise MissingExtraError("capturing a trace", "capture", "torch") from error
    return torch
