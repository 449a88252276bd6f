"""What makes a cluster the same one: a hash of everything in it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from trine.cluster.tables import DeviceTable, LinkTable
from trine.cluster.written import header, plain_names

if TYPE_CHECKING:
    from trine.cluster.data import ClusterData


def fingerprint(cluster: ClusterData) -> str:
    """SHA-256 of everything in the cluster: the same for columns and for tuples of the same devices and links.

    Links named after their ends are hashed by their ends; the names of all others are hashed too.
    """
    digest = hashlib.sha256()

    def add(what: object) -> None:
        digest.update(json.dumps(what, sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode())

    devices, links = cluster.device_table, cluster.link_table
    add(header(cluster))
    digest.update("\0".join(devices.names).encode())
    _add_coded(digest.update, add, devices.kind, devices.kinds)
    nodes, node = _in_order(np.where(devices.node < 0, len(devices.node_names), devices.node))
    add([devices.node_names[i] if i < len(devices.node_names) else None for i in nodes])
    digest.update(node)
    said = [(k.bytes_per_s, k.latency_ps, k.link_class, k.medium, k.peak_bytes_per_s) for k in links.numbers]
    _add_coded(digest.update, add, links.number, said)
    digest.update(links.source.astype("<i4").tobytes() + links.target.astype("<i4").tobytes())
    for own in _own_names(cluster, devices, links):
        add(own)
    return digest.hexdigest()


def _add_coded(update: Any, add: Any, codes: npt.NDArray[np.int32], meaning: Sequence[object]) -> None:
    """What each code means, in the order in which they occur, and the codes so numbered."""
    order, numbered = _in_order(codes)
    add([meaning[code] for code in order])
    update(numbered)


def _in_order(codes: npt.NDArray[np.int32]) -> tuple[list[int], bytes]:
    """The codes that occur, first ones first, and each entry as its position among those."""
    values, first, which = np.unique(codes, return_index=True, return_inverse=True)
    order = np.argsort(first)
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    return values[order].tolist(), rank[which].astype("<i4").tobytes()


def _own_names(cluster: ClusterData, devices: DeviceTable, links: LinkTable) -> Iterator[tuple[int, str]]:
    """(number, name) of the links that are not named after their ends."""
    layout = devices.layout
    if layout is None or layout is not links.layout or layout.trimmed:
        plain = plain_names(cluster)
        yield from ((i, name) for i, name in enumerate(links.names) if name != plain[i])
        return
    for block in layout.blocks:
        plain = plain_names(block.node)
        arrows = any("->" in device.name for device in block.node.devices)
        own = [i for i, name in enumerate(block.node.link_names) if arrows or name != plain[i]]
        for copy in range(block.count) if own else ():
            first = block.first_link + copy * len(plain)
            yield from ((first + i, links.names[first + i]) for i in own)
