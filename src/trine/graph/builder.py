"""Build a task graph one task at a time: for graph files, tests and notebooks."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from trine.errors import InputError
from trine.graph.assembler import GraphAssembler, GraphLinks, TaskRow, csr
from trine.graph.taskgraph import COMPUTE, JOIN, TRANSFER, TaskGraph


class TaskGraphBuilder:
    """Collector of tasks; :meth:`build` makes a :class:`~trine.graph.taskgraph.TaskGraph`.

    Parameters
    ----------
    link_bytes_per_s, link_latency_ps: of each link, in the order of their numbers.
    link_names, rank_names: for people; default: numbers. With ``rank_names``, further ranks are refused.

    Tasks are numbered in the order of addition. ``after`` may name tasks that are added later; :meth:`build` checks the
    numbers. Every method raises InputError naming the task at fault.
    """

    def __init__(
        self,
        link_bytes_per_s: Sequence[int],
        link_latency_ps: Sequence[int],
        *,
        link_names: Sequence[str] | None = None,
        rank_names: Sequence[str] | None = None,
    ) -> None:
        self._bytes_per_s = [int(b) for b in link_bytes_per_s]
        self._latency_ps = [int(t) for t in link_latency_ps]
        if link_names is None:
            names = [f"link {i}" for i in range(len(self._bytes_per_s))]
        else:
            names = list(link_names)
        if not len(self._bytes_per_s) == len(self._latency_ps) == len(names):
            raise InputError("each link needs one bandwidth, one latency and one name")
        self._link_names = tuple(names)
        self._rank_names = None if rank_names is None else tuple(rank_names)
        self._rows: list[TaskRow] = []
        self._predecessors: list[tuple[int, ...]] = []
        self._names: list[str] = []
        self._streams: dict[tuple[int, str], int] = {}
        self._routes: dict[tuple[int, ...], int] = {}

    @property
    def num_tasks(self) -> int:
        return len(self._rows)

    def compute(self, rank: int, stream: str, duration_ps: int, after: Sequence[int] = (), name: str = "") -> int:
        """Add ``duration_ps`` of work on the in-order ``stream`` of ``rank``; return its number."""
        self._check_rank(rank, name)
        if duration_ps < 0:
            raise InputError(f"{self._label(name)}: a duration must not be negative, got {duration_ps} ps")
        number = self._streams.setdefault((rank, stream), len(self._streams))
        return self._add(TaskRow(COMPUTE, rank, stream=number, duration_ps=duration_ps), after, name)

    def transfer(
        self,
        src_rank: int,
        dst_rank: int,
        links: Sequence[int],
        size_bytes: int,
        after: Sequence[int] = (),
        name: str = "",
    ) -> int:
        """Add a transfer of ``size_bytes`` over the route ``links``; return its number."""
        self._check_rank(src_rank, name)
        self._check_rank(dst_rank, name)
        if size_bytes < 0:
            raise InputError(f"{self._label(name)}: a size must not be negative, got {size_bytes} bytes")
        for link in links:
            if not 0 <= link < len(self._link_names):
                raise InputError(f"{self._label(name)}: there is no link {link}, there are {len(self._link_names)}")
        route = self._routes.setdefault(tuple(links), len(self._routes))
        return self._add(TaskRow(TRANSFER, src_rank, dst_rank, size_bytes=size_bytes, route=route), after, name)

    def join(self, after: Sequence[int], need: int | None = None, rank: int = -1, name: str = "") -> int:
        """Add a task that ends when ``need`` (all, if None) of ``after`` have ended; return its number."""
        if rank != -1:
            self._check_rank(rank, name)
        if need is not None and not 0 <= need <= len(after):
            raise InputError(f"{self._label(name)}: needs {need} of {len(after)} tasks")
        return self._add(TaskRow(JOIN, rank, num_required=len(after) if need is None else need), after, name)

    def build(self) -> TaskGraph:
        """Return the graph of all added tasks."""
        n = len(self._rows)
        for task, predecessors in enumerate(self._predecessors):
            for predecessor in predecessors:
                if not 0 <= predecessor < n:
                    label = self._label(self._names[task], task)
                    raise InputError(f"{label}: waits for task {predecessor}, but there are {n} tasks")
        latency_ps = np.array(self._latency_ps, np.int64)
        assembler = GraphAssembler(GraphLinks(np.array(self._bytes_per_s, np.int64), latency_ps, self._link_names))
        assembler.rows(self._rows)
        assembler.connect_rows(*csr(self._predecessors))
        for rank, stream in self._streams:
            assembler.stream(rank, stream)
        route_latencies_ps = []
        for route in self._routes:
            route_latencies_ps.append(sum(self._latency_ps[i] for i in route))
        assembler.add_routes(list(self._routes), route_latencies_ps)
        task_names = tuple(self._names) if any(self._names) else ()
        return assembler.build(rank_names=self._names_of_ranks(), task_names=task_names)

    def _add(self, row: TaskRow, predecessors: Sequence[int], name: str) -> int:
        if len(set(predecessors)) != len(predecessors):
            raise InputError(f"{self._label(name)}: waits for the same task twice: {list(predecessors)}")
        self._rows.append(row)
        self._predecessors.append(tuple(predecessors))
        self._names.append(name)
        return len(self._rows) - 1

    def _label(self, name: str, task: int | None = None) -> str:
        if name:
            return repr(name)
        return f"task {len(self._rows) if task is None else task}"

    def _check_rank(self, rank: int, name: str) -> None:
        if rank < 0 or (self._rank_names is not None and rank >= len(self._rank_names)):
            count = "" if self._rank_names is None else f", there are {len(self._rank_names)}"
            raise InputError(f"{self._label(name)}: there is no rank {rank}{count}")

    def _names_of_ranks(self) -> tuple[str, ...]:
        if self._rank_names is not None:
            return self._rank_names
        highest = max((max(row.rank, row.peer) for row in self._rows), default=-1)
        return tuple(f"rank {i}" for i in range(highest + 1))
