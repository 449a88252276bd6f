"""Pipeline chunks as Megatron-core's layouts count them: embedding and loss as layers, uneven ends, explicit lists."""

from __future__ import annotations

from collections import Counter

import pytest

import trine
from trine.compute.kinds import layer_of
from trine.errors import PlanError
from trine.graph.workload import FORWARD, Workload
from trine.parallel.constraints import LayoutFacts, resolve_layout
from trine.parallel.job import JobContext
from trine.parallel.layer_counts import accounted_counts, uneven_counts
from trine.software import load_software
from trine.training.memory import NoTimes
from trine.workload.synthesis.model import synthesize

MEGATRON = load_software("megatron-core")


def model(layers: int, name: str = "llama-3-405b") -> Workload:
    return synthesize(name, layers=layers, sequence=512)


def chunks(workload: Workload, **fields: object) -> list[tuple[int, bool, bool]]:
    """Return (blocks, has the embedding, has the loss) of each chunk."""
    plan, _ = resolve_layout(trine.Plan(**fields), MEGATRON, LayoutFacts(workload))
    context = JobContext(workload, plan, NoTimes(), None, MEGATRON)
    found = []
    for chunk in context.chunks:
        names = [op.layer for op in chunk.forward]
        blocks = {layer_of(name) for name in names} - {""}
        found.append((len(blocks), "embedding" in names, "loss" in names))
    return found


def test_126_layers_fill_128_chunks_with_embedding_and_loss_alone():
    """Llama 3.1 405B on pp 16 x vp 8: only the rule that counts both divides, and megatron-core takes it by default."""
    workload = model(126)
    fields = {"pp": 16, "virtual_stages": 8, "batch": 16, "micro_batch": 1}
    found = chunks(workload, **fields)
    assert found == [(0, True, False), *[(1, False, False)] * 126, (0, False, True)]
    assert found == chunks(workload, **fields, stage_layers=(0, *[1] * 126, 0))


@pytest.mark.parametrize(("pp", "virtual", "each"), [(8, 8, 2), (8, 4, 4), (16, 4, 2), (4, 8, 4)])
def test_first_and_last_chunk_have_one_layer_less(pp, virtual, each):
    """dg6 and dg11: 126 layers on 64 chunks have 1, 2, ..., 2, 1 layers."""
    counts = [blocks for blocks, *_ in chunks(model(126), pp=pp, virtual_stages=virtual, batch=pp, micro_batch=1)]
    assert counts == [each - 1, *[each] * (pp * virtual - 2), each - 1]


def test_the_default_is_named_and_ends_where_layers_divide():
    workload = model(14)
    facts = LayoutFacts(workload)
    for virtual, rule in ((2, "blocks+embedding+loss"), (4, "blocks+embedding+loss"), (7, "blocks"), (1, "blocks")):
        plan, notes = resolve_layout(trine.Plan(pp=2 if virtual != 4 else 4, virtual_stages=virtual), MEGATRON, facts)
        wanted = rule if (14 % (plan.pp * virtual)) and virtual > 1 else "blocks"
        assert plan.balance == wanted
        assert any("account_for_embedding" in note for note in notes) == (wanted != "blocks")
    assert resolve_layout(trine.Plan(pp=2, virtual_stages=2, balance="blocks"), MEGATRON, facts)[0].balance == "blocks"
    assert (
        resolve_layout(trine.Plan(pp=2, virtual_stages=2), load_software("megatron-2021"), facts)[0].balance == "blocks"
    )


@pytest.mark.parametrize("layers", [5, 6, 7])
@pytest.mark.parametrize("rule", ["blocks+embedding", "blocks+loss", "blocks+embedding+loss"])
def test_accounted_rules_conserve_layers_or_refuse(layers, rule):
    extra = rule.count("+")
    for num_chunks in range(2, layers + extra + 1):
        if (layers + extra) % num_chunks:
            with pytest.raises(PlanError, match=rf"= {layers + extra} do not divide over pp x virtual_stages"):
                accounted_counts(layers, num_chunks, rule)
            continue
        counts = accounted_counts(layers, num_chunks, rule)
        assert sum(counts) == layers
        assert len(counts) == num_chunks
        counts[0] += "embedding" in rule
        counts[-1] += "loss" in rule
        assert len(set(counts)) == 1


