"""Are routes those of an exhaustive search over all simple paths?"""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from trine.cluster.routes import Routes

Links = list[tuple[int, int, int]]


def best_path(
    forwards: list[bool], links: Links, source: int, targets: list[int]
) -> tuple[int, int, tuple[int, ...], int] | None:
    """Least (latency, links, link indices, target) over every simple path through forwarding devices."""
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


@settings(max_examples=150, deadline=None)
@given(platforms(), st.data())
def test_routes_are_the_shortest(platform: tuple[list[bool], Links], data: st.DataObject) -> None:
    forwards, links = platform
    routes = Routes(forwards, links)
    devices = range(len(forwards))
    asked = data.draw(st.lists(st.tuples(st.sampled_from(devices), st.sampled_from(devices)), min_size=1, max_size=8))
    for source, target in asked:  # in any order: a search that stopped early goes on
        if source != target:
            best = best_path(forwards, links, source, [target])
            assert routes.route(source, target) == (None if best is None else best[2])
            others = [device for device in devices if device != source and device % 2]
            best = best_path(forwards, links, source, others)
            assert routes.nearest_of(source, others) == (None if best is None else best[3])
        else:
            assert routes.route(source, target) == ()
