"""Training steps: choose and check the parts of a simulation (workload, plan, cluster), and return its result.

The simulation modules are imported on first use, so that a help page imports only the options.
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
