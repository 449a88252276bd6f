"""Tests of many minutes: ``make long`` runs them, and nothing else does."""

from __future__ import annotations

import os

import pytest

long = pytest.mark.skipif(not os.environ.get("TRINE_LONG"), reason="takes many minutes: make long runs it")
