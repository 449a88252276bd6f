"""Run one collective's schedule, transfer by transfer, on a cluster's links, or as tasks of a larger graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple, TypeAlias, TypedDict

import numpy as np
import numpy.typing as npt

from trine.cluster.cluster import Cluster
from trine.cluster.parts import SCALE_OUT
from trine.collectives.expand import expand
from trine.collectives.schedule import ExpandedSchedule, Schedule
from trine.common.arrays import Int32, Int64, pointers, spans
from trine.common.units import transfer_ps
from trine.engine.circuit_model import network_on
from trine.engine.models import Network
from trine.engine.run import run
from trine.errors import InputError
from trine.graph.assembler import GraphAssembler, GraphLinks
from trine.graph.taskgraph import JOIN, TRANSFER, Records, TaskGraph

#: (source device, target device) -> ps before a message from one to the other enters its first link
StepCost: TypeAlias = Callable[[int, int], int]

#: Up to this size a table of all pairs of ranks is faster than sorting the used pairs (4096 ranks: 64 MiB).
MAX_PAIR_TABLE = 4096 * 4096


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class MessageTotals:
    """Totals of a run in which all ranks enter at 0, without its messages.

    end_ps: end of the last rank. rank_end_ps: int64[ranks], end of each; 0 for a rank that neither sends nor receives.
    link_bytes: int64[links of the cluster], bytes over each; link_bytes_per_s: their bandwidth. num_messages:
    transfers, and joins in place of transfers that are split over several paths.
    """

    end_ps: int
    rank_end_ps: Int64
    link_bytes: Int64
    link_bytes_per_s: Int64
    num_messages: int

    @property
    def link_busy_ps(self) -> Int64:
        """Busy time of each link, its bytes at full bandwidth: int64[links]."""
        busy = np.zeros(len(self.link_bytes), np.int64)
        links = np.flatnonzero(self.link_bytes)
        kinds = np.stack([self.link_bytes[links], self.link_bytes_per_s[links]])
        pairs, inverse = np.unique(kinds, axis=1, return_inverse=True)
        busy[links] = np.array([transfer_ps(*pair) for pair in pairs.T.tolist()], np.int64)[inverse.ravel()]
        return busy


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class ScheduleRun(MessageTotals):
    """Totals with every message. graph, records: transfers in the order of the expanded schedule (joins in place of
    split transfers, with the parts at the end).
    """

    graph: TaskGraph
    records: Records


@dataclass(frozen=True, slots=True)
class DomainSteps:
    """Software before each message, ps: ``inner_ps``, or ``outer_ps`` if its route crosses a scale-out link."""

    cluster: Cluster
    inner_ps: int
    outer_ps: int

    def __call__(self, source: int, target: int) -> int:
        route, _ = self.cluster.paths(source, target)[0]
        is_outer = any(self.cluster.links[link].link_class == SCALE_OUT for link in route)
        return self.outer_ps if is_outer else self.inner_ps


class _PairRoutes(NamedTuple):
    """Routes in use: pair p has first[p] to first[p + 1]. share: cumulative share of its pair's bytes."""

    links: list[tuple[int, ...]]
    latency_ps: list[int]
    first: Int64
    share: npt.NDArray[np.float64]


class MessageOptions(TypedDict):
    """Options of a schedule's simulation, with the names in :func:`run_schedule`."""

    network: str
    step_ps: int | DomainSteps
    byte_factor: Fraction
    reducing_switches: Sequence[int]


def run_schedule(
    schedule: Schedule | ExpandedSchedule, cluster: Cluster, group: Sequence[int], *,
    network: str | Network | None = None, engine: str = "compiled", step_ps: int | StepCost = 0,
    byte_factor: int | float | Fraction = 1, reducing_switches: Sequence[int] = (),
) -> ScheduleRun:  # fmt: skip
    """Simulate every transfer of ``schedule`` on the links of ``cluster``; all ranks enter at 0.

    group: the device index of each rank, in the order of the schedule's positions.
    network, engine: as of :func:`trine.engine.run`; network None means ``circuit`` on a cluster with circuits, else
        ``fair``.
    step_ps: software cost of each message in ps, before it enters its first link: one number, or a function of (source
        device, target device), called once per pair.
    byte_factor: bytes on the wire for each byte of payload (flags of a protocol), at least 1.
    reducing_switches: the device index of each reducing switch, in the order of the positions after the ranks.

    Raises InputError for devices that do not match the schedule, a negative cost, or a factor below 1; SpecError if the
    cluster has no route between two devices that exchange data.
    """
    network = network_on(cluster, network)
    graph, expanded = schedule_graph(
        schedule, cluster, group, step_ps=step_ps, byte_factor=byte_factor, reducing_switches=reducing_switches
    )
    records = run(graph, network=network, engine=engine)
    return ScheduleRun(
        end_ps=int(records.end_ps.max(initial=0)), rank_end_ps=_rank_ends(expanded, records.end_ps),
        link_bytes=link_bytes(graph), link_bytes_per_s=cluster.link_bytes_per_s, num_messages=graph.num_tasks,
        graph=graph, records=records,
    )  # fmt: skip


