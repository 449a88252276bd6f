"""Do mixtures of experts move the bytes that Megatron-core's kernels around the experts' GEMMs move?"""

from __future__ import annotations

import pytest

import trine
from trine.cluster import load_cluster
from trine.compute.launch import software_launches
from trine.compute.resize import is_expert_product
from trine.graph.workload import FORWARD, Workload
from trine.parallel.plan import Plan
from trine.software.profile import Software, load_software

LAYERS, SEQUENCE, TOP_K, HIDDEN, EXPERTS = 2, 1024, 8, 2048, 128
CORE = load_software("megatron-core")


def mixture(profile: Software, precision: str | None = None, model: str = "qwen3-30b-a3b") -> Workload:
    return trine.synthesize(
        model, gpu="b200", layers=LAYERS, sequence=SEQUENCE, software=profile, precision=precision, times="roofline"
    )


def with_operators(**fields: object) -> Software:
    return CORE.model_copy(update={"operators": CORE.operators.model_copy(update=fields)})


def time_of(workload: Workload, words: str) -> int:
    return sum(op.gpu_time_ps for op in workload.operators if words in op.layer)


def test_padding_copies_the_tokens_of_experts_four_times() -> None:
    """Closed form: a copy reads and writes top_k tokens of 2 bytes, before and after the experts, in both passes."""
    copied, plain = (mixture(with_operators(expert_padding=each), "mxfp8") for each in ("copied", "none"))
    pads = [op for op in copied.operators if op.layer.endswith(("experts.pad", "experts.unpad"))]
    assert len(pads) == LAYERS * 4
    moved = {sum(copied.tensors[t].size_bytes for t in (*op.inputs, *op.outputs)) for op in pads}
    assert moved == {2 * SEQUENCE * TOP_K * HIDDEN * 2}
    assert time_of(copied, "pad") == sum(op.gpu_time_ps for op in copied.operators) - sum(
        op.gpu_time_ps for op in plain.operators
    )
    assert not any("pad" in op.layer for op in mixture(CORE).operators)  # nothing is cast


def test_a_fused_grouped_mlp_saves_activation_and_casts() -> None:
    """Closed form: the activation, its gradient, and the casts of both results take no time; all else is equal."""
    fused, apart = (mixture(with_operators(grouped_mlp=each), "mxfp8") for each in (["mxfp8"], []))
    saved = []
    for op, other in zip(fused.operators, apart.operators, strict=True):
        if op.gpu_time_ps != other.gpu_time_ps:
            assert op.gpu_time_ps == 0
            saved.append((op.layer.removeprefix("layers.0.").removeprefix("layers.1."), op.phase))
    assert sorted(set(saved)) == [
        ("moe.experts.act", "backward"), ("moe.experts.act", "forward"), ("moe.experts.down.cast", "forward"),
        ("moe.experts.up", "backward"),
    ]  # fmt: skip
    assert len(saved) == 4 * LAYERS
    assert fused.tensors == apart.tensors  # the same results are kept
    same = [mixture(with_operators(grouped_mlp=each), "fp8-current").operators for each in (["mxfp8"], [])]
    assert same[0] == same[1]


@pytest.mark.parametrize(("precision", "casts"), [(None, 0), ("mxfp8", 4), ("fp8-current", 16)])
def test_casts_of_experts_are_launched_one_by_one(precision: str | None, casts: int) -> None:
    """Transformer Engine's split_quantize: each input and gradient of the two GEMMs, one or four kernels an expert."""
    workload = mixture(CORE, precision)
    launches = software_launches(workload, CORE).launches()
    pairs = list(zip(workload.operators, launches, strict=True))
    found = sum(each.experts for op, each in pairs if not is_expert_product(op))
    assert found == LAYERS * casts * EXPERTS
    assert sum(each.experts for op, each in pairs if is_expert_product(op)) == LAYERS * 6 * EXPERTS


def test_biases_that_are_added_expert_by_expert() -> None:
    """By hand: 28 bytes a feature forward and 36 backward, where a sum in one kernel reads and writes 4."""
    looped, added = (mixture(with_operators(expert_biases=each), None, "gpt-oss-20b") for each in ("looped", "added"))
    assert time_of(looped, "up_bias") < time_of(added, "up_bias")  # part of the activation, but for the gradient's sum
    for op in looped.operators:
        if op.layer.endswith("down_bias"):
            assert op.attributes["passes"] == (28 / 4 if op.phase == FORWARD else 36 / 4)
    launches = software_launches(looped, CORE).launches()
    of_biases = {
        op.phase: each.experts
        for op, each in zip(looped.operators, launches, strict=True)
        if op.layer.endswith("down_bias")
    }
    assert of_biases == {"forward": 2 * 32, "backward": 5 * 32}


def exchange_time(profile: Software, dispatch: str, ep: int) -> float:
    plan = Plan(dp=8, ep=ep, dispatch=dispatch, batch=1, inputs="none", overlap="ideal")
    workload = mixture(profile)
    return trine.simulate(workload, plan, cluster=load_cluster("hgx-b200"), software=profile).compute_s


def test_tokens_are_sorted_four_times_around_all_to_alls() -> None:
    """Closed form: copies of all tokens of a rank's experts after each all-to-all to them, and before each one back."""
    sorts, plain = with_operators(expert_sorts="copied"), with_operators(expert_sorts="none")
    copies = exchange_time(sorts, "all-to-all", 8) - exchange_time(plain, "all-to-all", 8)
    pads = time_of(mixture(with_operators(expert_padding="copied"), "mxfp8"), "pad")  # a copy of the same tokens
    assert copies == pytest.approx(pads / 1e12, rel=0.02)
    assert exchange_time(sorts, "deepep", 8) == exchange_time(plain, "deepep", 8)
