"""Data, tensor and pipeline parallelism at a fixed total batch of 128 on 4 GPUs: all models of TrioSim, Figure 12.

The paper's P2: 4 A100s with NVLink; the pipeline's micro-batch is half of the batch. The paper recorded a trace of each
model. Here, times of image networks come from the bundled H100 traces, scaled by shape and data sheet; times of
transformers come from public operator measurements. The paper finds data parallelism fastest at a fixed total batch,
and tensor parallelism slow except for transformers. Writes 02_parallelism_compared.png.
"""

from pathlib import Path

import paper_models

import trine

GPUS, GPU, CLUSTER = 4, "a100-80gb", "a100-nvlink-4"
COLOURS = {"ddp": "#0072B2", "tp": "#E69F00", "pp": "#009E73"}


def plans(total: int) -> dict[str, trine.Plan]:
    return {
        "ddp": trine.Plan(dp=GPUS, batch=total // GPUS),
        "tp": trine.Plan(tp=GPUS, batch=total),
        "pp": trine.Plan(pp=GPUS, batch=total, micro_batch=total // 2),
    }


def main() -> None:
    cluster = trine.load_cluster(CLUSTER)
    table: dict[str, dict[str, float]] = {}
    print(f"{'model':10}" + "".join(f"{axis:>10}" for axis in COLOURS) + "  (ms a step)   fastest, then")
    for label in paper_models.MODELS:
        workload, times = paper_models.workload(label, GPU), {}
        for axis, plan in plans(paper_models.batch_of(label)).items():
            try:
                times[axis] = trine.simulate(workload, plan, cluster=cluster).step_time_s * 1e3
            except trine.errors.PlanError as error:
                refused = str(error).split(":")[0]
        table[label] = times
        order = ", ".join(sorted(times, key=times.__getitem__))
        row = "".join(f"{times[axis]:10.2f}" if axis in times else f"{'-':>10}" for axis in COLOURS)
        print(f"{label:10}{row}                {order}" + ("" if len(times) == 3 else f" ({refused})"))
    best = sum(min(times, key=times.__getitem__) == "ddp" for times in table.values())
    print(f"data parallelism is the fastest for {best} of {len(table)} models")
    for kind, labels in (("networks for images", paper_models.IMAGES), ("transformers", paper_models.TEXT)):
        both = [table[label] for label in labels if "tp" in table[label]]
        wins = sum(times["tp"] < times["pp"] for times in both)
        print(f"tensor parallelism beats the pipeline for {wins} of {len(both)} {kind}")
    draw(table)


def draw(table: dict[str, dict[str, float]]) -> None:
    figure, axes = paper_models.axes(table, "step time relative to ddp")
    for number, (axis, colour) in enumerate(COLOURS.items()):
        found = [(place, times[axis] / times["ddp"]) for place, times in enumerate(table.values()) if axis in times]
        places, heights = zip(*found, strict=True)
        axes.bar([place + 0.27 * (number - 1) for place in places], heights, 0.25, color=colour, label=axis)
    axes.set_title("Total batch 128 (Llama 16) on 4 A100s with NVLink; the pipeline has two micro-batches", fontsize=10)
    axes.legend(ncols=3)
    figure.savefig(Path(__file__).with_suffix(".png"), dpi=110)


if __name__ == "__main__":
    main()
