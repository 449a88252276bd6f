"""Compose the parts: workload, plan, cluster -> result. No logic of its own beyond choosing and checking them.

What simulates is imported when it is first asked for: the options alone, of a help page, import nothing.
"""

from typing import TYPE_CHECKING

from trine.common._lazy import lazy

if TYPE_CHECKING:
    from trine.training.run import simulate
    from trine.training.setup import costs_on, placement_of

__all__ = ["costs_on", "placement_of", "simulate"]

if not TYPE_CHECKING:  # or type checkers would take any name for one of the package's
    __getattr__ = lazy(
        __name__,
        {
            "costs_on": "trine.training.setup",
            "placement_of": "trine.training.setup",
            "simulate": "trine.training.run",
        },
    )
