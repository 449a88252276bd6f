"""Which latency decides what: a small all-reduce on each GPU, with each latency a little longer; and a picture.

Run: python benchmarks/gpu_latency_shares.py [PICTURE]
docs/background/gpu-latencies.md shows what it printed.
"""

from __future__ import annotations

import sys

from trine.cluster import load_cluster
from trine.collectives.kernels.build import build_kernel
from trine.gpu.model.files import gpu_model_of
from trine.studies.gpu_latencies import LATENCIES, LINK, LatencyShare, latency_shares

SIZE_BYTES = 64 << 10
#: Cluster, GPUs: each GPU model whose loads and stores reach others.
MACHINES = {
    "dgx-a100": 8, "dgx-h100": 8, "hgx-h200": 8, "hgx-b200": 8, "gb200-nvl72": 8, "mi300x-node": 8, "mi355x-node": 8,
    "l40s-pcie": 4, "a40-pcie": 2,
}  # fmt: skip
NAMES = {LINK: "links"}
Measured = dict[tuple[str, str], tuple[int, tuple[LatencyShare, ...]]]


def measure(algorithms: tuple[str, ...] = ("oneshot", "twoshot")) -> Measured:
    """Time and shares by cluster and algorithm."""
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
    """A line a cluster and algorithm: the time, and of each latency how often it counts and its share."""
    print(f"{'':24}{'us':>7}  " + "  ".join(f"{NAMES.get(name, name):>16}" for name in LATENCIES) + "   the rest")
    for (cluster, algorithm), (whole_ps, shares) in found.items():
        cells = "  ".join(f"{share.times:5.1f} x {share.share:6.1%}".rjust(16) for share in shares)
        rest = 1 - sum(share.share for share in shares)
        print(f"{cluster:13}{algorithm:>11}{whole_ps / 1e6:7.2f}  {cells}  {rest:8.1%}")


def draw(found: Measured, path: str) -> None:
    """Bars of the time, cut into latencies."""
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
