"""The event loop: start and end of every task of a task graph."""

from trine.engine.run import advance, carry_over, run

__all__ = ["advance", "carry_over", "run"]
