"""Are plans of sharding, sequence, context and expert parallelism read right, and refused with the reason?"""

from __future__ import annotations

import numpy as np
import pytest
from forms_of_parallelism import build, collectives, model
from synthetic import MS, Chain, Proportional

from trine.cli.layout import LayoutOptions, plan_from
from trine.cli.parameters import Given, given
from trine.errors import InputError, PlanError
from trine.graph.grid import RankGrid
from trine.parallel.build import build_job
from trine.parallel.plan import Plan, form_facts
from trine.workload import load


def test_axes_come_in_the_order_of_megatron_and_data_parallel_ways_are_cut_up() -> None:
    plan = Plan(dp=8, tp=2, cp=2, pp=2, ep=2, sharding="fsdp", shard_ways=4)
    assert plan.num_ranks == 64
    assert plan.axes == (("tp", 2), ("cp", 2), ("shard", 4), ("dp", 2), ("pp", 2))
    groups = plan.groups
    assert (groups.data, groups.experts, groups.expert) == ("cp+shard+dp", "cp", "shard+dp")
    assert (groups.shard, groups.expert_shard, groups.copies) == ("cp+shard", "shard", "dp")
    assert [groups.size(g) for g in (groups.data, groups.shard, groups.expert_shard, "")] == [16, 8, 4, 1]


def test_experts_divide_the_replicas_where_the_order_says() -> None:
    plan = Plan(dp=8, tp=2, cp=2, pp=2, ep=2, sharding="fsdp", shard_ways=4, order="tp-cp-dp-ep-pp")
    assert plan.axes == (("tp", 2), ("cp", 2), ("shard", 2), ("dp", 2), ("ep", 2), ("pp", 2))
    groups = plan.groups
    assert (groups.data, groups.expert) == ("cp+shard+dp+ep", "cp+shard+dp")
    assert (groups.shard, groups.expert_shard, groups.copies) == ("cp+shard+ep", "cp+shard", "dp")
    assert [groups.size(g) for g in (groups.data, groups.shard, groups.expert_shard, "")] == [16, 8, 4, 1]


def test_another_order_puts_other_ranks_next_to_each_other() -> None:
    plan = Plan(dp=2, tp=2, pp=2, order="pp-dp-cp-ep-tp")
    grid = RankGrid(plan.axes)
    assert (grid.group(0, "pp"), grid.group(0, "dp"), grid.group(0, "tp")) == ((0, 1), (0, 2), (0, 4))
    job, _ = build(model(), plan)
    assert tuple(job.program_of) == (0, 1) * 4


def test_plain_plans_have_the_axes_that_they_had() -> None:
    assert Plan(dp=4, tp=2).axes == (("tp", 2), ("dp", 4), ("pp", 1))
    assert Plan(dp=4).groups.data == "dp"
    assert form_facts(Plan(dp=4, tp=2)) == {}


