"""Do expert layouts that differ from the dense one (etp, ep over tp x cp x dp) conserve bytes, FLOPs and weights?"""

from __future__ import annotations

from itertools import product

import pytest
from forms_of_parallelism import build, collectives, model, payloads

import trine
from trine.compute.cost import Sizing
from trine.compute.resize import Split, is_expert_product
from trine.compute.roofline import Duration
from trine.errors import PlanError
from trine.graph.grid import RankGrid
from trine.graph.program import Compute
from trine.graph.workload import Operator, Workload
from trine.parallel.build import build_job
from trine.parallel.plan import Plan

BATCH, SEQUENCE, HIDDEN, FFN, LAYERS, TOP_K, EXPERTS = 2, 512, 4096, 14336, 2, 2, 8
COPIES = BATCH * SEQUENCE * TOP_K * HIDDEN * 2  # bytes of all token copies of a replica
EXPERT_BYTES = LAYERS * EXPERTS * 3 * HIDDEN * FFN * 2


def moe() -> Workload:
    return model("mixtral-8x7b")


LAYOUTS = [
    {"tp": 4, "dp": 2, "ep": 8, "etp": 1, "sequence_parallel": True},
    {"tp": 4, "dp": 2, "ep": 2, "etp": 2, "sequence_parallel": True},
    {"tp": 4, "dp": 2, "ep": 4, "etp": 2, "sequence_parallel": True},
    {"tp": 4, "dp": 2, "ep": 2, "sequence_parallel": True},
    {"tp": 4, "dp": 2, "ep": 1, "etp": 1, "sequence_parallel": True},
    {"tp": 2, "dp": 4, "ep": 2, "etp": 4, "sequence_parallel": True},
    {"dp": 8, "ep": 4, "etp": 2},
    {"tp": 2, "cp": 2, "dp": 2, "ep": 8, "etp": 1, "sequence_parallel": True},
    {"tp": 4, "ep": 2, "etp": 1, "sequence_parallel": True},
]


def ways(layout: dict[str, int]) -> tuple[int, int, int, int, int]:
    tp, ep = layout.get("tp", 1), layout.get("ep", 1)
    etp, replica = layout.get("etp", tp), tp * layout.get("cp", 1)
    return tp, ep, etp, replica * layout.get("dp", 1), replica


