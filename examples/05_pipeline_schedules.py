"""What micro-batches and the order of passes do to a four-stage pipeline: bubble and memory.

Writes 05_pipeline_schedules.png (the timeline of 1F1B with 8 micro-batches).
"""

from pathlib import Path

import trine
from trine.common.units import format_bytes


def main() -> None:
    workload = trine.load("vgg13-h100-b128")
    cluster = trine.load_cluster("dgx-h100")
    print(f"{'schedule':9} {'micro-batches':>13} {'step':>11} {'bubble':>8} {'largest peak memory':>20}")
    for schedule in ("gpipe", "1f1b"):
        for count in (1, 2, 4, 8):
            plan = trine.Plan(pp=4, micro_batch=workload.batch // count, schedule=schedule, inputs="none")
            result = trine.simulate(workload, plan, cluster=cluster)
            idle = result.rank_times.bubble.sum() / (result.step_time_ps * 4)
            print(
                f"{schedule:9} {count:13} {result.step_time_s * 1e3:8.2f} ms {100 * idle:6.1f} % "
                f"{format_bytes(result.memory_peak_bytes or 0):>20}"
            )
    from trine.results import plot_timeline

    plot_timeline(result, Path(__file__).with_suffix(".png"))


if __name__ == "__main__":
    main()
