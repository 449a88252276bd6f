"""What does folding cost on jobs that cannot fold? CPU time of ``trine.simulate`` with ``fold="on"`` and ``"off"``.

Run: python benchmarks/bench_unfoldable.py [--repeat 5] [--only WORD]
Jobs have up to 64 ranks, all different. Runs alternate in one process; the ratio is the median of pairs, target 1.15.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import time
from collections.abc import Callable
from typing import Any

import trine
from trine.cluster import Cluster, build_topology
from trine.cluster.select import slow_down

CNN = "resnet50-h100-b128"
NVLINK = ("node0.gpu3->node0.nvswitch", 0.5)
NIC = ("node7.nic3->node7.pcie1", 0.5)


def ring(gpus: int) -> Cluster:
    return build_topology("ring", 65 * 10**9, 10**6, gpus)


def dgx(nodes: int, *slow: tuple[str, float]) -> Cluster:
    return trine.load_cluster("dgx-h100", nodes=nodes, slow_links=slow)


def speeds(gpus: int) -> dict[str, Any]:
    """Return stragglers that make each rank a little slower than the one before."""
    return {"stragglers": trine.Stragglers(slow=tuple((rank, 1 + rank / 1000) for rank in range(gpus)))}


#: Cluster, plan, and other arguments of ``trine.simulate``.
CASES: dict[str, tuple[Callable[[], Cluster], dict[str, Any], dict[str, Any]]] = {
    "chain, 8": (lambda: ring(8), {"dp": 8, "buffers": "broadcast"}, {}),
    "chain, 64": (lambda: ring(64), {"dp": 64, "buffers": "broadcast"}, {}),
    "64 speeds on a ring": (lambda: ring(64), {"dp": 64}, speeds(64)),
    "64 speeds on 8 nodes": (lambda: dgx(8), {"dp": 64}, speeds(64)),
    "slow link of a ring, 32": (lambda: slow_down(ring(32), [("gpu0-gpu1", 0.5)]), {"dp": 32}, {}),
    "slow link, 8 nodes": (lambda: dgx(8, NVLINK), {"dp": 64}, {}),
    "slow NIC, FSDP, 8 nodes": (lambda: dgx(8, NIC), {"dp": 64, "sharding": "fsdp"}, {}),
    "pipeline of 8": (lambda: ring(8), {"pp": 8, "micro_batch": 16}, {}),
    "pipeline of 8, 4 replicas": (lambda: ring(32), {"pp": 8, "dp": 4, "micro_batch": 16}, {}),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--only", default="", help="rows that contain this word")
    given = parser.parse_args()
    workload = trine.load(CNN)
    print(f"{'CPU s, medians of ' + str(given.repeat):28} {'off':>7} {'on':>7} {'ratio':>6}")
    for name in (name for name in CASES if given.only in name):
        make, plan, other = CASES[name]
        cluster, found = make(), {}
        for fold in ["off", "on"] * (given.repeat + 1):
            gc.collect()
            began = time.process_time()
            trine.simulate(workload, trine.Plan(**plan), cluster=cluster, fold=fold, compare=False, **other)
            found.setdefault(fold, []).append(time.process_time() - began)
        off, on = (found[fold][1:] for fold in ("off", "on"))  # the first is a warm-up
        ratio = statistics.median(b / a for a, b in zip(off, on, strict=True))
        print(f"{name:28} {statistics.median(off):7.3f} {statistics.median(on):7.3f} {ratio:6.2f}", flush=True)


if __name__ == "__main__":
    main()
