"""Task graphs from blocks of columns and edges: the only module that knows the storage of a :class:`TaskGraph`.

Callers decide the contents: senders and receivers, the meaning of transfers, and dependencies.
``parallel/instantiate.py`` does so for every rank, ``folding/`` for one rank of each class.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import fields, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from trine.common.arrays import Int32, Int64, members, pointers
from trine.graph.placement import Placement
from trine.graph.taskgraph import Labels, TaskColumn, TaskGraph

Column = npt.NDArray[Any]

#: The columns of a task graph with one entry per task, and the columns of its labels.
TASK_COLUMNS: dict[str, TaskColumn] = {
    field.name: field.metadata["column"] for field in fields(TaskGraph) if "column" in field.metadata
}
LABEL_COLUMNS: dict[str, TaskColumn] = {field.name: field.metadata["column"] for field in fields(Labels)}


class GraphLinks(NamedTuple):
    """Properties of links. bytes_per_s, latency_ps: int64[links]; latency_ps may be None if unused."""

    bytes_per_s: Int64
    latency_ps: Int64 | None
    names: Sequence[str]

    @classmethod
    def none(cls) -> GraphLinks:
        """Return an empty set of links."""
        return cls(np.zeros(0, np.int64), np.zeros(0, np.int64), ())


class TaskRow(NamedTuple):
    """One task, for callers that add them one by one; fields of :class:`TaskGraph`, ``num_required`` -1: all."""

    kind: int
    rank: int = -1
    peer: int = -1
    stream: int = -1
    duration_ps: int = 0
    size_bytes: int = 0
    route: int = -1
    num_required: int = -1


class GraphAssembler:
    """Collector of blocks of tasks, edges, routes and streams; :meth:`build` makes the graph.

    Tasks are numbered in the order of the blocks. An array of a block may be changed until the graph is built.
    """

    def __init__(self, links: GraphLinks) -> None:
        self.links = links
        self.num_tasks = 0
        self._blocks: list[tuple[int, int, dict[str, Column]]] = []
        self._edges: list[tuple[Int64, Int64]] = []
        self._rows: tuple[Int64, Int32] | None = None
        self._streams: dict[tuple[int, str], int] = {}
        self._repeated_streams: tuple[tuple[str, ...], int] = (), 0
        self._route_numbers: dict[Hashable, int] = {}
        self._route_links: list[Sequence[int]] = []
        self._route_latency_ps: list[int] = []
        self._route_counts: list[Sequence[int]] = []
        self._route_caps: list[int] = []

    # -- tasks -----------------------------------------------------------------------------------------------------

    def tasks(self, count: int, **columns: npt.ArrayLike) -> int:
        """Append ``count`` tasks; return the number of the first.

        columns: fields of :class:`TaskGraph` and :class:`Labels` with one entry per task, or one value for all. Missing
        columns get the fields' declared fill values; ``num_required`` defaults to the number of predecessors.
        """
        unknown = columns.keys() - TASK_COLUMNS.keys() - LABEL_COLUMNS.keys()
        if unknown:
            raise TypeError(f"a task graph has no columns {sorted(unknown)}")
        first = self.num_tasks
        self._blocks.append((first, count, {name: np.asarray(values) for name, values in columns.items()}))
        self.num_tasks += count
        return first

    def rows(self, rows: Sequence[TaskRow], **columns: npt.ArrayLike) -> int:
        """Append one task per row, and ``columns`` as in :meth:`tasks`; return the number of the first."""
        table = np.array(rows, np.int64).reshape(len(rows), len(TaskRow._fields)).T
        return self.tasks(len(rows), **dict(zip(TaskRow._fields, table, strict=True)), **columns)

    # -- edges -----------------------------------------------------------------------------------------------------

    def connect(self, tasks: npt.ArrayLike, predecessors: npt.ArrayLike) -> None:
        """Let each of ``tasks`` wait for the entry of ``predecessors`` at the same index."""
        self._edges.append((np.asarray(tasks, np.int64), np.asarray(predecessors, np.int64)))

    def connect_rows(self, ptr: Int64, idx: Int32) -> None:
        """Set the predecessors of all tasks at once: task i has ``idx[ptr[i]:ptr[i + 1]]``."""
        self._rows = ptr, idx

    # -- routes and streams ----------------------------------------------------------------------------------------

    def route(
        self, links: Sequence[int], latency_ps: int, *, counts: Sequence[int] = (), cap: int = 0, key: Hashable = None
    ) -> int:
        """Return the number of a route; a ``key`` (all arguments, if None) has one route.

        latency_ps: of its links, and of the software before them. counts: flows of a class that cross each link.
        cap: maximum bytes/s of each transfer, 0: no limit.
        """
        name = (tuple(links), tuple(counts), latency_ps, cap) if key is None else key
        if name not in self._route_numbers:
            self._route_numbers[name] = self.add_routes([links], [latency_ps])
            self._route_counts[-1] = counts
            self._route_caps[-1] = cap
        return self._route_numbers[name]

    def add_routes(self, links: Sequence[Sequence[int]], latency_ps: Sequence[int]) -> int:
        """Append new routes; return the number of the first."""
        first = len(self._route_links)
        self._route_links += links
        self._route_latency_ps += latency_ps
        self._route_counts += [()] * len(links)
        self._route_caps += [0] * len(links)
        return first

    def latency_ps(self, links: Iterable[int]) -> int:
        """Return the sum of the latencies of ``links``."""
        latency_of = self.links.latency_ps
        if latency_of is None:
            return 0
        return sum(int(latency_of[link]) for link in links)

    def stream(self, rank: int, name: str) -> int:
        """Return the number of a stream of a rank."""
        return self._streams.setdefault((rank, name), len(self._streams))

    def repeat_streams(self, names: Sequence[str], num_ranks: int) -> None:
        """Let every rank have the streams ``names``: stream s of rank r is number r x len(names) + s."""
        self._repeated_streams = tuple(names), num_ranks

    # -- the graph -------------------------------------------------------------------------------------------------

    def build(self, *, rank_names: Sequence[str], **names: Any) -> TaskGraph:
        """Return the graph of all appended blocks; ``names``: tables of :class:`TaskGraph`, such as operator_names."""
        ptr, idx = self._predecessors() if self._rows is None else self._rows
        columns = {name: self._column(name, column) for name, column in TASK_COLUMNS.items()}
        num_required = columns["num_required"]
        assert num_required is not None
        columns["num_required"] = np.where(num_required < 0, np.diff(ptr), num_required).astype(np.int32)
        repeated, times = self._repeated_streams
        ranks = np.repeat(np.arange(times), len(repeated)).tolist()
        new_streams = tuple(name for _, name in self._streams)
        label_columns = {name: self._label(name, column) for name, column in LABEL_COLUMNS.items()}
        return TaskGraph(
            **columns,  # type: ignore[arg-type]
            predecessor_ptr=ptr,
            predecessor_idx=idx,
            **self._route_columns(),
            link_bytes_per_s=self.links.bytes_per_s,
            link_latency_ps=self.links.latency_ps,
            link_names=self.links.names,
            stream_names=repeated * times + new_streams,
            stream_ranks=(*ranks, *(rank for rank, _ in self._streams)),
            rank_names=tuple(rank_names),
            labels=Labels(**label_columns),
            **names,
        )

    def _predecessors(self) -> tuple[Int64, Int32]:
        """Return all edges as CSR; the edges of a task keep the order of appending."""
        if not self._edges:
            return np.zeros(self.num_tasks + 1, np.int64), np.zeros(0, np.int32)
        tasks, predecessors = (np.concatenate([edges[side] for edges in self._edges]) for side in (0, 1))
        self._edges = [(tasks, predecessors)]
        order = np.argsort(tasks, kind="stable")
        return pointers(np.bincount(tasks, minlength=self.num_tasks)), predecessors[order].astype(np.int32)

    def _column(self, name: str, column: TaskColumn) -> Column | None:
        blocks = [block.get(name) for _, _, block in self._blocks]
        if column.optional and all(values is None for values in blocks):
            return None
        if len(blocks) == 1 and blocks[0] is not None and blocks[0].ndim:
            return blocks[0].astype(column.dtype, copy=False)
        filled = np.full(self.num_tasks, column.fill, column.dtype)
        for (first, count, _), values in zip(self._blocks, blocks, strict=True):
            if values is not None:
                filled[first : first + count] = values
        return filled

    def _label(self, name: str, column: TaskColumn) -> Column:
        """Return a label column; one that no block has takes no memory."""
        if any(name in block for _, _, block in self._blocks):
            filled = self._column(name, column)
            assert filled is not None
            return filled
        return np.broadcast_to(column.dtype(column.fill), self.num_tasks)

    def _route_columns(self) -> dict[str, Any]:
        ptr, links = csr(self._route_links)
        counts = None
        if any(counts_of_route and set(counts_of_route) != {1} for counts_of_route in self._route_counts):
            pairs = zip(self._route_links, self._route_counts, strict=True)
            counts = csr([counts_of_route or (1,) * len(links) for links, counts_of_route in pairs])[1]
        latency_ps = np.array(self._route_latency_ps, np.int64)
        return {
            "route_ptr": ptr,
            "route_links": links,
            "route_latency_ps": latency_ps,
            "route_counts": counts,
            "route_cap_bytes_per_s": np.array(self._route_caps, np.int64) if any(self._route_caps) else None,
        }


class PlacedAssembler(GraphAssembler):
    """An assembler with a placement of ranks: routes are numbered by the devices that they join."""

    def __init__(self, placement: Placement) -> None:
        super().__init__(GraphLinks(placement.link_bytes_per_s, placement.link_latency_ps, placement.link_names))
        self.placement = placement
        self._devices: list[int] = placement.devices.tolist()

    def between(self, source: int, target: int, software_ps: int = 0, cap: int = 0) -> int:
        """Return the route from one rank to another, with software before each message; cap: max bytes/s (0: any)."""
        return self._joining(self._devices[source], self._devices[target], software_ps, cap)

    def between_all(
        self, sources: npt.NDArray[Any], targets: npt.NDArray[Any], software_ps: int, cap: int = 0
    ) -> Int32:
        """Return int32[m]: :meth:`between` for many ranks at once."""
        if not len(sources):
            return np.zeros(0, np.int32)
        num_ranks = len(self._devices)
        pairs, inverse = np.unique(sources.astype(np.int64) * num_ranks + targets, return_inverse=True)
        rank_pairs = (divmod(pair, num_ranks) for pair in pairs.tolist())
        return np.array([self.between(a, b, software_ps, cap) for a, b in rank_pairs], np.int32)[inverse]

    def from_host(self, rank: int) -> int:
        """Return the route to a rank from its host memory. Raises PlanError for a rank without host memory."""
        return self._joining(self.placement.host_of(rank), self._devices[rank])

    def to_host(self, rank: int) -> int:
        """Return the route from a rank to its host memory. Raises PlanError for a rank without host memory."""
        return self._joining(self._devices[rank], self.placement.host_of(rank))

    def _joining(self, source: int, target: int, software_ps: int = 0, cap: int = 0) -> int:
        key = source, target, software_ps, cap
        number = self._route_numbers.get(key)
        if number is None:
            links = () if source == target else self.placement.route(source, target)
            number = self.route(links, self.latency_ps(links) + software_ps, cap=cap, key=key)
        return number


def take(graph: TaskGraph, tasks: Int64) -> dict[str, Any]:
    """Return the per-task data of ``tasks``, for :func:`dataclasses.replace`; the caller handles the edges."""
    columns = {name: getattr(graph, name) for name in TASK_COLUMNS}
    labels = {name: getattr(graph.labels, name)[tasks] for name in LABEL_COLUMNS}
    taken = {}
    for name, column in columns.items():
        taken[name] = None if column is None else column[tasks]
    if graph.task_names:
        task_names = tuple(graph.task_names[task] for task in tasks.tolist())
    else:
        task_names = ()
    return {**taken, "labels": Labels(**labels), "task_names": task_names}


def take_alone(graph: TaskGraph, tasks: Int64) -> TaskGraph:
    """Return a graph of these tasks and the edges among them, without labels and pressure."""
    number = np.full(graph.num_tasks, -1, np.int64)
    number[tasks] = np.arange(len(tasks))
    entries, ptr = members(graph.predecessor_ptr, tasks)
    idx = number[graph.predecessor_idx[entries]]
    kept_ptr = pointers(idx >= 0)[ptr]
    subgraph = replace(
        graph, **take(graph, tasks), predecessor_ptr=kept_ptr, predecessor_idx=idx[idx >= 0].astype(np.int32)
    )
    return replace(subgraph, labels=no_labels(len(tasks)), pressure_ppm=None, pressure_stream=None)


def no_labels(num_tasks: int) -> Labels:
    """Return empty labels: -1 everywhere."""
    return Labels(**{name: np.full(num_tasks, column.fill, column.dtype) for name, column in LABEL_COLUMNS.items()})


def csr(rows: Sequence[Sequence[int]]) -> tuple[Int64, Int32]:
    """Flatten ``rows`` into ``ptr`` int64[len(rows)+1] and ``idx`` int32[sum of lengths]."""
    lengths = [len(row) for row in rows]
    items = [item for row in rows for item in row]
    return pointers(lengths), np.array(items, np.int32)
