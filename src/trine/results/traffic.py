"""Network traffic: collectives, and bytes on links."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from trine.common.arrays import Bool, Int64, distinct
from trine.common.units import PS_PER_S
from trine.graph.program import Phase
from trine.graph.taskgraph import JOIN, TRANSFER, CollectiveLabel, Records, TaskGraph
from trine.results.activity import Window
from trine.results.columns import column
from trine.results.intervals import sum_by_group
from trine.results.link_use import LinkUse


@dataclass(frozen=True, kw_only=True, slots=True)
class CollectiveUse:
    """The collectives of one step with one kind, payload and group size.

    size_bytes: payload of one collective as a rank sees it (nccl-tests' convention). count: collectives per rank (the
    maximum, if ranks differ). total: collectives in the whole system. time_ps: sum of their durations, from the first
    start to the last end of a transfer, on the rank with the largest sum. waiting_ps: part of it before the last rank
    entered, when early ranks wait for late ones.
    """

    kind: str
    size_bytes: int = field(metadata=column("bytes"))
    group_size: int
    count: int
    total: int = field(metadata=column("total_count"))
    time_ps: int
    axes: tuple[str, ...]
    algorithms: tuple[str, ...]
    waiting_ps: int = 0

    @property
    def transfer_ps(self) -> int:
        """Time after the last rank entered."""
        return self.time_ps - self.waiting_ps


#: Names of tiers, and int32[links]: index of each link's tier.
LinkTiers = tuple[tuple[str, ...], npt.NDArray[np.int32]]

#: (kind, bytes, group size) -> number in the whole system, for graphs that show only some ranks.
Totals = Mapping[tuple[str, int, int], int]


def collective_uses(
    graph: TaskGraph, records: Records, window: Window, totals: Totals | None = None, weights: Int64 | None = None
) -> tuple[CollectiveUse, ...]:
    """Return the collectives of the window's step, longest transfer time first.

    Messages between two ranks outside collectives (between pipeline stages, DataParallel's outputs and their gradients)
    are listed as ``send_recv`` of a group of two; copies and scattering of inputs are not. weights: int64[tasks], how
    often each task counts (None: once).
    """
    weights = np.ones(graph.num_tasks, np.int64) if weights is None else weights
    durations_ps, waiting_ps = _durations(graph, records)
    groups: dict[tuple[str, int, int], list[int]] = {}
    for index, label in enumerate(graph.collectives):
        if window.step == 0 or label.step == window.step:
            groups.setdefault((label.kind, label.size_bytes, label.num_ranks), []).append(index)
    times = _times_of_collectives(graph, weights)
    uses = [_use(graph, members, durations_ps, waiting_ps, times) for members in groups.values()] + _messages(
        graph, records, window, totals is not None, weights
    )
    if totals is not None:
        uses = [replace(use, total=totals.get((use.kind, use.size_bytes, use.group_size), use.total)) for use in uses]
    return tuple(sorted(uses, key=lambda use: (-use.transfer_ps, use.kind, -use.size_bytes, use.group_size)))


def _times_of_collectives(graph: TaskGraph, weights: Int64) -> Int64:
    """Return how often each collective counts: int64[collectives]."""
    times = np.ones(len(graph.collectives), np.int64)
    inside = np.flatnonzero(graph.labels.collective >= 0)
    times[graph.labels.collective[inside]] = weights[inside]
    return times


def _messages(graph: TaskGraph, records: Records, window: Window, partial: bool, weights: Int64) -> list[CollectiveUse]:
    """Return messages outside collectives, by size; a ``partial`` graph keeps those to ranks that it does not show."""
    labels = graph.labels
    axis_of = _axis_of_operators(graph)
    is_message = (graph.kind == TRANSFER) & (labels.collective < 0) & (graph.rank >= 0) & (graph.peer >= 0)
    is_message &= ~np.isin(labels.phase, (Phase.INPUT, Phase.OFFLOAD))
    if not partial:
        is_message &= graph.rank != graph.peer
    if window.step:
        is_message &= labels.step == window.step
    messages = np.flatnonzero(is_message)
    uses = []
    for size in distinct(graph.size_bytes[messages]).tolist():
        members = messages[graph.size_bytes[messages] == size]
        received = members[graph.rank[members] != graph.peer[members]]
        ends = np.concatenate((graph.rank[members], graph.peer[received])).astype(np.int64)
        ends_task = np.concatenate((members, received))
        durations = records.end_ps[ends_task] - records.start_ps[ends_task]
        ranks = len(graph.rank_names)
        operators = np.unique(labels.operator[members]).tolist()
        axes = dict.fromkeys(axis_of[operator] for operator in operators if operator in axis_of)
        uses.append(
            CollectiveUse(
                kind="send_recv", size_bytes=size, group_size=2,
                count=int(sum_by_group(ends, weights[ends_task], ranks).max()), total=int(weights[members].sum()),
                time_ps=int(sum_by_group(ends, durations, ranks).max()), axes=tuple(axes), algorithms=("direct",),
            )
        )  # fmt: skip
    return uses


def _axis_of_operators(graph: TaskGraph) -> dict[int, str]:
    """Return the axis of the collectives of each operator that has some.

    Other messages of such an operator go along the same axis: tokens in excess of an even exchange between experts.
    """
    inside = np.flatnonzero((graph.labels.collective >= 0) & (graph.labels.operator >= 0))
    operators, first = np.unique(graph.labels.operator[inside], return_index=True)
    collectives = graph.labels.collective[inside[first]]
    return {
        operator: graph.collectives[collective].axis
        for operator, collective in zip(operators.tolist(), collectives.tolist(), strict=True)
    }


def link_uses(
    graph: TaskGraph, tasks: Bool, step_ps: int, tiers: LinkTiers | None = None, weights: Int64 | None = None
) -> tuple[LinkUse, ...]:
    """Return the traffic of each link in the given tasks, in the order of the links. weights: how often each counts."""
    transfers = np.flatnonzero(tasks & (graph.kind == TRANSFER))
    sizes = graph.size_bytes[transfers] * (1 if weights is None else weights[transfers])
    num_routes, num_links = len(graph.route_ptr) - 1, len(graph.link_bytes_per_s)
    by_route = sum_by_group(graph.route[transfers].astype(np.int64), sizes, num_routes)
    crossings = np.repeat(by_route, np.diff(graph.route_ptr))
    by_link = sum_by_group(graph.route_links.astype(np.int64), crossings, num_links).tolist()
    rates = graph.link_bytes_per_s.tolist()
    uses = []
    for link in range(num_links):
        utilisation = by_link[link] * PS_PER_S / (rates[link] * step_ps) if step_ps else 0.0
        tier = "" if tiers is None else tiers[0][tiers[1][link]]
        uses.append(
            LinkUse(
                link=link,
                name=graph.link_names[link],
                size_bytes=by_link[link],
                bytes_per_s=rates[link],
                utilisation=utilisation,
                tier=tier,
            )
        )
    return tuple(uses)


def _durations(graph: TaskGraph, records: Records) -> tuple[Int64, Int64]:
    """Return each collective's duration, from first start to last end of its transfers, and the part of it before its
    last rank entered: int64[collectives] each."""
    transfers = np.flatnonzero((graph.kind == TRANSFER) & (graph.labels.collective >= 0))
    collective = graph.labels.collective[transfers]
    first = np.full(len(graph.collectives), np.iinfo(np.int64).max)
    last = np.full(len(graph.collectives), -1, np.int64)
    np.minimum.at(first, collective, records.start_ps[transfers])
    np.maximum.at(last, collective, records.end_ps[transfers])
    first = np.minimum(first, last)
    return last - first, np.clip(_last_entries(graph, records), first, last) - first


def _last_entries(graph: TaskGraph, records: Records) -> Int64:
    """Return the time at which the last rank entered each collective: int64[collectives], 0 without joins."""
    num_ranks = max(len(graph.rank_names), 1)
    joins = np.flatnonzero((graph.kind == JOIN) & (graph.labels.collective >= 0) & (graph.rank >= 0))
    collective = graph.labels.collective[joins].astype(np.int64)
    pairs, pair_of_join = np.unique(collective * num_ranks + graph.rank[joins], return_inverse=True)
    entered = np.full(len(pairs), np.iinfo(np.int64).max)
    np.minimum.at(entered, pair_of_join, records.start_ps[joins])
    latest = np.zeros(len(graph.collectives), np.int64)
    np.maximum.at(latest, pairs // num_ranks, entered)
    return latest


def _use(graph: TaskGraph, members: list[int], durations: Int64, waiting: Int64, times: Int64) -> CollectiveUse:
    num_ranks = len(graph.rank_names)
    count, time_by_rank, waiting_by_rank = (np.zeros(num_ranks, np.int64) for _ in range(3))
    labels: list[CollectiveLabel] = [graph.collectives[index] for index in members]
    members_of: dict[tuple[int, ...], list[int]] = {}
    for index, label in zip(members, labels, strict=True):
        members_of.setdefault(label.ranks, []).append(index)
    for ranks, indices in members_of.items():
        rows = np.array(ranks, np.int64)
        count[rows] += times[indices].sum()
        time_by_rank[rows] += durations[indices].sum()
        waiting_by_rank[rows] += waiting[indices].sum()
    axes = dict.fromkeys(label.axis for label in labels)
    algorithms = dict.fromkeys(label.algorithm for label in labels)
    waiting_ps = int(waiting_by_rank[time_by_rank.argmax()]) if num_ranks else 0
    return CollectiveUse(
        kind=labels[0].kind, size_bytes=labels[0].size_bytes, group_size=labels[0].num_ranks,
        count=int(count.max(initial=0)), total=int(times[members].sum()), time_ps=int(time_by_rank.max(initial=0)),
        axes=tuple(axes), algorithms=tuple(algorithms), waiting_ps=waiting_ps,
    )  # fmt: skip
