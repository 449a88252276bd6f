"""Does a cluster route by the nearest class of links, then the least latency? Compared with all simple paths."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trine.cluster import Cluster, Device, Link
from trine.cluster.parts import LINK_CLASSES
from trine.errors import SpecError


@st.composite
def clusters(draw: st.DrawFn) -> Cluster:
    count = draw(st.integers(2, 5))
    devices = tuple(
        Device(name=f"d{i}", kind=draw(st.sampled_from(["gpu", "switch", "host"])), forwards=draw(st.booleans()))
        for i in range(count)
    )
    number = st.integers(0, count - 1)
    ends = draw(st.lists(st.tuples(number, number, st.integers(0, 2), st.sampled_from(LINK_CLASSES)), max_size=12))
    return Cluster(
        name="random",
        devices=devices,
        links=tuple(
            Link(name=f"l{i}", source=a, target=b, bytes_per_s=1, latency_ps=ps, link_class=link_class)
            for i, (a, b, ps, link_class) in enumerate(end for end in ends if end[0] != end[1])
        ),
    )


def all_paths(cluster: Cluster, source: int, target: int) -> list[tuple[int, ...]]:
    found: list[tuple[int, ...]] = []

    def walk(device: int, seen: tuple[int, ...], path: tuple[int, ...]) -> None:
        if device == target:
            found.append(path)
        elif device == source or cluster.devices[device].forwards:
            for index, link in enumerate(cluster.links):
                if link.source == device and link.target not in seen:
                    walk(link.target, (*seen, link.target), (*path, index))

    walk(source, (source,), ())
    return found


@settings(max_examples=200, deadline=None)
@given(clusters(), st.data())
def test_routes_are_the_nearest_then_the_shortest(cluster: Cluster, data: st.DataObject) -> None:
    source, target = data.draw(st.permutations(range(len(cluster.devices))))[:2]

    def key(path: tuple[int, ...]) -> tuple[int, int, int, tuple[int, ...]]:
        links = [cluster.links[link] for link in path]
        farthest = max(LINK_CLASSES.index(link.link_class) for link in links)
        return farthest, sum(link.latency_ps for link in links), len(path), path

    best = min(all_paths(cluster, source, target), key=key, default=None)
    if best is None:
        with pytest.raises(SpecError, match="has no route"):
            cluster.route(source, target)
    else:
        assert cluster.route(source, target) == best
