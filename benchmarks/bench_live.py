"""What does the live page cost a run: without a page that asks, and with one?

Run: python benchmarks/bench_live.py [--repeats N]
CPU seconds of the simulation's thread, as ratios to the same run without a page, in alternating order. The job: gpt-2
on 16 GPUs, all ranks and micro-batches simulated.
"""

from __future__ import annotations

import argparse
import statistics
import threading
import time
from contextlib import nullcontext

import trine
from trine.cluster import load_cluster
from trine.common.observer import observing
from trine.live.state import LiveRun

PERIOD_S = 0.5


def cpu_s(workload: trine.Workload, cluster: trine.Cluster, run: LiveRun | None) -> float:
    """Return the CPU seconds of the simulating thread."""
    plan = trine.Plan(dp=4, tp=2, pp=2, batch=96, micro_batch=1, schedule="1f1b")
    with nullcontext() if run is None else observing(control=run):
        begun = time.thread_time()
        trine.simulate(workload, plan, cluster=cluster, fold="off")
        return time.thread_time() - begun


def asking(run: LiveRun, is_over: threading.Event) -> None:
    """Ask as a page does."""
    while not is_over.wait(PERIOD_S):
        run.status(rank=3)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=7)
    repeats = parser.parse_args().repeats
    workload, cluster = trine.synthesize("gpt-2", gpu="h100-sxm"), load_cluster("dgx-h100", nodes=2)
    cpu_s(workload, cluster, None)
    times: dict[str, list[float]] = {"without --live": [], "no page": [], "a page": []}
    for _ in range(repeats):
        times["without --live"].append(cpu_s(workload, cluster, None))
        times["no page"].append(cpu_s(workload, cluster, LiveRun("bench")))
        run, is_over = LiveRun("bench"), threading.Event()
        page = threading.Thread(target=asking, args=(run, is_over))
        page.start()
        times["a page"].append(cpu_s(workload, cluster, run))
        is_over.set()
        page.join()
    base = statistics.median(times["without --live"])
    for name, values in times.items():
        print(f"{name:15} {statistics.median(values):6.2f} CPU s  {statistics.median(values) / base:.3f}")


if __name__ == "__main__":
    main()
