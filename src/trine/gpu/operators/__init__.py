"""Operators of one GPU at the load-store level: matrix products as tiles, all others as streams of bytes."""
