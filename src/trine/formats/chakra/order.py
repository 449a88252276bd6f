"""The nodes of a trace in an order that respects their dependencies."""

from __future__ import annotations

import heapq
from collections.abc import Mapping

from trine.errors import TraceError
from trine.formats.chakra.messages import RawNode, TraceFile


def in_order(file: TraceFile) -> list[RawNode]:
    """Nodes after what they depend on, of those that could come next always the one with the least id.

    Raises
    ------
    TraceError: a dependency on a node that is not there, or in a circle; names the nodes.
    """
    by_id = {node.id: node for node in file.nodes}
    waits: dict[int, int] = {}
    followers: dict[int, list[int]] = {}
    for node in file.nodes:
        waits[node.id] = len(node.deps)
        for dep in node.deps:
            if dep not in by_id:
                raise TraceError(f"node {node.id} depends on node {dep}, which is not there", file=file.path)
            followers.setdefault(dep, []).append(node.id)
    ready = [number for number, count in waits.items() if not count]
    heapq.heapify(ready)
    order: list[RawNode] = []
    while ready:
        number = heapq.heappop(ready)
        order.append(by_id[number])
        for follower in followers.get(number, ()):
            waits[follower] -= 1
            if not waits[follower]:
                heapq.heappush(ready, follower)
    if len(order) < len(by_id):
        raise TraceError(f"nodes depend on each other in a circle: {_cycle(by_id, waits)}", file=file.path)
    return order


def _cycle(by_id: Mapping[int, RawNode], waits: Mapping[int, int]) -> str:
    """The first circle among the nodes that still wait."""
    path: dict[int, int] = {}
    number = min(number for number, count in waits.items() if count)
    while number not in path:
        path[number] = len(path)
        number = next(dep for dep in by_id[number].deps if waits[dep])
    circle = [*list(path)[path[number] :], number]
    return " after ".join(map(str, circle[:12])) + (" ..." if len(circle) > 12 else "")
