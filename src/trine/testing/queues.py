"""The check of network models that carry whole messages from link to link."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from numbers import Integral

import numpy as np

from trine.engine.models import QueueModel, drain_ps
from trine.engine.reference import Reference
from trine.errors import TrineError
from trine.graph.taskgraph import TRANSFER, Records, TaskGraph
from trine.testing.require import require, require_order

#: (sizes in bytes, bytes/s of the link) of each question that a run asks the model
Questions = list[tuple[tuple[int, ...], int]]


def check_queue_run(model: QueueModel, graph: TaskGraph, work_conserving: bool, rng: random.Random, where: str) -> None:
    """Run ``graph`` three times: as it is, again, and with other numbers of links and routes."""
    records, asked = _simulated(graph, model, work_conserving, where)
    _require_lawful_run(graph, records, asked, where)
    again, asked_again = _simulated(graph, model, work_conserving, where)
    require(
        asked == asked_again and np.array_equal(records.end_ps, again.end_ps),
        f"{where}: a second run differs from the first",
    )
    other, _ = _simulated(_relabelled(graph, rng), model, work_conserving, where)
    require(
        np.array_equal(records.end_ps, other.end_ps),
        f"{where}: transfers end at other times when links and routes are numbered otherwise",
    )


class _QueueWatch:
    """Passes a model's times of service on, checks them, and notes the questions."""

    def __init__(self, model: QueueModel, work_conserving: bool, where: str) -> None:
        self.name = model.name
        self.asked: Questions = []
        self._model, self._work_conserving, self._where = model, work_conserving, where

    def service_ps(self, sizes_bytes: Sequence[int], bytes_per_s: int) -> list[int]:
        self.asked.append((tuple(sizes_bytes), bytes_per_s))
        answer = _answer(self._model, sizes_bytes, bytes_per_s, self._where)
        where = f"{self._where}, messages of {list(sizes_bytes)} bytes on a link of {bytes_per_s} bytes/s"
        _require_possible(sizes_bytes, bytes_per_s, answer, self._work_conserving, where)
        require(
            _answer(self._model, sizes_bytes, bytes_per_s, self._where) == answer,
            f"{where}: other times when asked again: they must depend on the arguments only",
        )
        for message, before in enumerate(answer):
            larger = [size * 2 if at == message else size for at, size in enumerate(sizes_bytes)]
            after = _answer(self._model, larger, bytes_per_s, self._where)[message]
            require(
                after >= before,
                f"{where}: message {message} is through after {before} ps, but with twice the bytes after {after} ps",
            )
        return answer


def _answer(model: QueueModel, sizes_bytes: Sequence[int], bytes_per_s: int, where: str) -> list[int]:
    """The model's answer, of the right form."""
    given = list(sizes_bytes)
    answer = list(model.service_ps(given, bytes_per_s))
    require(given == list(sizes_bytes), f"{where}: service_ps() must not change its arguments")
    require(len(answer) == len(given), f"{where}: {len(answer)} times of service for {len(given)} messages")
    for time in answer:
        require(isinstance(time, Integral), f"{where}: the time of service {time!r} is no whole number of ps")
    return [int(time) for time in answer]


def _require_possible(
    sizes_bytes: Sequence[int], bytes_per_s: int, answer: Sequence[int], work_conserving: bool, where: str
) -> None:
    """At no time has the link carried more than it can, nor at the end less, if it must not rest."""
    carried = 0
    for end_ps, size in sorted(zip(answer, sizes_bytes, strict=True)):
        carried += size
        least = drain_ps(float(carried), float(bytes_per_s))
        require(
            end_ps >= least,
            f"{where}: {carried} bytes are through after {end_ps} ps, the link needs {least} ps for them",
        )
    most = sum(drain_ps(float(size), float(bytes_per_s)) for size in sizes_bytes)
    require(
        max(answer) <= most or not work_conserving,
        f"{where}: the link rests: all is through after {max(answer)} ps, {most} ps would do",
    )


def _simulated(graph: TaskGraph, model: QueueModel, work_conserving: bool, where: str) -> tuple[Records, Questions]:
    watch = _QueueWatch(model, work_conserving, where)
    run = Reference(graph, watch)
    try:
        run.run()
    except TrineError as error:
        raise AssertionError(f"{where}: {error}") from error
    return run.records(), watch.asked


def _require_lawful_run(graph: TaskGraph, records: Records, asked: Questions, where: str) -> None:
    """Everything ends, no sooner than its links allow, after what it waits for; links were asked to carry all bytes."""
    assert graph.link_latency_ps is not None
    crossing = 0
    for task in range(graph.num_tasks):
        require_order(graph, records, task, where)
        if graph.kind[task] != TRANSFER:
            continue
        route, size = int(graph.route[task]), int(graph.size_bytes[task])
        links = graph.links_of(route)
        least = int(graph.route_latency_ps[route])
        if size:
            least += sum(drain_ps(float(size), float(graph.link_bytes_per_s[link])) for link in links)
            crossing += size * len(links)
        took = int(records.end_ps[task] - records.start_ps[task])
        require(took >= least, f"{where}: transfer {task} takes {took} ps, its links need {least} ps")
    served = sum(sum(sizes) for sizes, _ in asked)
    require(served == crossing, f"{where}: links serve {served} bytes, transfers cross them with {crossing}")


def _relabelled(graph: TaskGraph, rng: random.Random) -> TaskGraph:
    """The same tasks on links and routes with other numbers."""
    assert graph.link_latency_ps is not None
    old_link = np.array(rng.sample(range(len(graph.link_names)), len(graph.link_names)), np.int64)
    old_route = np.array(rng.sample(range(len(graph.route_latency_ps)), len(graph.route_latency_ps)), np.int64)
    new_link, new_route = np.argsort(old_link).astype(np.int32), np.argsort(old_route).astype(np.int32)
    rows = [graph.links_of(route) for route in old_route]
    return replace(
        graph,
        route=np.where(graph.route >= 0, new_route[graph.route], np.int32(-1)),
        route_ptr=np.cumsum([0, *map(len, rows)]).astype(np.int64),
        route_links=new_link[np.concatenate(rows)],
        route_latency_ps=graph.route_latency_ps[old_route],
        link_bytes_per_s=graph.link_bytes_per_s[old_link],
        link_latency_ps=graph.link_latency_ps[old_link],
        link_names=tuple(graph.link_names[link] for link in old_link),
    )
