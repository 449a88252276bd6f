"""Print the CPU time of searches, of the screen's estimates of up to 10,000 layouts, and of single layouts.

    python benchmarks/bench_plan.py [--only 70b|405b|deepseek|screen|layouts]

Each figure of a search is the CPU time of a whole process with its children (``trine plan`` with one worker), so it
holds start, probes, small simulations and simulations of the best layouts. A machine with other work takes more CPU
time for the same steps; so each row has its ratio to a fixed pure-Python loop that runs just before it.

``layouts`` simulates 18 layouts of llama-3-70b on 256 H100 in one process, each once before it is timed.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import subprocess
import sys
import time
from itertools import product

from trine.results.text import aligned

#: Searches: name, arguments of ``trine plan``, and the goal in CPU seconds on an idle machine.
SEARCHES = {
    "70b": ("llama-2-70b --gpus 256 --cluster dgx-h100 --global-batch 1024", 12),
    "405b": ("llama-3-405b --gpus 576 --cluster dgx-h100 --global-batch 252", 30),
    "deepseek": ("deepseek-v3 --gpus 2048 --precision fp8", 30),
}
#: Layouts that the screen estimates, and the goal in CPU seconds.
LAYOUTS, SCREEN_GOAL = 10_000, 20
#: Degrees and micro-batches of the single layouts, and the goals in CPU seconds: their median and the slowest.
LAYOUTS_OF_70B, MEDIAN_GOAL, WORST_GOAL = tuple(product((2, 4, 8), (2, 4, 8), (1, 2))), 0.12, 0.3
#: Rounds of the reference loop: about 0.5 s on an idle machine of 2024.
ROUNDS = 10_000_000


def main() -> None:
    """Print one row for each search."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=[*SEARCHES, "screen", "layouts"], default=None)
    parser.add_argument("--estimate", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.estimate:
        print(estimate_layouts())
        return
    rows = [("job", "CPU s", "goal, idle", "x reference")]
    for name, (arguments, goal) in SEARCHES.items():
        if given.only in (None, name):
            command = [sys.executable, "-m", "trine", "plan", *arguments.split(), "--workers", "1", "--brief"]
            rows.append(row_of(f"plan {arguments}", command, goal))
    if given.only in (None, "screen"):
        command = [sys.executable, __file__, "--estimate"]
        rows.append(row_of("estimates of {} layouts, llama-3-70b on 512 GPUs", command, SCREEN_GOAL))
    if given.only in (None, "layouts"):
        rows += rows_of_layouts()
    print("\n".join(aligned(rows, 0)))


def rows_of_layouts() -> list[tuple[str, str, str, str]]:
    """Return the rows of the median and of the slowest of :data:`LAYOUTS_OF_70B`, in a warm process."""
    reference, spent = reference_s(), times_of_layouts()
    rows = []
    for name, goal, seconds in (
        ("median", MEDIAN_GOAL, statistics.median(spent)), ("slowest", WORST_GOAL, max(spent)),
    ):  # fmt: skip
        text = f"{name} of {len(spent)} layouts, llama-3-70b on 256 GPUs"
        rows.append((text, f"{seconds:.2f}", str(goal), f"{seconds / reference:.2f}"))
    return rows


def times_of_layouts() -> list[float]:
    """Return the CPU time of a second simulation of each layout, in seconds."""
    import trine
    from trine.cluster import load_cluster

    cluster, workload = load_cluster("dgx-h100", nodes=32), trine.synthesize("llama-3-70b", gpu="h100-sxm")
    spent = []
    for _ in range(2):
        spent.clear()
        for tp, pp, micro_batch in LAYOUTS_OF_70B:
            dp = 256 // tp // pp
            plan = trine.Plan(
                dp=dp, tp=tp, pp=pp, batch=1024 // dp, micro_batch=micro_batch, schedule="1f1b", sharding="zero1",
                sequence_parallel=True,
            )  # fmt: skip
            began = time.process_time()
            trine.simulate(workload, plan, cluster=cluster)
            spent.append(time.process_time() - began)
    return spent


def row_of(name: str, command: list[str], goal: int) -> tuple[str, str, str, str]:
    """Run a command; return its name with its output, CPU time, goal, and ratio to the reference loop."""
    reference = reference_s()
    before = children_s()
    output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    spent = children_s() - before
    return name.format(output.strip()), f"{spent:.1f}", str(goal), f"{spent / reference:.0f}"


def children_s() -> float:
    """Return the CPU time of all ended children, in seconds."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def reference_s() -> float:
    """Return the CPU time of a fixed pure-Python loop, in seconds."""
    began, total = time.process_time(), 0
    for number in range(ROUNDS):
        total += number & 3
    return time.process_time() - began


def estimate_layouts() -> int:
    """Estimate up to LAYOUTS layouts of the 70B, with the most usual forms calibrated; return their number."""
    from concurrent.futures import Executor

    from trine.cluster import load_cluster
    from trine.common.processes import SerialExecutor
    from trine.parallel.constraints import LayoutFacts
    from trine.parallel.plan import Plan
    from trine.search.plan import memory_of
    from trine.search.screened import ScreenedSearch
    from trine.search.space import Space
    from trine.search.worker import PackedJob, SearchJob
    from trine.training.options import SimulateOptions
    from trine.training.setup import setup_machine, setup_workload

    options = SimulateOptions(cluster=load_cluster("dgx-h100", gpus=512), compare=False)
    machine = setup_machine(Plan(dp=512), options)
    workload, software = setup_workload("model:llama-3-70b", machine, options)
    space = Space(512, 2048, LayoutFacts(workload), software.profile, {}, 8)
    packed = PackedJob(SearchJob(workload=workload, options=options, gpus=512))
    executor: Executor = SerialExecutor()
    search = ScreenedSearch(packed, space, memory_of(machine), executor, 5)
    return search.estimate_all(LAYOUTS)


if __name__ == "__main__":
    main()