REFUSED = [
    ({"ep": 3, "dp": 4}, "etp x ep = 1 x 3 does not divide: the nearest valid ep is 2 or 4"),
    ({"ep": 8, "tp": 4, "dp": 4}, "etp x ep = 4 x 8 does not divide: the nearest valid ep is 4"),
    ({"ep": 3, "etp": 1, "tp": 2, "dp": 3}, "do not fit into one rank grid"),
    ({"ep": 8, "tp": 2, "dp": 4, "order": "dp-tp-cp-ep-pp", "etp": 1}, "do not fit into one rank grid"),
    ({"etp": 1, "tp": 2, "sequence_parallel": False}, "etp 1 with tp 2 needs sequence parallelism"),
    ({"etp": 1, "tp": 2, "tp_style": "column"}, "need tp_style megatron"),
    ({"etp": 0}, "etp must be a positive whole number"),
    ({"order": "tp-dp-pp"}, "order names each of tp, cp, ep, dp, pp once"),
    ({"order": "tp-cp-ep-dp-px"}, "'px', which is no axis; known: cp, dp"),
    ({"order": "pp-dp-cp-ep-tp", "dp": 2}, "order cannot matter"),
    ({"sharding": "zero4", "dp": 2}, "sharding must be one of none, zero1, zero2, zero3, fsdp; got 'zero4'; did you"),
    ({"sharding": "fsdp", "dp": 4, "shard_ways": 3}, "shard_ways divides dp = 4 and lies between 1 and it"),
    (
        {"sharding": "fsdp", "dp": 8, "ep": 4, "shard_ways": 2},
        "shard_ways = 2 ranks that share one copy are no multiple of etp x ep = 4",
    ),
    ({"dp": 4, "shard_ways": 2}, "shard_ways cannot matter"),
    ({"sharding": "zero3", "dp": 4, "reshard": False}, "reshard cannot matter: only fsdp"),
    ({"sharding": "zero2", "dp": 4, "prefetch": 2}, "beside the next forward pass"),
    ({"sharding": "zero1", "dp": 4, "shard_unit_bytes": 100}, "shard_unit_bytes cannot matter"),
    ({"dp": 4, "prefetch": 1}, "prefetch cannot matter"),
    ({"sharding": "zero2", "dp": 4, "sync": "each"}, "reduces gradients after each micro-batch anyway"),
    ({"dp_overlap": False}, "dp_overlap cannot matter"),
    ({"buffers": "none"}, "buffers cannot matter"),
    ({"dp": 2, "sharding": "fsdp", "buffers": "none"}, "buffers cannot matter: they are DDP's"),
    ({"sequence_parallel": True, "tp": 2, "tp_style": "column"}, "set tp_style megatron"),
    ({"tp": 2, "tp_overlap": 4}, "set sequence_parallel"),
    ({"cp_style": "ulysses"}, "cp_style cannot matter"),
    ({"cp": 2, "cp_style": "rings"}, "cp_style must be one of ring, all-gather, ulysses; got 'rings'; did you mean"),
    ({"expert_imbalance": "zipf:1"}, "ep = 1 has all experts on every rank"),
    ({"dp": 2, "ep": 2, "expert_imbalance": "zipf:x"}, "'zipf:S' with an exponent"),
    ({"dp": 2, "ep": 2, "expert_imbalance": "zipf:nan"}, "'zipf:S' with an exponent"),
    ({"dp": 2, "ep": 2, "expert_shares": (1.0, -1.0)}, "numbers not below 0"),
    ({"dp": 2, "ep": 2, "expert_shares": (0.0, 0)}, "add up to nothing"),
    ({"dp": 2, "ep": 2, "capacity_factor": 0.0}, "capacity_factor must be a number above 0"),
    ({"dp": 2, "ep": 2, "capacity_factor": float("nan")}, "capacity_factor must be a number above 0"),
    ({"data": "dp", "dp": 2, "cp": 2}, "context and expert parallelism need ddp"),
    ({"data": "dp", "dp": 2, "sharding": "zero1"}, "needs ddp"),
    ({"sync_every": 2, "steps": 2}, "sync_every needs DDP replicas"),
    ({"sync_every": 2, "steps": 3, "dp": 2}, "3 steps are not a multiple of sync_every = 2"),
    ({"sync_every": 2, "steps": 2, "dp": 2, "sharding": "zero1"}, "does not combine with sharding"),
    ({"sync_every": 0, "dp": 2}, "sync_every must be a positive whole number"),
    ({"sync_every": 2, "steps": 2, "dp": 2, "dp_overlap": False}, "dp_overlap cannot matter: local SGD"),
    ({"sync_every": 2, "steps": 2, "dp": 2, "sync": "each"}, "sync cannot matter: local SGD"),
    ({"sync_every": 2, "steps": 2, "dp": 2, "bucket_bytes": 100}, "bucket_bytes cannot matter: local SGD"),
    ({"dp": 2, "sharding": "fsdp", "bucket_bytes": 100}, "bucket_bytes cannot matter: fsdp reduces gradients by"),
]


@pytest.mark.parametrize(("fields", "says"), REFUSED, ids=lambda value: value if isinstance(value, str) else "")
def test_plans_that_cannot_be_are_refused(fields: dict[str, object], says: str) -> None:
    with pytest.raises(PlanError, match=says):
        Plan(**fields).filled()  # type: ignore[arg-type]


def test_what_a_workload_has_no_use_for_is_refused() -> None:
    recorded = load("resnet50-h100-b128")
    cases = [
        (recorded, {"cp": 2}, "has no number of tokens"),
        (recorded, {"dp": 2, "ep": 2}, "finds no experts in .*: no operator has the attribute"),
        (recorded, {"tp": 2, "tp_style": "megatron", "sequence_parallel": True}, "has no number of tokens"),
        (model(), {"dp": 2, "sync": "each"}, "sync 'each' cannot matter"),
        (model(), {"cp": 3}, "a sequence of 512 tokens does not divide into 3"),
        (model(), {"cp": 16, "cp_style": "ulysses"}, "cp = 16 does not divide the 8 heads"),
        (model("mixtral-8x7b"), {"dp": 16, "ep": 16}, "8 experts do not divide over ep = 16"),
        (model("mixtral-8x7b"), {"dp": 2, "ep": 2, "expert_shares": (1, 2)}, "2 entries, and there are 8 experts"),
        (model("mixtral-8x7b"), {"dp": 2, "ep": 2, "capacity_factor": 1.5}, "capacity_factor cannot matter"),
    ]
    for workload, fields, says in cases:
        with pytest.raises(PlanError, match=says):
            build(workload, Plan(**fields))  # type: ignore[arg-type]


def test_buffers_are_broadcast_as_one_operation_unless_their_messages_are_asked_for() -> None:
    workload = load("resnet50-h100-b128")
    tree = (("broadcast", "tree"),)
    for fields, expected in (
        ({"dp": 64}, ["one-operation"]), ({"dp": 65}, ["one-operation"]), ({"dp": 65, "buffers": "broadcast"}, [None]),
        ({"dp": 2, "buffers": "none"}, []), ({"dp": 2, "sharding": "zero1"}, []),
        ({"dp": 2, "algorithm": tree}, ["tree"]),
    ):  # fmt: skip
        job, report = build(workload, Plan(**fields))  # type: ignore[arg-type]
        assert [step.algorithm for step in collectives(job.programs[0], "broadcast")] == expected
        assert not any("broadcast" in text for text in report.warnings)


