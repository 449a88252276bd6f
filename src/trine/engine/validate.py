"""Checks that reject a task graph that the engine cannot run, before it runs."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from trine.common.arrays import Bool, Int64, row_sums
from trine.engine._limits import FULL_PPM, MAX_BYTES_PER_S, MAX_PACED_PS, MAX_PS, MAX_WHOLE
from trine.errors import InputError
from trine.graph.taskgraph import COMPUTE, JOIN, TRANSFER, TaskGraph


def validate(graph: TaskGraph) -> None:
    """Check lengths, index ranges and signs of all arrays; raise InputError with the first invalid task."""
    _check_lengths(graph)
    _check_links(graph)
    _check_latencies(graph)
    _check_csr(graph.predecessor_ptr, graph.predecessor_idx, graph.num_tasks, "predecessor")
    _check_tasks(graph)
    _check_counts(graph)
    _check_caps(graph)
    _check_pressure(graph)


def software_latency_ps(graph: TaskGraph) -> Int64:
    """Return the software latency before a message enters the first link of its route: int64[routes], ps.

    This is the route's latency less the latency of its links, or all of it if the links' latencies are unknown.
    """
    if graph.link_latency_ps is None:
        return graph.route_latency_ps
    return graph.route_latency_ps - row_sums(graph.link_latency_ps[graph.route_links], graph.route_ptr)


def _check_lengths(graph: TaskGraph) -> None:
    n = graph.num_tasks
    if n >= 2**31 - 1:
        raise InputError(f"{n} tasks are too many")
    for field in ("rank", "peer", "stream", "duration_ps", "size_bytes", "route", "num_required"):
        if len(getattr(graph, field)) != n:
            raise InputError(f"has {len(getattr(graph, field))} entries for {n} tasks", field=field)
    for field, entries, owners in (
        ("predecessor_ptr", len(graph.predecessor_ptr), n),
        ("route_ptr", len(graph.route_ptr), len(graph.route_latency_ps)),
    ):
        if entries != owners + 1:
            raise InputError(f"has {entries} entries, must have {owners + 1}", field=field)


def _check_links(graph: TaskGraph) -> None:
    _check_csr(graph.route_ptr, graph.route_links, len(graph.link_bytes_per_s), "route")
    wrong = (graph.link_bytes_per_s < 1) | (graph.link_bytes_per_s > MAX_BYTES_PER_S)
    if wrong.any():
        link = int(wrong.argmax())
        name = graph.link_names[link] if link < len(graph.link_names) else f"link {link}"
        raise InputError(
            f"bandwidth of {name} must be between 1 and 10**18 bytes/s, got {graph.link_bytes_per_s[link]}",
            field="link_bytes_per_s",
        )


def _check_latencies(graph: TaskGraph) -> None:
    if len(graph.route_latency_ps) and graph.route_latency_ps.min() < 0:
        raise InputError(f"route {graph.route_latency_ps.argmin()} has a negative latency", field="route_latency_ps")
    latency_ps = graph.link_latency_ps
    if latency_ps is None:
        return
    if len(latency_ps) != len(graph.link_bytes_per_s):
        message = f"has {len(latency_ps)} entries for {len(graph.link_bytes_per_s)} links"
        raise InputError(message, field="link_latency_ps")
    if len(latency_ps) and not 0 <= latency_ps.min() <= latency_ps.max() <= MAX_PS:
        link = int(((latency_ps < 0) | (latency_ps > MAX_PS)).argmax())
        raise InputError(f"link {link} has a latency of {latency_ps[link]} ps", field="link_latency_ps")
    software_ps = software_latency_ps(graph)
    if len(software_ps) and software_ps.min() < 0:
        message = f"route {software_ps.argmin()} has {-software_ps.min()} ps less latency than its links"
        raise InputError(message, field="route_latency_ps")


def _check_csr(ptr: npt.NDArray[np.int64], idx: npt.NDArray[np.int32], size: int, name: str) -> None:
    if ptr[0] != 0 or ptr[-1] != len(idx) or (ptr[1:] < ptr[:-1]).any():
        raise InputError("must rise from 0 to the number of entries", field=f"{name}_ptr")
    if len(idx) and (idx.min() < 0 or idx.max() >= size):
        entry = int(((idx < 0) | (idx >= size)).argmax())
        row = int(np.searchsorted(ptr, entry, side="right")) - 1
        owner = "task" if name == "predecessor" else "route"
        raise InputError(f"{owner} {row} names {idx[entry]}, of 0..{size - 1}", field=f"{name}_ptr")


def _check_tasks(graph: TaskGraph) -> None:
    num_predecessors = np.diff(graph.predecessor_ptr)
    num_routes = len(graph.route_latency_ps)
    is_transfer = graph.kind == TRANSFER
    is_compute = graph.kind == COMPUTE
    _refuse(graph, (graph.kind < COMPUTE) | (graph.kind > JOIN), "is of no known kind", graph.kind)
    _refuse(graph, graph.num_required < 0, "needs a negative number of predecessors", graph.num_required)
    _refuse(graph, graph.num_required > num_predecessors, "needs more predecessors than it has", graph.num_required)
    _refuse(graph, graph.duration_ps < 0, "has a negative duration in ps", graph.duration_ps)
    _refuse(graph, graph.size_bytes < 0, "has a negative size in bytes", graph.size_bytes)
    _refuse(graph, graph.size_bytes > MAX_WHOLE, "moves more than 2**53 bytes", graph.size_bytes)
    wrong_route = is_transfer & ((graph.route < 0) | (graph.route >= num_routes))
    _refuse(graph, wrong_route, f"has a route out of 0..{num_routes - 1}", graph.route)
    num_streams = len(graph.stream_names)
    wrong_stream = is_compute & ((graph.stream < -1) | (graph.stream >= num_streams))
    _refuse(graph, wrong_stream, f"has a stream out of 0..{num_streams - 1}", graph.stream)


def _check_counts(graph: TaskGraph) -> None:
    counts = graph.route_counts
    if counts is None:
        return
    if len(counts) != len(graph.route_links):
        raise InputError(
            f"has {len(counts)} entries for {len(graph.route_links)} links of routes", field="route_counts"
        )
    if len(counts) and counts.min() < 1:
        entry = int((counts < 1).argmax())
        route = int(np.searchsorted(graph.route_ptr, entry, side="right")) - 1
        message = f"route {route} crosses link {graph.route_links[entry]} {counts[entry]} times, must be at least once"
        raise InputError(message, field="route_counts")


def _check_caps(graph: TaskGraph) -> None:
    caps = graph.route_cap_bytes_per_s
    if caps is None:
        return
    if len(caps) != len(graph.route_latency_ps):
        message = f"has {len(caps)} entries for {len(graph.route_latency_ps)} routes"
        raise InputError(message, field="route_cap_bytes_per_s")
    if len(caps) and not 0 <= caps.min() <= caps.max() <= MAX_WHOLE:
        route = int(((caps < 0) | (caps > MAX_WHOLE)).argmax())
        raise InputError(f"route {route} has a limit of {caps[route]} bytes/s", field="route_cap_bytes_per_s")


def _check_pressure(graph: TaskGraph) -> None:
    ppm, stream = graph.pressure_ppm, graph.pressure_stream
    if ppm is None and stream is None:
        return
    if ppm is None or stream is None:
        missing = "pressure_ppm" if ppm is None else "pressure_stream"
        raise InputError("is missing: pressure and its stream go together", field=missing)
    for field, column in (("pressure_ppm", ppm), ("pressure_stream", stream)):
        if len(column) != graph.num_tasks:
            raise InputError(f"has {len(column)} entries for {graph.num_tasks} tasks", field=field)
    num_streams = len(graph.stream_names)
    _refuse(graph, (stream < -1) | (stream >= num_streams), f"presses on a stream out of 0..{num_streams - 1}", stream)
    _refuse(graph, (stream < 0) & (ppm != 0), "has pressure, but on no stream", ppm)
    _refuse(graph, (ppm < -FULL_PPM) | (ppm > FULL_PPM), "takes more than full speed, in millionths", ppm)
    is_paced = (graph.kind == COMPUTE) & (graph.stream >= 0)
    too_long = is_paced & (graph.duration_ps > MAX_PACED_PS)
    _refuse(graph, too_long, f"is longer than {MAX_PACED_PS} ps, while pressure slows streams down", graph.duration_ps)


def _refuse(graph: TaskGraph, wrong: Bool, why: str, values: npt.NDArray[np.integer]) -> None:
    if wrong.any():
        task = int(wrong.argmax())
        from trine.engine.describe import describe_task

        raise InputError(f"{describe_task(graph, task)} {why}: {values[task]}")
