"""Steps of decodes alone are padded to the size of a CUDA graph; attention, experts and prompts are not."""

import pytest

import trine
from trine.inference.deployment import resolve, step_timer
from trine.inference.products import TOKENS, at_tokens
from trine.inference.step_graph import step_kernels
from trine.inference.step_table import read_batch
from trine.inference.step_time import step_table
from trine.inference.steps import ATTENTION, CPU, EXPERTS, GEMMS, HEAD, SMALL, PromptChunk, Step


def timer_of(model="qwen3-30b-a3b", **layout):
    return step_timer(resolve(trine.StepLayout(engine="vllm:0.19", **layout).job(model, "dgx-h100")))


def test_nine_decodes_take_the_products_of_sixteen_and_their_own_attention():
    timer = timer_of()
    nine, sixteen = timer.time(Step(9, 1000.0)).parts, timer.time(Step(16, 1000.0)).parts
    assert nine[GEMMS] == sixteen[GEMMS]
    assert nine[SMALL] == sixteen[SMALL]
    assert nine[ATTENTION] < sixteen[ATTENTION]
    assert nine[HEAD] <= sixteen[HEAD]
    assert nine[EXPERTS] == at_tokens(10, timer.all_experts_us()) < sixteen[EXPERTS]


def test_a_batch_of_a_graph_and_one_beyond_all_graphs_are_not_padded():
    timer = timer_of()
    for decodes in (1, 8, 16, 600):
        assert timer.graph_tokens(Step(decodes, 100.0)) == decodes
        assert timer.expert_tokens(Step(decodes, 100.0)) == decodes
    assert timer.graph_tokens(Step(9, 100.0, drafts=2)) == 48


def test_a_step_with_prompts_is_not_padded():
    step = Step(9, 1000.0, (PromptChunk(100, 0),))
    assert timer_of().graph_tokens(step) == 109


@pytest.mark.parametrize("decodes", [1, 9, 13, 33, 200, 255, 300])
def test_kernels_and_tables_have_the_same_padding(decodes):
    timer = timer_of(tp=2)
    step = Step(decodes, 1000.0)
    whole = timer.time(step)
    kernels = step_kernels(timer, step)
    assert sum(kernel.us for kernel in kernels) == pytest.approx(whole.us, rel=1e-9)
    layout = trine.StepLayout(engine="vllm:0.19", tp=2)
    table = step_table("qwen3-30b-a3b", "dgx-h100", layout)
    batch = read_batch([], [1000] * decodes)
    assert table.direct_us(batch) == pytest.approx(whole.us, rel=1e-9)
    assert table.us(batch) == pytest.approx(whole.us, rel=0.005)


def test_the_curves_add_up_to_a_step_of_prompts():
    timer = timer_of()
    parts = timer.time(Step(chunks=(PromptChunk(256, 0),))).parts
    place = TOKENS.tolist().index(256.0)
    curves = timer.tokens_us()[place] + timer.all_experts_us()[place]
    others = sum(us for part, us in parts.items() if part not in (ATTENTION, HEAD, CPU))
    assert others == pytest.approx(curves, rel=1e-12)
