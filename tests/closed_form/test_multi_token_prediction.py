"""Do layers for multi-token prediction add their parameters, products, losses and memory to a step?"""

from __future__ import annotations

from math import prod

import pytest

import trine
from trine.cluster import load_cluster
from trine.errors import InputError
from trine.graph.workload import FORWARD
from trine.training.memory import rank_memory
from trine.workload.architecture.weights import num_elements
from trine.workload.synthesis.model import from_text
from trine.workload.synthesis.model_files import load_model

HIDDEN, VOCAB = 7168, 129280


def parameters(text: str) -> int:
    workload = from_text(f"model:{text}", "h100-sxm")
    return sum(prod(workload.tensors[p.weight].shape) for p in workload.parameters)


def test_parameters_of_deepseek_v3() -> None:
    """By hand: one layer with experts, a projection of 2 x 7168 features, and three norms; 11.5 billion as published.

    deepseek-ai/DeepSeek-V3, README_WEIGHTS.md: 11.5B unique parameters, without the shared embedding and head.
    """
    model = load_model("deepseek-v3")
    (layer,) = model.predicted
    by_hand = (
        sum(num_elements(weights) for weights in layer.weights(HIDDEN).values()) + 2 * HIDDEN * HIDDEN + 3 * HIDDEN
    )
    found = parameters("deepseek-v3,layers=1,mtp=1") - parameters("deepseek-v3,layers=1")
    assert found == by_hand
    assert found == pytest.approx(11.5e9, rel=0.01)


def test_products_and_losses_of_a_step() -> None:
    """Closed form: the layer's own products, one projection, and the head once more; a second loss."""
    texts = "deepseek-v3,layers=4,sequence=64", "deepseek-v3,layers=4,sequence=64,mtp=1"
    without, with_it = (from_text(f"model:{text}", "h100-sxm") for text in texts)

    def products(workload: trine.Workload, words: str) -> dict[str, int]:
        found: dict[str, int] = {}
        for op in workload.operators:
            if (
                op.phase == FORWARD
                and words in op.layer
                and op.name.rsplit("::")[-1] in ("linear", "matmul", "_grouped_mm")
            ):
                found[op.layer] = prod(workload.tensors[op.inputs[1]].shape)
        return found

    of_layer = {name.removeprefix("layers.3."): size for name, size in products(without, "layers.3.").items()}
    added = {name.removeprefix("mtp.layers.m0."): size for name, size in products(with_it, "mtp.layers.m0.").items()}
    assert added == {**of_layer, "projection": 2 * HIDDEN * HIDDEN}
    assert products(with_it, "mtp.head") == {"mtp.head_0": VOCAB * HIDDEN}
    assert products(with_it, "layers.3.") == products(without, "layers.3.")
    losses = [op.layer for op in with_it.operators if op.phase == FORWARD and "cross_entropy" in op.name]
    assert losses == ["loss", "mtp.loss_0"]
    assert not any(op.layer.startswith("mtp") for op in without.operators)


def test_a_step_takes_more_time_and_memory_by_the_layer() -> None:
    """Property: time and memory grow, memory at least by 12 bytes of state for each further expert's parameter."""
    plan = trine.Plan(dp=8, ep=8, batch=1, inputs="none")
    cluster, times, states = load_cluster("dgx-h100"), [], []
    for mtp in ("", ",mtp=1"):
        workload = from_text(f"model:deepseek-v3,layers=4,sequence=256{mtp}", "h100-sxm", "none")
        times.append(trine.simulate(workload, plan, cluster=cluster, software="none").step_time_s)
        use = rank_memory(workload, plan, None)[0].use
        states.append(
            use.parameters_bytes + use.optimizer_bytes if hasattr(use, "parameters_bytes") else use.allocated_bytes
        )
    assert times[1] > times[0]
    assert states[1] > states[0] + 12 * 11.5e9 / 8


def test_a_pipeline_keeps_it_with_the_head() -> None:
    workload = from_text("model:deepseek-v3,layers=4,sequence=64,mtp=1", "h100-sxm", "megatron-core")
    plan = trine.Plan(pp=2, batch=2, micro_batch=1, schedule="1f1b", stage_layers=(2, 2), inputs="none")
    result = trine.simulate(workload, plan, cluster=load_cluster("dgx-h100", gpus=2), software="megatron-core")
    assert result.step_time_s > 0
    assert result.plan["stage_layers"] == [2, 2]


@pytest.mark.parametrize(("text", "words"), [
    ("deepseek-v3,mtp=2", "1 layer for multi-token prediction"), ("llama-3-8b,mtp=1", "no layers for multi-token"),
    ("deepseek-v3,mtp=0", "mtp"),
])  # fmt: skip
def test_layers_that_a_model_lacks_are_refused(text: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        from_text(f"model:{text}", "h100-sxm")
