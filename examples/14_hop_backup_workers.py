"""Does a backup worker help with unequal links? The case study of TrioSim (ISCA'25, section 7.2, figure 16).

Eight A100s train VGG-11 (batch 128) without a central server, using Hop on a ring-based and a double-ring graph. In
each of eight scenarios, every link is slowed by a random factor of 1 to 10; runs with one backup worker are compared
to runs without. Writes 14_hop_backup_workers.png.

VGG-11 is VGG-13 without the second convolution of the first two blocks, so the recorded VGG-13 step without these four
operators (and their backward) is a VGG-11 step. Data sheets convert its times from the H100 to the A100 (assumed). The
paper does not specify the links: here each edge has one link of 25 GB/s per direction (assumed; one lane of NVLink 3),
and the tables show the results of other readings.
"""

from dataclasses import replace
from pathlib import Path

import matplotlib

import trine
from trine.decentralised.protocol import HopProtocol, worker_graph
from trine.decentralised.study import HopResult, edge_cluster, hop, slowed_links
from trine.graph.workload import Workload

WORKERS, SCENARIOS, ITERATIONS = 8, 8, 50
GRAPHS = ("ring-based", "double-ring")
STANDARD = HopProtocol(iterations=ITERATIONS)
BACKUP = HopProtocol(iterations=ITERATIONS, backup=1, max_gap=8)
VARIANTS = {
    "standard": STANDARD,
    "one backup worker": BACKUP,
    "updates up to 5 old": replace(STANDARD, staleness=5),
    "both": replace(BACKUP, staleness=5),
    "backup, skipping": replace(BACKUP, max_skip=7, drop_late=True),
}
#: The second convolutions of VGG-13's blocks 1 and 2, with their ReLUs.
NOT_IN_VGG11 = ("conv2d.2", "relu.2", "conv2d.4", "relu.4")
COLOURS = ("#0072B2", "#E69F00")


def vgg11() -> Workload:
    vgg13 = trine.load("vgg13-h100-b128")
    gone = {op.id for op in vgg13.operators if op.layer in NOT_IN_VGG11 and op.phase == "forward"}
    operators = [op for op in vgg13.operators if op.id not in gone and op.forward_id not in gone]
    weights = {t for op in vgg13.operators if op.id in gone for t in op.inputs if vgg13.tensors[t].role == "weight"}
    kept = tuple(p for p in vgg13.parameters if p.weight not in weights)
    assumption = "VGG-11: VGG-13's recorded step without the operators that VGG-11 does not have"
    return replace(
        vgg13, name="vgg11", operators=tuple(operators), parameters=kept,
        assumptions=(*vgg13.assumptions, assumption),
    )  # fmt: skip


def scenario(
    workload: Workload, graph: str, protocol: HopProtocol, seed: int, bandwidth: int = 25 * 10**9, per: str = "link"
) -> HopResult:
    edges = worker_graph(graph, WORKERS)
    links = slowed_links(edge_cluster(edges, bandwidth, 10**6), (1, 10), seed, per)
    return hop(workload, protocol, graph=edges, cluster=links, gpu="a100-80gb")


