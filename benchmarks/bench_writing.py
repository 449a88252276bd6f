"""Print the CPU time of layouts whose programs are written anew, against another checkout in alternating runs.

    python benchmarks/bench_writing.py [--against ../base/.venv/bin/python] [--rounds 5] [--only 'pp 4']

Each run is a process that simulates all layouts once before it times them. The programs that a sweep keeps
(:mod:`trine.training.kept_programs`) are dropped before each timed simulation, and the garbage collector runs in it.
Times on a machine with other work vary; the ratios of runs that alternate tell more. Each row has the least time of
its runs, and the median of the ratios of their pairs.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time

from trine.results.text import aligned

#: Model, cluster, GPUs, and degrees (tp, pp), micro-batches and further fields of the plan.
LAYOUTS = {
    "70B, tp 8, pp 2": ("llama-3-70b", 256, {"tp": 8, "pp": 2, "micro_batch": 1}),
    "70B, tp 8, pp 4": ("llama-3-70b", 256, {"tp": 8, "pp": 4, "micro_batch": 1}),
    "70B, tp 8, pp 8": ("llama-3-70b", 256, {"tp": 8, "pp": 8, "micro_batch": 1}),
    "70B, tp 2, pp 8, recomputed": ("llama-3-70b", 256, {"tp": 2, "pp": 8, "micro_batch": 2, "recompute": "full"}),
    "70B, tp 4, pp 4, interleaved": (
        "llama-3-70b", 256, {"tp": 4, "pp": 4, "micro_batch": 1, "schedule": "interleaved", "virtual_stages": 2},
    ),
    "70B, tp 8, pp 32": ("llama-3-70b", 256, {"tp": 8, "pp": 32, "micro_batch": 1}),
}  # fmt: skip
SAMPLES = 1024


def main() -> None:
    """Time the layouts in this checkout, and perhaps in another one in turns."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--against", default=None, help="the Python interpreter of the other checkout's environment")
    parser.add_argument("--rounds", type=int, default=5, help="runs of each checkout [5]")
    parser.add_argument("--only", default="", help="only layouts with this in their name")
    parser.add_argument("--measure", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.measure:
        print(json.dumps(measured(given.only)))
        return
    pythons = [sys.executable] if given.against is None else [sys.executable, given.against]
    runs: list[list[dict[str, float]]] = [[] for _ in pythons]
    for _ in range(given.rounds):
        for number, python in enumerate(pythons):
            command = [python, __file__, "--measure", "--only", given.only]
            runs[number].append(json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout))
    print("\n".join(aligned(rows_of(runs), 0)))


def rows_of(runs: list[list[dict[str, float]]]) -> list[tuple[str, ...]]:
    """Return a row for each layout. runs: of each checkout, CPU seconds by layout."""
    heads = ["CPU s", "against CPU s", "ratio"] if len(runs) > 1 else ["CPU s"]
    rows: list[tuple[str, ...]] = [("layout", *heads)]
    for name in runs[0][0]:
        times = [[run[name] for run in of_checkout] for of_checkout in runs]
        row = [name, *(f"{min(each):.3f}" for each in times)]
        if len(times) > 1:
            ratios = [own / other for own, other in zip(*times, strict=True)]
            row.append(f"{statistics.median(ratios):.2f}")
        rows.append(tuple(row))
    return rows


def measured(only: str) -> dict[str, float]:
    """Return the CPU seconds of each layout in this process, the least of three simulations. only: see ``--only``."""
    import trine
    from trine.cluster import load_cluster
    from trine.training import kept_programs

    jobs = {}
    for name, (model, gpus, fields) in LAYOUTS.items():
        if only not in name:
            continue
        dp = gpus // fields["tp"] // fields["pp"]
        options = {"schedule": "1f1b", "sharding": "zero1", "sequence_parallel": True, **fields}
        plan = trine.Plan(dp=dp, batch=SAMPLES // dp, **options)
        jobs[name] = trine.synthesize(model, gpu="h100-sxm"), plan, load_cluster("dgx-h100", gpus=gpus)
    spent: dict[str, float] = {}
    for name, (workload, plan, cluster) in jobs.items():
        trine.simulate(workload, plan, cluster=cluster)
        for _ in range(3):
            kept_programs._kept.clear()
            began = time.process_time()
            trine.simulate(workload, plan, cluster=cluster)
            spent[name] = min(spent.get(name, 1e9), time.process_time() - began)
    return spent


if __name__ == "__main__":
    main()
