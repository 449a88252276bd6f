"""Communication against computation under tensor parallelism and DDP on two GPUs (in kind: TrioSim, Figure 13).

The paper ran on two A40s over PCIe (P1) with A40 traces; here the bundled H100 traces are moved to the A40 by
data-sheet ratios, which the result marks as assumed. Writes 03_communication_share.png.
"""

from pathlib import Path

import trine


def main() -> None:
    results, labels = [], []
    print(f"{'model':10} {'axis':5} {'step':>11} {'compute':>9} {'communication':>14} {'of it exposed':>14}")
    for name in ("vgg13-h100-b128", "resnet50-h100-b128"):
        for axis, plan in (("tp", trine.Plan(tp=2)), ("ddp", trine.Plan(dp=2))):
            result = trine.simulate(name, plan, cluster="a40-pcie", gpu="a40")
            results.append(result)
            model = name.split("-")[0]
            labels.append(f"{model}\n{axis}")
            busy = result.compute_s + result.communication_s
            print(
                f"{model:10} {axis:5} {result.step_time_s * 1e3:8.2f} ms {100 * result.compute_s / busy:7.1f} % "
                f"{100 * result.communication_s / busy:12.1f} % {result.exposed_communication_s * 1e3:11.2f} ms"
            )
    from trine.results import plot_breakdown

    plot_breakdown(results, labels, Path(__file__).with_suffix(".png"))


if __name__ == "__main__":
    main()