def test_uneven_ends_follow_megatron():
    """get_num_layers_to_build: each rank's layers divide over its chunks, chunk c is on rank c mod pp."""
    assert uneven_counts(10, 4, 1, 1, 3) == [1, 3, 3, 3]
    assert uneven_counts(12, 2, 2, 4, None) == [2, 4, 2, 4]
    assert uneven_counts(7, 2, 1, 3, 4) == [3, 4]
    for case, text in [
        ((10, 4, 1, 1, 2), "7 layers remain for 2 pipeline ranks"), ((7, 2, 1, 3, 3), "take 6 of 7 layers"),
        ((7, 2, 1, 9, None), "take 9 of 7 layers"), ((12, 2, 2, 3, None), "the 3 layers of pipeline rank 0"),
    ]:  # fmt: skip
        with pytest.raises(PlanError, match=text):
            uneven_counts(*case)
    workload = model(10)
    found = chunks(workload, pp=4, first_stage_layers=1, last_stage_layers=3, batch=4, micro_batch=1)
    assert [blocks for blocks, *_ in found] == [1, 3, 3, 3]


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"stage_layers": (3, 3)}, "needs a pipeline"),
        ({"pp": 2, "stage_layers": (3, 2)}, "add up to 5 layers, and the model has 6"),
        ({"pp": 2, "stage_layers": (6,)}, "one number for each of pp x virtual_stages = 2 chunks, got 1"),
        ({"pp": 2, "stage_layers": (7, -1)}, "whole numbers of 0 to 100000, got -1"),
        ({"pp": 2, "stage_layers": (3, 3), "balance": "blocks"}, "stage_layers say where"),
        ({"pp": 2, "stage_layers": (3, 3), "last_stage_layers": 3}, "contradict each other"),
        ({"pp": 2, "cuts": ("layers.3.attention.norm",), "first_stage_layers": 3}, "contradict each other"),
        ({"pp": 2, "first_stage_layers": 0}, "positive whole number, got 0"),
        ({"pp": 2, "defer_head_gradient": -1}, "0 .all micro-batches. to"),
        ({"defer_head_gradient": 1}, "defer_head_gradient needs a pipeline"),
        ({"pp": 2, "defer_head_gradient": 1, "dp": 2, "sharding": "zero2"}, "reduced after each micro-batch"),
    ],
    ids=str,
)
def test_contradictions_are_one_line(fields, text):
    with pytest.raises(PlanError, match=text) as caught:
        chunks(model(6), **fields)
    assert "\n" not in str(caught.value)


def test_deferral_needs_fused_accumulation_and_whole_backward_passes():
    workload = model(4)
    eager = load_software("pytorch-eager")
    plan = trine.Plan(pp=2, defer_head_gradient=0, batch=4, micro_batch=1)
    with pytest.raises(PlanError, match="pytorch-eager adds them in passes of their own"):
        JobContext(workload, plan.filled(eager.plan_fields()), NoTimes(), None, eager)
    with pytest.raises(PlanError, match="zb-h1 schedule delays all weight gradients anyway"):
        JobContext(workload, trine.Plan(pp=2, schedule="zb-h1", defer_head_gradient=0).filled(), NoTimes(), None)


def test_memory_of_weights_follows_the_layers():
    """Weights of each rank: its blocks, plus the embedding on the first and norm and head on the last."""
    workload = model(6)
    plan = trine.Plan(pp=4, stage_layers=(1, 0, 3, 2), batch=4, micro_batch=1).filled()
    context = JobContext(workload, plan, NoTimes(), None)
    sizes = [sum(weight.size_bytes for weight in rank) for rank in context.weights]
    by_layer = Counter[str]()
    for op in workload.operators:
        if op.phase == FORWARD:
            tensors = [workload.tensors[t] for t in op.inputs]
            by_layer[layer_of(op.layer) or op.layer] += sum(t.size_bytes for t in tensors if t.role == "weight")
    block = by_layer["layers.0"]
    assert sizes == [
        block + by_layer["embedding"], 0, 3 * block, 2 * block + by_layer["final_norm"] + by_layer["head"],
    ]  # fmt: skip
