"""Look-up of a large machine's devices and links by name, without generating all names."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import accumulate

import numpy as np

from trine.cluster.tables import DeviceTable, LinkTable, NodeBlock
from trine.common.units import whole_number

#: Maximum number of names to compare: more would take too long.
MAX_COMPARED = 20_000
_NUMBERED = re.compile(r"(node|rack)(\d{1,9})\.(.+)", re.DOTALL)


def device_named(devices: DeviceTable, name: str) -> int | None:
    """Return the number of the device with this name in a machine of nodes, or None."""
    layout = devices.layout
    assert layout is not None
    placed = _placed(layout.blocks, name)
    if placed is not None:
        block, copy, local_name = placed
        for local, device in enumerate(block.node.devices):
            if device.name == local_name:
                return block.device(local, copy)
        return None
    for number in range(layout.fabric_device, len(devices)):
        if devices.names[number] == name:
            return number
    return None


def _placed(blocks: Sequence[NodeBlock], name: str) -> tuple[NodeBlock, int, str] | None:
    """Return (block, node of the block, name inside the node), or None."""
    match = _NUMBERED.fullmatch(name)
    if match is None or (len(match[2]) > 1 and match[2][0] == "0"):
        return None
    number = int(match[2])
    for block in blocks:
        if block.prefix == match[1] and block.first <= number < block.first + block.count:
            return block, number - block.first, match[3]
    return None


def links_named(devices: DeviceTable, links: LinkTable, name: str) -> list[int]:
    """Return the numbers of the links with this name, or else of all links between the two devices in the name."""
    plain, _, number = name.rpartition("#")
    searched = plain if plain and whole_number(number) is not None else name
    ends = [_ends(devices, *searched.split("->", 1))] if "->" in searched else []
    between = [link for pair in ends if pair is not None for link in _between(links, *pair)]
    candidates = [*between, *_own_names(devices, searched)]
    matches = {link for link in candidates if links.names[link] == name or links.names[link].partition("#")[0] == name}
    if not matches:
        for pair in _pairs(devices, name):
            matches.update(_between(links, *pair), _between(links, *reversed(pair)))
    return sorted(matches)


def _ends(devices: DeviceTable, source: str, target: str) -> tuple[int, int] | None:
    a, b = device_named(devices, source), device_named(devices, target)
    return None if a is None or b is None else (a, b)


def _between(links: LinkTable, source: int, target: int) -> list[int]:
    near = links.links_from(source)
    return near[links.target[near] == target].tolist()  # type: ignore[no-any-return]


def _own_names(devices: DeviceTable, name: str) -> list[int]:
    """Return the links of the node that the name begins with: a cluster file may give links any name."""
    layout = devices.layout
    assert layout is not None
    placed = _placed(layout.blocks, name)
    if placed is None:
        return []
    block, copy, _ = placed
    first = block.first_link + copy * len(block.node.links)
    return list(range(first, first + len(block.node.links)))


def _pairs(devices: DeviceTable, name: str) -> list[tuple[int, int]]:
    """Return the pairs of devices that ``a-b`` may mean."""
    cuts = (place - 1 for place in accumulate(len(part) + 1 for part in name.split("-")[:-1]))
    pairs = (_ends(devices, name[:cut], name[cut + 1 :]) for cut in cuts)
    return [pair for pair in pairs if pair is not None]


def likely_names(names: Sequence[str]) -> list[str]:
    """Return the candidates for the nearest name: all names, or :data:`MAX_COMPARED` of them at even intervals."""
    if len(names) <= MAX_COMPARED:
        return list(names)
    return [names[i] for i in np.unique(np.linspace(0, len(names) - 1, MAX_COMPARED).astype(np.int64)).tolist()]
