"""Kernels that compute and communicate at once: docs/background/fused-kernels.md."""
