"""Rules for calls that move, cut, join or reduce dimensions without computing along them."""

from __future__ import annotations

import math

from trine.workload.layout import Dimension, broadcast, has_batch, head, permute, plain, reshape, seeded, shape_of
from trine.workload.site import Result, Site


def reduction(site: Site) -> Result:
    """Remove the reduced dimensions. Without their numbers, only those that become 1 are known."""
    data, shape = site.inputs[0], site.outputs[0]
    if data is None or shape is None:
        return [None]
    if not shape:
        return [()] * len(site.outputs)
    if len(shape) == len(data):
        layout = head(data, len(shape), shape)
    else:
        given = site.values.get("dim")
        dims = [given] if isinstance(given, int) else list(given) if isinstance(given, tuple | list) else []
        reduced = {d % len(data) for d in dims if isinstance(d, int)}
        kept = tuple(dimension for i, dimension in enumerate(data) if i not in reduced)
        layout = kept if reduced and shape_of(kept) == shape else plain(shape)
    return [layout if s == shape else None for s in site.outputs]


def concatenate(site: Site) -> Result:
    """Along ``dim`` the factors stay if every part has the batch there; the other dimensions are those of the parts."""
    present, shape = site.present(), site.outputs[0]
    parts = [layout for layout in present if shape is not None and len(layout) == len(shape)]
    if not parts or shape is None:
        return [None]
    result: list[Dimension] = []
    for i, size in enumerate(shape):
        of_parts = [layout[i] for layout in parts]
        marked = next((d for d in of_parts if has_batch(d)), None)
        if marked is None:
            result.append(((size, False),))
        elif math.prod(s for s, _ in marked) == size:
            result.append(marked)
        else:
            batch = math.prod(s for s, is_batch in marked if is_batch)
            whole = size % batch == 0
            result.append(((size // batch, False), (batch, True)) if whole else ((size, True),))
    return [tuple(result)]


def stack(site: Site) -> Result:
    present, shape = site.present(), site.outputs[0]
    dim = site.integer("dim")
    if not present or shape is None or dim is None:
        return [None]
    place = dim % len(shape)
    return [(*present[0][:place], ((shape[place], False),), *present[0][place:])]


def transpose(site: Site) -> Result:
    data, shape = site.inputs[0], site.outputs[0]
    if data is None or shape is None or len(data) != len(shape):
        return [None]
    first, second = site.integer("dim0"), site.integer("dim1")
    if first is None or second is None:  # aten::t
        first, second = 0, len(data) - 1
    order = list(range(len(data)))
    if order:
        order[first], order[second] = order[second], order[first]
    return [permute(data, order)]


def permute_dims(site: Site) -> Result:
    data, dims = site.inputs[0], site.values.get("dims")
    if data is None or not isinstance(dims, tuple | list) or len(dims) != len(data):
        return [None]
    return [permute(data, [d for d in dims if isinstance(d, int)])]


def select(site: Site) -> Result:
    """Drop ``dim``; every output of unbind drops the same."""
    data, dim = site.inputs[0], site.integer("dim")
    if data is None or dim is None or not data:
        return [None] * len(site.outputs)
    place = dim % len(data)
    return [(*data[:place], *data[place + 1 :])] * len(site.outputs)


def index_select(site: Site) -> Result:
    """(self, index): dimension ``dim`` becomes the index's."""
    dim, shape = site.integer("dim"), site.outputs[0]
    if len(site.inputs) < 2 or (data := site.inputs[0]) is None or (index := site.inputs[1]) is None or dim is None:
        return [None]
    place = dim % len(data) if data else 0
    layout = (*data[:place], *index, *data[place + 1 :])
    return [layout if shape == shape_of(layout) else None]


def expand(site: Site) -> Result:
    """A first dimension that becomes as large as the batch is the batch: (1, 1, E) -> (B, 1, E)."""
    data, shape = site.inputs[0], site.outputs[0]
    if data is None or shape is None:
        return [None]
    layout = broadcast([data], shape)
    grown = len(shape) > len(data) or (len(data) > 0 and shape_of(data[:1]) == (1,))
    if shape and grown and shape[0] == site.batch > 1 and not any(map(has_batch, data)):
        return [seeded(shape, 0, site.batch)]
    return [layout]


def copy(site: Site) -> Result:
    """(self, src) -> self, which now holds src."""
    source, shape = site.inputs[1] if len(site.inputs) > 1 else None, site.outputs[0]
    return [None if source is None or shape is None else broadcast([source], shape)]


def view(site: Site) -> Result:
    data = site.inputs[0]
    return [None if s is None or data is None else reshape(data, s) for s in site.outputs]


def part(site: Site) -> Result:
    """Slices: dimensions that keep their size keep the batch."""
    data = site.inputs[0]
    return [None if s is None or data is None or len(s) != len(data) else head(data, len(s), s) for s in site.outputs]
