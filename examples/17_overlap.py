"""What overlap saves and contention costs, and what offload costs and frees.

Data-parallel steps on DGX H100s, with communication that slows nothing down (ideal), that takes SMs and memory
bandwidth from compute (modelled), and that takes turns with it (none). Writes 17_overlap.png.
"""

from dataclasses import replace
from pathlib import Path

import trine
from trine.common.units import format_bytes, format_energy

CASES = (("vgg13-h100-b128", 8, 32), ("resnet50-h100-b128", 8, 32), ("resnet50-h100-b128", 32, 32))


def main() -> None:
    ranges = {}
    print(
        f"{'workload':20} {'GPUs':>4} {'batch':>5} {'ideal':>9} {'modelled':>9} {'none':>9} {'saves':>8} {'costs':>8}"
    )
    for name, gpus, batch in CASES:
        cluster = trine.load_cluster("dgx-h100", nodes=gpus // 8)
        found = trine.overlap_range(name, trine.Plan(dp=gpus, batch=batch), cluster=cluster)
        steps = [result.step_time_ps for result in (found.ideal, found.modelled, found.none)]
        print(
            f"{name:20} {gpus:4} {batch:5} {''.join(f'{ps / 1e9:7.2f} ms' for ps in steps)} "
            f"{100 * found.saved_ps / steps[2]:6.1f} % {100 * found.cost_ps / steps[0]:6.1f} %"
        )
        ranges[f"{name.split('-')[0]}\n{gpus} GPUs"] = [ps / 1e9 for ps in steps]
    offloads()
    draw(ranges)


def offloads() -> None:
    """Llama 3 8B, which does not fit one GPU with its optimizer state; Megatron-LM's gradients stay on the GPU."""
    cluster, plan = trine.load_cluster("dgx-h100"), trine.Plan(batch=1)
    workload = trine.synthesize("llama-3-8b", batch=1, gpu="h100-sxm")
    print(f"\n{'offload':12} {'recompute':9} {'step':>10} {'memory peak':>12} {'of 80 GiB':>13} {'energy':>9}")
    for offload, recompute in (("none", "none"), ("optimizer", "none"), ("optimizer", "full"), ("activations", "none")):
        result = trine.simulate(workload, replace(plan, offload=offload, recompute=recompute), cluster=cluster)
        peak = format_bytes(result.memory_peak_bytes or 0)
        print(
            f"{offload:12} {recompute:9} {result.step_time_s * 1e3:7.0f} ms {peak:>12} "
            f"{result.verdict_of_row(0):>13} {format_energy(result.energy.joules):>9}"
        )


def draw(ranges: dict[str, list[float]]) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 3.6), layout="constrained")
    colours = {"ideal": "#56B4E9", "with contention": "#E69F00", "no overlap": "#D55E00"}
    for number, (label, colour) in enumerate(colours.items()):
        places = [place + (number - 1) * 0.26 for place in range(len(ranges))]
        axes.bar(places, [steps[number] for steps in ranges.values()], 0.24, label=label, color=colour)
    axes.set_xticks(range(len(ranges)), list(ranges))
    axes.set_ylabel("step, ms")
    axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(Path(__file__).with_suffix(".png"), dpi=120)


if __name__ == "__main__":
    main()
