"""Draw docs/design/folding.png: the ranks of one ring, their classes, and the simulated ranks.

python benchmarks/draw_folding.py [FILE]
"""

from __future__ import annotations

import sys

import matplotlib.pyplot as plt
import numpy as np

import trine
from trine.cluster import load_cluster
from trine.parallel.plan import Plan

NODES, PER_NODE = 3, 8


def classes_of_ring() -> list[int]:
    """Return the class of each rank of a ring all-reduce over three nodes of eight GPUs."""
    plan = Plan(dp=NODES * PER_NODE, algorithm=(("all_reduce", "ring"),))
    result = trine.simulate("vgg13-h100-b128", plan, cluster=load_cluster("dgx-h100", nodes=NODES, fabric="switch"))
    assert result.scope is not None
    return [result.scope.class_of(rank) for rank in range(plan.num_ranks)]


def main() -> None:
    """Write the picture."""
    classes = classes_of_ring()
    colours = plt.get_cmap("tab10").colors
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4.6), layout="constrained")
    angle = np.pi / 2 - 2 * np.pi * np.arange(len(classes)) / len(classes)
    x, y = np.cos(angle), np.sin(angle)
    for rank in range(len(classes)):
        after = (rank + 1) % len(classes)
        wire = rank // PER_NODE != after // PER_NODE
        left.plot(
            x[[rank, after]], y[[rank, after]], color="#D55E00" if wire else "#555555", lw=3 if wire else 1.5, zorder=1
        )
    left.scatter(x, y, s=330, c=[colours[c % 10] for c in classes], zorder=2)
    for rank in range(len(classes)):
        left.text(x[rank], y[rank], str(rank), ha="center", va="center", color="white", fontsize=8)
    left.set_title(f"a ring over {NODES} nodes of {PER_NODE}, NICs in orange", fontsize=10)
    kinds = sorted(set(classes))
    place = np.arange(len(kinds), dtype=float)
    right.plot([0, len(kinds) - 1], [0, 0], color="#555555", lw=1.5, zorder=1)
    right.annotate(
        "", (0, 0.06), (len(kinds) - 1, 0.06),
        arrowprops={"arrowstyle": "->", "color": "#D55E00", "lw": 3, "connectionstyle": "arc3,rad=0.35"},
    )  # fmt: skip
    right.scatter(place, np.zeros(len(kinds)), s=600, c=[colours[c % 10] for c in kinds], zorder=2)
    for kind in kinds:
        members = [rank for rank, c in enumerate(classes) if c == kind]
        right.text(kind, 0, f"x{len(members)}", ha="center", va="center", color="white", fontsize=10)
        right.text(kind, -0.12, "\n".join(map(str, members)), ha="center", va="top", fontsize=8)
    right.set_ylim(-0.6, 0.7)
    right.set_title(f"what is simulated: {len(kinds)} ranks, each for {NODES}", fontsize=10)
    for axes in (left, right):
        axes.axis("off")
    left.set_aspect("equal")
    figure.savefig(sys.argv[1] if len(sys.argv) > 1 else "docs/design/folding.png", dpi=110)


if __name__ == "__main__":
    main()
