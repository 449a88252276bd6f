"""More tensor-parallel ranks than KV heads: gathered, computed and kept bytes, by formula.

Megatron-core, ``Attention.get_query_key_value_tensors``: each rank all-gathers the projection's output of its group,
all (heads + 2 KV heads) x size features. It keeps heads / tp query heads, one key head and one value head. The
gradient is reduce-scattered. Weights stay sharded by the features of the projection.
"""

from __future__ import annotations

from fractions import Fraction

import pytest
import small_transformers as transformers
from forms_of_parallelism import build, collectives, model, payloads

from trine.compute import Split, work
from trine.compute.resize import Groups
from trine.graph.program import Send
from trine.parallel.job import JobContext
from trine.parallel.plan import Plan

BATCH, SEQUENCE, HIDDEN, LAYERS = 2, 512, 4096, 2
HEADS, KV_HEADS, SIZE, VOCAB = 32, 8, 128, 128256
TOKENS = BATCH * SEQUENCE
SBH = TOKENS * HIDDEN * 2
#: Bytes of all queries, keys and values of a layer in bfloat16.
QKV = TOKENS * (HEADS + 2 * KV_HEADS) * SIZE * 2


def own_heads(tp: int) -> int:
    return TOKENS * (HEADS // tp + 2) * SIZE * 2


@pytest.mark.parametrize("tp", [16, 32])
@pytest.mark.parametrize("sequence_parallel", [False, True])
def test_all_queries_keys_and_values_are_gathered_and_their_gradients_scattered(
    tp: int, sequence_parallel: bool
) -> None:
    found = payloads(build(model(), Plan(tp=tp, sequence_parallel=sequence_parallel))[0].programs[0])
    column_splits = 2 * LAYERS + 1
    tokens = (4 * LAYERS + 2) * SBH if sequence_parallel else 0
    assert found["reduce_scatter", "tp"] == LAYERS * QKV + tokens
    assert found["all_gather", "tp"] == LAYERS * QKV + tokens + (column_splits * SBH if sequence_parallel else 0)


@pytest.mark.parametrize("tp", [2, 4, 8])
def test_nothing_is_gathered_while_each_rank_has_a_head_of_keys(tp: int) -> None:
    assert not collectives(build(model(), Plan(tp=tp))[0].programs[0], "all_gather", "reduce_scatter")


def test_every_micro_batch_gathers_and_full_recomputation_gathers_again() -> None:
    plan = Plan(tp=16, micro_batch=1)
    once = payloads(build(model(), plan)[0].programs[0])
    again = payloads(build(model(), Plan(tp=16, micro_batch=1, recompute="full"))[0].programs[0])
    core = payloads(build(model(), Plan(tp=16, micro_batch=1, recompute="selective"))[0].programs[0])
    assert len(collectives(build(model(), plan)[0].programs[0], "all_gather")) == 2 * LAYERS
    assert once["all_gather", "tp"] == core["all_gather", "tp"] == LAYERS * QKV
    assert again["all_gather", "tp"] == 2 * LAYERS * QKV
    assert {x["reduce_scatter", "tp"] for x in (once, again, core)} == {LAYERS * QKV}


@pytest.mark.parametrize("schedule", ["1f1b", "zb-h1"])
def test_a_gradient_is_scattered_once_however_the_backward_pass_is_split(schedule: str) -> None:
    job, _ = build(model(), Plan(tp=16, pp=2, micro_batch=1, schedule=schedule, cuts=("layers.1.attention.norm",)))
    for program in job.programs:
        assert payloads(program)["all_gather", "tp"] == payloads(program)["reduce_scatter", "tp"] == QKV


@pytest.mark.parametrize("tp", [16, 32])
def test_a_rank_computes_its_queries_on_one_head_of_keys(tp: int) -> None:
    """A rank does 1 / tp of attention's FLOPs; its bytes are the heads that it reads and writes."""
    workload, groups = model(), Groups(HEADS, KV_HEADS, SIZE)
    split = Split(batch=BATCH, ways=tp, mode="column", groups=groups)
    attention = [op for op in workload.operators if op.layer == "layers.0.attention.core"]
    for op, times in zip(attention, (1, 2), strict=True):
        assert tp * work(op, workload, split).flops == work(op, workload).flops
        assert work(op, workload, split).bytes == times * TOKENS * SIZE * 2 * (2 * HEADS // tp + 2)
    (rotary,) = [op for op in workload.operators if op.name == "apply_rotary"][:1]
    assert work(rotary, workload, split).bytes == 2 * own_heads(tp)
    assert work(rotary, workload, Split(batch=BATCH, ways=8, mode="column")).bytes == 2 * own_heads(8)


@pytest.mark.parametrize("tp", [8, 16, 32])
def test_weights_stay_sharded(tp: int) -> None:
    """A rank holds 1 / tp of each weight matrix and of the padded embedding tables; norms are whole."""
    job, _ = build(model(), Plan(tp=tp))
    padded = -(-VOCAB // (128 * tp)) * 128 * tp
    layer = HIDDEN * (HEADS + 2 * KV_HEADS) * SIZE + HIDDEN * HIDDEN + 3 * HIDDEN * 14336
    divided, norms = LAYERS * layer + 2 * padded * HIDDEN, (2 * LAYERS + 1) * HIDDEN
    assert job.programs[0].resident_bytes[0] == (divided // tp + norms) * 2


@pytest.mark.parametrize("tp", [16, 32])
def test_a_cut_inside_attention_sends_the_heads_of_a_rank(tp: int) -> None:
    job, _ = build(model(), Plan(tp=tp, pp=2, cuts=("layers.1.attention.rotary",)))
    sizes = {step.size_bytes for step in job.programs[0].steps if isinstance(step, Send)}
    assert own_heads(tp) in sizes
    assert payloads(job.programs[0])["all_gather", "tp"] == 2 * QKV


@pytest.mark.parametrize("tp", [16, 32])
@pytest.mark.parametrize("style", ["ring", "all-gather"])
def test_context_parallel_ranks_exchange_one_head_of_keys_and_values(tp: int, style: str) -> None:
    cp, one_head = 2, TOKENS * SIZE * 2 * 2
    found = payloads(build(model(), Plan(tp=tp, cp=cp, cp_style=style))[0].programs[0])
    if style == "ring":  # cp - 1 shifts of K and V forward; the same backward, plus their gradients
        assert found["shift", "cp"] == LAYERS * 3 * (cp - 1) * one_head // cp
    else:
        assert found["all_gather", "cp"] == 2 * found["reduce_scatter", "cp"] == 2 * LAYERS * one_head
    assert found["all_gather", "tp"] == LAYERS * QKV // cp


@pytest.mark.parametrize("tp", [16, 32])
def test_the_gathered_tensor_lives_until_the_heads_are_copied_out(tp: int) -> None:
    """It is allocated at the all-gather and freed by the rotary operator; then only the rank's heads stay."""
    program = build(model(), Plan(tp=tp))[0].programs[0]
    gathers = [i for i, step in enumerate(program.steps) if getattr(step, "kind", "") == "all_gather"]
    allocated = [(c.step, c.delta_bytes) for c in program.memory if abs(c.delta_bytes) == QKV]
    scatters = [i for i, step in enumerate(program.steps) if getattr(step, "kind", "") == "reduce_scatter"]
    assert [step for step, delta in allocated if delta > 0] == sorted((*gathers, *scatters))
    assert sum(delta for _, delta in allocated) == 0
    rotary = [i + 1 for i in gathers]  # the next step
    assert [step for step, delta in allocated if delta < 0][: len(gathers)] == rotary


@pytest.mark.parametrize("tp", [16, 32])
def test_what_a_rank_keeps_of_queries_keys_and_values(tp: int) -> None:
    """Bytes per rank of the projection's output, and of attention's inputs and result."""
    workload = model()
    context = _context(workload, Plan(tp=tp))
    by_layer = {op.layer: op for op in workload.operators if op.phase == "forward"}
    qkv, core = by_layer["layers.0.attention.qkv"], by_layer["layers.0.attention.core"]
    assert context.rank_bytes(qkv.outputs[0], BATCH) == own_heads(tp)
    assert context.output_share(qkv) == Fraction(HEADS // tp + 2, HEADS + 2 * KV_HEADS)
    assert context.rank_bytes(core.outputs[0], BATCH) == TOKENS * HEADS // tp * SIZE * 2
    assert [context.head_bytes(core, t, BATCH) for t in core.inputs] == [
        TOKENS * heads * SIZE * 2 for heads in (HEADS // tp, 1, 1)
    ]


def _context(workload, plan: Plan) -> JobContext:  # type: ignore[no-untyped-def]
    from trine.compute import make_compute

    return JobContext(workload, plan.filled(), make_compute("auto", workload), None)


class Separate(transformers.Transformer):
    """A transformer with three separate projections (4 query heads, 2 KV heads) and attention in one operator."""

    def layer(self, name: str, x: int) -> int:
        s, b, h, a = transformers.S, transformers.B, transformers.H, transformers.A
        parts = [self.activation(b, heads, s, h // a) for heads in (a, a // 2, a // 2)]
        for short, part in zip("qkv", parts, strict=True):
            features = self.tensors[part].shape[1] * h // a
            self.operator(name + short, "aten::linear", [x, self.weight(features, h)], [part], 5, [x])
        out, y = self.activation(b, a, s, h // a), self.activation(b, s, h)
        attention = "aten::scaled_dot_product_attention"
        self.operator(name + "core", attention, parts, [out], 9, [*parts, out])
        self.operator(name + "out", "aten::linear", [out, self.weight(h, h)], [y], 6, [out])
        return y


def test_separate_projections_gather_as_much_together_as_a_fused_one() -> None:
    """As if Megatron-core had fused them: all three outputs are gathered and their gradients reduce-scattered."""
    workload = Separate(LAYERS).workload()
    job, _ = build(workload, Plan(tp=4))
    tokens, size = transformers.B * transformers.S, transformers.H // transformers.A
    qkv = tokens * (4 + 2 * 2) * size * 2
    found = payloads(job.programs[0])
    assert found["all_gather", "tp"] == found["reduce_scatter", "tp"] == LAYERS * qkv
    context = _context(workload, Plan(tp=4))
    core = next(op for op in workload.operators if op.layer == "layers.0.core")
    assert [context.rank_bytes(t, transformers.B) for t in core.inputs] == [tokens * size * 2] * 3
    assert not collectives(build(workload, Plan(tp=2))[0].programs[0], "all_gather")
