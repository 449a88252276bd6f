"""Do sequence and context parallelism send the bytes of their papers and keep the total FLOPs?"""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from itertools import pairwise

import pytest
from forms_of_parallelism import build, collectives, model, payloads, sent_bytes, weight_bytes

from trine.cluster import build_topology
from trine.compute import Split, work
from trine.graph.memory import MEMORY_CATEGORIES
from trine.graph.program import Compute, Phase
from trine.graph.workload import BACKWARD, FORWARD
from trine.parallel.plan import Plan
from trine.parallel.token_partition import is_attention
from trine.software import load_software
from trine.training import simulate

BATCH, SEQUENCE, HIDDEN, VOCAB, LAYERS = 2, 512, 4096, 128256, 2
#: Bytes of one bfloat16 tensor of tokens x hidden.
SBH = BATCH * SEQUENCE * HIDDEN * 2
KEYS = BATCH * SEQUENCE * 8 * 128 * 2 * 2  # keys and values of 8 heads of 128
QUERIES = BATCH * SEQUENCE * 32 * 128 * 2


def megatron(tp: int, **fields: object) -> Plan:
    return Plan(tp=tp, tp_style="megatron", **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize("tp", [2, 4, 8])
def test_sequence_parallelism_sends_as_much_as_tensor_parallelism_and_the_input_once_more(tp: int) -> None:
    """Korthikanti et al. 2022, section 4.2.2: an all-reduce is a reduce-scatter and an all-gather.

    Inputs that are not kept are gathered again for the weight gradient, once per column split.
    """
    workload = model()
    job, _ = build(workload, megatron(tp))
    wide, _ = build(workload, megatron(tp, sequence_parallel=True))
    losses = BATCH * SEQUENCE * 4
    assert payloads(job.programs[0]) == {("all_reduce", "tp"): (4 * LAYERS + 2) * SBH + losses}
    column_splits = 2 * LAYERS + 1
    found = payloads(wide.programs[0])
    assert found["reduce_scatter", "tp"] == (4 * LAYERS + 2) * SBH
    assert found["all_gather", "tp"] == (4 * LAYERS + 2 + column_splits) * SBH
    norms = (2 * LAYERS + 1) * HIDDEN * 2
    assert found["all_reduce", "tp"] == losses + norms


@pytest.mark.parametrize("recompute", ["none", "full"])
def test_an_input_that_the_software_keeps_is_not_gathered_again(recompute: str) -> None:
    """nanotron without ``tp_recompute_allgather`` sends as tensor parallelism does; recomputed layers gather again."""
    plan = megatron(4, sequence_parallel=True, recompute=recompute)
    again, kept = (build(model(), plan, load_software(name))[0] for name in ("megatron-core", "nanotron-2024"))
    once_more = 2 * LAYERS * SBH if recompute == "full" else 0
    assert payloads(kept.programs[0])["all_gather", "tp"] == (4 * LAYERS + 2) * SBH + once_more
    column_splits = 2 * LAYERS + 1
    assert payloads(again.programs[0])["all_gather", "tp"] == (4 * LAYERS + 2 + column_splits) * SBH + once_more
    assert payloads(kept.programs[0])["reduce_scatter", "tp"] == payloads(again.programs[0])["reduce_scatter", "tp"]


@pytest.mark.parametrize("pieces", [2, 4])
def test_overlap_of_tensor_parallelism_moves_the_same_bytes_in_less_time(pieces: int) -> None:
    workload = model(batch=2, sequence=2048)
    cluster = build_topology("switch", "200 GB/s", "1 us", 4)
    plans = [megatron(4, sequence_parallel=True, tp_overlap=n) for n in (1, pieces)]
    jobs = [build(workload, plan)[0] for plan in plans]
    assert payloads(jobs[0].programs[0]) == payloads(jobs[1].programs[0])
    computing = [sum(s.duration_ps for s in j.programs[0].steps if isinstance(s, Compute)) for j in jobs]
    assert computing[0] < computing[1] < 1.05 * computing[0]  # pieces are GEMMs with fewer rows
    whole, cut = (simulate(workload, plan, cluster=cluster).step_time_ps for plan in plans)
    assert cut < whole


def kept_for_backward(plan: Plan, workload) -> int:  # type: ignore[no-untyped-def]
    """Return the bytes of activations at the end of the forward pass."""
    program = build(workload, plan)[0].programs[0]
    end = max(i for i, step in enumerate(program.steps) if isinstance(step, Compute) and step.label.phase == 0)
    number = MEMORY_CATEGORIES.index("activations")
    return sum(c.delta_bytes for c in program.memory if c.category == number and c.step <= end)


def test_activations_that_are_kept_are_divided_by_the_tensor_parallel_ranks() -> None:
    """Korthikanti et al. 2022, table 2: tensors that tensor parallelism keeps whole are split, too, so all is 1/t.

    The loss of each token is the exception. Tensors gathered for an operator are not kept; the vocabulary is padded.
    """
    workload = model(layers=8)
    losses = BATCH * SEQUENCE * 4
    one, wide = kept_for_backward(Plan(), workload), kept_for_backward(megatron(4, sequence_parallel=True), workload)
    narrow = kept_for_backward(megatron(4), workload)
    assert wide < narrow < one
    padding = BATCH * SEQUENCE * (128512 - VOCAB) * 2  # of the logits, to a multiple of 128 x 4
    assert abs(4 * wide - padding - one) <= 4 * losses
    cut = kept_for_backward(Plan(cp=4), workload)
    assert abs(4 * cut - one) <= 4 * losses


def test_a_weight_gradient_does_not_wait_for_the_reduction_beside_it() -> None:
    """In the backward pass of a column split, the weight gradient directly follows the input gradient."""
    for sequence in (False, True):
        job, _ = build(model(), megatron(4, sequence_parallel=sequence))
        steps = job.programs[0].steps
        reductions = {
            i: step.after[0]
            for i, step in enumerate(steps)
            if getattr(step, "kind", "") in ("all_reduce", "reduce_scatter") and step.label.phase == 1 and step.after
        }
        computes = [i for i, step in enumerate(steps) if isinstance(step, Compute)]
        beside = 0
        for i, made_by in reductions.items():
            later = [c for c in computes if c > i]
            if made_by in computes and len(later) > 1 and i not in steps[later[0]].after:
                assert i in steps[later[1]].after
                beside += 1
        assert beside == 2 * LAYERS + 1


@pytest.mark.parametrize("sequence_parallel", [False, True])
def test_what_runs_again_is_sent_again_and_counts_as_recomputation(sequence_parallel: bool) -> None:
    """Full recomputation repeats the layers' forward collectives, but not the embedding's, the head's or the loss's."""
    plan = megatron(4, sequence_parallel=sequence_parallel, recompute="full")
    again = [s for s in collectives(build(model(), plan)[0].programs[0]) if s.label.phase == Phase.RECOMPUTE]
    kinds = Counter(step.kind for step in again)
    expected = {"all_gather": 2, "reduce_scatter": 2} if sequence_parallel else {"all_reduce": 2}
    assert kinds == {kind: count * LAYERS for kind, count in expected.items()}
    assert {step.size_bytes for step in again} == {SBH}


# -- context parallelism ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cp", [2, 4, 8])
def test_ring_attention_passes_keys_and_values_on_and_their_gradients(cp: int) -> None:
    """Liu et al. 2023: cp - 1 blocks of keys and values forward; backward the same plus their gradients."""
    job, _ = build(model(), Plan(cp=cp))
    block = KEYS // cp
    shifts = collectives(job.programs[0], "shift", axis="cp")
    by_phase: Counter[int] = Counter()
    for step in shifts:
        by_phase[step.label.phase] += step.size_bytes
    assert by_phase == {0: LAYERS * (cp - 1) * block, 1: 2 * LAYERS * (cp - 1) * block}


@pytest.mark.parametrize("cp", [2, 4])
def test_all_gather_and_ulysses_send_what_their_papers_say(cp: int) -> None:
    """Llama 3 gathers keys and values twice and scatters their gradients. Ulysses sends q, k, v and output twice."""
    job, _ = build(model(), Plan(cp=cp, cp_style="all-gather"))
    found = payloads(job.programs[0])
    assert (found["all_gather", "cp"], found["reduce_scatter", "cp"]) == (2 * LAYERS * KEYS, LAYERS * KEYS)
    job, _ = build(model(), Plan(cp=cp, cp_style="ulysses"))
    assert payloads(job.programs[0])["all_to_all", "cp"] == 2 * LAYERS * (2 * QUERIES + KEYS) // cp


@pytest.mark.parametrize("style", ["ring", "all-gather", "ulysses"])
@pytest.mark.parametrize("cp", [2, 4])
def test_gradients_are_reduced_over_data_and_context_ranks(style: str, cp: int) -> None:
    workload = model()
    job, _ = build(workload, Plan(dp=2, cp=cp, cp_style=style))
    assert payloads(job.programs[0])["all_reduce", "cp+dp"] == weight_bytes(workload)
    assert sent_bytes(job, job.programs[0], "cp+dp") == pytest.approx(
        2 * weight_bytes(workload) * (2 * cp - 1) / (2 * cp)
    )


@pytest.mark.parametrize("cp", [2, 4, 8])
def test_each_rank_does_its_part_of_the_products_exactly(cp: int) -> None:
    """The FLOPs of all ranks add up to the unsplit FLOPs, including the quadratic part of attention."""
    workload = model()
    ring = Fraction(1, cp)
    for op in workload.operators:
        if op.phase not in (FORWARD, BACKWARD) or "embedding" in op.name:  # its gradient covers the whole table
            continue
        whole = work(op, workload).flops
        if is_attention(op):
            block = work(op, workload, Split(batch=BATCH, tokens=ring)).flops
            assert cp * cp * block == whole
            assert cp * work(op, workload, Split(batch=BATCH, tokens=ring, keys=Fraction(1))).flops == whole
            assert cp * work(op, workload, Split(batch=BATCH, ways=cp, mode="column")).flops == whole
        else:
            assert cp * work(op, workload, Split(batch=BATCH, tokens=ring)).flops == whole


def test_a_block_of_ring_attention_hides_the_next_ones_way() -> None:
    workload = model(sequence=8192, batch=1, layers=1)
    fast, slow = (build_topology("ring", rate, "1 us", 4) for rate in ("200 GB/s", "2 GB/s"))
    plan, gathered = Plan(cp=4), Plan(cp=4, cp_style="all-gather")
    job, _ = build(workload, plan)
    attention = [i for i, name in enumerate(job.operator_names) if "attention" in name]
    for cluster, hidden in ((fast, True), (slow, False)):
        result = simulate(workload, plan, cluster=cluster, fold="off")
        graph, records = result.graph, result.records
        rank, operator = graph.rank, graph.labels.operator
        own = [
            (int(records.start_ps[t]), int(records.end_ps[t]))
            for t in range(len(rank))
            if rank[t] == 0 and graph.kind[t] == 0 and operator[t] == attention[0]
        ]
        gaps = [b[0] - a[1] for a, b in pairwise(own)]
        assert len(own) == 4
        assert (max(gaps) == 0) == hidden
    assert simulate(workload, plan, cluster=fast).step_time_ps < simulate(workload, gathered, cluster=fast).step_time_ps
