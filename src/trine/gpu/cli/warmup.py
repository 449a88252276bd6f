"""``trine warmup``: compile the kernels now, so that the first simulation does not."""

from __future__ import annotations

import time

from trine.cli.output import say
from trine.errors import SimulationError


def warmup() -> None:
    """Compile the kernels into the user's cache, for container images and fresh machines.

    Example: trine warmup
    """
    from trine.common._jit import cache_directory
    from trine.common._jit_files import said
    from trine.engine import run
    from trine.graph.builder import TaskGraphBuilder
    from trine.results._replay import allocations, replayed

    say("compiling kernels (about 5 to 20 s) ...")
    began = time.monotonic()
    graph = TaskGraphBuilder([10**9], [10**6])
    graph.join([graph.compute(0, "compute", 10**6), graph.transfer(0, 0, [0], 10**6)])
    for network in ("fair", "equal", "fifo", "circuit"):
        run(graph.build(), network=network)
    replayed([allocations([1], 0)], 512)
    _load_store()
    say(f"done in {time.monotonic() - began:.1f} s")
    directory = cache_directory()
    if directory is None or said() is not None:
        raise SimulationError("compiled kernels were not all kept: the note above says why, and what mends it")
    say(f"kernels are in {directory}")


def _load_store() -> None:
    """Compile the kernels of the load-store level by running a small program."""
    from trine.cluster import load_cluster
    from trine.gpu.kernels.build import build_kernel
    from trine.gpu.model.files import load_gpu_model
    from trine.gpu.run import run_gpus

    cluster = load_cluster("astra3-generic")
    program = build_kernel("all_gather", 2, 1 << 12, workgroups=1)
    run_gpus(program, cluster, cluster.gpus[:2], load_gpu_model("astra3-generic"))
