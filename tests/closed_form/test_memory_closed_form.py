"""Memory of a software profile against formulas: model states by sharding, activations, dummies, logits."""

from __future__ import annotations

import math

import pytest

from trine.graph.memory import MEMORY_CATEGORIES
from trine.parallel.plan import Plan
from trine.software import load_software
from trine.software.profile import MemoryStyle, OperatorStyle, Software
from trine.training import simulate
from trine.training.memory import StageMemoryUse, rank_memory, stage_programs
from trine.training.options import SimulateOptions
from trine.workload.synthesis.model import Synthesis, synthesize, written
from trine.workload.synthesis.spec import Experts, Transformer

BUFFERED = MemoryStyle(gradient_buffer=True, weight_gradients="operator", buckets="never")
FLOAT_GRADIENTS = OperatorStyle(gradient_dtype="float32")


def gpt(layers: int, hidden: int = 256, heads: int = 4, sequence: int = 128) -> Transformer:
    return Transformer(
        name="gpt", layers=layers, hidden=hidden, heads=heads, kv_heads=heads, head_size=hidden // heads,
        ffn=4 * hidden, vocab=1024, sequence=sequence, norm="layer", activation="gelu", biases="all",
        max_positions=sequence, tied_embeddings=True,
    )  # fmt: skip


def used(spec: Transformer, plan: Plan, software: Software | None) -> StageMemoryUse:
    (found,) = rank_memory(written(spec, Synthesis(batch=1), software), plan, software)
    return found


@pytest.mark.parametrize(
    ("sharding", "states"),
    [("none", (2, 4, 12)), ("zero1", (2, 4, 12 / 4)), ("zero2", (2, 4 / 4, 12 / 4))],
)
def test_model_states_by_sharding(sharding: str, states: tuple[float, float, float]) -> None:
    """ZeRO, section 5, with float32 gradients: 2 + 4 + 12 bytes per parameter, divided stage by stage."""
    spec, software = gpt(2), Software(name="s", description="", operators=FLOAT_GRADIENTS, memory=BUFFERED)
    work = written(spec, Synthesis(batch=1), software)
    program = stage_programs(work, Plan(dp=4, batch=1, sharding=sharding), software)[0]
    weights, gradients, optimizer = program.resident_bytes[:3]
    count = spec.num_parameters
    assert weights == 2 * count
    assert gradients == pytest.approx(states[1] * count, rel=1e-3)
    assert optimizer == pytest.approx(states[2] * count, rel=1e-3)


def test_activations_of_a_layer_are_korthikantis() -> None:
    """Reducing Activation Recomputation, equation 1: s b h (34 + 5 a s / h) bytes per layer; two norms add statistics.

    Dropout masks take a byte per element; scores are kept as softmax, mask and dropout output.
    """
    software = load_software("megatron-2021")
    hidden, heads, sequence, batch = 256, 4, 128, 2
    sizes = [
        used(gpt(layers), Plan(batch=batch), software).by_category["activations"] for layers in (3, 4)
    ]  # fmt: skip
    formula = sequence * batch * hidden * (34 + 5 * heads * sequence / hidden)
    statistics = 2 * 2 * 4 * sequence * batch
    assert sizes[1] - sizes[0] == formula + statistics


def test_fused_accumulation_leaves_one_dummy_of_each_shape() -> None:
    fused = BUFFERED.model_copy(update={"weight_gradients": "fused"})
    plain, with_dummies = (
        used(gpt(3), Plan(batch=1), Software(name="s", description="", operators=FLOAT_GRADIENTS, memory=style))
        for style in (BUFFERED, fused)
    )
    hidden = 256
    dummies = 2 * (3 * hidden * hidden + hidden * hidden + 4 * hidden * hidden + 4 * hidden * hidden)
    assert with_dummies.by_category["workspaces"] == dummies
    assert "workspaces" not in plain.by_category


