"""Print the CPU time of searches, and of the screen's estimates of up to 10,000 layouts.

    python benchmarks/bench_plan.py [--only 70b|405b|screen]

Each figure is the CPU time of a whole process with its children (``trine plan`` with one worker), so it holds start,
probes, small simulations and simulations of the best layouts. A machine with other work takes more CPU time for the
same steps; so each row has its ratio to a fixed pure-Python loop that runs just before it.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import time

from trine.results.text import aligned

#: Searches: name, arguments of ``trine plan``, and the goal in CPU seconds on an idle machine.
SEARCHES = {
    "70b": ("llama-2-70b --gpus 256 --cluster dgx-h100 --global-batch 1024", 12),
    "405b": ("llama-3-405b --gpus 576 --cluster dgx-h100 --global-batch 252", 30),
}
#: Layouts that the screen estimates, and the goal in CPU seconds.
LAYOUTS, SCREEN_GOAL = 10_000, 20
#: Rounds of the reference loop: about 0.5 s on an idle machine of 2024.
ROUNDS = 10_000_000


def main() -> None:
    """Print one row for each search."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=[*SEARCHES, "screen"], default=None)
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
    print("\n".join(aligned(rows, 0)))


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
