"""One call as the rules see it, and the rule for kinds that have none."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from trine.workload.layout import Layout, Shape, broadcast, has_batch, head, plain, reshape, shape_of


class Site(NamedTuple):
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
Rule = Callable[[Site], Result]


def default(site: Site) -> Result:
    """By shapes: the same shape, else a reshape, else element by element, else equal leading dimensions."""
    return [None if shape is None else _by_shape(site.present(), shape) for shape in site.outputs]


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
    # A lone leading dimension says nothing: per-channel statistics of C = batch channels look like it.
    return head(marked[0], len(shape), shape) if len(shape) > 1 else plain(shape)
