"""Task graphs as JSON files, and their results as plain data (docs/formats/graph.md)."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

from trine.cluster import Cluster
from trine.common.inputs import read_text
from trine.common.units import PS_PER_S, parse_bytes, parse_time
from trine.engine import run
from trine.engine.circuit_model import network_on
from trine.engine.models import Network
from trine.errors import InputError, SpecError, nearest
from trine.graph.builder import TaskGraphBuilder
from trine.graph.taskgraph import Records, TaskGraph

MAX_FILE_BYTES = 256 * 2**20
MAX_TASKS = 2**26

#: kind -> required keys of a task, optional keys
KEYS: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "compute": (("id", "kind", "rank", "duration"), ("stream", "after")),
    "transfer": (("id", "kind", "src", "dst", "bytes"), ("after",)),
    "join": (("id", "kind"), ("need", "after")),
}


def run_graph(
    path: str | os.PathLike[str], cluster: Cluster, *, network: str | Network | None = None, engine: str = "compiled"
) -> tuple[TaskGraph, Records]:
    """Read a graph file and run it on ``cluster``; for the other arguments, see :func:`trine.engine.run`.

    network: None means ``circuit`` if the cluster has circuits, else ``fair``.

    Raises InputError: as :func:`load_graph`, :func:`trine.engine.run` and
    :func:`trine.engine.circuit_model.network_on`.
    """
    chosen = network_on(cluster, network)
    graph = load_graph(path, cluster, circuits=cluster.circuits is not None)
    return graph, run(graph, network=chosen, engine=engine)


def load_graph(path: str | os.PathLike[str], cluster: Cluster, *, circuits: bool = False) -> TaskGraph:
    """Read a graph file for ``cluster``; tasks keep the order of the file, ``task_names`` are their ids.

    circuits: whether the graph will run on the cluster's circuits, so that its transfers cross no links; required if
    the cluster has circuits. :func:`run_graph` sets it.

    Raises SpecError: names file, field, value and the nearest valid name; or the cluster has circuits and ``circuits``
    is not set.
    """
    from trine.common.spec import parse_json

    file = os.fspath(path)
    if cluster.circuits is not None and not circuits:
        raise SpecError(
            f"the GPUs of {cluster.name!r} are joined by circuits: run_graph runs the file on them", file=file
        )
    data = parse_json(read_text(path, MAX_FILE_BYTES), file)
    if not isinstance(data, dict):
        raise SpecError("must be an object with 'tasks'", file=file)
    for key in data:
        if key != "tasks":
            raise SpecError(f"unknown key {key[:80]!r}{nearest(key[:80], ['tasks'])}", file=file)
    tasks = data.get("tasks")
    if not isinstance(tasks, list):
        raise SpecError("is missing" if tasks is None else "must be a list", file=file, field="tasks")
    if len(tasks) > MAX_TASKS:
        raise SpecError(f"has more than {MAX_TASKS} tasks", file=file, field="tasks")
    return _GraphReader(cluster, tasks, file).graph()


class _GraphReader:
    """Reader that turns the tasks of one file into a task graph."""

    def __init__(self, cluster: Cluster, tasks: list[Any], file: str) -> None:
        self._cluster = cluster
        self._file = file
        self._tasks = tasks
        self._number: dict[str, int] = {}
        self._quantities: dict[tuple[str, str], int] = {}
        for number, task in enumerate(tasks):
            self._check_keys(number, task)
            name = self._id(task["id"], number, "id")
            if self._number.setdefault(name, number) != number:
                self._fail(number, "id", f"{name!r} is the id of tasks[{self._number[name]}] too")
        link_names = [link.name for link in cluster.links]
        rank_names = [device.name for device in cluster.devices]
        self._builder = TaskGraphBuilder(
            cluster.link_bytes_per_s.tolist(),
            cluster.link_latency_ps.tolist(),
            link_names=link_names,
            rank_names=rank_names,
        )

    def graph(self) -> TaskGraph:
        add: dict[str, Callable[[int, Mapping[str, Any], list[int], str], None]] = {
            "compute": self._compute,
            "transfer": self._transfer,
            "join": self._join,
        }
        for (name, number), task in zip(self._number.items(), self._tasks, strict=True):
            add[task["kind"]](number, task, self._dependencies(number, task.get("after", [])), name)
        return self._builder.build()

    def _compute(self, number: int, task: Mapping[str, Any], after: list[int], name: str) -> None:
        rank = self._device(number, "rank", task["rank"])
        if self._cluster.devices[rank].kind not in ("gpu", "host"):
            self._fail(
                number, "rank", f"{task['rank']!r} is a {self._cluster.devices[rank].kind}, which cannot compute"
            )
        stream = task.get("stream", "compute")
        if not isinstance(stream, str | int) or isinstance(stream, bool):
            self._fail(number, "stream", f"must be text, got {stream!r}")
        duration_ps = self._quantity(number, "duration", parse_time, task["duration"])
        self._builder.compute(rank, str(stream), duration_ps, after, name)

    def _transfer(self, number: int, task: Mapping[str, Any], after: list[int], name: str) -> None:
        source, target = (self._device(number, end, task[end]) for end in ("src", "dst"))
        size_bytes = self._quantity(number, "bytes", parse_bytes, task["bytes"])
        try:
            route = self._cluster.route(source, target)
        except SpecError as error:
            self._fail(number, "dst", str(error))
        self._builder.transfer(source, target, route, size_bytes, after, name)

    def _join(self, number: int, task: Mapping[str, Any], after: list[int], name: str) -> None:
        need = task.get("need", len(after))
        if not isinstance(need, int) or isinstance(need, bool) or not 0 <= need <= len(after):
            self._fail(
                number, "need", f"must be a whole number from 0 to {len(after)} (tasks in 'after'), got {need!r}"
            )
        self._builder.join(after, need, name=name)

    def _check_keys(self, number: int, task: Any) -> None:
        if not isinstance(task, dict):
            self._fail(number, "", f"must be an object, got {str(task)[:80]}")
        kind = task.get("kind")
        if kind is None:
            self._fail(number, "kind", f"is missing; one of {', '.join(KEYS)}")
        if not isinstance(kind, str) or kind not in KEYS:
            self._fail(number, "kind", f"unknown kind {str(kind)[:80]!r}{nearest(str(kind)[:80], KEYS)}")
        required, optional = KEYS[kind]
        for key in task:
            if key not in required and key not in optional:
                hint = nearest(key[:80], (*required, *optional))
                self._fail(number, "", f"a {kind} has no {key[:80]!r}{hint}")
        for key in required:
            if key not in task:
                self._fail(number, key, "is missing")

    def _dependencies(self, number: int, after: Any) -> list[int]:
        if not isinstance(after, list):
            self._fail(number, "after", "must be a list of ids")
        numbers = []
        for place, value in enumerate(after):
            name = self._id(value, number, f"after[{place}]")
            if name not in self._number:
                names = self._number if len(self._number) <= 1000 else ()  # the search takes too long with more
                self._fail(number, f"after[{place}]", f"no task has the id {name!r}{nearest(name, names)}")
            numbers.append(self._number[name])
        if len(set(numbers)) != len(numbers):
            self._fail(number, "after", "names a task twice")
        return numbers

    def _device(self, number: int, key: str, value: Any) -> int:
        """Return the index of the device with this name or whole number."""
        if isinstance(value, str):
            try:
                return self._cluster.index(value[:200])
            except SpecError as error:
                self._fail(number, key, str(error))
        count = len(self._cluster.devices)
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < count:
            self._fail(number, key, f"must be a device's name or its index, 0 to {count - 1}, got {str(value)[:80]}")
        return value

    def _id(self, value: Any, number: int, key: str) -> str:
        if isinstance(value, bool) or not isinstance(value, str | int) or value == "":
            self._fail(number, key, f"must be text or a whole number, got {str(value)[:80]!r}")
        return str(value)

    def _quantity(self, number: int, key: str, parse: Callable[..., int], value: Any) -> int:
        known = self._quantities.get((key, value)) if isinstance(value, str) else None
        if known is not None:  # a few texts repeat often, and parsing is slow
            return known
        try:
            parsed = parse(value, f"the {key}", base=True)
        except InputError as error:
            self._fail(number, key, str(error))
        if isinstance(value, str):
            self._quantities[key, value] = parsed
        return parsed

    def _fail(self, number: int, key: str, message: str) -> NoReturn:
        field = f"tasks[{number}].{key}" if key else f"tasks[{number}]"
        raise SpecError(message, file=self._file, field=field)


def graph_answer(graph: TaskGraph, records: Records) -> dict[str, object]:
    """Return the result as plain data: ``end_time_s``, and ``start_ps`` and ``end_ps`` by task id."""
    starts: Sequence[int] = records.start_ps.tolist()
    ends: Sequence[int] = records.end_ps.tolist()
    names = graph.task_names or tuple(str(task) for task in range(graph.num_tasks))
    return {
        "end_time_s": max(ends, default=0) / PS_PER_S,
        "tasks": {
            name: {"start_ps": start, "end_ps": end} for name, start, end in zip(names, starts, ends, strict=True)
        },
    }
