"""Tests of many minutes: ``make long`` runs them, and nothing else does."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

long = pytest.mark.skipif(not os.environ.get("TRINE_LONG"), reason="takes many minutes: make long runs it")


def enough_repeat(compare: Callable[[int], bool], wanted: int) -> None:
    """Compare random jobs, by their seed, until this number of them repeat."""
    found = 0
    for seed in range(100, 10_000):
        found += compare(seed)
        if found == wanted:
            return
    pytest.fail(f"only {found} jobs repeat")
