"""Memory that depends on the version of the training software: FSDP2, chunked loss, record_stream, checkpointing."""

from __future__ import annotations

from dataclasses import replace

import pytest

import trine
from trine.errors import InputError, SpecError
from trine.graph.memory import BLOCKS_PER_STREAM, stream_of
from trine.results.allocator import CachingAllocator, peak_of
from trine.software import load_software
from trine.training.memory import rank_memory, stage_programs
from trine.training.software import software_of
from trine.workload.synthesis.model import Synthesis, from_text, written
from trine.workload.synthesis.model_files import load_model
from validation.memory import changed

MIB = 2**20
LLAMA = replace(load_model("llama-3-8b"), layers=4, parameters=None)
MOE = replace(load_model("qwen3-30b-a3b"), layers=4, sequence=2048, parameters=None)
FSDP = trine.Plan(dp=8, batch=1, sharding="fsdp")


def use(model, plan, software, **asked):
    return rank_memory(written(model, Synthesis(batch=1, **asked), software), plan, software)[0]


def test_fsdp2_holds_no_shard_in_bfloat16() -> None:
    """The float32 shard is the only one: 2 bytes less per parameter and rank at rest."""
    profile = load_software("torchtitan-2025")
    old = changed("torchtitan-2025", fsdp=profile.memory.fsdp.model_copy(update={"weights": "copy"}))
    work = written(LLAMA, Synthesis(batch=1), profile)
    rest = [stage_programs(work, FSDP, one)[0].resident_bytes for one in (profile, old)]
    assert rest[1][0] - rest[0][0] == pytest.approx(2 * LLAMA.num_parameters / 8, rel=1e-6)
    assert rest[0][0] == 0
    assert rest[0][1:] == rest[1][1:]


def test_the_input_of_a_reduce_scatter_is_float32_and_lasts_until_the_next() -> None:
    profile = load_software("torchtitan-2025")
    none = changed("torchtitan-2025", fsdp=profile.memory.fsdp.model_copy(update={"scatters": "in-place"}))
    work = written(LLAMA, Synthesis(batch=1), profile)
    sizes = [[c.delta_bytes for c in stage_programs(work, FSDP, one)[0].memory] for one in (profile, none)]
    layer = sum(w.size_bytes for w in work.tensors.values() if w.role == "weight") - 2 * 2 * LLAMA.vocab * LLAMA.hidden
    per_layer = 2 * (layer - 2 * LLAMA.hidden) // LLAMA.layers  # float32; the final norm belongs to the head's unit
    assert sizes[0].count(per_layer) == LLAMA.layers
    assert sizes[1].count(per_layer) == 0
    assert sum(sizes[0]) == 0


def test_streams_do_not_share_cached_blocks() -> None:
    allocator, other = CachingAllocator(), 1 + BLOCKS_PER_STREAM
    assert (stream_of(5), stream_of(other)) == (0, 1)
    allocator.take(1, 64 * MIB)
    allocator.drop(1)
    assert allocator.take(other, 64 * MIB) is not None
    assert allocator.reserved == 128 * MIB
    assert allocator.take(2, 64 * MIB) is None


def test_a_held_block_is_not_allocated_and_not_free() -> None:
    rows = [(64 * MIB, 4, 1), (-64 * MIB, 4, 1), (64 * MIB, 4, 2), (-64 * MIB, 4, 2)]
    early = peak_of(rows, (0,) * 7, times=[5, 100, 50, 0])
    late = peak_of(rows, (0,) * 7, times=[5, 100, 100, 0])
    assert (early.allocated_bytes, early.reserved_bytes) == (64 * MIB, 128 * MIB)
    assert (late.allocated_bytes, late.reserved_bytes) == (64 * MIB, 64 * MIB)
    assert peak_of(rows, (0,) * 7).reserved_bytes == 64 * MIB


def test_eager_loss_keeps_four_float32_copies_with_tensor_parallelism() -> None:
    """16 bytes per logit are allocated and 18 reserved; 12 and 14 without tensor parallelism."""
    profile = load_software("torchtitan-eager")
    fused = changed("torchtitan-eager", operators={"loss": "fused"}, logits_bytes=None, parallel_logits_bytes=None)
    plan = trine.Plan(tp=2, batch=1, sequence_parallel=True)
    model = replace(LLAMA, layers=1)
    logits = model.sequence * 128256 // 2
    more = use(model, plan, profile).use.allocated_bytes - use(model, plan, fused).use.allocated_bytes
    assert more == pytest.approx((16 - 4) * logits, rel=0.05)


