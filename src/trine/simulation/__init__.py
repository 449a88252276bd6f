"""Compose the parts: workload, plan, cluster -> result. No logic of its own beyond choosing and checking them.

What simulates is imported when it is first asked for: the options alone, of a help page, import nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trine.simulation.run import simulate
    from trine.simulation.setup import costs_on, placement_of

__all__ = ["costs_on", "placement_of", "simulate"]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{'run' if name == 'simulate' else 'setup'}"), name)
