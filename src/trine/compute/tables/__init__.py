"""Operator times from public measurements: docs/background/operator-time.md."""
