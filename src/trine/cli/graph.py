"""``trine run``: any task graph on any cluster."""

from __future__ import annotations

from typing import Annotated

from trine.cli.completions import clusters, networks
from trine.cli.options import MACHINE, NETWORK, NETWORK_WORDS, Engine, Json, Option, argument
from trine.cli.output import say, show, write_json
from trine.cli.progress import watched


def run(
    graph: Annotated[str, argument("Task graph, JSON (trine help graph).")],
    cluster: Annotated[str, Option("Choose the cluster: preset or file.", panel=MACHINE, values=clusters)],
    network: Annotated[
        str | None,
        Option("Choose how flows share links [fair; circuit if any].", NETWORK_WORDS, NETWORK, values=networks),
    ] = None,
    engine: Engine = "compiled",
    json: Json = None,
) -> None:
    """Simulate the compute, transfer and join tasks of GRAPH: start and end of each.

    Example: trine run graph.json --cluster dgx-h100
    """
    from trine.cluster import load_cluster
    from trine.common.units import format_time
    from trine.training.graph_file import graph_answer, run_graph

    machine = load_cluster(cluster)
    with watched():
        tasks, records = run_graph(graph, machine, network=network, engine=engine)
    end = int(records.end_ps.max(initial=0))
    last = int(records.end_ps.argmax()) if tasks.num_tasks else -1
    show(f"{tasks.num_tasks} tasks end after {format_time(end)} ({end} ps)", json)
    if last >= 0:
        show(f"last to end: {tasks.task_names[last]}", json)
    write_json(graph_answer(tasks, records), json, "run")
    if json is None:
        say("every task's start and end: --json FILE, or --json - for stdout")