def schedule_graph(
    schedule: Schedule | ExpandedSchedule, cluster: Cluster, group: Sequence[int], *, step_ps: int | StepCost = 0,
    byte_factor: int | float | Fraction = 1, reducing_switches: Sequence[int] = (),
) -> tuple[TaskGraph, ExpandedSchedule]:  # fmt: skip
    """Return the transfers of ``schedule`` as a task graph and as a list; arguments as in :func:`run_schedule`."""
    expanded = expand(schedule) if isinstance(schedule, Schedule) else schedule
    devices = _devices(expanded, cluster, group, reducing_switches)
    pairs, pair = _distinct_pairs(expanded.src, expanded.dst, len(devices))
    routes = _routes(cluster, devices, pairs, step_ps)
    columns = _TransferColumns(
        kind=np.full(expanded.num_transfers, TRANSFER, np.int8),
        size_bytes=wire_bytes(expanded.size_bytes, byte_factor), route=routes.first[pair].astype(np.int32),
        rank=expanded.src, peer=expanded.dst, predecessor_ptr=expanded.predecessor_ptr,
        predecessor_idx=expanded.predecessor_idx,
    )  # fmt: skip
    split = np.flatnonzero(np.diff(routes.first)[pair] > 1)
    if len(split):
        columns = _split(columns, routes, pair, split)
    assembler = GraphAssembler(GraphLinks(cluster.link_bytes_per_s, cluster.link_latency_ps, cluster.link_names))
    assembler.add_routes(routes.links, routes.latency_ps)
    kind, size_bytes, route, rank, peer, predecessor_ptr, predecessor_idx = columns
    assembler.tasks(len(kind), kind=kind, size_bytes=size_bytes, route=route, rank=rank, peer=peer)
    assembler.connect_rows(predecessor_ptr, predecessor_idx)
    return assembler.build(rank_names=[cluster.device_name(device) for device in devices]), expanded


class _TransferColumns(NamedTuple):
    """Columns of the task graph that splitting changes."""

    kind: npt.NDArray[np.int8]
    size_bytes: Int64
    route: Int32
    rank: Int32
    peer: Int32
    predecessor_ptr: Int64
    predecessor_idx: Int32


def _devices(
    expanded: ExpandedSchedule, cluster: Cluster, group: Sequence[int], reducing_switches: Sequence[int]
) -> list[int]:
    """Return the device of each position, checked against the schedule."""
    devices = [*group, *reducing_switches]
    for device in devices:
        if not 0 <= device < len(cluster.devices):
            raise InputError(f"cluster {cluster.name!r} has no device {device}, it has {len(cluster.devices)}")
    if len(set(devices)) != len(devices):
        duplicate = next(device for device in devices if devices.count(device) > 1)
        raise InputError(f"device {cluster.devices[duplicate].name!r} is in the group twice")
    num_ranks, num_switches = len(expanded.completion_ptr) - 1, expanded.num_switches
    if (num_ranks, num_switches) != (len(group), len(reducing_switches)):
        text = f"the schedule is for {num_ranks} ranks and {num_switches} switches that reduce"
        raise InputError(f"{text}, the group has {len(group)} and {len(reducing_switches)}")
    positions = np.concatenate((expanded.src, expanded.dst))
    if len(positions) and not 0 <= positions.min() <= positions.max() < len(devices):
        raise InputError(f"the schedule names position {positions.max()}, the group has {len(devices)}")
    return devices


def _distinct_pairs(src: Int32, dst: Int32, num_devices: int) -> tuple[Int64, Int64]:
    """Return the used pairs (src * devices + dst), ascending, and each transfer's index among them."""
    key = src.astype(np.int64) * num_devices + dst
    if num_devices * num_devices > MAX_PAIR_TABLE:
        pairs, pair = np.unique(key, return_inverse=True)
        return pairs, pair
    is_used = np.zeros(num_devices * num_devices, np.bool_)
    is_used[key] = True
    pairs = np.flatnonzero(is_used)
    number = np.empty(len(is_used), np.int64)
    number[pairs] = np.arange(len(pairs))
    return pairs, number[key]


