"""Five pipeline schedules and three kinds of recomputation, for Llama 3 8B on four GPUs: bubble against memory.

Writes 13_pipelines_of_llama.png (the timeline of DualPipe).
"""

from pathlib import Path

import trine
from trine.common.units import format_bytes

SCHEDULES = {"gpipe": 1, "1f1b": 1, "interleaved": 2, "zb-h1": 1, "dualpipe": 1}  # parts of the model on each GPU

#: Megatron-core, the default, has no gpipe, zb-h1 and dualpipe: a loop in plain PyTorch can have any schedule.
SOFTWARE = "pytorch-eager"


def show(name: str, result: trine.Result) -> None:
    busy = result.rank_times.compute.sum() / (result.step_time_ps * 4)
    bubble = result.rank_times.bubble.sum() / (result.step_time_ps * 4)
    most = max(result.memory_peaks, key=lambda peak: peak.by_category["activations"])
    print(
        f"{name:30} {result.step_time_s:7.3f} s {busy:8.1%} {bubble:7.1%} "
        f"{format_bytes(most.by_category['activations']):>12} {format_bytes(most.by_category['weights']):>12}"
    )


def main() -> None:
    workload = trine.synthesize("llama-3-8b", gpu="h100-sxm", sequence=4096)
    cluster = trine.load_cluster("dgx-h100")
    print(f"{'':30} {'step':>9} {'computes':>8} {'bubble':>7} {'activations':>12} {'weights':>12}")
    for schedule, ways in SCHEDULES.items():
        plan = trine.Plan(pp=4, batch=16, micro_batch=1, schedule=schedule, virtual_stages=ways, inputs="none")
        result = trine.simulate(workload, plan, cluster=cluster, software=SOFTWARE)
        show(schedule, result)
    from trine.results import plot_timeline

    plot_timeline(result, Path(__file__).with_suffix(".png"))
    for recompute in ("selective", "full"):
        plan = trine.Plan(pp=4, batch=16, micro_batch=1, schedule="1f1b", recompute=recompute, inputs="none")
        show(f"1f1b, {recompute} recomputation", trine.simulate(workload, plan, cluster=cluster, software=SOFTWARE))


if __name__ == "__main__":
    main()
