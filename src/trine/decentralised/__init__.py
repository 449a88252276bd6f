"""Hop: decentralised training with backup workers, bounded staleness, tokens and skipped iterations."""
