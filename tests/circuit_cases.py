"""Random graphs of transfers that need circuits, and circuits of all sorts."""

from hypothesis import strategies as st

from trine.cluster import Circuits
from trine.graph.builder import TaskGraphBuilder

MS = 10**9


@st.composite
def circuits(draw):
    return Circuits(
        setup_ps=draw(st.sampled_from((0, 1, 10**6, MS))),
        ports=draw(st.integers(1, 4)),
        bytes_per_s=draw(st.sampled_from((10**9, 333_333_333))),
        latency_ps=draw(st.sampled_from((0, 0, 500, 10**6))),
        buffer_bytes=draw(st.sampled_from((None, None, 1, 1000, 1500, 6000))),
    )


@st.composite
def circuit_graphs(draw, max_ranks=7, max_tasks=50):
    """Mostly transfers between ranks that no links join; some over links, to oneself, empty, and some work."""
    ranks = draw(st.integers(2, max_ranks))
    builder = TaskGraphBuilder([10**9, 3 * 10**8], [0, 10], rank_names=[f"rank {i}" for i in range(ranks)])
    for task in range(draw(st.integers(1, max_tasks))):
        after = sorted(draw(st.sets(st.integers(0, task - 1), max_size=2))) if task else []
        kind = draw(st.sampled_from(("circuit",) * 8 + ("links", "compute", "self")))
        size = draw(st.sampled_from((0, 1, 1000, 1000, 5000)))
        source = draw(st.integers(0, ranks - 1))
        target = (source + draw(st.integers(1, ranks - 1))) % ranks
        if kind == "compute":
            builder.compute(source, "main", draw(st.sampled_from((0, 1, 10**6))), after)
        elif kind == "links":
            builder.transfer(source, target, [draw(st.integers(0, 1))], size, after)
        else:
            builder.transfer(source, source if kind == "self" else target, [], size, after)
    return builder.build()