def test_chunks_of_the_loss_divide_the_logits() -> None:
    model, plan = replace(LLAMA, layers=1), replace(FSDP, batch=8)
    uses = [use(model, plan, changed("torchtitan", loss_chunks=n)).use.allocated_bytes for n in (1, 2, 4)]
    logits = 8 * model.sequence * model.vocab
    assert uses[0] - uses[1] == pytest.approx(4 * logits / 2, rel=0.05)
    assert uses[1] - uses[2] == pytest.approx(4 * logits / 4, rel=0.05)


def test_chunks_of_the_loss_divide_the_copies_of_an_eager_loss_too() -> None:
    """Float32 copies that no operator names: each chunk has its part of them."""
    model, plan = replace(LLAMA, layers=1), replace(FSDP, batch=8)
    profiles = [changed("torchtitan-eager", loss_chunks=count) for count in (1, 2, 4)]
    uses = [use(model, plan, one).use.allocated_bytes for one in profiles]
    assert uses[0] - uses[1] == pytest.approx(2 * (uses[1] - uses[2]), rel=0.05)
    logits = 8 * model.sequence * model.vocab
    assert uses[0] - uses[1] == pytest.approx(12 * logits / 2, rel=0.1)


def test_grouped_products_and_the_router_run_again() -> None:
    """torchtitan keeps neither routed inputs nor results of experts in any layer."""
    plan = trine.Plan(dp=8, batch=16, sharding="fsdp", recompute="selective")
    profile = changed("torchtitan", loss_chunks=64)
    kept = profile.memory.selective_keeps.model_copy(update={"grouped": "kept"})
    grouped = changed("torchtitan", loss_chunks=64, selective_keeps=kept)
    sizes = [use(MOE, plan, one).use.allocated_bytes for one in (profile, grouped)]
    copies = 16 * MOE.sequence * MOE.experts.top_k
    layer = 2 * copies * (2 * MOE.experts.ffn + MOE.hidden)  # gate and up, and their inputs
    assert sizes[1] - sizes[0] >= (MOE.layers - 2) * layer
    programs = [stage_programs(written(MOE, Synthesis(batch=1), p), plan, p)[0] for p in (profile, grouped)]
    assert len(programs[0].steps) > len(programs[1].steps)


def test_blocks_of_collectives_are_held_with_tensor_parallelism_only() -> None:
    old, new = load_software("megatron-core-0.6"), changed("megatron-core-0.6", record_streams=False)
    plan = trine.Plan(tp=2, batch=2, micro_batch=1, sequence_parallel=True)
    with_tp = [use(LLAMA, plan, one).use for one in (old, new)]
    assert with_tp[0].allocated_bytes == pytest.approx(with_tp[1].allocated_bytes, rel=1e-3)
    gathered = 2 * LLAMA.sequence * LLAMA.hidden
    held = with_tp[0].reserved_bytes - with_tp[1].reserved_bytes
    each = 4 + 6 + 4 / 2  # gathered and to be scattered, forward and backward, and the scatters' results
    assert gathered * LLAMA.layers < held <= (each * LLAMA.layers + 8) * gathered  # 8: embedding, head
    alone = [use(LLAMA, trine.Plan(batch=2, micro_batch=1), one).use for one in (old, new)]
    assert alone[0] == alone[1]


@pytest.mark.slow
def test_a_run_holds_no_more_than_the_order_of_the_program() -> None:
    """Known times free blocks no later than a CPU that runs ahead to the limit of its queue."""
    plan = trine.Plan(tp=2, batch=2, micro_batch=1, sequence_parallel=True)
    text = "model:llama-3-8b,layers=4"
    run = trine.simulate(text, plan, cluster="dgx-h100", software="megatron-core-0.6").memory_uses[0]
    order = use(LLAMA, plan, load_software("megatron-core-0.6")).use
    free = use(LLAMA, plan, changed("megatron-core-0.6", record_streams=False)).use
    assert run.allocated_bytes == pytest.approx(order.allocated_bytes, rel=1e-3)
    assert free.reserved_bytes <= run.reserved_bytes <= order.reserved_bytes


def test_options_of_a_model_change_its_parameters() -> None:
    spec = load_model("llama-3-8b")
    plain, tied = (from_text(f"model:llama-3-8b,layers=1{more}") for more in ("", ",tied=yes"))
    difference = int(plain.metadata["parameters"]) - int(tied.metadata["parameters"])
    assert difference == spec.vocab * spec.hidden
    learned = from_text("model:llama-3-8b,layers=1,positions=learned,biases=all")
    biases = spec.qkv + spec.hidden + 2 * spec.ffn + spec.hidden
    assert int(learned.metadata["parameters"]) - int(plain.metadata["parameters"]) == 8192 * spec.hidden + biases
    dropped = from_text("model:llama-3-8b,layers=1,dropout=yes", software="megatron-core")
    assert any("dropout" in op.name for op in dropped.operators)


