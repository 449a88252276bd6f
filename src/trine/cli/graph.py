"""``trine run``: any task graph on any cluster."""

from __future__ import annotations

from typing import Annotated

import typer

from trine.cli.output import reports_errors, say, show, write_json
from trine.cli.progress import ProgressLine


@reports_errors
def run(
    graph: Annotated[str, typer.Argument(help="Task graph, JSON (docs/formats/graph.md).")],
    cluster: Annotated[str, typer.Option(help="Preset name or cluster file.")],
    network: Annotated[
        str | None,
        typer.Option(
            metavar="fair|equal|fifo|circuit", help="How flows share links [fair, or circuit where there are any]."
        ),
    ] = None,
    engine: Annotated[
        str, typer.Option(metavar="compiled|reference", help="The engine, or its Python twin.")
    ] = "compiled",
    json: Annotated[str | None, typer.Option(help="Write the answer as JSON; - for stdout.")] = None,
) -> None:
    """Run the compute, transfer and join tasks of GRAPH and say when each starts and ends."""
    from trine.cluster import load_cluster
    from trine.simulation.graph_file import graph_answer, run_graph
    from trine.units import format_time

    machine = load_cluster(cluster)
    with ProgressLine() as progress:
        tasks, records = run_graph(
            graph, machine, network=network, engine=engine, progress=progress, on_compile=progress.compiling
        )
    end = int(records.end_ps.max(initial=0))
    last = int(records.end_ps.argmax()) if tasks.num_tasks else -1
    show(f"{tasks.num_tasks} tasks end after {format_time(end)} ({end} ps)", json)
    if last >= 0:
        show(f"last to end: {tasks.task_names[last]}", json)
    write_json(graph_answer(tasks, records), json, "run")
    if json is None:
        say("every task's start and end: --json FILE, or --json - for stdout")


def register(app: typer.Typer) -> None:
    """Add the command to ``app``."""
    app.command()(run)
