"""How much time and memory does a job on 100,000 GPUs take, against the targets, and how much of it is simulated?

Run: python benchmarks/bench_folding.py [--only WORD]
Each row is a fresh process with cached kernels. "inside" is ``trine.simulate`` alone (``result.simulator.wall_s``).
"process" adds Python's start, imports, and building the model and the cluster. "CPU" is the process's CPU time, which
depends less on other load on the machine. The jobs come from examples/18 and 19.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import trine

EXAMPLES = Path(__file__).parent.parent / "examples"
GPUS = (8, 64, 512, 4096, 32_768)
SLOW_NIC = ("node5.pcie0->node5.nic0", 0.5)
#: Faults of the cluster of :func:`degraded_llama`.
DEGRADED: dict[str, dict[str, object]] = {
    "a slow NIC": {"slow_links": [SLOW_NIC]},
    "three slow NICs": {
        "slow_links": [SLOW_NIC, ("node77.pcie1->node77.nic3", 0.5), ("node900.nic6->node900.pcie3", 0.7)]
    },
    "a dead NIC": {"links_down": [SLOW_NIC[0]]},
}
#: Target: the largest of GPUS takes at most MAX_GROWTH times as long as the smallest.
MAX_GROWTH = 3.0


class Case(NamedTuple):
    """Row of the table: the job, and its targets in seconds (process) and GiB; None means no target."""

    run: Callable[[], trine.Result]
    most_s: float | None = None
    most_gib: float | None = None


class Measured(NamedTuple):
    """Measurements of one process: wall, inside and CPU seconds, peak GiB; classes, tasks and events by stage."""

    wall_s: float
    inside_s: float
    cpu_s: float
    peak_gib: float
    stages: list[dict[str, int]]
    note: str


def llama(dp: int, **options: object) -> trine.Result:
    """Simulate Llama 3 405B on 128 * ``dp`` GPUs, as in example 18."""
    result: trine.Result = example().run(dp, **options)
    return result


def example() -> ModuleType:
    """Import example 18."""
    spec = importlib.util.spec_from_file_location("llama", EXAMPLES / "18_llama_405b_at_scale.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def degraded_llama(**links: object) -> trine.Result:
    """Simulate Llama 3 405B on 16,384 GPUs with slow or dead links; reductions overlap with the backward pass."""
    import trine

    cluster = trine.load_cluster("dgx-h100", nodes=2048, fabric="switch", **links)  # type: ignore[arg-type]
    plan = trine.Plan(**example().BASE, dp=128)
    return trine.simulate(example().llama(), plan, cluster=cluster)


def fully_sharded() -> trine.Result:
    """Simulate Llama 3 8B, fully sharded over 16,384 GPUs on rails, with one slow NIC."""
    import trine

    cluster = trine.load_cluster("dgx-h100", nodes=2048, slow_links=[SLOW_NIC])
    workload = trine.synthesize("llama-3-8b", gpu="h100-sxm", sequence=4096, batch=1)
    return trine.simulate(workload, trine.Plan(dp=16_384, sharding="fsdp", inputs="none"), cluster=cluster)


def resnet(gpus: int, fabric: str | None, **options: object) -> trine.Result:
    """Simulate ResNet-50 with DDP, as in example 19."""
    import trine

    cluster = trine.load_cluster("dgx-h100", nodes=gpus // 8, fabric=fabric if gpus > 8 else None)
    plan = trine.Plan(dp=gpus, buffers="none")
    return trine.simulate("resnet50-h100-b128", plan, cluster=cluster, **options)  # type: ignore[arg-type]


def pipelines(**options: object) -> trine.Result:
    """Simulate Llama 3 8B on tp 8 x pp 4 x dp 32, with one slow NIC."""
    import trine

    slow = [("node5.pcie0->node5.nic0", "0.5")]
    cluster = trine.load_cluster("dgx-h100", nodes=128, fabric="switch", slow_links=slow)
    plan = trine.Plan(
        dp=32, tp=8, pp=4, batch=4, micro_batch=1, schedule="1f1b", tp_style="megatron", inputs="none"
    )  # fmt: skip
    workload = trine.synthesize("llama-3-8b", gpu="h100-sxm", sequence=4096, batch=1)
    return trine.simulate(workload, plan, cluster=cluster, **options)  # type: ignore[arg-type]


CASES: dict[str, Case] = {
    "llama 405B, 16 384 GPUs": Case(lambda: llama(128), 10, 2),
    "llama 405B, 131 072 GPUs": Case(lambda: llama(1024), 20, 3),
    "llama 405B, 16 384 GPUs, a slow NIC": Case(lambda: llama(128, slow_nic=True), 120, 8),
    **{
        f"llama 405B, 16 384 GPUs, default buckets, {name}": Case(lambda links=links: degraded_llama(**links), 60, 4)
        for name, links in DEGRADED.items()
    },
    "llama 8B FSDP, 16 384 GPUs, a slow NIC": Case(fully_sharded, 60, 4),
    "verify-fold: resnet50 DDP, 1024 GPUs": Case(lambda: resnet(1024, None, fold="verify")),
    "verify-fold: llama 8B, 1024 GPUs, slow NIC": Case(lambda: pipelines(fold="verify")),
    **{
        f"resnet50 DDP, {gpus} GPUs, {fabric or 'rails'}": Case(lambda gpus=gpus, fabric=fabric: resnet(gpus, fabric))
        for fabric in (None, "switch")
        for gpus in GPUS
    },
}


def run_here(name: str) -> None:
    """Run one case and print as JSON the numbers that the parent process cannot measure."""
    result = CASES[name].run()
    scope = result.scope
    stages = [] if scope is None else [
        {"classes": stage.num_classes, "tasks": stage.num_tasks, "events": stage.num_events} for stage in scope.stages
    ]  # fmt: skip
    verified = "" if scope is None else next((note for note in scope.notes if note.startswith("verified")), "")
    print(json.dumps({"inside_s": result.simulator.wall_s, "stages": stages, "note": verified}))


def measure(name: str) -> Measured:
    """Run one case in a separate process."""
    began = time.perf_counter()
    process = subprocess.Popen([sys.executable, __file__, "--run", name], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    text = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    wall_s = time.perf_counter() - began
    if os.waitstatus_to_exitcode(status):
        raise SystemExit(f"{name} failed")
    found = json.loads(text.splitlines()[-1])
    cpu_s = usage.ru_utime + usage.ru_stime
    return Measured(wall_s, found["inside_s"], cpu_s, usage.ru_maxrss / 2**20, found["stages"], found["note"])


def show(name: str, found: Measured) -> None:
    """Print one row of the table."""
    case = CASES[name]
    target_s = "" if case.most_s is None else f"< {case.most_s:g} s"
    target_gib = "" if case.most_gib is None else f"< {case.most_gib:g}"
    classes = max((stage["classes"] for stage in found.stages), default=0)
    tasks = max((stage["tasks"] for stage in found.stages), default=0)
    events = sum(stage["events"] for stage in found.stages)
    print(
        f"{name:44} {found.wall_s:7.2f} {found.inside_s:7.2f} {found.cpu_s:7.2f} {target_s:>7} {found.peak_gib:6.2f} "
        f"{target_gib:>4} {len(found.stages):6} {classes:8,} {tasks:11,} {events:12,}",
        flush=True,
    )
    if found.note:
        print(f"    {found.note}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--only", default="", help="rows that contain this word")
    parser.add_argument("--run", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.run is not None:
        run_here(options.run)
        return
    print(
        f"{'':44} {'process':>7} {'inside':>7} {'CPU':>7} {'target':>7} {'GiB':>6} {'':4} {'stages':>6} {'classes':>8} "
        f"{'tasks':>11} {'events':>12}"
    )
    measured = {}
    for name in (name for name in CASES if options.only in name):
        measured[name] = measure(name)
        show(name, measured[name])
    for fabric in ("rails", "switch"):
        first, last = (measured.get(f"resnet50 DDP, {gpus} GPUs, {fabric}") for gpus in (GPUS[0], GPUS[-1]))
        if first is not None and last is not None:
            growth = f"process {last.wall_s / first.wall_s:.2f}, inside {last.inside_s / first.inside_s:.2f}"
            print(f"resnet50 DDP, {fabric}, {GPUS[-1]} GPUs against {GPUS[0]}: {growth} times (< {MAX_GROWTH:g})")


if __name__ == "__main__":
    main()
