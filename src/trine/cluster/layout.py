"""Machines of identical nodes: blocks of nodes, with their devices and links as columns.

A *block* is a run of identical nodes. Device order of a machine: the GPUs of all nodes, node after node, then the
other devices of all nodes in the same way, then the fabric's switches. Link order: all nodes' links, then the fabric's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

import numpy as np

from trine.cluster.names import CopiedNames, JoinedNames
from trine.cluster.parts import GPU, NIC, SCALE_OUT, Link
from trine.cluster.tables import DeviceKind, DeviceTable, LinkedDevices, LinkTable, NodeBlock, NodeLayout, kind_of
from trine.common.arrays import Int32, Int64


def normal(node: LinkedDevices) -> LinkedDevices:
    """Return a node in the form that blocks hold: GPUs first, hosts named by the part after the node's number."""
    hosts = len({node.devices[gpu].node for gpu in node.gpus})
    order = [*node.gpus, *(i for i, device in enumerate(node.devices) if device.kind != GPU)]
    place = {old: new for new, old in enumerate(order)}
    renamed = []
    for device in (node.devices[i] for i in order):
        renamed.append(replace(device, node=f".{device.node}" if hosts > 1 and device.node is not None else ""))
    devices = tuple(renamed)
    links = tuple(replace(link, source=place[link.source], target=place[link.target]) for link in node.links)
    return LinkedDevices(name=node.name, devices=devices, links=links)


@dataclass(frozen=True, kw_only=True)
class NodeRun:
    """``count`` identical consecutive nodes, the input of a block."""

    node: LinkedDevices
    count: int
    joined: frozenset[int]
    prefix: str


def runs_of(nodes: Sequence[LinkedDevices]) -> list[NodeRun]:
    """Return runs of consecutive nodes that are the same object."""
    groups = [list(group) for _, group in groupby(nodes, key=id)]
    normal_of: dict[int, tuple[LinkedDevices, str]] = {}
    for group in groups:
        if id(group[0]) not in normal_of:
            hosts = len({group[0].devices[gpu].node for gpu in group[0].gpus})
            normal_of[id(group[0])] = normal(group[0]), "rack" if hosts > 1 else "node"
    return [
        NodeRun(node=node, count=len(group), joined=nics_of(node), prefix=prefix)
        for group in groups
        for node, prefix in [normal_of[id(group[0])]]
    ]


def nics_of(node: LinkedDevices) -> frozenset[int]:
    """Return all NICs of a node."""
    return frozenset(i for i, device in enumerate(node.devices) if device.kind == NIC)


def blocks_of(runs: Sequence[NodeRun]) -> tuple[NodeBlock, ...]:
    """Return one block per run, with the numbers of its first node, GPU, other device and link."""
    blocks: list[NodeBlock] = []
    first = gpu = link = 0
    other = sum(run.count * len(run.node.gpus) for run in runs)
    for run in runs:
        blocks.append(
            NodeBlock(
                node=run.node, joined=run.joined, prefix=run.prefix, first=first, count=run.count,
                first_gpu=gpu, first_other=other, first_link=link,
            )
        )  # fmt: skip
        first += run.count
        gpu += run.count * len(run.node.gpus)
        other += run.count * (len(run.node.devices) - len(run.node.gpus))
        link += run.count * len(run.node.links)
    return tuple(blocks)


def is_plain(node: LinkedDevices) -> bool:
    """Return whether a node reaches other nodes only through the fabric, and has no scale-out links itself."""
    return not any(link.link_class == SCALE_OUT for link in node.links)


def trimmed(layout: NodeLayout, links: LinkTable, down: Sequence[int]) -> NodeLayout:
    """Return the layout without some links. Nodes that lose links, or whose NICs lose their last link to the fabric,
    become separate blocks; neighbours with the same losses share one.
    """
    down_links = np.array(sorted(down), np.int64)
    lost: dict[tuple[int, int], set[int]] = {}
    for number, block in enumerate(layout.blocks):
        width = max(1, len(block.node.links))
        positions = down_links - block.first_link
        positions = positions[(positions >= 0) & (positions < block.count * len(block.node.links))]
        for copy, local in zip(*(part.tolist() for part in np.divmod(positions, width)), strict=True):
            lost.setdefault((number, copy), set()).add(local)
    cut = _cut_nics(layout, links, down_links)
    runs: list[NodeRun] = []
    for number, block in enumerate(layout.blocks):
        touched = [copy for n, copy in {*lost, *cut} if n == number]
        losses = {copy: (lost.get((number, copy), set()), cut.get((number, copy), set())) for copy in touched}
        runs.extend(_split(block, losses))
    return NodeLayout(
        blocks=blocks_of(runs),
        fabric_device=layout.fabric_device,
        fabric_link=layout.fabric_link - int((down_links < layout.fabric_link).sum()),
        clos=layout.clos,
        trimmed=layout.trimmed or bool((down_links >= layout.fabric_link).any()),
    )


