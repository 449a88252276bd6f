"""Is the batch dimension found in every tensor? Two recordings of a model may differ only in it."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from trine.graph.workload import Workload
from trine.workload import compare, load

pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs torch"),
]
MODELS = ("encoder", "encoder_sequence_first", "vit", "gpt", "dense", "summed", "inference")
PARAMETERS = {"encoder": 28, "encoder_sequence_first": 28, "vit": 9, "gpt": 6, "dense": 11, "summed": 4, "inference": 4}


@pytest.fixture(scope="module")
def recordings(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    script = Path(__file__).parents[1] / "trace_models.py"
    subprocess.run([sys.executable, str(script), str(folder)], check=True, capture_output=True, timeout=120)
    return folder


def both(folder: Path, name: str) -> tuple[Workload, Workload]:
    given = name == "encoder_sequence_first"  # its data begins with the 12 tokens
    small, large = (load(folder / f"{name}-{b}", batch=b if given else None) for b in (4, 6))
    return small, large


@pytest.mark.parametrize("name", MODELS)
def test_two_batch_sizes_differ_in_nothing_else(recordings: Path, name: str) -> None:
    small, large = both(recordings, name)
    assert (small.batch, large.batch) == (4, 6)
    assert compare(small, large) == ()


@pytest.mark.parametrize("name", MODELS)
def test_parameters_and_gradients(recordings: Path, name: str) -> None:
    small, _ = both(recordings, name)
    assert len(small.parameters) == PARAMETERS[name]
    assert small.is_training == (name != "inference")
    for parameter in small.parameters:
        if small.is_training:
            assert parameter.gradient_operator is not None
            assert parameter.gradient is not None
            assert small.tensors[parameter.gradient].shape == small.tensors[parameter.weight].shape
        else:
            assert parameter.gradient_operator is None


def test_a_tied_weight_is_one_parameter_finished_by_its_last_gradient(recordings: Path) -> None:
    small, _ = both(recordings, "gpt")
    (tied,) = [p for p in small.parameters if small.tensors[p.weight].shape == (50, 32)]
    operators = [op for op in small.operators if op.id == tied.gradient_operator]
    users = [op.id for op in small.operators if op.phase == "backward" and "Embedding" in op.name]
    assert operators[0].id >= max(users)