@pytest.mark.parametrize(
    "text",
    [
        "llama-3-8b,tied=maybe",
        "llama-3-8b,positions=none",
        "vgg13,tied=yes",
        "vgg13,dropout=yes",
        "t5-small,biases=all",
    ],
)
def test_options_that_a_model_cannot_have_are_refused(text) -> None:
    with pytest.raises((InputError, SpecError)):
        from_text(f"model:{text}")


def test_copies_of_keys_and_values_are_kept_for_both() -> None:
    """Without grouped queries, key_values: 1 keeps a copy of the keys and one of the values of each layer."""
    model = replace(LLAMA, kv_heads=LLAMA.heads)
    none, both = (changed("torchtitan", keeps={"key_values": count} if count else {}) for count in (0, 1))
    plan = replace(FSDP, batch=8)
    more = use(model, plan, both).by_category["activations"] - use(model, plan, none).by_category["activations"]
    keys = 2 * plan.batch * model.sequence * model.hidden
    assert more == pytest.approx(model.layers * 2 * keys, rel=1e-3)
    grouped = [use(LLAMA, plan, one).use for one in (none, both)]
    assert grouped[0] == grouped[1]


def test_results_of_spread_experts_are_kept_with_selective_recomputation() -> None:
    """Tokens that expert parallelism has sent back: top_k of each token, hidden features each, in each layer."""
    plan = trine.Plan(dp=8, ep=8, batch=8, sharding="fsdp", recompute="selective")
    base = load_software("torchtitan").memory.selective_keeps
    styles = [base.model_copy(update={"exchanged": each}) for each in ("kept", "recomputed")]
    profiles = [changed("torchtitan", loss_chunks=64, selective_keeps=style) for style in styles]
    kept, again = (use(MOE, plan, one).by_category["activations"] for one in profiles)
    sent = 2 * plan.batch * MOE.sequence * MOE.experts.top_k * MOE.hidden
    assert kept - again >= (MOE.layers - 1) * sent


def test_dropout_needs_a_profile() -> None:
    with pytest.raises(InputError, match="profile"):
        from_text("model:llama-3-8b,dropout=yes", software="none")


def test_an_allgather_dispatcher_keeps_routed_tokens_whole() -> None:
    """Each layer keeps, per tensor-parallel rank, the experts' input for all tokens, not a part, and their output."""
    plan = trine.Plan(tp=4, batch=2, micro_batch=2, sequence_parallel=True)
    gathered, exchanged = (changed("megatron-core-0.6", dispatcher=d) for d in ("allgather", "alltoall"))
    peaks = [use(MOE, plan, one).by_category["activations"] for one in (gathered, exchanged)]
    routed = 2 * 2 * MOE.sequence * MOE.experts.top_k * MOE.hidden
    assert peaks[0] - peaks[1] == pytest.approx(MOE.layers * routed * (1 + 3 / 4), rel=0.1)
    spread = replace(plan, dp=4, ep=4)
    assert (
        use(MOE, spread, gathered).use == use(MOE, spread, exchanged).use
    )  # not modelled: gathers over spread experts
    dense = [use(LLAMA, plan, one).use for one in (gathered, exchanged)]
    assert dense[0] == dense[1]


@pytest.mark.slow
def test_eager_torchtitan_copies_gathers_and_rotates_all_heads() -> None:
    """Only tensor parallelism makes it slower: without it there are no gathers."""
    model = "model:qwen3-8b,layers=8,sequence=4096"
    plain = load_software("torchtitan-eager")
    style = plain.operators.model_copy(update={"sequence_gathers": "plain", "head_norms": "sharded"})
    sharded = plain.model_copy(update={"operators": style})
    tp = trine.Plan(tp=8, batch=4, sequence_parallel=True)
    times = [trine.simulate(model, tp, cluster="dgx-h100", software=one).step_time_s for one in (plain, sharded)]
    assert times[0] > 1.05 * times[1]
    one = [trine.simulate(model, trine.Plan(), cluster="dgx-h100", software=s).step_time_s for s in (plain, sharded)]
    assert one[0] == one[1]


def test_a_loss_is_chosen_for_transformers_that_trine_writes() -> None:
    chosen = software_of("megatron-core", "model:llama-3-8b", None, loss="unfused")
    assert chosen.profile is not None
    assert chosen.profile.operators.loss == "unfused"
    with pytest.raises(InputError, match="vgg13-h100-b128 has its own operators"):
        software_of("megatron-core", "vgg13-h100-b128", None, loss="unfused")