def main() -> None:
    workload = vgg11()
    results = {
        (graph, name, seed): scenario(workload, graph, protocol, seed)
        for graph in GRAPHS
        for name, protocol in VARIANTS.items()
        for seed in range(SCENARIOS)
    }
    one = results[GRAPHS[0], "standard", 0]
    print(f"VGG-11, batch {workload.batch}: an iteration computes {(one.gradient_ps + one.apply_ps) / 1e9:.1f} ms")
    print(f"on an A100, an update is {one.update_bytes / 1e6:.1f} MB; {ITERATIONS} iterations of {WORKERS} workers")
    print("\nspeed-up from one backup worker, by scenario (time until all workers are through)")
    speedups = {}
    for graph in GRAPHS:
        speedups[graph] = [
            results[graph, "standard", s].end_ps / results[graph, "one backup worker", s].end_ps
            for s in range(SCENARIOS)
        ]
        print(f"{graph:12}" + "".join(f"{value:7.3f}" for value in speedups[graph]))
    print(f"\nmean over the scenarios: {'its/s':>7} {'waiting':>8} {'averaged':>9} {'mean age':>9} {'GB sent':>8}"
          f" {'skipped':>8}")  # fmt: skip
    for graph in GRAPHS:
        for name in VARIANTS:
            print(row(graph, name, [results[graph, name, s] for s in range(SCENARIOS)]))
    print("\nspeed-up from one backup worker under other readings (smallest, mean, largest of the scenarios)")
    for text, options in (
        ("links of 100 GB/s (4 lanes)", {"bandwidth": 100 * 10**9}),
        ("links of 5 GB/s", {"bandwidth": 5 * 10**9}),
        ("a factor for each GPU", {"per": "gpu"}),
        ("updates sent behind computing", {"order": "serial"}),
    ):
        print(f"{text:30}" + "".join(reading(workload, graph, options) for graph in GRAPHS))
    draw(speedups)


def row(graph: str, name: str, runs: list[HopResult]) -> str:
    def mean(values: list[float]) -> float:
        return sum(values) / len(values)

    used = [sum(run.numbers.staleness.values()) for run in runs]
    ages = [sum(age * count for age, count in run.numbers.staleness.items()) for run in runs]
    waits = [100 - 100 * run.shares()["computing"] for run in runs]
    heard = [100 * n / (n + run.numbers.num_missed) for n, run in zip(used, runs, strict=True)]
    return (
        f"{graph:12}{name:20}{mean([run.iterations_per_s for run in runs]):6.2f} {mean(waits):6.1f} % "
        f"{mean(heard):7.1f} % {sum(ages) / sum(used):9.2f} {mean([run.numbers.sent_bytes / 1e9 for run in runs]):8.1f}"
        f" {mean([float(run.numbers.skipped.sum()) for run in runs]):8.1f}"
    )


def reading(workload: Workload, graph: str, options: dict[str, object]) -> str:
    order = str(options.get("order", "parallel"))
    rest = {name: value for name, value in options.items() if name != "order"}
    ratios = []
    for seed in range(SCENARIOS):
        standard, backup = (
            scenario(workload, graph, replace(protocol, order=order), seed, **rest) for protocol in (STANDARD, BACKUP)
        )
        ratios.append(standard.end_ps / backup.end_ps)
    return f"{graph:>13} {min(ratios):6.3f} {sum(ratios) / len(ratios):6.3f} {max(ratios):6.3f}"


def draw(speedups: dict[str, list[float]]) -> None:
    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, axis = plt.subplots(figsize=(8, 3.8), constrained_layout=True)
    for number, (graph, colour) in enumerate(zip(GRAPHS, COLOURS, strict=True)):
        where = [scenario + (number - 0.5) * 0.36 for scenario in range(1, SCENARIOS + 1)]
        axis.bar(where, speedups[graph], width=0.34, color=colour, label=graph)
    axis.axhline(1, color="black", lw=0.8)
    axis.set_xticks(range(1, SCENARIOS + 1))
    axis.set_xlabel("scenario: each link 1 to 10 times slower, at random")
    axis.set_ylabel("speed-up from one backup worker")
    axis.set_title(f"Hop on eight A100s, VGG-11, {ITERATIONS} iterations", fontsize=11)
    axis.grid(alpha=0.3, axis="y")
    axis.set_axisbelow(True)
    axis.legend(frameon=False, loc="upper right", ncols=2)
    axis.set_ylim(0, 1.15 * max(max(row) for row in speedups.values()))
    figure.savefig(Path(__file__).with_suffix(".png"), dpi=150)
    plt.close(figure)


if __name__ == "__main__":
    main()
