"""The rank grid: from a rank's coordinates on the axes to its number and back, and the groups along an axis."""

from __future__ import annotations

from collections.abc import Sequence

from trine.model.program import Peer


class RankGrid:
    """Ranks numbered with the first axis fastest: rank = sum of coordinate x stride."""

    def __init__(self, axes: Sequence[tuple[str, int]]) -> None:
        self.sizes = dict(axes)
        self.strides: dict[str, int] = {}
        stride = 1
        for name, size in axes:
            self.strides[name] = stride
            stride *= size
        self.num_ranks = stride

    def coordinate(self, rank: int, axis: str) -> int:
        """Position of ``rank`` along ``axis``."""
        return rank // self.strides[axis] % self.sizes[axis]

    def resolve(self, rank: int, peer: Peer) -> int:
        """The rank that ``peer`` means when ``rank`` says it."""
        return rank + (peer.position - self.coordinate(rank, peer.axis)) * self.strides[peer.axis]

    def group(self, rank: int, axis: str) -> tuple[int, ...]:
        """Ranks of the group of ``rank`` along ``axis``, by position."""
        first = rank - self.coordinate(rank, axis) * self.strides[axis]
        return tuple(first + i * self.strides[axis] for i in range(self.sizes[axis]))

    def groups(self, axis: str) -> list[tuple[int, ...]]:
        """All groups along ``axis``, by their first rank."""
        return [self.group(rank, axis) for rank in range(self.num_ranks) if self.coordinate(rank, axis) == 0]