def test_local_sgd_averages_at_the_end_of_each_round() -> None:
    chain = Chain([MS] * 3, [MS] * 3, optimizer_ps=MS).workload()
    job, _ = build_job(chain, Plan(dp=4, sync_every=2, steps=4).filled(), Proportional(chain))
    averages = collectives(job.programs[0], "all_reduce")
    assert [step.label.step for step in averages] == [1, 3]
    assert {step.size_bytes for step in averages} == {3 * 4 * 64 * 64}


def test_programs_are_of_stages_and_expert_positions_wherever_these_lie_in_the_grid() -> None:
    plan = Plan(dp=4, pp=2, tp=2, ep=2, expert_imbalance="zipf:1", order="ep-pp-tp-cp-dp")
    job, _ = build(model("mixtral-8x7b"), plan)
    grid, ranks = RankGrid(job.axes), np.arange(16)
    wanted = grid.coordinates(ranks, "pp") * 2 + grid.coordinates(ranks, "ep")
    assert list(job.program_of) == wanted.tolist()
    assert [program.name for program in job.programs[:2]] == ["stage 0, experts 0", "stage 0, experts 1"]


def test_units_by_size_where_names_tell_no_layers() -> None:
    workload = load("vgg13-h100-b128")
    job, report = build(workload, Plan(dp=4, sharding="fsdp"))
    gathers = collectives(job.programs[0], "all_gather")
    assert 2 < len(gathers) < 2 * len(workload.parameters)
    assert any("units of at least 25 MiB" in text for text in report.warnings)
    job, report = build(workload, Plan(dp=4, sharding="fsdp", shard_unit_bytes=2**40))
    assert len(collectives(job.programs[0], "all_gather")) == 2
    assert not any("units of at least" in text for text in report.warnings)


# -- the command line ------------------------------------------------------------------------------------------------


def options(ways: dict[str, int], **fields: object) -> tuple[LayoutOptions, Given[Plan]]:
    own = {name: number for name, number in ways.items() if name in ("gpus", "global_batch")}
    return LayoutOptions(**own), given(Plan, **{name: n for name, n in ways.items() if name not in own}, **fields)


def test_options_make_a_plan() -> None:
    plan = plan_from(
        *options(
            {"dp": 8, "tp": 2, "cp": 2, "global_batch": 32, "gpus": 32}, sharding="FSDP", shard_ways=4, prefetch=2,
            reshard=False, ep=4, expert_imbalance="zipf:1.2", capacity_factor=1.25, cp_style="ring", dp_overlap=False,
        )
    )  # fmt: skip
    assert (plan.sharding, plan.shard_ways, plan.prefetch, plan.reshard, plan.ep) == ("fsdp", 4, 2, False, 4)
    assert (plan.cp, plan.batch, plan.capacity_factor, plan.dp_overlap) == (2, 4, 1.25, False)
    assert plan.num_ranks == 32


@pytest.mark.parametrize(
    ("ways", "fields", "says"),
    [
        ({"dp": 2}, {"cp_style": "ring"}, "--cp-style needs context parallelism: add --cp N"),
        ({"dp": 2}, {"expert_imbalance": "balanced"}, "--expert-imbalance needs expert parallelism: add --ep N"),
        ({"tp": 2}, {"dp_overlap": True}, "--dp-overlap needs replicas: add --dp N"),
        ({"tp": 2}, {"buffers": "auto"}, "--buffers needs replicas: add --dp N"),
        ({"dp": 2}, {"reshard": True}, "--reshard is about parameters that are gathered"),
        ({"tp": 2}, {"tp_overlap": 1}, "at least 2"),
        ({"dp": 2, "cp": 2, "gpus": 3}, {}, "--dp 2 x --cp 2 = 4 GPUs contradicts --gpus 3"),
        ({"dp": 2}, {"shard_unit": "100"}, "shard-unit"),
        ({"dp": 2}, {"ep": 2, "expert_imbalance": "even"}, "expert_imbalance must be 'balanced' or 'zipf:S'"),
    ],
)
def test_options_that_cannot_matter_are_refused(ways: dict[str, int], fields: dict[str, object], says: str) -> None:
    with pytest.raises(InputError, match=says):
        plan_from(*options(ways, **fields))


def test_shares_of_experts_come_from_a_file(tmp_path) -> None:  # type: ignore[no-untyped-def]
    path = tmp_path / "shares.txt"
    path.write_text("# tokens of each expert\n10\n20\n30\n40\n")
    plan = plan_from(*options({"dp": 2}, ep=2, expert_imbalance=str(path)))
    assert plan.expert_shares == (10.0, 20.0, 30.0, 40.0)
    path.write_text("10\nmany\n")
    with pytest.raises(InputError, match="line 2: a share is a number, got 'many'"):
        plan_from(*options({"dp": 2}, ep=2, expert_imbalance=str(path)))
    path.write_text("\n")
    with pytest.raises(InputError, match="holds no shares"):
        plan_from(*options({"dp": 2}, ep=2, expert_imbalance=str(path)))