@pytest.mark.parametrize("ep", [1, 4])
def test_grouped_experts_leave_a_dummy_of_one_expert(ep: int) -> None:
    """Each expert's weight is a parameter of Transformer Engine's GroupedLinear: the dummy has one expert's shape."""
    fused = BUFFERED.model_copy(update={"weight_gradients": "fused"})
    hidden, heads, ffn = 256, 4, 512
    spec = Transformer(
        name="mixture", layers=2, hidden=hidden, heads=heads, kv_heads=heads, head_size=hidden // heads,
        vocab=1024, sequence=128, experts=Experts(count=8, top_k=2, ffn=ffn),
    )  # fmt: skip
    software = Software(name="s", description="", operators=FLOAT_GRADIENTS, memory=fused)
    use = used(spec, Plan(dp=ep, ep=ep, batch=1), software)
    attention, router = 3 * hidden * hidden + hidden * hidden, hidden * 8
    expert = 2 * hidden * ffn + hidden * ffn  # gate and up projection in one GEMM, and the down projection
    assert use.by_category["workspaces"] == 2 * (attention + router + expert)


@pytest.mark.parametrize("how", ["operator", "fused"])
def test_gradients_that_no_product_adds_are_made_apart(how: str) -> None:
    """GEMMs add the weight gradients of linear layers in blocks, but not of biases, norms and embeddings."""
    style = BUFFERED.model_copy(update={"weight_gradients": how})
    software = Software(name="s", description="", operators=FLOAT_GRADIENTS, memory=style)
    work = written(gpt(1, hidden=512), Synthesis(batch=1), software)
    program = stage_programs(work, Plan(batch=1), software)[0]
    made = sorted(
        c.delta_bytes for c in program.memory if c.delta_bytes > 0 and MEMORY_CATEGORIES[c.category] == "gradients"
    )
    shapes = [work.tensors[p.weight].shape for p in work.parameters]
    linear = {(1536, 512), (512, 512), (2048, 512), (512, 2048)}
    apart = [shape for shape in shapes if how == "operator" or shape not in linear]
    assert made == sorted(2 * math.prod(shape) for shape in apart)


def test_logits_take_what_the_profile_says_at_the_loss() -> None:
    sizes = []
    for wanted in (8.0, 14.0):
        style = BUFFERED.model_copy(update={"logits_bytes": wanted})
        operators = FLOAT_GRADIENTS.model_copy(update={"loss": "unfused"})
        software = Software(name="s", description="", operators=operators, memory=style)
        sizes.append(used(gpt(1, sequence=1024), Plan(batch=1), software).by_category["activations"])
    assert sizes[1] - sizes[0] == 6 * 1024 * 1024


def test_every_second_product_is_kept() -> None:
    """torchtitan's compiled selective recomputation keeps input, queries and values, attention, gate of each layer."""
    style = MemoryStyle(selective="compiled")
    spec = {"hidden": 512, "heads": 8, "kv_heads": 2, "head_size": 64, "ffn": 1024, "vocab": 256, "sequence": 2048}
    software, sizes = Software(name="s", description="", memory=style), []
    for layers in (5, 6):
        model = Transformer(name="llama", layers=layers, **spec)
        sizes.append(used(model, Plan(batch=1, recompute="selective"), software).by_category["activations"])
    tokens, hidden, keys, ffn = 2048, 512, 128, 1024
    kept = 2 * hidden + 2 * (hidden + keys) + 2 * hidden + 4 * 8 + 2 * ffn
    assert sizes[1] - sizes[0] == tokens * kept


@pytest.mark.parametrize("plan", [Plan(batch=2, micro_batch=1), Plan(dp=2, batch=1), Plan(tp=2, batch=1)])
def test_programs_alone_say_what_the_simulation_says(plan: Plan) -> None:
    """If time and program give the same order, both have the same peak, except for rounding."""
    work = synthesize("llama-3-8b", layers=2, sequence=512, software="none")
    result = simulate(work, plan, options=SimulateOptions(cluster="dgx-h100", software="none"))
    (alone,) = rank_memory(work, plan)
    assert alone.use.allocated_bytes == result.memory_uses[0].allocated_bytes
    assert alone.use.reserved_bytes == result.memory_uses[0].reserved_bytes
    assert alone.use.allocated_bytes == pytest.approx(result.memory_peaks[0].total_bytes, rel=1e-3)


def test_fewer_micro_batches_fill_as_much() -> None:
    """trine shortens programs to the micro-batches that are alive together."""
    work = synthesize("llama-3-8b", layers=4, sequence=256, software="none")
    plan = Plan(pp=2, batch=12, micro_batch=1, schedule="1f1b", balance="layers")
    whole = simulate(work, plan, options=SimulateOptions(cluster="dgx-h100", software="none"))
    found = rank_memory(work, plan)
    assert [one.use.allocated_bytes for one in found] == [use.allocated_bytes for use in whole.memory_uses]
