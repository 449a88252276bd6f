"""Distances of ranks, as :mod:`trine.model.distances` has them: results deal out ports by them too."""

from trine.model.distances import distance, moved, rank_grid

__all__ = ["distance", "moved", "rank_grid"]
