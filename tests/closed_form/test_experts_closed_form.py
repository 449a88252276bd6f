"""Does expert parallelism send tokens x top_k x hidden in each direction, and give ranks their experts' tokens?"""

from __future__ import annotations

from fractions import Fraction

import pytest
from forms_of_parallelism import build, collectives, model, payloads, sent_bytes

import trine
from trine.common.evidence import EXPERT_LOAD
from trine.compute import make_compute
from trine.graph.program import Compute, Recv, Send
from trine.graph.workload import EVEN_EXPERTS
from trine.parallel.job import JobContext
from trine.parallel.plan import Plan
from trine.parallel.token_partition import expert_load

BATCH, SEQUENCE, HIDDEN, LAYERS, TOP_K, EXPERTS = 2, 512, 4096, 2, 2, 8
COPIES = BATCH * SEQUENCE * TOP_K * HIDDEN * 2  # bytes of all token copies of a rank


def moe():  # type: ignore[no-untyped-def]
    return model("mixtral-8x7b")


@pytest.mark.parametrize("ep", [2, 4, 8])
def test_tokens_go_there_and_back_forward_and_backward(ep: int) -> None:
    """GShard, section 3.2: tokens x top_k x hidden x (ep - 1)/ep elements leave a rank, four times per layer."""
    job, _ = build(moe(), Plan(dp=8, ep=ep))
    exchanges = collectives(job.programs[0], "all_to_all", axis="ep")
    assert [step.size_bytes for step in exchanges] == [COPIES] * 4 * LAYERS
    sent = sum(step.size_bytes * (ep - 1) / ep for step in exchanges)
    assert sent == pytest.approx(4 * LAYERS * COPIES * (ep - 1) / ep)


@pytest.mark.parametrize("ep", [2, 4])
def test_gradients_of_experts_are_reduced_by_those_that_share_them(ep: int) -> None:
    workload = moe()
    plan = Plan(dp=8, ep=ep)
    job, _ = build(workload, plan)
    experts = JobContext(workload, plan.filled(), make_compute("auto", workload), None).token_partition.expert_weights
    of_experts = sum(p.size_bytes for p in workload.parameters if p.weight in experts)
    others = sum(p.size_bytes for p in workload.parameters) - of_experts
    assert of_experts == LAYERS * EXPERTS * 3 * HIDDEN * 14336 * 2
    assert payloads(job.programs[0])["all_reduce", "ep+dp"] == others
    assert payloads(job.programs[0])["all_reduce", "dp"] == of_experts // ep
    assert job.programs[0].resident_bytes[0] == others + of_experts // ep


def test_experts_of_one_replica_each_reduce_nothing() -> None:
    job, _ = build(moe(), Plan(dp=4, ep=4))
    assert {step.axis for step in collectives(job.programs[0], "all_reduce")} == {"ep"}


@pytest.mark.parametrize("exponent", [0.5, 1.2])
def test_zipf_shares_follow_the_law_and_programs_follow_the_shares(exponent: float) -> None:
    workload, ep = moe(), 4
    plan = Plan(dp=4, ep=ep, expert_imbalance=f"zipf:{exponent}")
    weights = [(n + 1) ** -exponent for n in range(EXPERTS)]
    wanted = [sum(weights[2 * p : 2 * p + 2]) / sum(weights) for p in range(ep)]
    load = expert_load(workload, plan)
    assert [float(share) for share in load.shares] == pytest.approx(wanted, rel=1e-4)
    assert sum(load.shares) == 1
    job, _ = build(workload, plan)
    assert len(job.programs) == ep
    assert tuple(job.program_of) == (0, 1, 2, 3)
    least = min(wanted)
    rest = [COPIES * (share - least) for share in wanted]
    for own, program in enumerate(job.programs):
        even = [step.size_bytes for step in collectives(program, "all_to_all")]
        assert even == pytest.approx([ep * COPIES * least] * 4 * LAYERS, rel=1e-4)
        sends = [step for step in program.steps if isinstance(step, Send)]
        others = [p for p in range(ep) if p != own and rest[p]]
        there = [s for s in sends if s.label.phase == 0][: len(others)]
        assert [step.peer.position for step in there] == others
        assert [step.size_bytes for step in there] == pytest.approx([rest[p] for p in others], rel=1e-3)
        back = [s for s in sends if s.label.phase == 0][len(others) :][: (ep - 1) * bool(rest[own])]
        assert [s.size_bytes for s in back] == pytest.approx([rest[own]] * len(back), rel=1e-3)
        assert len(sends) == 2 * LAYERS * (len(others) + len(back))
        received = [step for step in program.steps if isinstance(step, Recv)]
        assert len(received) == 2 * LAYERS * ((ep - 1) * bool(rest[own]) + len(others))


@pytest.mark.parametrize("imbalance", ["zipf:0.0001", "zipf:0.3", "zipf:1"])
def test_no_imbalance_exchanges_faster_than_balance(imbalance: str) -> None:
    def exchanged(**imbalanced: str) -> float:
        plan = Plan(dp=4, ep=4, **imbalanced)
        return trine.simulate(moe(), plan, cluster=trine.load_cluster("dgx-h100", gpus=4)).communication_s

    assert exchanged(expert_imbalance=imbalance) >= 0.99 * exchanged()  # the uneven part overlaps with the even part


