"""Impossible questions: the weights' memory alone excludes them, without a search."""

import pytest

import trine
from trine.errors import InputError, PlanError
from trine.parallel.constraints import LayoutFacts
from trine.search.flags import dialects, has_name
from trine.search.limits import check_weights, weight_bytes
from trine.search.space import Space
from trine.software.profile import load_software

WORKLOAD = trine.synthesize("llama-3.2-1b", layers=4, sequence=1024, tied="no")
#: Four layers of the published shapes (hidden 2048, ffn 8192, 8 of 32 KV heads), two norms each, embedding, norm, head.
PARAMETERS = 4 * (2048 * (2 * 2048 + 2 * 512 + 3 * 8192) + 2 * 2048) + 2 * 128_256 * 2048 + 2048


def test_weights_are_counted_once():
    assert weight_bytes(WORKLOAD) == 2 * PARAMETERS


def test_the_error_names_the_least_number_of_gpus():
    size = weight_bytes(WORKLOAD)
    check_weights(WORKLOAD, 2, -(-size // 2), with_gradients=False)
    with pytest.raises(PlanError, match=r"the weights take .* need at least 3 GPUs"):
        check_weights(WORKLOAD, 2, size // 2 - 1, with_gradients=False)
    with pytest.raises(PlanError, match=r"the weights and gradients take .* at least 4 GPUs"):
        check_weights(WORKLOAD, 2, size // 2, with_gradients=True)
    check_weights(WORKLOAD, 1, 0, with_gradients=True)  # unknown capacity


def test_a_large_model_on_few_gpus_is_refused_before_the_search():
    with pytest.raises(PlanError, match="they need at least 10 GPUs"):
        trine.plan("llama-3-405b", gpus=8, cluster="dgx-h100", global_batch=64, workers=1)


def test_a_dialect_restricts_the_space():
    dialect = dialects()["torchtitan"]
    space = Space(8, 8, LayoutFacts(WORKLOAD), load_software(dialect.profile), {}, None,
                  lambda field, value: has_name(dialect, field, value))  # fmt: skip
    layouts = [each for family in space.families() for each in family.layouts() if not space.reason(each)]
    assert {each.sharding for each in layouts} == {"none", "fsdp"}
    assert space.offloading(layouts[0]) == []
    assert {each.schedule for each in layouts if each.pp > 1} == {"gpipe", "1f1b", "interleaved"}
    with pytest.raises(InputError, match="torchtitan has no name for sharding zero1"):
        trine.plan("llama-3.2-1b", gpus=8, cluster="dgx-h100", global_batch=8, emit="torchtitan",
                   fix={"sharding": "zero1"})  # fmt: skip


@pytest.mark.parametrize(
    ("layers", "pp", "virtual_stages"), [(126, 9, 7), (126, 8, 8), (126, 16, 4), (96, 8, 12), (80, 4, 5), (96, 4, 12)]
)
def test_published_numbers_of_virtual_stages_are_in_the_space(layers, pp, virtual_stages):
    """NVIDIA's recipes of Llama 3.1 405B, GPT-3 175B, Llama 3 70B and Nemotron-4 340B (dg3 to dg13)."""
    facts = LayoutFacts(WORKLOAD)
    facts.__dict__["layers"] = layers
    space = Space(8 * pp, 64, facts, load_software("megatron-core"), {"tp": 8, "pp": pp, "cp": 1})
    pipelines = {pair for family in space.families() for pair in family.pipelines}
    assert ("interleaved", virtual_stages) in pipelines


def test_degrees_that_divide_the_gpus_are_in_the_space_whether_or_not_they_divide_the_layers():
    """BLOOM: 70 layers on 12 stages of 384 GPUs."""
    facts = LayoutFacts(WORKLOAD)
    facts.__dict__["layers"] = 70
    space = Space(384, 2048, facts, None, {"tp": 4, "cp": 1, "micro_batch": 2})
    assert 12 in {family.layout.pp for family in space.families()}
