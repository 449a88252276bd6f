"""Colours of the kinds of tensors in charts of memory."""

from __future__ import annotations

MEMORY_COLOURS = {
    "weights": "weights", "gradients": "gradients", "optimizer_state": "state", "activations": "activations",
    "buckets": "dp", "inputs": "input", "workspaces": "hidden",
}  # fmt: skip
