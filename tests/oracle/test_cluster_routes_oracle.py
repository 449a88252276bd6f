"""Do routes match an exhaustive search over all simple paths?"""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from trine.cluster.routing.shortest import ShortestRoutes

Links = list[tuple[int, int, int]]


def best_path(
    forwards: list[bool], links: Links, source: int, targets: list[int]
) -> tuple[int, int, tuple[int, ...], int] | None:
    """Return the least (latency, links, link indices, target) over all simple paths through forwarding devices."""
    found = []

    def walk(device: int, seen: tuple[int, ...], path: tuple[int, ...], latency: int) -> None:
        if device in targets:
            found.append((latency, len(path), path, device))
        if device != source and not forwards[device]:
            return
        for index, (a, b, ps) in enumerate(links):
            if a == device and b not in seen:
                walk(b, (*seen, b), (*path, index), latency + ps)

    walk(source, (source,), (), 0)
    return min(found, default=None)


@st.composite
def platforms(draw: st.DrawFn) -> tuple[list[bool], Links]:
    count = draw(st.integers(2, 6))
    forwards = draw(st.lists(st.booleans(), min_size=count, max_size=count))
    ends = st.tuples(st.integers(0, count - 1), st.integers(0, count - 1), st.integers(0, 2)).filter(
        lambda w: w[0] != w[1]
    )
    return forwards, draw(st.lists(ends, max_size=14))


def made(forwards: list[bool], links: Links) -> ShortestRoutes:
    return ShortestRoutes(forwards, [(index, *link) for index, link in enumerate(links)])


@settings(max_examples=150, deadline=None)
@given(platforms(), st.data())
def test_routes_are_the_shortest(platform: tuple[list[bool], Links], data: st.DataObject) -> None:
    forwards, links = platform
    routes = made(forwards, links)
    devices = range(len(forwards))
    asked = data.draw(st.lists(st.tuples(st.sampled_from(devices), st.sampled_from(devices)), min_size=1, max_size=8))
    for source, target in asked:  # in any order: a search that stopped early resumes
        if source != target:
            best = best_path(forwards, links, source, [target])
            assert routes.route(source, target) == (None if best is None else best[2])
            others = [device for device in devices if device != source and device % 2]
            best = best_path(forwards, links, source, others)
            assert routes.nearest_of(source, others) == (None if best is None else best[3])
        else:
            assert routes.route(source, target) == ()


def shortest_paths(forwards: list[bool], links: Links, source: int, target: int) -> list[tuple[int, ...]]:
    """Return all simple paths of the least (latency, links), using only the fastest of parallel links."""
    found: list[tuple[int, int, tuple[int, ...]]] = []

    def walk(device: int, seen: tuple[int, ...], path: tuple[int, ...], latency: int) -> None:
        if device == target:
            found.append((latency, len(path), path))
            return
        if device != source and not forwards[device]:
            return
        for index, (a, b, ps) in enumerate(links):
            if a == device and b not in seen:
                walk(b, (*seen, b), (*path, index), latency + ps)

    walk(source, (source,), (), 0)
    best = min((each[:2] for each in found), default=None)
    return sorted(path for latency, count, path in found if (latency, count) == best)


@settings(max_examples=150, deadline=None)
@given(platforms(), st.data())
def test_ties_are_all_found_and_divided_evenly(platform: tuple[list[bool], Links], data: st.DataObject) -> None:
    forwards, links = platform
    routes = made(forwards, links)
    devices = range(len(forwards))
    asked = data.draw(st.lists(st.tuples(st.sampled_from(devices), st.sampled_from(devices)), min_size=1, max_size=8))
    for source, target in asked:
        if source == target:
            continue
        expected = shortest_paths(forwards, links, source, target)
        parts = dict(routes.split(source, target, 1000))
        assert sorted(parts) == expected
        for path, part in parts.items():  # at each device, the next links of shortest paths share evenly
            even = 1.0
            for step in range(len(path)):
                even /= len({other[step] for other in expected if other[:step] == path[:step]})
            assert part == even
        for choice in range(3):
            one = routes.one_of(source, target, lambda device, number, choice=choice: (device + choice) % number)
            assert (one is None) == (not expected)
            assert one is None or one in expected


@settings(max_examples=100, deadline=None)
@given(platforms(), st.data())
def test_all_the_nearest_are_found(platform: tuple[list[bool], Links], data: st.DataObject) -> None:
    forwards, links = platform
    devices = range(len(forwards))
    source = data.draw(st.sampled_from(devices))
    targets = [device for device in devices if device != source]
    best = {target: best_path(forwards, links, source, [target]) for target in targets}
    costs = {target: found[:2] for target, found in best.items() if found is not None}
    expected = tuple(target for target in targets if target in costs and costs[target] == min(costs.values()))
    assert made(forwards, links).all_nearest(source, targets) == expected
