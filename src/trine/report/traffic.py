"""Utilisation of the tiers of links over the step."""

from __future__ import annotations

import numpy as np

from trine.common.units import PS_PER_S
from trine.graph.taskgraph import TRANSFER, TaskGraph
from trine.report.blocks import Heat
from trine.results.activity import in_step
from trine.results.run import TaskRun

#: Bins of the step, and rows of the map.
BINS, MAX_ROWS = 160, 12


def traffic_over_time(run: TaskRun) -> Heat | None:
    """Return the utilisation of the busiest link of each tier over the step; None if the graph has no link.

    A transfer spreads its bytes evenly over its time. A folded period counts in its own bins only.
    """
    excerpt = run.excerpt
    graph, records, window = excerpt.graph, excerpt.records, excerpt.window
    tiers = excerpt.link_tiers
    if not len(graph.link_bytes_per_s):
        return None
    transfers = np.flatnonzero((graph.kind == TRANSFER) & in_step(graph, window) & (records.end_ps > records.start_ps))
    transfers = transfers[graph.route[transfers] >= 0]
    if not len(transfers):
        return None
    busiest = _busiest_links(graph, transfers, tiers)
    length_ps = max(run.step_time_ps, 1)
    skipped = np.zeros(len(transfers), np.int64)
    if run.repeats is not None:
        before = run.repeats.later_ps(np.array([window.start_ps]))[0]
        skipped = run.repeats.later_ps(records.start_ps[transfers]) - before
    start = (records.start_ps[transfers] - window.start_ps + skipped) / length_ps * BINS
    end = (records.end_ps[transfers] - window.start_ps + skipped) / length_ps * BINS
    values = np.zeros((len(busiest), BINS), np.float64)
    for number, link in enumerate(busiest.values()):
        crossing = _crossings(graph, transfers, link)
        mine = np.flatnonzero(crossing)
        sizes = graph.size_bytes[transfers[mine]] * crossing[mine]
        capacity = graph.link_bytes_per_s[link] * (length_ps / PS_PER_S) / BINS
        values[number] = _spread(start[mine], end[mine], sizes / capacity)
    return Heat(
        title="Utilisation over the step, busiest link of each tier",
        names=tuple(busiest),
        values=np.minimum(values, 1).astype(np.float32),
        length_s=length_ps / PS_PER_S,
        note="" if run.repeats is None else "Folded micro-batches are empty here: they repeat the period before them.",
    )


def _busiest_links(graph: TaskGraph, transfers: np.ndarray, tiers: object) -> dict[str, int]:
    """Return the link with the largest share of its capacity in each tier, by name of the tier."""
    used = np.zeros(len(graph.link_bytes_per_s))
    num_routes = len(graph.route_ptr) - 1
    by_route = np.bincount(graph.route[transfers], weights=graph.size_bytes[transfers], minlength=num_routes)
    counts = np.ones(len(graph.route_links)) if graph.route_counts is None else graph.route_counts
    np.add.at(used, graph.route_links, np.repeat(by_route, np.diff(graph.route_ptr)) * counts)
    used /= np.maximum(graph.link_bytes_per_s, 1)
    names, of_link = tiers if isinstance(tiers, tuple) else ((), None)
    busiest: dict[str, int] = {}
    for link in np.argsort(-used, kind="stable").tolist():
        if used[link] <= 0 or len(busiest) == MAX_ROWS:
            break
        tier = names[of_link[link]] if of_link is not None else graph.link_names[link]
        busiest.setdefault(tier, link)
    return busiest


def _crossings(graph: TaskGraph, transfers: np.ndarray, link: int) -> np.ndarray:
    """Return how often each transfer crosses a link: float64[transfers]."""
    counts = np.ones(len(graph.route_links)) if graph.route_counts is None else graph.route_counts
    hits = np.where(graph.route_links == link, counts, 0)
    total = np.concatenate(([0.0], np.cumsum(hits)))
    per_route = total[graph.route_ptr[1:]] - total[graph.route_ptr[:-1]]
    crossings: np.ndarray = per_route[graph.route[transfers]]
    return crossings


def _spread(start: np.ndarray, end: np.ndarray, amount: np.ndarray) -> np.ndarray:
    """Return amounts spread evenly from start to end (in bins) over the bins: float64[BINS].

    The running total at each edge of a bin is a sum of ramps; its differences are the bins' amounts.
    """
    edges = np.arange(BINS + 1)
    rate = amount / np.maximum(end - start, 1e-12)
    at = np.concatenate((start, end))
    order = np.argsort(at, kind="stable")
    at, slope = at[order], np.concatenate((rate, -rate))[order]
    slopes = np.concatenate(([0.0], np.cumsum(slope)))
    level = np.concatenate(([0.0], np.cumsum(slopes[1:-1] * np.diff(at)))) if len(at) else np.zeros(1)
    place = np.searchsorted(at, edges, side="right")
    known = np.maximum(place - 1, 0)
    running = np.where(place > 0, level[known] + slopes[place] * (edges - at[known]), 0.0) if len(at) else edges * 0.0
    result: np.ndarray = np.maximum(np.diff(running), 0)
    return result
