"""Llama 3 405B on 16,384 and 131,072 H100s: simulate one step exactly on a laptop, also with one NIC at half speed.

    python 18_llama_405b_at_scale.py                         both sizes, and alternative layouts on 16,384
    python 18_llama_405b_at_scale.py --dp 1024               one size: ranks, classes, tasks and events of each stage
    python 18_llama_405b_at_scale.py --dp 128 --slow-nic     the same with one NIC among all at half speed

The layout comes from Meta's report (The Llama 3 Herd of Models, 2024, table 4): tp 8 x pp 16 x dp 128, sequences of
8192 tokens, 16 per replica. A non-blocking switch connects the nodes; no real fabric of this size is non-blocking.
"""

from __future__ import annotations

import argparse
import resource
import time
from functools import cache

import trine
from trine.common.units import format_bytes, format_time

SEQUENCE = 8192
PARAMETERS, LAYERS, HIDDEN = 405_853_388_800, 126, 16384
#: Dense bfloat16 peak of an H100 SXM (data sheet).
PEAK = 989.4e12
#: 24 of 48.5 GB/s.
SLOW_NIC = ("node5.pcie0->node5.nic0", "24 GB/s")
BASE = {
    "tp": 8,
    "pp": 16,
    "schedule": "interleaved",
    "virtual_stages": 2,
    "balance": "layers",
    "batch": 16,
    "micro_batch": 1,
    "tp_style": "megatron",
    "sequence_parallel": True,
    "sharding": "zero1",
    "inputs": "none",
}
#: With one NIC at half speed, ranks differ once its data has reached them; late reductions leave little work after it.
LATE = {"sharding": "none", "dp_overlap": False, "first_bucket_bytes": 2**30, "bucket_bytes": 2**30}


@cache
def llama() -> trine.Workload:
    """Return the workload of one sequence on one GPU, as if it could hold the model."""
    return trine.synthesize("llama-3-405b", gpu="h100-sxm", sequence=SEQUENCE, batch=1)


def run(dp: int, slow_nic: bool = False, **changes: object) -> trine.Result:
    """Simulate one step on 128 * ``dp`` GPUs."""
    nodes = dp * 16
    cluster = trine.load_cluster("dgx-h100", nodes=nodes, fabric="switch", slow_links=[SLOW_NIC] if slow_nic else [])
    plan = trine.Plan(**{**BASE, **(LATE if slow_nic else {}), "dp": dp, **changes})
    return trine.simulate(llama(), plan, cluster=cluster)


def describe(result: trine.Result) -> None:
    """Print the step time, the utilisation, and the simulated ranks, tasks and events."""
    step, row = result.step_time_ps, result.slowest_row
    times = result.rank_times
    print(f"{result.num_ranks} GPUs, {result.plan['global_batch']} sequences: step {format_time(step)}")
    print(f"  {tokens(result) / result.step_time_s / 1e6:.2f} million tokens/s, MFU {mfu(result):.1%}")
    shares = ", ".join(f"{name} {part[row] / step:.1%}" for name, part in
                       (("compute", times.compute), ("bubble", times.bubble), ("exposed", times.exposed)))  # fmt: skip
    print(f"  rank {result.slowest_rank}: {shares}; memory {format_bytes(result.memory_peak_bytes)}")
    for stage in result.scope.stages:
        print(
            f"  from {format_time(stage.begins_ps)}: {stage.num_ranks} ranks in {stage.num_classes} classes, "
            f"{stage.num_tasks:,} tasks, {stage.num_events:,} events"
        )


def tokens(result: trine.Result) -> int:
    """Return the tokens per step."""
    return int(result.plan["global_batch"]) * SEQUENCE


def mfu(result: trine.Result) -> float:
    """Return the model's FLOPs (6 per parameter and token, plus causal attention) over the GPUs' peak."""
    flops = 6 * PARAMETERS + 6 * LAYERS * HIDDEN * SEQUENCE
    return flops * tokens(result) / result.step_time_s / (PEAK * result.num_ranks)


def what_if() -> None:
    """Print alternative layouts on the same 16,384 GPUs."""
    print(f"\n{'16 384 GPUs':44} {'step':>8} {'MFU':>7} {'memory':>10}")
    for name, changes in (
        ("as above: interleaved, 2 parts a rank", {}),
        ("8 parts a rank", {"virtual_stages": 8}),
        ("1f1b", {"schedule": "1f1b", "virtual_stages": 1}),
        ("8 parts, reductions behind the backward pass", {"virtual_stages": 8, "dp_overlap": False}),
        ("8 parts, every layer recomputed", {"virtual_stages": 8, "recompute": "full"}),
    ):
        result = run(128, **changes)
        memory = format_bytes(result.memory_peak_bytes)
        print(f"{name:44} {format_time(result.step_time_ps):>8} {mfu(result):7.1%} {memory:>10}")
    print(
        "\nMeta measured 41% on 16 384 GPUs with this layout (400 TFLOP/s a GPU), and 38 to 43% with its others.\n"
        "Its pipeline schedule and network (1:7 above pods of 3072 GPUs) differ from this simulation. Here\n"
        "operator times come from kernel benchmarks, all GPUs are equally fast, and the fabric is\n"
        "non-blocking."
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dp", type=int, help="run this size only, and print the time it took")
    parser.add_argument("--slow-nic", action="store_true", help="one NIC at half speed")
    options = parser.parse_args()
    if options.dp is None and options.slow_nic:
        parser.error("--slow-nic needs --dp")
    if options.dp is None:
        for dp in (128, 1024):
            describe(run(dp))
        what_if()
        return
    began = time.perf_counter()
    describe(run(options.dp, options.slow_nic))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(f"  {time.perf_counter() - began:.1f} s of wall time, {time.process_time():.1f} s of CPU, {peak:.2f} GiB")


if __name__ == "__main__":
    main()
