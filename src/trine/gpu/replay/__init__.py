"""One GPU in detail, its peers replayed: docs/design/replay.md."""
