"""Operators of well-known models without a trace: layers on a tape, and their backward pass in reverse."""
