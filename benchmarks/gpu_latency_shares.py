"""Measure each latency's share of a small all-reduce on each GPU, by making it a little longer; draw the shares.

Run: python benchmarks/gpu_latency_shares.py [PICTURE]
docs/background/gpu-latencies.md shows the output.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any

from trine.cluster import Cluster, load_cluster
from trine.gpu.cases.published import round_times_ps
from trine.gpu.fabric import GpuFabric
from trine.gpu.kernels.build import build_kernel
from trine.gpu.model import FIELDS, GpuModel
from trine.gpu.model.files import gpu_model_of
from trine.gpu.program import GpuProgram

#: Added latency: small enough that no other chain of accesses becomes the longest.
STEP_PS = 2_000
#: Field of a model file that stands for a link's latency: each link of a route passes through a port.
LINK = "ports.latency"
LATENCIES = (
    "kernels.launch", "kernels.dispatch", "kernels.barrier", "kernels.fence", "noc.hop", "l2.latency", "memory.latency",
    LINK,
)  # fmt: skip
_ATTRIBUTES = {field.path: field.attribute for field in FIELDS}
SIZE_BYTES = 64 << 10
#: Cluster -> number of GPUs, for each GPU model with loads and stores to peers.
MACHINES = {
    "dgx-a100": 8, "dgx-h100": 8, "hgx-h200": 8, "hgx-b200": 8, "gb200-nvl72": 8, "mi300x-node": 8, "mi355x-node": 8,
    "l40s-pcie": 4, "a40-pcie": 2,
}  # fmt: skip
NAMES = {LINK: "links"}


@dataclass(frozen=True, kw_only=True, slots=True)
class LatencyShare:
    """Share of one latency in a time.

    name: its field of a model file; LINK for the links between two GPUs. latency_ps: the latency; for LINK, of all
    links of a route. times: number of occurrences on the longest chain of accesses (derivative of the time with
    respect to the latency). share: fraction of the whole time.
    """

    name: str
    latency_ps: int
    times: float
    share: float


def latency_shares(
    program: GpuProgram, cluster: Cluster, group: Sequence[int], model: GpuModel
) -> tuple[int, tuple[LatencyShare, ...]]:
    """Return the time (ps) of a round that follows another (warm L2), and each latency's share of it.

    Memory answers waits instead of polls, because the delay until the next poll would jump with every latency. The
    rest of the time is instructions and the transfer of bytes.
    """
    model = replace(model, poll_ps=None)
    whole_ps = round_times_ps(program, cluster, group, model)[-1]
    shares = []
    for name in LATENCIES:
        latency_ps = attrgetter(_ATTRIBUTES[name])(model)
        longer_ps = round_times_ps(program, cluster, group, _longer(model, _ATTRIBUTES[name]))[-1]
        times = (longer_ps - whole_ps) / STEP_PS
        if name == LINK:
            latency_ps, times = GpuFabric(cluster, group, model).latency_ps(0, 1), times / 2
        shares.append(LatencyShare(name=name, latency_ps=latency_ps, times=times, share=times * latency_ps / whole_ps))
    return whole_ps, tuple(shares)


def _longer(model: GpuModel, attribute: str) -> GpuModel:
    group, _, name = attribute.rpartition(".")
    if not group:
        return replace(model, **_step(model, name))
    part = getattr(model, group)
    changed: dict[str, Any] = {group: replace(part, **_step(part, name))}
    return replace(model, **changed)


def _step(part: object, name: str) -> dict[str, Any]:
    return {name: getattr(part, name) + STEP_PS}


Measured = dict[tuple[str, str], tuple[int, tuple[LatencyShare, ...]]]


def measure(algorithms: tuple[str, ...] = ("oneshot", "twoshot")) -> Measured:
    """Return the time and shares by cluster and algorithm."""
    found: Measured = {}
    for cluster, gpus in MACHINES.items():
        machine = load_cluster(cluster)
        group = machine.gpus[:gpus]
        model = gpu_model_of(machine, group)
        for algorithm in algorithms:
            program = build_kernel("all_reduce", gpus, SIZE_BYTES, algorithm=algorithm, bookkeeping=True)
            found[cluster, algorithm] = latency_shares(program, machine, group, model)
    return found


def show(found: Measured) -> None:
    """Print a line per cluster and algorithm: the time, and the count and share of each latency."""
    print(f"{'':24}{'us':>7}  " + "  ".join(f"{NAMES.get(name, name):>16}" for name in LATENCIES) + "   the rest")
    for (cluster, algorithm), (whole_ps, shares) in found.items():
        cells = "  ".join(f"{share.times:5.1f} x {share.share:6.1%}".rjust(16) for share in shares)
        rest = 1 - sum(share.share for share in shares)
        print(f"{cluster:13}{algorithm:>11}{whole_ps / 1e6:7.2f}  {cells}  {rest:8.1%}")


def draw(found: Measured, path: str) -> None:
    """Draw the times as bars, split by latency."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(9, 5), layout="constrained")
    rows = [f"{cluster}, {algorithm}" for cluster, algorithm in found]
    left = [0.0] * len(rows)
    for number, name in enumerate((*LATENCIES, "the rest")):
        parts = []
        for whole_ps, shares in found.values():
            known = {share.name: share.share for share in shares}
            parts.append(whole_ps / 1e6 * known.get(name, 1 - sum(known.values())))
        axes.barh(rows, parts, left=left, label=NAMES.get(name, name), color=f"C{number}" if number < 8 else "0.8")
        left = [a + b for a, b in zip(left, parts, strict=True)]
    axes.invert_yaxis()
    axes.set_xlabel("all-reduce of 64 KiB, us, with a library's bookkeeping, without late polls")
    axes.legend(fontsize="small")
    figure.savefig(path, dpi=110)


def main() -> None:
    found = measure()
    show(found)
    draw(found, sys.argv[1] if len(sys.argv) > 1 else "docs/background/gpu-latencies.png")


if __name__ == "__main__":
    main()
