"""Place of the batch inside a tensor: each dimension is a product of factors, and one factor may be the batch.

A layout has one tuple of factors ``(size, is_batch)`` for each dimension, outermost first. Reshaping cuts the same
sequence of factors at other places, so (B, S, E) -> (B*S, E) -> (B, S, H, E/H) keeps track of B even if another
dimension happens to have the size of the batch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

Factor = tuple[int, bool]
Dimension = tuple[Factor, ...]
Layout = tuple[Dimension, ...]
Shape = tuple[int, ...]


def plain(shape: Iterable[int]) -> Layout:
    """Return a layout without batch."""
    return tuple(((size, False),) for size in shape)


def seeded(shape: Shape, dim: int, batch: int) -> Layout:
    """Return ``shape`` with the batch as the outermost factor of ``dim``, a multiple of ``batch`` in size."""
    rest = shape[dim] // batch
    marked: Dimension = ((batch, True),) if rest == 1 else ((batch, True), (rest, False))
    return tuple(marked if i == dim else ((size, False),) for i, size in enumerate(shape))


def has_batch(dimension: Dimension) -> bool:
    return any(batch for _, batch in dimension)


def batch_dims(layout: Layout) -> tuple[int, ...]:
    """Return the dimensions that scale with the batch."""
    return tuple(i for i, dimension in enumerate(layout) if has_batch(dimension))


def shape_of(layout: Layout) -> Shape:
    return tuple(math.prod(size for size, _ in dimension) for dimension in layout)


def reshape(layout: Layout, shape: Shape) -> Layout | None:
    """Return ``layout`` reshaped to ``shape``; None if the number of elements differs or the factors do not fit."""
    if shape == shape_of(layout):
        return layout
    if math.prod(shape) != math.prod(shape_of(layout)) or 0 in shape:
        return None
    factors = [factor for dimension in layout for factor in dimension if factor != (1, False)]
    factors.reverse()  # the next factor is the last
    result: list[Dimension] = []
    for size in shape:
        taken = _take(factors, size)
        if taken is None:
            return None
        result.append(taken)
    return None if factors else tuple(result)  # leftover: a batch of 1 that no dimension has taken


def _take(factors: list[Factor], size: int) -> Dimension | None:
    """Take factors for one dimension of ``size`` elements from the end of ``factors``, cutting the last if need be.

    Returns None if a factor and the remaining size share no divisor: (6, 10) -> (4, 15) loses track of its dimensions.
    """
    taken: list[Factor] = []
    need = size
    while factors and (need > 1 or (factors[-1] == (1, True) and not taken)):
        factor, is_batch = factors.pop()
        part = math.gcd(factor, need)
        if part == 1 and factor != 1:
            return None
        taken.append((part, is_batch))
        if factor != part:
            # If the batch is cut, trine assumes that the outer part scales, as in (B*T, ...) -> (B, T, ...).
            factors.append((factor // part, False))
        need //= part
    return tuple(taken) if taken else ((size, False),)


def permute(layout: Layout, order: Sequence[int]) -> Layout:
    return tuple(layout[i] for i in order)


def broadcast(layouts: Sequence[Layout], shape: Shape) -> Layout:
    """Combine operands element by element: a dimension has the batch if an operand that spans it has."""
    result: list[Dimension] = []
    for place, size in enumerate(shape):
        from_right = len(shape) - place
        spans = [
            layout[-from_right]
            for layout in layouts
            if from_right <= len(layout) and math.prod(s for s, _ in layout[-from_right]) == size
        ]
        marked = [dimension for dimension in spans if has_batch(dimension)]
        result.append((marked or spans or [((size, False),)])[0])
    return tuple(result)


def head(layout: Layout, count: int, shape: Shape) -> Layout:
    """Return the first ``count`` dimensions of ``layout`` whose sizes match ``shape``, the others without batch."""
    kept = [
        layout[i] if i < min(count, len(layout)) and shape_of(layout[i : i + 1])[0] == size else ((size, False),)
        for i, size in enumerate(shape)
    ]
    return tuple(kept)


class OperatorCall(NamedTuple):
    """One call: layouts of its tensor inputs by position (None: absent), shapes of its outputs, other arguments."""

    inputs: tuple[Layout | None, ...]
    outputs: tuple[Shape | None, ...]
    values: Mapping[str, object]
    batch: int = 1

    def present(self) -> list[Layout]:
        return [layout for layout in self.inputs if layout is not None]

    def integer(self, name: str) -> int | None:
        value = self.values.get(name)
        return value if isinstance(value, int) and not isinstance(value, bool) else None


Result = list[Layout | None]
Rule = Callable[[OperatorCall], Result]


def default(call: OperatorCall) -> Result:
    """Guess layouts by shape: an equal shape, else a reshape, else elementwise, else equal leading dimensions."""
    return [None if shape is None else _by_shape(call.present(), shape) for shape in call.outputs]


def _by_shape(inputs: list[Layout], shape: Shape) -> Layout:
    same = [layout for layout in inputs if shape_of(layout) == shape]
    if same:
        return next((layout for layout in same if any(map(has_batch, layout))), same[0])
    for layout in inputs:
        reshaped = reshape(layout, shape) if len(shape) > 1 or len(layout) > 1 else None
        if reshaped is not None:
            return reshaped
    marked = [layout for layout in inputs if any(map(has_batch, layout))]
    if not marked:
        return plain(shape)
    if len(marked[0]) == len(shape):
        return head(marked[0], len(shape), shape)
    if len(shape) > max(len(layout) for layout in inputs):
        return broadcast(inputs, shape)
    # A lone leading dimension is no evidence: per-channel statistics of C = batch channels look the same.
    return head(marked[0], len(shape), shape) if len(shape) > 1 else plain(shape)
