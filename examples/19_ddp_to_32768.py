"""ResNet-50 with DDP on 8 to 32 768 H100s, joined by the usual rails and by a switch. Writes 19_ddp_to_32768.png.

Ranks that behave alike are simulated once, so the time of the simulation hardly grows (benchmarks/bench_folding.py).
"""

from pathlib import Path

import trine

GPUS = (8, 64, 512, 4096, 32_768)
FABRICS = {"rails (usual)": None, "one switch": "switch"}


def main() -> None:
    workload = trine.load("resnet50-h100-b128")
    alone_s = trine.simulate(workload, cluster="dgx-h100").step_time_s
    curves: dict[str, list[float]] = {}
    print("fabric            GPUs        step   exposed  efficiency  classes    tasks   events")
    for fabric, kind in FABRICS.items():
        curves[fabric] = []
        for gpus in GPUS:
            cluster = trine.load_cluster("dgx-h100", nodes=gpus // 8, fabric=kind if gpus > 8 else None)
            result = trine.simulate(workload, trine.Plan(dp=gpus, buffers="none"), cluster=cluster)
            curves[fabric].append(alone_s / result.step_time_s)
            stage = result.scope.stages[0]
            times = f"{result.step_time_s * 1e3:7.2f} ms {result.exposed_communication_s * 1e3:6.2f} ms"
            counts = f"{stage.num_classes:8} {stage.num_tasks:8,} {stage.num_events:8,}"
            print(f"{fabric:14} {gpus:7,} {times} {curves[fabric][-1]:11.1%} {counts}")
    draw(curves)


def draw(curves: dict[str, list[float]]) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(6, 3.5), layout="constrained")
    for (fabric, efficiency), marker in zip(curves.items(), "os", strict=True):
        axes.plot(GPUS, [100 * share for share in efficiency], marker=marker, label=fabric)
    axes.set(xscale="log", xlabel="GPUs", ylabel="throughput a GPU (% of one GPU)", ylim=(95, 100))
    axes.set_xticks(GPUS, [f"{gpus:,}" for gpus in GPUS])
    axes.minorticks_off()
    axes.set_title("ResNet-50, DDP, 128 samples a GPU, dgx-h100", loc="left")
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    figure.savefig(Path(__file__).with_suffix(".png"), dpi=150)


if __name__ == "__main__":
    main()
