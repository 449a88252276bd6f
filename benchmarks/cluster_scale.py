"""Time and peak memory to load, route and cost clusters of 4,096 to 131,072 GPUs.

Each row runs in a separate process. Run: ``python benchmarks/cluster_scale.py [GPUS ...]``.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

SIZES = (4096, 16384, 131072)
#: Row name -> preset and arguments of load_cluster (fabric, slow links, dead links).
MACHINES: dict[str, tuple[str, dict[str, Any]]] = {
    "dgx-h100": ("dgx-h100", {}),
    "dgx-h100 switch": ("dgx-h100", {"fabric": "switch"}),
    "dgx-h100 fat-tree": ("dgx-h100", {"fabric": "fat-tree"}),
    "dgx-h100 slow NIC": ("dgx-h100", {"slow_links": [("node7.nic3->node7.pcie1", 0.5)]}),
    "dgx-h100 dead link": ("dgx-h100", {"links_down": ["node7.gpu3-node7.nvswitch"]}),
    "dgx-a100": ("dgx-a100", {}),
    "mi300x-node": ("mi300x-node", {}),
    "gb200-nvl72": ("gb200-nvl72", {}),
}
NUM_ROUTES = 1_000_000


def main() -> None:
    if len(sys.argv) == 3 and sys.argv[1] in MACHINES:
        print(row(sys.argv[1], int(sys.argv[2])))
        return
    print(
        f"{'machine':20s} {'GPUs':>6s} {'links':>8s} {'load s':>7s} {'MB':>5s} {'1M routes s':>11s} {'hosts s':>7s} "
        f"{'hash s':>6s} {'tp 8 s':>7s} {'dp 1024 s':>9s} {'pairs s':>7s} {'makes':>9s} {'peak MB':>7s}"
    )
    for size in [int(text) for text in sys.argv[1:]] or SIZES:
        for machine in MACHINES:
            subprocess.run([sys.executable, __file__, machine, str(size)], check=True)


def row(machine: str, num_gpus: int) -> str:
    """Measure one cluster in this process and return its table row."""
    import numpy as np

    from trine.cluster import load_cluster
    from trine.collectives.nccl.steps import StepCosts

    name, asked = MACHINES[machine]
    load_s, cluster = timed(lambda: load_cluster(name, gpus=num_gpus, **asked))
    loaded = peak_mb()
    ranks = np.arange(num_gpus)
    sources, targets = pairs(num_gpus)
    routes_s, _ = timed(lambda: cluster.routes(sources, targets))
    hosts_s, _ = timed(lambda: cluster.host_routes(ranks))
    hash_s, _ = timed(lambda: cluster.fingerprint)
    costs = StepCosts(cluster)
    costs("all_reduce", 1 << 20, (0, 1), None)  # compiles or loads the engine
    width = min(1024, num_gpus)
    wholes = (ranks.reshape(-1, 8), ranks.reshape(width, -1).T, np.stack((ranks, np.roll(ranks, 1)), 1))
    cost_s, makes = [], []
    for kind, groups in zip(("all_reduce", "all_reduce", "send_recv"), wholes, strict=True):
        seconds, (_, answers) = timed(partial(costs.of_groups, kind, 1 << 24, groups, None))
        cost_s.append(seconds)
        makes.append(len(answers))
    return (
        f"{machine:20s} {num_gpus:6d} {len(cluster.links):8d} {load_s:7.2f} {loaded:5d} {routes_s:11.2f} "
        f"{hosts_s:7.2f} {hash_s:6.2f} {cost_s[0]:7.2f} {cost_s[1]:9.2f} {cost_s[2]:7.2f} "
        f"{'/'.join(map(str, makes)):>9s} {peak_mb():7d}"
    )


def pairs(num_gpus: int):  # type: ignore[no-untyped-def]
    """Return sources and targets (int64[NUM_ROUTES] each): strides of 1, 8 and 1024, and random pairs."""
    import numpy as np

    rng = np.random.default_rng(0)
    sources = rng.integers(0, num_gpus, NUM_ROUTES)
    steps = np.repeat([1, 8, 1024, 0], NUM_ROUTES // 4)
    return sources, np.where(steps > 0, (sources + steps) % num_gpus, rng.integers(0, num_gpus, NUM_ROUTES))


def timed(work: Callable[[], object]):  # type: ignore[no-untyped-def]
    began = time.perf_counter()
    result = work()
    return time.perf_counter() - began, result


def peak_mb() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


if __name__ == "__main__":
    main()
