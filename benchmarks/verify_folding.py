"""Do folded and unfolded simulations agree on 1024 ranks, and how long does the check take?

Run: python benchmarks/verify_folding.py
A small job (8 layers, 1F1B with 4 micro-batches, tp 8 x pp 4 x dp 32) on 128 DGX H100, healthy or with one slow part.
Each row is a fresh process. The check is --verify-fold: it runs both and compares every task of every rank.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

#: Slow links and slow ranks of each row.
CASES = {
    "alike": ((), ()),
    "one NIC at half speed": ((("node5.nic3->leaf3.rail3", 0.5),), ()),
    "one GPU slower by 20 %": ((), ((77, 1.2),)),
}


def measure(name: str) -> str:
    """Return one row of the table."""
    from folded_cases import chain

    import trine

    slow_links, slow_ranks = CASES[name]
    cluster = trine.load_cluster("dgx-h100", nodes=128, slow_links=slow_links)
    plan = trine.Plan(tp=8, pp=4, dp=32, batch=8, micro_batch=2, schedule="1f1b", buffers="none")
    stragglers = trine.Stragglers(slow=slow_ranks) if slow_ranks else None
    seconds, results = [], []
    for fold in ("on", "off", "verify"):
        begun = time.perf_counter()
        results.append(trine.simulate(chain(8), plan, cluster=cluster, stragglers=stragglers, cpu=False, fold=fold))
        seconds.append(time.perf_counter() - begun)
    scope = results[0].scope
    assert scope is not None
    stages = max(scope.stages, key=lambda stage: stage.num_classes)
    gib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    tasks = results[1].graph.num_tasks
    times = " | ".join(f"{one:.2f}" for one in seconds)
    return f"| {name} | {stages.num_classes} | {stages.num_tasks:,} of {tasks:,} | {times} | {gib:.2f} |"


def main() -> None:
    print("| 1024 ranks | classes | tasks simulated | folded (s) | unfolded (s) | both, compared (s) | peak (GiB) |")
    print("|---|--:|--:|--:|--:|--:|--:|")
    for name in CASES:
        command = [sys.executable, __file__, name]
        print(subprocess.run(command, check=True, capture_output=True, text=True, env=os.environ).stdout, end="")


if __name__ == "__main__":
    print(measure(sys.argv[1])) if len(sys.argv) > 1 else main()
