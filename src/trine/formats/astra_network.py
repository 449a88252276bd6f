"""Network files of ASTRA-sim's analytical backends: dimensions of rings, switches and full meshes, as clusters.

The file has ``topology``, ``npus_count``, ``bandwidth`` (GB/s) and ``latency`` (ns), each a list with an entry per
dimension. NPUs are numbered with the first dimension fastest (ASTRA-sim 2, examples/network/analytical).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import combinations, pairwise
from math import prod
from pathlib import Path

from trine.cluster.cluster import Cluster
from trine.cluster.parts import GPU, SCALE_OUT, SCALE_UP, SWITCH, Device, Link
from trine.common.schema import show
from trine.common.units import format_bandwidth
from trine.errors import SpecError, nearest
from trine.formats.media import check_links_from
from trine.formats.reader import MAX_DEVICES, MAX_WIRES, TopologyBuilder, assemble, gpu_named

RING, SWITCHED, FULL = "Ring", "Switch", "FullyConnected"
_KEYS = ("topology", "npus_count", "bandwidth", "latency")
MAX_DIMENSIONS = 8
#: Bounds of a bandwidth in GB/s and of a latency in ns.
_MAX_GBPS, _MAX_NS = 10.0**6, 10.0**9


def astra_cluster(
    data: object, file: str, gpu: str | None = None, links: Mapping[str, str] | None = None,
    links_from: str | None = None,
) -> Cluster:  # fmt: skip
    """Read a network file of ASTRA-sim. GPUs that differ only in the first dimension are a node.

    gpu: the GPU model, which the file does not name. links: none are possible, since the file has all numbers.

    Raises SpecError: an unknown or missing field, an unknown topology, lists of different lengths, or numbers outside
    their range; names field and value.
    """
    check_links_from(links_from)
    if links:
        raise SpecError("a network file of ASTRA-sim has its own numbers: leave --link out", file=file)
    if not isinstance(data, dict):
        raise SpecError(f"must be a mapping, got {show(data)}", file=file)
    for key in data:
        if key not in _KEYS:
            raise SpecError(f"unknown key {show(key)}{nearest(str(key), _KEYS)}", file=file)
    kinds = [_kind(entry, file) for entry in _entries(data, "topology", file)]
    counts = [_count(entry, file) for entry in _entries(data, "npus_count", file, len(kinds))]
    gb_per_s = _numbers(data, "bandwidth", file, len(kinds), 1e-6, _MAX_GBPS)
    ns = _numbers(data, "latency", file, len(kinds), 0, _MAX_NS)
    if prod(counts) > MAX_DEVICES:
        raise SpecError(f"has {prod(counts)} NPUs, the most are {MAX_DEVICES}", file=file, field="npus_count")
    classes = [SCALE_UP] + [SCALE_OUT] * (len(kinds) - 1)
    rates = [
        Link(bytes_per_s=round(bandwidth * 1e9), latency_ps=round(latency * 1000), link_class=link_class)
        for bandwidth, latency, link_class in zip(gb_per_s, ns, classes, strict=True)
    ]
    return _network(kinds, counts, rates, gpu_named(gpu), file)


def _network(kinds: list[str], counts: list[int], rates: list[Link], gpu: str | None, file: str) -> Cluster:
    draft = TopologyBuilder(file)
    several = len(counts) > 1
    for number in range(prod(counts)):
        node = f"node{number // counts[0]}" if several else "node0"
        draft.add(Device(name=f"gpu{number}", kind=GPU, gpu=gpu, node=node))
    for dimension, (kind, count, link) in enumerate(zip(kinds, counts, rates, strict=True)):
        stride = prod(counts[:dimension])
        for first in range(prod(counts) if count > 1 else 0):
            if first // stride % count:
                continue
            members = [first + i * stride for i in range(count)]
            if kind == SWITCHED:
                inside = draft.devices[first].node if dimension == 0 else None
                name = f"switch{len(draft.devices) - prod(counts)}"
                switch = draft.add(Device(name=name, kind=SWITCH, node=inside, forwards=True))
            if kind == SWITCHED:
                pairs = [(member, switch) for member in members]
            else:
                pairs = _pairs(kind, members, file)
            for a, b in pairs:
                draft.join(a, b, link)
    shape = " x ".join(f"{kind} of {count}" for kind, count in zip(kinds, counts, strict=True))
    seen = ", ".join(format_bandwidth(round(link.bytes_per_s * 2**30 / 1e9)) for link in rates)
    notes = [f"ASTRA-sim reads its GB/s as GiB/s, and so simulates links of {seen}"]
    cluster = assemble(
        Path(file).stem, draft.devices, draft.wires, file=file, notes=notes,
        sources={"structure": f"{Path(file).name}, a network file of ASTRA-sim: {shape}",
                 "links": "bandwidth (GB/s) and latency (ns) of each link and direction, from the file"},
    )  # fmt: skip
    is_torus = several and set(kinds) == {RING}
    return replace(cluster, grid=tuple(reversed(counts))) if is_torus else cluster


def _pairs(kind: str, members: list[int], file: str) -> list[tuple[int, int]]:
    """Return the joined pairs of a ring or a full mesh; a ring of two has one link."""
    if kind == RING:
        return list(pairwise(members)) + [(members[-1], members[0])] * (len(members) > 2)
    if len(members) ** 2 > 2 * MAX_WIRES:
        raise SpecError(f"a full mesh of {len(members)} has more than {MAX_WIRES} links", file=file)
    return list(combinations(members, 2))


def _entries(data: Mapping[str, object], key: str, file: str, length: int | None = None) -> list[object]:
    """Return the list of a field, with an entry per dimension; a lone value counts as a list of one."""
    if key not in data:
        raise SpecError("is missing", file=file, field=key)
    value = data[key]
    entries = value if isinstance(value, list) else [value]
    if not 1 <= len(entries) <= MAX_DIMENSIONS:
        raise SpecError(f"must have 1 to {MAX_DIMENSIONS} entries, got {len(entries)}", file=file, field=key)
    if length is not None and len(entries) != length:
        raise SpecError(f"has {len(entries)} entries, but there are {length} dimensions", file=file, field=key)
    return entries


def _kind(entry: object, file: str) -> str:
    kinds = {"ring": RING, "switch": SWITCHED, "fullyconnected": FULL}
    if str(entry).lower() not in kinds:
        hint = nearest(str(entry)[:40], (RING, SWITCHED, FULL))
        raise SpecError(f"unknown topology {show(entry)}{hint}", file=file, field="topology")
    return kinds[str(entry).lower()]


def _count(entry: object, file: str) -> int:
    if not isinstance(entry, int) or isinstance(entry, bool) or not 1 <= entry <= MAX_DEVICES:
        message = f"must be a whole number from 1 to {MAX_DEVICES}, got {show(entry)}"
        raise SpecError(message, file=file, field="npus_count")
    return entry


def _numbers(data: Mapping[str, object], key: str, file: str, length: int, least: float, most: float) -> list[float]:
    numbers = []
    for entry in _entries(data, key, file, length):
        if not isinstance(entry, int | float) or isinstance(entry, bool) or not least <= entry <= most:
            raise SpecError(f"must be a number from {least:g} to {most:g}, got {show(entry)}", file=file, field=key)
        numbers.append(float(entry))
    return numbers
