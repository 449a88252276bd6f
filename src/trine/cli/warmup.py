"""``trine warmup``: compile the kernels now, so that the first simulation does not."""

from __future__ import annotations

import time

import typer

from trine.cli.output import reports_errors, say


@reports_errors
def warmup() -> None:
    """Compile the kernels into the user's cache, for container images and fresh machines."""
    import trine

    say("compiling kernels (about 20 to 30 s) ...")
    began = time.monotonic()
    graph = trine.TaskGraphBuilder([10**9], [10**6])
    graph.join([graph.compute(0, "compute", 10**6), graph.transfer(0, 0, [0], 10**6)])
    for network in ("fair", "equal", "fifo", "circuit"):
        trine.run(graph.build(), network=network)
    say(f"done in {time.monotonic() - began:.1f} s")


def register(app: typer.Typer) -> None:
    """Add the command to ``app``."""
    app.command()(warmup)
