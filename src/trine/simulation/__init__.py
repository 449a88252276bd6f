"""Compose the parts: workload, plan, cluster -> result. No logic of its own beyond choosing and checking them."""

from trine.simulation.run import simulate
from trine.simulation.setup import costs_on, placement_of

__all__ = ["costs_on", "placement_of", "simulate"]
