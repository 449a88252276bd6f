"""Communication against compute under tensor parallelism and DDP on two GPUs: all models of TrioSim, Figure 13.

The paper's P1: two A40s over PCIe. The paper recorded a trace of each model on an A40. Here, times of image networks
come from the bundled H100 traces, scaled by shape and data sheet; times of transformers come from public operator
measurements. The paper finds a larger share of communication under tensor parallelism. Writes
03_communication_share.png.
"""

from pathlib import Path

import paper_models

import trine

GPU, CLUSTER = "a40", "a40-pcie"
COLOURS = {"tp": "#E69F00", "ddp": "#0072B2"}
PLANS = {"tp": trine.Plan(tp=2), "ddp": trine.Plan(dp=2)}


def main() -> None:
    cluster = trine.load_cluster(CLUSTER)
    shares: dict[str, dict[str, float]] = {}
    print(f"{'model':10} {'axis':5} {'step':>11} {'compute':>9} {'communication':>14} {'of it exposed':>14}")
    for label in paper_models.MODELS:
        workload, shares[label] = paper_models.workload(label, GPU), {}
        for axis, plan in PLANS.items():
            result = trine.simulate(workload, plan, cluster=cluster)
            busy = result.compute_s + result.communication_s
            shares[label][axis] = 100 * result.communication_s / busy
            print(
                f"{label:10} {axis:5} {result.step_time_s * 1e3:8.2f} ms {100 * result.compute_s / busy:7.1f} % "
                f"{shares[label][axis]:12.1f} % {result.exposed_communication_s * 1e3:11.2f} ms"
            )
    more = sum(share["tp"] > share["ddp"] for share in shares.values())
    print(f"communication's share is larger under tensor parallelism for {more} of {len(shares)} models")
    draw(shares)


def draw(shares: dict[str, dict[str, float]]) -> None:
    figure, axes = paper_models.axes(shares, "communication, % of busy time")
    for number, (axis, colour) in enumerate(COLOURS.items()):
        places = [place + 0.4 * (number - 0.5) for place in range(len(shares))]
        axes.bar(places, [share[axis] for share in shares.values()], 0.37, color=colour, label=axis)
    axes.set_ylim(0, 100)
    axes.set_title("Time of communication over communication and compute, two A40s over PCIe", fontsize=10)
    axes.legend(ncols=2)
    figure.savefig(Path(__file__).with_suffix(".png"), dpi=110)


if __name__ == "__main__":
    main()
