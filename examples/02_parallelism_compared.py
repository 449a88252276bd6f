"""Data, tensor and pipeline parallelism at a fixed total batch of 128 on 4 GPUs (in kind: TrioSim, Figure 12).

The paper used 4 A100s with NVLink and traces of many models; here the two bundled H100 traces run on 4 of the 8 H100s
of a DGX H100. As in the paper the pipeline's micro-batch is 64 samples. Writes 02_parallelism_compared.png.
"""

from pathlib import Path

import trine

GPUS, TOTAL = 4, 128
PLANS = {
    "ddp": trine.Plan(dp=GPUS, batch=TOTAL // GPUS),
    "dp": trine.Plan(dp=GPUS, batch=TOTAL // GPUS, data="dp"),
    "tp": trine.Plan(tp=GPUS, batch=TOTAL),
    "pp": trine.Plan(pp=GPUS, batch=TOTAL, micro_batch=64),
}


def main() -> None:
    cluster = trine.load_cluster("dgx-h100")
    results, labels = [], []
    for name in ("vgg13-h100-b128", "resnet50-h100-b128"):
        workload = trine.load(name)
        times = {}
        for axis, plan in PLANS.items():
            result = trine.simulate(workload, plan, cluster=cluster)
            results.append(result)
            labels.append(f"{name.split('-')[0]}\n{axis}")
            times[axis] = result.step_time_s * 1e3
        best = min(times, key=times.__getitem__)
        line = "  ".join(f"{axis} {time:6.2f} ms" for axis, time in sorted(times.items(), key=lambda item: item[1]))
        print(f"{name:20} {line}  -> fastest: {best}")
    from trine.results import plot_breakdown

    plot_breakdown(results, labels, Path(__file__).with_suffix(".png"))


if __name__ == "__main__":
    main()
