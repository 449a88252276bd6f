"""The event loop: start and end of every task of a task graph."""

from trine.engine.run import Progress, run

__all__ = ["Progress", "run"]