def _cut_nics(layout: NodeLayout, links: LinkTable, down: Int64) -> dict[tuple[int, int], set[int]]:
    """Return (block, node of the block) -> NICs that have lost their last link to the fabric."""
    cut: dict[tuple[int, int], set[int]] = {}
    for device in np.unique(links.source[down[down >= layout.fabric_link]]).tolist():
        out_links = links.links_from(device)
        if np.isin(out_links[out_links >= layout.fabric_link], down).all():
            number, copy, local = (int(part[0]) for part in layout.places(np.array([device])))
            if number >= 0:
                cut.setdefault((number, copy), set()).add(local)
    return cut


def _split(block: NodeBlock, lost: Mapping[int, tuple[set[int], set[int]]]) -> Iterator[NodeRun]:
    """Split a block with damaged nodes (lost links or fabric NICs) into runs of identical nodes."""
    alike: list[tuple[int, int, tuple[set[int], set[int]]]] = []  # first node, number of nodes, losses
    for copy, losses in sorted(lost.items()):
        first, count, last_losses = alike[-1] if alike else (-1, 0, losses)
        if alike and (first + count, last_losses) == (copy, losses):
            alike[-1] = (first, count + 1, losses)
        else:
            alike.append((copy, 1, losses))
    next_node = 0
    for first, count, (links, nics) in alike:
        if first > next_node:
            yield NodeRun(node=block.node, count=first - next_node, joined=block.joined, prefix=block.prefix)
        node = block.node
        if links:
            node = replace(node, links=tuple(link for i, link in enumerate(node.links) if i not in links))
        yield NodeRun(node=node, count=count, joined=block.joined - nics, prefix=block.prefix)
        next_node = first + count
    if next_node < block.count:
        yield NodeRun(node=block.node, count=block.count - next_node, joined=block.joined, prefix=block.prefix)


# -- columns -----------------------------------------------------------------------------------------------------------


def device_columns(blocks: Sequence[NodeBlock], kinds: dict[DeviceKind, int]) -> DeviceTable:
    """Return the devices of all nodes; add new kinds to ``kinds``."""
    parts: list[tuple[list[str], Int32, Int32, NodeBlock]] = []
    first_host = 0
    for gpus in (True, False):
        first_host = 0
        for block in blocks:
            hosts = {name: number for number, name in enumerate(block.hosts)}
            members = [device for device in block.node.devices if (device.kind == GPU) == gpus]
            kind = np.array([kinds.setdefault(kind_of(device), len(kinds)) for device in members], np.int32)
            host = np.array([hosts[device.node or ""] for device in members], np.int32)
            nodes = first_host + np.arange(block.count, dtype=np.int32)[:, None] * len(hosts) + host
            parts.append(([device.name for device in members], np.tile(kind, block.count), nodes.ravel(), block))
            first_host += block.count * len(hosts)
    kind_parts = [part[1] for part in parts]
    node_parts = [part[2] for part in parts]
    name_parts = []
    for names, _, _, each in parts:
        if names:
            name_parts.append(_copied([("", f".{name}") for name in names], each))
    host_parts = []
    for each in blocks:
        host_parts.append(_copied([("", host) for host in each.hosts], each))
    return DeviceTable(
        kinds=tuple(kinds),
        kind=np.concatenate(kind_parts),
        node=np.concatenate(node_parts).astype(np.int32),
        names=JoinedNames(name_parts),
        node_names=JoinedNames(host_parts),
    )


def link_columns(blocks: Sequence[NodeBlock], numbers: dict[Link, int]) -> LinkTable:
    """Return the links inside all nodes; add new link parameters to ``numbers``."""
    number, source, target, names = [], [], [], []
    for block in blocks:
        table = LinkTable.of(block.node.links)
        codes = np.array([numbers.setdefault(each, len(numbers)) for each in table.numbers], np.int32)
        copy = np.arange(block.count)[:, None]
        number.append(np.tile(codes[table.number] if len(table) else table.number, block.count))
        source.append(block.devices(table.source.astype(np.int64), copy).astype(np.int32).ravel())
        target.append(block.devices(table.target.astype(np.int64), copy).astype(np.int32).ravel())
        names.append(_copied([_pattern(link) for link in block.node.links], block))
    return LinkTable(
        numbers=tuple(numbers), number=np.concatenate(number), source=np.concatenate(source),
        target=np.concatenate(target), names=JoinedNames(names),
    )  # fmt: skip


def _copied(patterns: Sequence[tuple[str, ...]], block: NodeBlock) -> CopiedNames:
    return CopiedNames(patterns, block.prefix, block.first, block.count)


def _pattern(link: Link) -> tuple[str, ...]:
    source, arrow, target = link.name.partition("->")
    return ("", f".{source}->", f".{target}") if arrow else ("", f".{source}")