@pytest.mark.parametrize(
    ("tp", "cp", "dp", "etp", "ep"), [*product((1, 2, 4), (1, 2), (1, 2, 4), (1, 2, 4, 8), (1, 2, 4, 8))]
)
def test_groups_are_those_of_both_numberings(tp: int, cp: int, dp: int, etp: int, ep: int) -> None:
    """Megatron-core (expert_decoder_rank_generator): ranks of a stage are ordered by etp, then ep, then replicas."""
    stage, pp = tp * cp * dp, 2
    if stage % (etp * ep):
        with pytest.raises(PlanError, match="does not divide"):
            Plan(tp=tp, cp=cp, dp=dp, pp=pp, ep=ep, etp=etp).filled()
        return
    plan = Plan(tp=tp, cp=cp, dp=dp, pp=pp, ep=ep, etp=etp)
    grid, groups = RankGrid(plan.axes), plan.groups
    assert grid.num_ranks == stage * pp
    for rank in range(stage * pp):
        at, first = rank % stage, rank - rank % stage
        wanted = {
            groups.tensor: [first + at - at % tp + i for i in range(tp)],
            groups.expert_tensor: [first + at - at % etp + i for i in range(etp)],
            groups.experts: [first + at // (etp * ep) * etp * ep + at % etp + i * etp for i in range(ep)],
            groups.expert: [first + at % (etp * ep) + i * etp * ep for i in range(stage // (etp * ep))],
            groups.data: [first + at % tp + i * tp for i in range(cp * dp)],
        }
        for axis, ranks in wanted.items():
            assert list(grid.group(rank, axis) if axis else (rank,)) == (ranks if axis else [rank])


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_bytes_of_experts_are_those_of_the_closed_form(layout: dict[str, int]) -> None:
    """A rank sends its 1/tp of the copies to the experts' ranks; etp ranks gather copies and scatter the sums."""
    tp, ep, etp, stage, replica = ways(layout)
    plan = Plan(**layout)  # type: ignore[arg-type]
    (program,) = build(moe(), plan)[0].programs
    found, groups, copies = payloads(program), plan.groups, COPIES // replica
    assert found["all_to_all", groups.experts] == (4 * LAYERS * copies if ep > 1 else 0)
    gathered = [step.size_bytes for step in collectives(program, "all_gather", axis=groups.expert_tensor)]
    if etp > 1 and groups.expert_tensor != groups.tensor:
        assert gathered == [copies * etp] * 3 * LAYERS
    else:
        assert gathered.count(COPIES * tp // replica) == (3 * LAYERS if etp > 1 else 0)
    replicas = stage // (etp * ep)
    own = EXPERT_BYTES // (etp * ep)
    if groups.expert != groups.data:
        assert found["all_reduce", groups.expert] == (own if replicas > 1 else 0)


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_ranks_hold_all_experts_once_for_each_replica_of_them(layout: dict[str, int]) -> None:
    tp, ep, etp, stage, _ = ways(layout)
    workload = moe()
    with_experts = build(workload, Plan(**layout))[0].programs[0].resident_bytes[0]  # type: ignore[arg-type]
    dense = build(workload, Plan(tp=tp, dp=1, sequence_parallel=tp > 1))[0].programs[0].resident_bytes[0]
    dense -= EXPERT_BYTES // tp
    assert (with_experts - dense) * stage == EXPERT_BYTES * stage // (etp * ep)


class CountedFlops:
    """Compute model of 1 ps per 1,000 FLOPs of the experts' GEMMs."""

    name = "flops"
    notes: tuple[str, ...] = ()

    def __init__(self, workload: Workload) -> None:
        self._sizing = Sizing(workload)

    def duration(self, operator: Operator, split: Split) -> Duration:
        flops = self._sizing.work(operator, split).flops if is_expert_product(operator) else 0
        return Duration(round(flops / 1e3), "assumed")

    def fit_report(self) -> None:
        return None


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_ranks_share_the_products_of_experts_evenly(layout: dict[str, int]) -> None:
    """A replica's copies pass two GEMMs forward and four backward, shared equally by its tp x cp ranks."""
    *_, replica = ways(layout)
    workload = moe()
    (program,) = build_job(workload, Plan(**layout).filled(), CountedFlops(workload))[0].programs  # type: ignore[arg-type]
    done = sum(step.duration_ps for step in program.steps if isinstance(step, Compute))
    wanted = 3 * 2 * LAYERS * BATCH * SEQUENCE * TOP_K * HIDDEN * 3 * FFN / replica / 1e3
    assert done == pytest.approx(wanted, rel=1e-6)


def test_etp_that_is_tp_changes_nothing() -> None:
    layout = {"tp": 2, "dp": 4, "ep": 4, "sequence_parallel": True}
    jobs = [build(moe(), Plan(**layout, **etp))[0] for etp in ({}, {"etp": 2})]  # type: ignore[arg-type]
    assert jobs[0] == jobs[1]


@pytest.mark.slow
@pytest.mark.parametrize("imbalance", ["balanced", "zipf:1"])
@pytest.mark.parametrize("layout", LAYOUTS[:3] + LAYOUTS[5:], ids=str)
def test_folded_jobs_are_those_of_all_ranks(layout: dict[str, int], imbalance: str) -> None:
    if layout["ep"] > 1:
        layout = {**layout, "expert_imbalance": imbalance}  # type: ignore[dict-item]
    plan = Plan(**layout, batch=4, micro_batch=2, sharding="zero1", pp=2, schedule="1f1b")  # type: ignore[arg-type]
    result = trine.simulate(moe(), plan, cluster=trine.load_cluster("dgx-h100", nodes=2), fold="verify", compare=False)
    assert result.step_time_ps > 0
