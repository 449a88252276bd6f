"""Routes on a grid of devices, one dimension after the other."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from trine.errors import SpecError


class GridRoutes:
    """Dimension-order routes, last dimension first; a torus takes the shorter way round, upwards on a tie."""

    def __init__(self, sizes: Sequence[int], gpus: Sequence[int], links: Sequence[tuple[int, int]]) -> None:
        """Set up; ``gpus``: device indices in row-major order of the grid, ``links``: (source, target) of each link."""
        self._sizes = tuple(sizes)
        self._gpus = tuple(gpus)
        self._place = {gpu: i for i, gpu in enumerate(gpus)}
        self._wires: dict[tuple[int, int], int] = {}
        for index, ends in enumerate(links):
            self._wires.setdefault(ends, index)
        self._wraps = tuple(self._joined_ends(axis) for axis in range(len(self._sizes)))

    def route(self, source: int, target: int) -> tuple[int, ...]:
        """Return the links from one GPU to another. Raises SpecError if a link of the grid is missing."""
        place, goal = self._coordinates(self._place[source]), self._coordinates(self._place[target])
        links = []
        for axis in reversed(range(len(self._sizes))):
            while place[axis] != goal[axis]:
                last = self._device(place)
                place[axis] = (place[axis] + self._direction(axis, place[axis], goal[axis])) % self._sizes[axis]
                links.append(self._link(last, self._device(place)))
        return tuple(links)

    def _direction(self, axis: int, place: int, goal: int) -> int:
        ahead = (goal - place) % self._sizes[axis]
        if not self._wraps[axis]:
            return 1 if goal > place else -1
        return 1 if ahead <= self._sizes[axis] - ahead else -1

    def _joined_ends(self, axis: int) -> bool:
        """Return whether a link joins the ends of the first line along ``axis``. False for lines of two."""
        last = [0] * len(self._sizes)
        last[axis] = self._sizes[axis] - 1
        return self._sizes[axis] > 2 and (self._device(last), self._gpus[0]) in self._wires

    def _coordinates(self, place: int) -> list[int]:
        coordinates = []
        for size in reversed(self._sizes):
            place, coordinate = divmod(place, size)
            coordinates.append(coordinate)
        return coordinates[::-1]

    def _device(self, coordinates: Sequence[int]) -> int:
        return self._gpus[sum(c * prod(self._sizes[axis + 1 :]) for axis, c in enumerate(coordinates))]

    def _link(self, source: int, target: int) -> int:
        if (source, target) not in self._wires:
            raise SpecError(f"dimension-order routing: no link joins GPU {source} to its neighbour {target}")
        return self._wires[source, target]
