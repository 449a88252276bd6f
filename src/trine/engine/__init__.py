"""The event loop: start and end of every task of a task graph."""

from typing import TYPE_CHECKING

from trine.common._lazy import lazy
from trine.engine.run import run

if TYPE_CHECKING:
    from trine.engine.partial_runs import advance, carry_over

__all__ = ["advance", "carry_over", "run"]

if not TYPE_CHECKING:  # or type checkers would take any name for one of the package's
    __getattr__ = lazy(__name__, dict.fromkeys(("advance", "carry_over"), "trine.engine.partial_runs"))
