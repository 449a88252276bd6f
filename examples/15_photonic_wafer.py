"""A wafer of 84 A100s: an electrical mesh against photonic circuits (TrioSim, ISCA'25, section 7.1 and Figure 15).

DDP with 128 images per GPU (Llama 3.2 1B: one sequence), ring all-reduce. Without A100 traces, the models are
synthesised from their layers, with times from the bundled H100 traces of vgg13 and resnet50 (assumed). The paper leaves
two things open that change the result, so both are varied: whether 484 GB/s is a GPU's total over 8 links or the rate
of each, and the number of links in the mesh and the ring. docs/background/photonic.md discusses this, and other
definitions of communication. Writes 15_photonic_wafer.png.
"""

from dataclasses import replace
from pathlib import Path

import matplotlib

import trine
from trine.cluster import Cluster

MODELS = (
    "vgg13", "vgg16", "vgg19", "resnet18", "resnet34", "resnet50", "resnet101", "resnet152", "densenet121",
    "densenet169", "densenet201",
)  # fmt: skip
LLAMA = "llama-3.2-1b"
GPUS, LINK = 84, 60_500_000_000  # bytes/s: 484 GB/s over 8 links
PAPER = 0.9221  # communication's share of VGG-19's time on the paper's mesh
COLOURS = ("#0072B2", "#E69F00", "#009E73")


def mesh(links: float) -> Cluster:
    """Return the electrical wafer with ``links`` links of 60.5 GB/s between neighbours."""
    wafer = trine.load_cluster("wafer-a100-mesh")
    rate = round(links * LINK)
    return replace(wafer, links=tuple(replace(link, bytes_per_s=rate, peak_bytes_per_s=rate) for link in wafer.links))


def photonic(links: int, ports: int) -> Cluster:
    """Return the photonic wafer with ``ports`` circuits per GPU, each of ``links`` links of 60.5 GB/s."""
    wafer = trine.load_cluster("wafer-a100-photonic")
    return replace(wafer, circuits=replace(wafer.circuits, ports=ports, bytes_per_s=links * LINK))


def step(workload: trine.Workload, wafer: Cluster, steps: int = 1) -> trine.Result:
    return trine.simulate(workload, trine.Plan(dp=GPUS, steps=steps, buffers="broadcast"), cluster=wafer)


def share(result: trine.Result) -> float:
    """Return the fraction of the step that a GPU spends sending or receiving, hidden behind compute or not."""
    return result.communication_s / result.step_time_s


def main() -> None:
    models = {name: trine.synthesize(name, gpu="a100-80gb", times="fitted") for name in MODELS}
    models[LLAMA] = trine.synthesize(LLAMA, gpu="a100-80gb", batch=1)
    wafers = {
        "mesh, 2 links a neighbour": mesh(2),
        "circuits of 1 link": photonic(1, ports=8),
        "circuits of 4 links": photonic(4, ports=2),
    }
    shares = every_model(models, wafers)
    set_up(models["vgg19"], models["resnet50"])
    readings(models["vgg19"])
    what_the_paper_needs(models["vgg19"])
    draw(shares)


def every_model(models: dict[str, trine.Workload], wafers: dict[str, Cluster]) -> dict[str, list[float]]:
    """Print communication in the steady state; return the share of each model on each wafer."""
    print("484 GB/s read as the sum of a GPU's 8 links; circuits stand (steady state)")
    print(f"{'':12} {'compute':>8}   {'communication, ms and share of the step, on':^81}".rstrip())
    print(f"{'':12} {'ms':>8}   {''.join(f'{name:^27}' for name in wafers)}".rstrip())
    shares: dict[str, list[float]] = {name: [] for name in wafers}
    for model, workload in models.items():
        line = ""
        for name, wafer in wafers.items():
            result = step(workload, wafer, 1 if wafer.circuits is None else 2)
            shares[name].append(share(result))
            line += f"{result.communication_s * 1e3:11.2f} {100 * share(result):7.2f} %      "
        print(f"{model:12} {result.compute_s * 1e3:8.1f}   {line.rstrip()}")
    return shares


def set_up(vgg19: trine.Workload, resnet50: trine.Workload) -> None:
    """Print the cost of a 20 ms set-up: in the first step, or in all steps if a GPU lacks a ring's two ports."""
    print("\nset-up of 20 ms (circuits of 1 link)")
    for workload, ports in ((vgg19, 8), (resnet50, 8), (vgg19, 1)):
        wafer = photonic(1, ports)
        first, later = step(workload, wafer, 1), step(workload, wafer, 2)
        times = " and ".join(f"{result.step_time_s * 1e3:8.1f}" for result in (first, later))
        print(f"{workload.name:12} {ports} port{'s' if ports > 1 else ' '}: first and second step {times} ms")


def readings(workload: trine.Workload) -> None:
    """Print VGG-19's communication for each reading of the paper."""
    print("\nVGG-19 by reading: communication on the mesh, and on circuits")
    print(f"(paper: {100 * PAPER:.2f} % of the step, and nearly half of that time)")
    for said, electrical, optical in (
        ("484 GB/s in all, 1 link a neighbour", mesh(1), photonic(1, ports=8)),
        ("484 GB/s in all, all 8 links in use", mesh(2), photonic(4, ports=2)),
        ("484 GB/s a link, 1 link a neighbour", mesh(8), photonic(8, ports=8)),
    ):
        wires, light = step(workload, electrical), step(workload, optical, 2)
        ratio = light.communication_s / wires.communication_s
        electric = f"mesh {wires.communication_s * 1e3:6.2f} ms ({100 * share(wires):4.1f} %)"
        print(f"{said:36} {electric}, circuits {light.communication_s * 1e3:6.2f} ms, {ratio:4.2f} of it")


def what_the_paper_needs(workload: trine.Workload) -> None:
    """Find by bisection how slow the mesh must be for the paper's share, and print it."""
    low, high = 1e-3, 1.0
    for _ in range(12):
        middle = (low * high) ** 0.5
        low, high = (middle, high) if share(step(workload, mesh(middle))) > PAPER else (low, middle)
    print(f"{100 * PAPER:.2f} % takes a mesh of {low * LINK / 1e9:.2g} GB/s a neighbour, 1/{2 / low:.0f} of ours")


def draw(shares: dict[str, list[float]]) -> None:
    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, axis = plt.subplots(figsize=(9, 3.8), constrained_layout=True)
    for number, ((name, values), colour) in enumerate(zip(shares.items(), COLOURS, strict=True)):
        where = [model + (number - 1) * 0.27 for model in range(len(values))]
        axis.bar(where, [100 * value for value in values], width=0.26, color=colour, label=name)
    axis.set_xticks(range(len(MODELS) + 1), (*MODELS, LLAMA), rotation=30, ha="right")
    axis.set_ylabel("communication, % of the step")
    axis.set_title("DDP on a wafer of 12 x 7 A100s, 128 images a GPU, links of 60.5 GB/s", fontsize=11)
    axis.grid(alpha=0.3, axis="y")
    axis.set_axisbelow(True)
    axis.legend(frameon=False)
    figure.savefig(Path(__file__).with_suffix(".png"), dpi=150)
    plt.close(figure)


if __name__ == "__main__":
    main()
