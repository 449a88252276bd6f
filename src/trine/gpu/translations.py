"""Translations of a grid of ranks: the symmetries by which a load-store program folds."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from trine.common.arrays import Int64


@dataclass(frozen=True, slots=True)
class Translations:
    """All translations of a grid by multiples of ``steps`` along its dimensions."""

    grid: tuple[int, ...]
    steps: tuple[int, ...]

    @property
    def order(self) -> int:
        return math.prod(size // step for size, step in zip(self.grid, self.steps, strict=True))

    def split(self, ranks: Int64) -> tuple[Int64, Int64]:
        """Return each rank's translation (as the image of rank 0), and the rank of its orbit nearest to 0."""
        translation, origin = np.zeros_like(ranks), np.zeros_like(ranks)
        scale, rest = 1, ranks
        for size, step in zip(reversed(self.grid), reversed(self.steps), strict=True):
            place = rest % size
            origin += place % step * scale
            translation += (place - place % step) * scale
            rest, scale = rest // size, scale * size
        return translation, origin

    def moved(self, ranks: Int64, offset: Int64, sign: int = 1) -> Int64:
        """Return ``ranks`` moved by the translations ``offset``, or by their inverses (sign -1)."""
        out = np.zeros(np.broadcast_shapes(ranks.shape, offset.shape), np.int64)
        scale, a, b = 1, ranks, offset
        for size in reversed(self.grid):
            out += (a % size + sign * (b % size)) % size * scale
            a, b, scale = a // size, b // size, scale * size
        return out

    def generators(self) -> list[int]:
        """Return one translation (as the image of rank 0) for each dimension that the group moves."""
        generators, scale = [], 1
        for size, step in zip(reversed(self.grid), reversed(self.steps), strict=True):
            if step < size:
                generators.append(step * scale)
            scale *= size
        return generators

    def elements(self) -> Int64:
        """Return all translations as images of rank 0, ascending."""
        ranks = np.arange(math.prod(self.grid), dtype=np.int64)
        return np.asarray(ranks[self.split(ranks)[1] == 0])

    def __str__(self) -> str:
        if len(self.grid) == 1:
            return f"shifts by {self.steps[0]} of {self.grid[0]} ranks"
        return f"translations by {self.steps} of the grid {'x'.join(map(str, self.grid))}"
