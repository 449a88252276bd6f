"""Schedules for tests, and their task graphs on a network with a separate link for each pair of ranks."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from trine.collectives import known_algorithms, known_kinds, make_schedule
from trine.collectives.expand import expand
from trine.collectives.schedule import ROOTED, Schedule
from trine.common.arrays import Int64
from trine.engine import run
from trine.graph.assembler import no_labels
from trine.graph.taskgraph import TRANSFER, TaskGraph

CASES = [(kind, name) for kind in known_kinds() for name in known_algorithms(kind)]
WITH_PARAMETERS = [
    *CASES,
    ("all_reduce", "ring:3"),
    ("reduce_scatter", "ring:2"),
    ("all_gather", "ring:4"),
    ("all_reduce", "tree:5"),
    ("all_reduce", "double-binary-tree:3"),
    ("all_reduce", "hierarchical:inner=ring:outer=double-binary-tree"),
    ("all_reduce", "hierarchical:outer=halving-doubling"),
    ("all_reduce", "hierarchical:outer=direct"),
    ("reduce_scatter", "hierarchical:outer=pat"),
    ("reduce_scatter", "hierarchical:inner=pat:outer=pat"),
    ("all_gather", "hierarchical:inner=pat:outer=bruck"),
    ("all_reduce", "nvls:4"),
    ("all_gather", "nvls:3"),
    ("all_reduce", "sharp:3:chunks=2"),
]


def schedule_of(case: tuple[str, str], num_ranks: int, size_bytes: int = 1000, root: int = 0) -> Schedule:
    kind, algorithm = case
    return make_schedule(kind, num_ranks, size_bytes, algorithm, root if kind in ROOTED else -1)


@lru_cache(maxsize=1)
def _links(positions: int, bytes_per_s: int, latency_ps: int) -> dict[str, object]:
    """Return network columns with one link per ordered pair of positions: link and route a * positions + b."""
    pairs = positions * positions
    return {
        "route_ptr": np.arange(pairs + 1),
        "route_links": np.arange(pairs, dtype=np.int32),
        "route_latency_ps": np.full(pairs, latency_ps),
        "link_bytes_per_s": np.full(pairs, bytes_per_s),
        "link_latency_ps": np.full(pairs, latency_ps),
        "link_names": ("",) * pairs,
        "rank_names": ("",) * positions,
    }


def end_ps(
    schedule: Schedule, bytes_per_s: int, latency_ps: int, network: str = "fair", order: Int64 | None = None
) -> int:
    """Return the end of the last transfer in ps, with all ranks entering at 0; position p is placed at ``order[p]``.

    The links between a rank and a switch are two of the links between all positions; one switch gives a star.
    """
    expanded = expand(schedule)
    m = expanded.num_transfers
    if not m:
        return 0
    positions = schedule.num_ranks + schedule.num_switches
    place = np.arange(positions) if order is None else order
    graph = TaskGraph(
        kind=np.full(m, TRANSFER, np.int8),
        rank=expanded.src,
        peer=expanded.dst,
        stream=np.full(m, -1, np.int32),
        duration_ps=np.zeros(m, np.int64),
        size_bytes=expanded.size_bytes,
        route=(place[expanded.src] * positions + place[expanded.dst]).astype(np.int32),
        num_required=np.diff(expanded.predecessor_ptr).astype(np.int32),
        predecessor_ptr=expanded.predecessor_ptr,
        predecessor_idx=expanded.predecessor_idx,
        stream_names=(),
        stream_ranks=(),
        labels=no_labels(m),
        **_links(positions, bytes_per_s, latency_ps),  # type: ignore[arg-type]
    )
    return int(run(graph, network=network).end_ps.max())
