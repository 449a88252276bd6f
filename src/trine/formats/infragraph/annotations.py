"""InfraGraph's annotations:

``rank`` orders the GPUs; trine lists all unused annotations in the notes.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from trine.cluster.parts import GPU, Device
from trine.common.spec import check, load_mapping
from trine.common.units import whole_number
from trine.errors import SpecError, nearest
from trine.formats.reader import Cable

if TYPE_CHECKING:
    from trine.formats.infragraph.expand import Expanded
    from trine.formats.infragraph.schema import AnnotationFile


_STEP = re.compile(r"([^\[\].]+)(?:\[([^\[\]]*)\])?")
_MAX_MATCHES = 1 << 20


def read_annotations(path: str | os.PathLike[str], data: object = None) -> tuple[AnnotationFile, str]:
    """Return the annotations of a file, or of plain data from it, and the file's name."""
    from trine.formats.infragraph.schema import AnnotationFile

    return check(AnnotationFile, load_mapping(path) if data is None else data, path), os.fspath(path)


class Annotated(NamedTuple):
    """Devices in the order of their ranks, the cables between them, and a note on each unused attribute."""

    devices: list[Device]
    cables: list[Cable]
    unused: list[str]


def apply_annotations(
    spec: AnnotationFile, file: str, expanded: Expanded, devices: Sequence[Device], wires: Sequence[Cable]
) -> Annotated:
    """Sort the GPUs by their ``rank``.

    Raises SpecError: an annotation of a missing node, or ranks that do not number all GPUs from 0.
    """
    index = {name: i for i, name in enumerate(expanded.names)}
    ranks: dict[int, int] = {}
    for number, note in enumerate(spec.nodes):
        matches = _matches(note.name, index, expanded, file, f"nodes[{number}].name")
        for attribute in note.attributes:
            if attribute.attribute == "rank":
                for match in matches:
                    ranks[match] = _rank(attribute.value, file, f"nodes[{number}]")
    unused = [f"unused annotation {text}" for text in _unused(spec)]
    if not ranks:
        return Annotated(list(devices), list(wires), unused)
    order = _order(ranks, devices, file)
    position = {old: new for new, old in enumerate(order)}
    moved_wires = [wire._replace(a=position[wire.a], b=position[wire.b]) for wire in wires]
    return Annotated([devices[old] for old in order], moved_wires, unused)


def _rank(text: str, file: str, field: str) -> int:
    rank = whole_number(text, most=10**9)
    if rank is None:
        raise SpecError(f"a rank is a whole number from 0, got {text[:80]!r}", file=file, field=field)
    return rank


def _order(ranks: dict[int, int], devices: Sequence[Device], file: str) -> list[int]:
    """Return device indices, with the GPUs sorted by rank in the places of GPUs."""
    gpus = [i for i, device in enumerate(devices) if device.kind == GPU]
    for index in ranks:
        if devices[index].kind != GPU:
            raise SpecError(f"{devices[index].name!r} has a rank, but is not a GPU", file=file)
    without = next((devices[gpu].name for gpu in gpus if gpu not in ranks), None)
    if without is not None:
        raise SpecError(f"GPU {without!r} has no rank, but others have", file=file)
    if sorted(ranks.values()) != list(range(len(gpus))):
        raise SpecError(f"the ranks of {len(gpus)} GPUs must be 0 to {len(gpus) - 1}, each once", file=file)
    order = list(range(len(devices)))
    for place, gpu in zip(gpus, sorted(gpus, key=ranks.__getitem__), strict=True):
        order[place] = gpu
    return order


def _unused(spec: AnnotationFile) -> list[str]:
    """Return ``'peak_bf16_tflops' of nodes (16 entries)`` and so on, one per attribute name and kind of carrier."""
    counts = Counter(("nodes", each.attribute) for note in spec.nodes for each in note.attributes)
    counts.update(("edges", each.attribute) for note in spec.edges for each in note.attributes)
    counts.update(("links", each.attribute) for note in spec.links for each in note.attributes)
    counts.update(("the graph", each.attribute) for each in spec.graph)
    del counts["nodes", "rank"]
    return [f"{name!r} of {carrier} ({count} entries)" for (carrier, name), count in counts.items()]


def _matches(text: str, index: dict[str, int], expanded: Expanded, file: str, field: str) -> list[int]:
    """Return node indices of ``node.0.xpu.3``, of ``node[:]xpu[0:4]``, or of all nodes below ``node.0``."""
    indices: list[int] = []
    for name in [text] if text in index else _written_out(text, expanded, file, field):
        if name in index:
            indices.append(index[name])
            continue
        below = [i for other, i in index.items() if other.startswith(f"{name}.")]
        if not below:
            raise SpecError(f"there is no node {name!r}{nearest(name, index)}", file=file, field=field)
        indices.extend(below)
    return indices


def _written_out(text: str, expanded: Expanded, file: str, field: str) -> list[str]:
    """Expand a text with slices into names; open ends reach to the last existing index."""
    steps = list(_STEP.finditer(text))
    if "[" not in text:
        return [text]
    if "".join(step[0] for step in steps) != text.replace(".", ""):
        raise SpecError(f"cannot read {text!r}; write 'node[0:2]xpu[:]'", file=file, field=field)
    names = [""]
    for step in steps:
        if step[2] is None:
            below = []
            for name in names:
                below.append(f"{name}.{step[1]}" if name else step[1])
            names = below
            continue
        grown: list[str] = []
        for name in names:
            stem = f"{name}.{step[1]}" if name else step[1]
            count = _count(stem, expanded)
            if not count:
                raise SpecError(f"{text!r}: there is no node {stem!r}", file=file, field=field)
            grown.extend(f"{stem}.{i}" for i in _picked(step[2], count, file, field))
        names = grown
        if len(names) > _MAX_MATCHES:
            raise SpecError(f"stands for more than {_MAX_MATCHES} nodes", file=file, field=field)
    return names


def _count(stem: str, expanded: Expanded) -> int:
    """Return the number of nodes ``stem.0``, ``stem.1``, ..."""
    depth, prefix = stem.count(".") + 1, f"{stem}."
    return len({name.split(".")[depth] for name in expanded.names if name.startswith(prefix)})


def _picked(text: str, count: int, file: str, field: str) -> Sequence[int]:
    try:
        numbers = []
        for part in text.split(":"):
            numbers.append(int(part) if part.strip() else None)
        if len(numbers) == 1:
            return range(count) if numbers[0] is None else [range(count)[numbers[0]]]
        return range(count)[slice(*numbers)]
    except (ValueError, IndexError, TypeError):
        message = f"cannot read the index [{text}], or it is outside of {count}"
        raise SpecError(message, file=file, field=field) from None
