"""A trace that nobody recorded: Llama 3 from its published shapes, and which layout fits it on eight H100s."""

from collections import Counter

import trine
from trine.common.units import format_bytes
from trine.compute import work


def describe() -> None:
    """The 405-billion-parameter model, on one GPU that could hold it."""
    workload = trine.synthesize("llama-3-405b", gpu="h100-sxm", sequence=8192)
    num_parameters = sum(p.size_bytes for p in workload.parameters) // 2
    flops = sum(work(op, workload).flops for op in workload.operators if "linear" in op.name)
    print(f"{workload.name}: {num_parameters:,} parameters, {len(workload.operators)} operators")
    print(f"products: {flops / 8192 / num_parameters:.3f} FLOPs a parameter and token")
    times: Counter[str] = Counter()
    for op in workload.operators:
        times[op.phase] += op.gpu_time_ps
        if op.layer.startswith("layers.0."):
            times["layer 0 alone, forward and backward"] += op.gpu_time_ps
    for name, time_ps in times.items():
        print(f"  {name:40} {time_ps / 1e9:10.2f} ms")
    for text in workload.assumptions:
        print(f"assumed: {text}")


def compare_layouts() -> None:
    """Eight samples of 4096 tokens a step with the 8-billion-parameter model."""
    workload = trine.synthesize("llama-3-8b", gpu="h100-sxm", sequence=4096)
    cluster = trine.load_cluster("dgx-h100")
    print(f"\n{'layout':16} {'step':>10} {'bubble':>7} {'communication':>14} {'memory':>11}")
    for tp, pp in ((8, 1), (4, 2), (2, 4), (1, 8)):
        plan = trine.Plan(tp=tp, pp=pp, batch=8, micro_batch=1, schedule="1f1b", tp_style="megatron", inputs="none")
        result = trine.simulate(workload, plan, cluster=cluster)
        step = result.step_time_ps * plan.num_ranks
        bubble = result.rank_times.bubble.sum() / step
        exposed = result.rank_times.exposed.sum() / step
        verdict = max(result.memory_peaks, key=lambda peak: peak.total_bytes)
        print(
            f"tp {tp} x pp {pp:<8} {result.step_time_s * 1e3:7.1f} ms {bubble:7.1%} {exposed:14.1%} "
            f"{format_bytes(verdict.total_bytes):>11}"
        )


if __name__ == "__main__":
    describe()
    compare_layouts()
