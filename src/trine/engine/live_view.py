"""A running simulation of tasks as plain data, for the live page."""

from __future__ import annotations

from typing import Any

import numpy as np

from trine.common._records import Record
from trine.common.arrays import Float64, Int64
from trine.engine._state import NetworkTables, TaskTables
from trine.engine.describe import describe_task
from trine.graph.taskgraph import COMPUTE, TRANSFER, TaskGraph

#: Most links, transfers and tasks in a view.
SHOWN = 8


def view_of_tasks(
    work: TaskTables, network: NetworkTables, clock: Record, graph: TaskGraph, rank: int
) -> dict[str, Any]:
    """Return the state of a run: the busiest links, the oldest transfers, and what one rank does.

    rank: whose tasks to list; -1: of no rank. Links of queue networks have a backlog in time, others a share of their
    bandwidth in use.
    """
    now_ps = int(clock.now)
    flows = network.flows[network.flows["end_ps"] >= 0]
    tasks = flows["task"]
    age_ps = now_ps - work.tasks["start_ps"][tasks]
    oldest = np.argsort(-age_ps, kind="stable")[:SHOWN]
    view: dict[str, Any] = {
        "level": "operators",
        "now_ps": now_ps,
        "events": int(clock.num_done + clock.num_flows),
        "ended": int(clock.num_done),
        "ranks": len(graph.rank_names),
        "transfers": len(flows),
        "links": _busiest(work, network, graph, flows["task"], flows["rate"]),
        "waiting": [
            {
                "who": describe_task(graph, int(tasks[row])),
                "at": "transfer",
                "for": f"{float(flows['remaining'][row]):,.0f} bytes at {float(flows['rate'][row]) / 1e9:,.3g} GB/s",
                "since_ps": int(age_ps[row]),
            }
            for row in oldest.tolist()
        ],
        "stalled": False,
    }
    if 0 <= rank < len(graph.rank_names):
        view["tasks"] = _of_rank(work, graph, rank)
    return view


def _busiest(
    work: TaskTables, network: NetworkTables, graph: TaskGraph, tasks: Int64, rates: Float64
) -> list[dict[str, Any]]:
    """Return the links with the largest share of their bandwidth in use, and the transfers on each."""
    used, crossings = np.zeros(len(network.links)), np.zeros(len(network.links), np.int64)
    routes = network.routes[work.tasks["route"][tasks]]
    for route, rate in zip(routes, rates.tolist(), strict=True):
        links = network.route_links[route["first"] : route["last"]]
        np.add.at(used, links, rate)
        np.add.at(crossings, links, 1)
    share = used / np.maximum(network.links["bytes_per_s"], 1.0)
    order = np.argsort(-share, kind="stable")[:SHOWN]
    rows = []
    for link in order.tolist():
        if crossings[link]:
            rows.append({
                "name": graph.link_names[link], "share": min(1.0, float(share[link])), "transfers": int(crossings[link])
            })  # fmt: skip
    return rows


def _of_rank(work: TaskTables, graph: TaskGraph, rank: int) -> list[dict[str, Any]]:
    """Return the tasks of a rank that run, or that are ready and wait for their turn."""
    mine = (graph.rank == rank) | ((graph.kind == TRANSFER) & (graph.peer == rank))
    tasks = work.tasks
    runs = np.flatnonzero(mine & (tasks["start_ps"] >= 0) & (tasks["end_ps"] < 0))
    waits = np.flatnonzero(mine & (tasks["ready_ps"] >= 0) & (tasks["start_ps"] < 0) & (graph.kind == COMPUTE))
    rows = []
    for state, found, since in (("runs", runs, "start_ps"), ("waits for its stream", waits, "ready_ps")):
        for task in found[:SHOWN].tolist():
            rows.append({"task": describe_task(graph, task), "state": state, "since_ps": int(tasks[since][task])})
    return rows
