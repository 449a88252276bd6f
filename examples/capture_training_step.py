"""Capture one training step of a PyTorch loop and summarise the trace. Needs trine[capture]; runs on a CPU.

Usage: python examples/capture_training_step.py [DIRECTORY]     (default: a temporary directory)
"""

import sys
import tempfile
from pathlib import Path

import torch
from torch import nn

import trine
from trine.common.units import format_bytes, format_time

model = nn.Sequential(
    nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
    nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(4),
    nn.Flatten(), nn.Linear(512, 10),
)  # fmt: skip
optimizer = torch.optim.Adam(model.parameters())
images, labels = torch.randn(16, 3, 32, 32), torch.randint(0, 10, (16,))


def train_step() -> None:
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(images), labels)
    loss.backward()
    optimizer.step()


def main(directory: Path) -> None:
    with trine.capture(directory / "small-cnn-b16") as c:  # all that a training script has to add
        for _ in c:
            train_step()

    workload = c.workload
    print(f"{workload.name}: batch {workload.batch}, {len(workload.operators)} operators")
    for phase in ("forward", "backward", "optimizer"):
        times = [op.gpu_time_ps for op in workload.operators if op.phase == phase]
        print(f"  {phase}: {len(times)} operators, {format_time(sum(times))}")
    print(f"  parameters: {format_bytes(sum(p.size_bytes for p in workload.parameters))}")
    print(f"  step without the profiler: {format_time(workload.unprofiled_step_ps)}")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as folder:
            main(Path(folder))
