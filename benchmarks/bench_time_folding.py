"""What does a step of many micro-batches cost, and what does one layout of a search cost in a warm process?

Run: python benchmarks/bench_time_folding.py [--full]
CPU seconds in this process, after a first run. Ratios are to the same job with every micro-batch simulated, in the same
run; --full simulates all 1,024 of them as well (minutes, 5 GB). The jobs: llama-3-70b on 256 GPUs of dgx-h100, 18
of its layouts at global batch 1,024, and pipelines of 16 and 32 stages; the start of 32 converges slowly.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import time

import trine
from trine.cluster import load_cluster


def cpu_s(workload: trine.Workload, plan: trine.Plan, cluster: trine.Cluster, fold: str = "on") -> tuple[float, int]:
    """Return CPU seconds and the simulated micro-batches."""
    begun = time.process_time()
    result = trine.simulate(workload, plan, cluster=cluster, fold=fold)
    simulated = plan.batch // plan.micro_batch if result.repeats is None else result.repeats.simulated
    return time.process_time() - begun, simulated


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--full", action="store_true")
    is_full = parser.parse_args().full
    workload, cluster = trine.synthesize("llama-3-70b", gpu="h100-sxm"), load_cluster("dgx-h100", nodes=32)
    job = {"dp": 4, "tp": 8, "pp": 8, "schedule": "1f1b", "micro_batch": 1}
    cpu_s(workload, trine.Plan(batch=16, **job), cluster)
    print("micro-batches  simulated  CPU s  CPU s of all  ratio")
    for count in (16, 64, 1024, 4096):
        plan = trine.Plan(batch=count, **job)
        folded, simulated = cpu_s(workload, plan, cluster)
        whole = cpu_s(workload, plan, cluster, "ranks")[0] if count <= 64 or (is_full and count == 1024) else None
        words = "" if whole is None else f"{whole:12.2f}  {whole / folded:5.1f}"
        print(f"{count:13,}  {simulated:9}  {folded:5.2f}  {words}", flush=True)
    deep = {}
    for pp in (16, 32):
        plan = trine.Plan(tp=8, pp=pp, schedule="1f1b", micro_batch=1, batch=1024)
        deep[pp], simulated = cpu_s(workload, plan, cluster)
        print(f"pp {pp}, 1,024 micro-batches: {simulated} simulated, {deep[pp]:.2f} CPU s")
    print(f"pp 32 / pp 16: {deep[32] / deep[16]:.1f}")
    times = []
    for tp, pp, size in ((tp, pp, size) for tp in (2, 4, 8) for pp in (2, 4, 8) for size in (1, 2)):
        dp = 256 // tp // pp
        plan = trine.Plan(
            dp=dp, tp=tp, pp=pp, batch=1024 // dp, micro_batch=size, schedule="1f1b", sharding="zero1",
            sequence_parallel=True,
        )  # fmt: skip
        times.append(cpu_s(workload, plan, cluster)[0])
    print(f"18 layouts: median {statistics.median(times):.2f} CPU s, worst {max(times):.2f}, sum {sum(times):.1f}")
    print(f"peak memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20:.2f} GiB")


if __name__ == "__main__":
    main()
