"""Published steps of convolutional networks on one GPU, and their predictions.

Source: presets/measured/training/data_parallel.csv.gz, PyTorch rows of NVIDIA/DeepLearningExamples whose network trine
synthesises and whose batch is stated.
"""

from __future__ import annotations

from dataclasses import dataclass

from validation.harness import read_table
from validation.training_rows import FOLDER

#: GPU and memory in GB as the table names them -> trine's name.
GPUS = {("A100", "80"): "a100-80gb", ("A100", "40"): "a100-40gb", ("V100", "16"): "v100", ("V100", "32"): "v100"}


@dataclass(frozen=True, kw_only=True, slots=True)
class CnnStep:
    """A published step of a network. group: network, GPU and precision, which have one vote."""

    name: str
    group: str
    measured_s: float
    predicted_s: float


def predict_cnns() -> list[CnnStep]:
    """Predict all rows, with the default software profile (about 20 s of CPU time)."""
    from trine.parallel.plan import Plan
    from trine.training import simulate
    from trine.workload import synthesize
    from trine.workload.synthesis.model_files import load_model
    from trine.workload.synthesis.model_names import known_models
    from trine.workload.synthesis.spec import ConvNet

    steps = []
    for number, row in enumerate(read_table(FOLDER / "data_parallel.csv")):
        network, batch = row["model"].rsplit("/", 1)[-1], row["batch_per_gpu"]
        gpu = GPUS.get((row["gpu"], row["gpu_memory_GB"]))
        is_alone = row["gpus"] == "1" and row["framework"] == "PyTorch" and row["xla"] != "true"
        if not (is_alone and gpu and batch and network in known_models() and isinstance(load_model(network), ConvNet)):
            continue
        workload = synthesize(network, gpu=gpu, batch=int(batch), dtype=row["precision"])
        predicted_s = simulate(workload, Plan(), compare=False).step_time_s
        group = f"{network}|{gpu}|{row['precision']}"
        measured_s = int(batch) / float(row["throughput"])
        steps.append(CnnStep(name=f"cnn-{number}", group=group, measured_s=measured_s, predicted_s=predicted_s))
    return steps