def _routes(cluster: Cluster, devices: list[int], pairs: Int64, step_ps: int | StepCost) -> _PairRoutes:
    """Return the routes of each pair of positions, each with its link latency plus the software before it."""
    links: list[tuple[int, ...]] = []
    latency_ps: list[int] = []
    share: list[float] = []
    first = [0]
    sources, targets = np.divmod(pairs, len(devices))
    numbers = np.array(devices, np.int64)
    ways = cluster.ways(numbers[sources], numbers[targets])
    for pair, paths in zip(pairs.tolist(), ways, strict=True):
        source, target = devices[pair // len(devices)], devices[pair % len(devices)]
        software_ps = step_ps if isinstance(step_ps, int) else step_ps(source, target)
        if software_ps < 0:
            raise InputError(f"the cost of a step must not be negative, got {software_ps} ps", field="step_ps")
        total = 0.0
        for route, fraction in paths:
            total += fraction
            links.append(route)
            latency_ps.append(cluster.route_latency_ps(route) + software_ps)
            share.append(total)
        first.append(len(links))
    return _PairRoutes(links, latency_ps, np.array(first, np.int64), np.array(share))


def wire_bytes(size_bytes: Int64, factor: int | float | Fraction) -> Int64:
    """Return bytes on the wire, rounded up; a float factor becomes the nearest fraction of up to 1/10000."""
    ratio = Fraction(factor).limit_denominator(10_000)
    if ratio < 1:
        raise InputError(f"bytes on the wire must be at least the payload's bytes, got {factor}", field="byte_factor")
    if ratio == 1:
        return size_bytes
    sizes, inverse = np.unique(size_bytes, return_inverse=True)
    numerator, denominator = ratio.numerator, ratio.denominator
    wire = [-(-int(size) * numerator // denominator) for size in sizes.tolist()]
    return np.array(wire, np.int64)[inverse]


def _split(columns: _TransferColumns, routes: _PairRoutes, pair: Int64, split: Int64) -> _TransferColumns:
    """Replace the transfers ``split`` by joins, and append one transfer for each of their paths."""
    count = (routes.first[pair[split] + 1] - routes.first[pair[split]]).astype(np.int64)
    owner = np.repeat(split, count)  # owner of each part
    ends = np.cumsum(count)
    part_number = spans(0, count)
    route = routes.first[pair[owner]] + part_number
    end_bytes = np.rint(columns.size_bytes[owner] * routes.share[route]).astype(np.int64)
    end_bytes[ends - 1] = columns.size_bytes[split]
    start_bytes = np.where(part_number > 0, np.concatenate(([0], end_bytes[:-1])), 0)
    total = len(columns.kind)
    rows = np.diff(columns.predecessor_ptr)
    part_idx = columns.predecessor_idx[spans(columns.predecessor_ptr[owner], rows[owner])]
    is_split = np.zeros(total, np.bool_)
    is_split[split] = True
    other_idx = columns.predecessor_idx[~np.repeat(is_split, rows)]
    join_idx = np.arange(total, total + len(owner), dtype=np.int32)
    task_rows = np.where(is_split, 0, rows)
    join_rows = task_rows.copy()
    join_rows[split] = count
    ptr = pointers(np.concatenate((join_rows, rows[owner])))
    idx = np.empty(ptr[total], np.int32)
    is_join_row = np.repeat(is_split, join_rows)
    idx[is_join_row], idx[~is_join_row] = join_idx, other_idx
    kind, size_bytes, task_route, peer = (
        array.copy() for array in (columns.kind, columns.size_bytes, columns.route, columns.peer)
    )
    kind[split], size_bytes[split], task_route[split], peer[split] = JOIN, 0, -1, -1
    return _TransferColumns(
        kind=np.concatenate((kind, np.full(len(owner), TRANSFER, np.int8))),
        size_bytes=np.concatenate((size_bytes, end_bytes - start_bytes)),
        route=np.concatenate((task_route, route.astype(np.int32))),
        rank=np.concatenate((columns.rank, columns.rank[owner])),
        peer=np.concatenate((peer, columns.peer[owner])),
        predecessor_ptr=ptr,
        predecessor_idx=np.concatenate((idx, part_idx)),
    )


def _rank_ends(expanded: ExpandedSchedule, end_ps: Int64) -> Int64:
    """Return the end of the last transfer that each rank waits for: int64[ranks]."""
    ends = np.zeros(len(expanded.completion_ptr) - 1, np.int64)
    active = np.flatnonzero(np.diff(expanded.completion_ptr))
    if len(active):
        starts = expanded.completion_ptr[active]
        ends[active] = np.maximum.reduceat(end_ps[expanded.completion_idx], starts)
    return ends


def link_bytes(graph: TaskGraph) -> Int64:
    """Return the bytes over each link in the whole run, including all flows behind a transfer: int64[links]."""
    transfers = graph.kind == TRANSFER
    route_bytes = np.zeros(len(graph.route_latency_ps), np.int64)
    np.add.at(route_bytes, graph.route[transfers], graph.size_bytes[transfers])
    crossing_bytes = np.repeat(route_bytes, np.diff(graph.route_ptr))
    if graph.route_counts is not None:
        crossing_bytes *= graph.route_counts
    total = np.zeros(len(graph.link_bytes_per_s), np.int64)
    np.add.at(total, graph.route_links, crossing_bytes)
    return total
