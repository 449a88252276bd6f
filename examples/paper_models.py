"""Models of TrioSim's evaluation, for examples 02 and 03: torchvision's image networks, and transformers.

The paper does not state the tokens per sample: these examples use 128, in float32, PyTorch's default. Batch sizes are
the paper's: 128, and 16 for Llama.
"""

from collections.abc import Collection
from typing import Any

import matplotlib

import trine

IMAGES = {
    "VGG-11": "vgg11", "VGG-13": "vgg13", "VGG-16": "vgg16", "VGG-19": "vgg19",
    "RN-18": "resnet18", "RN-34": "resnet34", "RN-50": "resnet50", "RN-101": "resnet101", "RN-152": "resnet152",
    "DN-121": "densenet121", "DN-161": "densenet161", "DN-169": "densenet169", "DN-201": "densenet201",
}  # fmt: skip
TEXT = {
    "GPT-2": "gpt-2", "BERT": "bert-base", "T5": "t5-small", "FLAN-T5": "flan-t5-small", "Llama 3.2": "llama-3.2-1b",
}  # fmt: skip
MODELS = {**IMAGES, **TEXT}
SEQUENCE = 128


def batch_of(label: str) -> int:
    """Return the samples per step of one GPU."""
    return 16 if label.startswith("Llama") else 128


def workload(label: str, gpu: str) -> trine.Workload:
    """Return a step of one of MODELS on one GPU."""
    if label in IMAGES:
        return trine.synthesize(IMAGES[label], gpu=gpu)
    return trine.synthesize(TEXT[label], gpu=gpu, sequence=SEQUENCE, batch=batch_of(label), dtype="fp32")


def axes(labels: Collection[str], what: str) -> tuple[Any, Any]:
    """Return a figure and its axes, with one x position per label and ``what`` as the y label."""
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(12, 3.8), layout="constrained")
    axes.set_xticks(range(len(labels)), list(labels), rotation=45, ha="right")
    axes.set_ylabel(what)
    axes.spines[["top", "right"]].set_visible(False)
    axes.margins(x=0.01)
    return figure, axes
