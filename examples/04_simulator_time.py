"""Simulation time against the number of GPUs (similar to TrioSim, Figure 14). Writes 04_simulator_time.png.

Times are measured on this machine and exclude Python's start (under a second). TrioSim's published code took 0.8 s
for 8 GPUs, 38 s for 32 and 582 s for 84 on 2 cores (docs/background/speed.md).
"""

from pathlib import Path

import trine

GPUS = (1, 2, 4, 8, 16, 32, 64, 84, 128)
TRIOSIM_S = {8: 0.8, 16: 3.9, 32: 38.0, 64: 270.0, 84: 582.0}


def main() -> None:
    curves = {}
    for name in ("vgg13-h100-b128", "resnet50-h100-b128"):
        workload = trine.load(name)
        trine.simulate(workload)  # load the compiled kernels
        curves[name] = []
        for gpus in GPUS:
            cluster = trine.build_topology("ring", "65 GB/s", "1 us", gpus) if gpus > 1 else None
            result = trine.simulate(workload, trine.Plan(dp=gpus), cluster=cluster)
            curves[name].append(result.simulator.wall_s)
            print(f"{name:20} {gpus:4} GPUs  {result.simulator.events:8} events")
    draw(curves)


def draw(curves: dict[str, list[float]]) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(6, 4), layout="constrained")
    for name, seconds in curves.items():
        axes.plot(GPUS, seconds, marker="o", label=f"trine, {name.split('-')[0]}")
    axes.plot(list(TRIOSIM_S), list(TRIOSIM_S.values()), marker="s", linestyle="--", label="TrioSim, resnet50")
    axes.set(xscale="log", yscale="log", xlabel="GPUs", ylabel="time of the simulation (s)")
    axes.set_xticks(GPUS, [str(g) for g in GPUS])
    axes.set_title("DDP, time to simulate one step", loc="left")
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    figure.savefig(Path(__file__).with_suffix(".png"), dpi=150)


if __name__ == "__main__":
    main()
