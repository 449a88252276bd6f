"""The event loop: start and end of every task of a task graph."""

from trine.engine.run import advance, run
from trine.engine.snapshots import carry_over

__all__ = ["advance", "carry_over", "run"]