def test_experts_compute_as_long_as_their_tokens_say() -> None:
    """A memory-bound operator's time is proportional to its tokens, apart from the fixed part."""
    workload = model("mixtral-8x7b", times="roofline")
    shares = (4, 2, 1, 1, 2, 2, 0, 4)
    job, _ = build(workload, Plan(dp=4, ep=4, expert_shares=shares))
    even, _ = build(workload, Plan(dp=4, ep=4))
    act = next(i for i, op in enumerate(workload.operators) if op.layer.endswith("experts.act"))
    times = [
        next(s.duration_ps for s in program.steps if isinstance(s, Compute) and s.label.operator == act) - 3_000_000
        for program in (*job.programs, even.programs[0])
    ]
    assert [time / times[-1] for time in times[:-1]] == pytest.approx([6 / 4, 2 / 4, 4 / 4, 4 / 4], rel=0.01)


def test_ranks_without_tokens_are_refused() -> None:
    from trine.errors import PlanError

    with pytest.raises(PlanError, match="get no tokens"):
        build(moe(), Plan(dp=4, ep=4, expert_shares=(4, 2, 1, 1, 0, 0, 8, 8)))


def test_capacity_cuts_the_busiest_experts_off() -> None:
    workload = moe()
    plan = Plan(dp=4, ep=4, expert_shares=(8, 2, 1, 1, 1, 1, 1, 1), capacity_factor=2.0)
    load = expert_load(workload, plan)
    kept = [Fraction(1, 4), Fraction(1, 8), *[Fraction(1, 16)] * 6]  # an expert keeps at most 2/8 of the tokens
    assert load.shares == tuple(kept[2 * p] + kept[2 * p + 1] for p in range(4))
    assert load.dropped == Fraction(1, 4)
    _, report = build(workload, plan)
    assert any("25.0% of the tokens' copies are dropped" in text for text in report.warnings)


def test_a_balanced_capacity_below_one_shrinks_everything_alike() -> None:
    workload = moe()
    half, _ = build(workload, Plan(dp=4, ep=4, capacity_factor=0.5))
    whole, _ = build(workload, Plan(dp=4, ep=4))
    assert len(half.programs) == 1
    assert 2 * sent_bytes(half, half.programs[0], "ep") - sent_bytes(whole, whole.programs[0], "ep") == pytest.approx(
        sum(s.size_bytes for s in collectives(whole.programs[0], "all_reduce", axis="ep")) * 2 * 3 / 4
    )


def test_experts_split_by_features_under_tensor_parallelism() -> None:
    """Each expert is split by columns, then rows: half of the weights, and tokens reduced after the row split."""
    workload = moe()
    plan = Plan(tp=2, dp=2, ep=2, tp_style="megatron", sequence_parallel=True)
    job, _ = build(workload, plan)
    context = JobContext(workload, plan.filled(), make_compute("auto", workload), None)
    for weight in context.token_partition.expert_weights:
        assert context.local_bytes[weight] * 4 == workload.tensors[weight].size_bytes
    exchanges = collectives(job.programs[0], "all_to_all")
    assert {step.size_bytes for step in exchanges} == {COPIES // 2}  # each rank sends its part of the tokens


def test_an_answer_names_the_busiest_rank_and_no_even_load() -> None:
    """Zipf, exponent 1, 8 experts: the first gets 8 / H(8) times an even share, H(8) = 1 + 1/2 + ... + 1/8."""
    plan = Plan(dp=8, ep=8, expert_imbalance="zipf:1.0")
    result = trine.simulate(moe(), plan, cluster="dgx-h100")
    times = EXPERTS / sum(1 / (n + 1) for n in range(EXPERTS))
    [load] = [item.detail for item in result.evidence if item.what == EXPERT_LOAD]
    assert f"rank 0 of each ep group (expert 0) gets {times:.3g} times an even share" in load
    assert load in " ".join(result.summary().split())
    assert not [item for item in result.evidence if EVEN_EXPERTS in item.detail]
    balanced = trine.simulate(moe(), Plan(dp=8, ep=8), cluster="dgx-h100")
    assert [item for item in balanced.evidence if EVEN_EXPERTS in item.detail]
    assert not [item for item in balanced.evidence if item.what == EXPERT_LOAD]


def test_tokens_in_excess_of_an_even_exchange_go_along_the_axis_of_experts() -> None:
    uneven = trine.simulate(moe(), Plan(dp=4, ep=4, expert_imbalance="zipf:1.0"), cluster="dgx-h100")
    messages = [use for use in uneven.collectives if use.kind == "send_recv"]
    assert messages
    assert {use.axes for use in messages} == {("ep",)}
    staged = trine.simulate(moe(), Plan(pp=2, batch=2, micro_batch=1), cluster="dgx-h100")
    assert {use.axes for use in staged.collectives if use.kind == "send_recv"} == {()}
