"""Do ranks get the times, memory and energy of the GPU model that they run on?"""

import json
import random
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from click.testing import CliRunner
from synthetic import MS, Chain

import trine
from trine.cli.main import app
from trine.cluster import build_topology, load_cluster
from trine.collectives.nccl.costs import runnable
from trine.collectives.nccl.topology import comm_topology
from trine.folding import shown_ranks
from trine.parallel.cuts import balanced_starts
from trine.parallel.replica_batches import balanced_batches
from trine.results.document import rank_rows
from trine.results.memory import MemoryFacts, least_headroom, use_of
from trine.training import explained
from trine.training.options import SimulateOptions

MODEL = "model:gpt-2,layers=2,sequence=256"
#: Of a vocabulary in whole pieces of 16 bytes: its last product is as fast as others.
ALIGNED = "model:llama-3.2-1b,layers=2,sequence=256"
FAST, SLOW = "h100-sxm", "a100-80gb"
GIB = 2**30
#: Software without contention and without rules on schedules.
EAGER = {"software": "pytorch-eager"}


def machine(*gpus):
    made = build_topology("full", "50 GB/s", "2 us", len(gpus))
    return replace(made, devices=tuple(replace(d, gpu=gpu) for d, gpu in zip(made.devices, gpus, strict=True)))


def simulated(plan, gpus, workload=MODEL, **options):
    return trine.simulate(workload, plan, cluster=machine(*gpus), compare=False, **options)


def nodes(tmp_path, *presets):
    path = tmp_path / f"{'-'.join(presets)}.yaml"
    rows = "".join(f"- {{preset: {preset}, gpus: 2}}\n" for preset in presets)
    path.write_text(f"nodes:\n{rows}fabric: {{kind: fat-tree, link: ib-hdr}}\n")
    return path


# -- operator times ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("compute", ["auto", "roofline"])
@pytest.mark.parametrize("workload", [MODEL, "model:resnet18,batch=16"])
def test_each_rank_computes_as_long_as_on_a_machine_of_its_own_gpus(workload, compute):
    plan = trine.Plan(dp=2, batch=2)
    mixed = simulated(plan, (FAST, SLOW), workload, compute=compute, **EAGER)  # no contention with collectives
    alone = [simulated(plan, (gpu, gpu), workload, compute=compute, **EAGER) for gpu in (FAST, SLOW)]
    assert mixed.rank_times.compute.tolist() == [int(each.rank_times.compute[0]) for each in alone]
    assert mixed.slowest_rank == 1
    assert mixed.step_time_ps >= max(each.rank_times.compute[0] for each in alone)


def test_the_order_of_the_nodes_does_not_matter(tmp_path):
    plan = trine.Plan(dp=4, sharding="zero1", batch=1)
    found = [
        trine.simulate(MODEL, plan, cluster=nodes(tmp_path, *order), software="megatron-core")
        for order in (("dgx-h100", "dgx-a100"), ("dgx-a100", "dgx-h100"))
    ]
    assert found[0].step_time_ps == found[1].step_time_ps
    assert found[0].plan["gpu"] == "h100-sxm, a100-80gb"
    assert [row["gpu"] for row in rank_rows(found[1])] == [SLOW, SLOW, FAST, FAST]
    assert (found[0].slowest_rank, found[1].slowest_rank) == (2, 0)
    assert found[0].energy.joules == pytest.approx(found[1].energy.joules, rel=1e-9)


def test_a_mixed_group_of_nccl_is_tuned_for_its_oldest_gpu():
    pair = load_cluster("dgx-h100", nodes=2)
    second = set(pair.gpus[8:])
    devices = [
        tuple(replace(d, gpu=None if d.gpu is None else gpus[i in second]) for i, d in enumerate(pair.devices))
        for gpus in ((FAST, SLOW), (SLOW, FAST))
    ]
    mixed = [replace(pair, devices=each) for each in devices]
    times = [trine.collective("all_reduce", [2**20], cluster=each).rows[0].time_ps for each in mixed]
    assert times[0] == times[1]


def test_communication_takes_the_sms_of_each_ranks_own_gpu():
    plan = trine.Plan(dp=2, batch=2, overlap="modelled")
    result = simulated(plan, (FAST, SLOW))
    rows = [row.detail for row in result.evidence if row.what.startswith("contention")]
    assert len(rows) == 2
    assert "of the h100-sxm (132 SMs)" in rows[0]
    assert "of the a100-80gb (108 SMs)" in rows[1]


def test_dual_pipe_on_mixed_gpus_keeps_one_order():
    plan = trine.Plan(pp=2, dp=2, batch=8, micro_batch=1, schedule="dualpipe", order="tp-cp-ep-pp-dp")
    result = simulated(plan, (FAST, FAST, SLOW, SLOW), "model:gpt-2,layers=4,sequence=128", fold="verify", **EAGER)
    assert result.step_time_ps > 0


def test_data_parallel_of_one_process_has_a_program_for_each_gpu():
    result = simulated(trine.Plan(dp=3, data="dp", batch=2), (FAST, SLOW, FAST), ALIGNED, **EAGER)
    first, slow, fast = result.rank_times.compute.tolist()
    assert slow > 1.5 * fast
    assert first > fast


# -- recorded times ----------------------------------------------------------------------------------------------------


def chain(gpu):
    return replace(Chain([10 * MS] * 2, [10 * MS] * 2, [4096, 8192]).workload(), gpu=gpu)


def test_recorded_times_are_moved_to_the_other_gpu_with_a_range():
    result = simulated(trine.Plan(dp=2), (SLOW, FAST), chain(FAST))
    moved, kept = result.rank_times.compute.tolist()
    assert kept == 40 * MS < moved
    assert any("times of the h100-sxm alone: times of the a100-80gb are predicted" in text for text in result.warnings)
    assert {row.kind for row in result.evidence if row.what == "operator time"} == {"measured", "assumed"}
    low, high = result.band.ends_ps(result)
    assert (low, high) == pytest.approx((0.75 * result.step_time_ps, 1.82 * result.step_time_ps), rel=1e-6)


def test_recorded_times_are_refused_for_a_gpu_without_a_data_sheet():
    with pytest.raises(trine.InputError, match="no data sheet of the foo 9000"):
        simulated(trine.Plan(dp=2), (FAST, "foo 9000"), chain(FAST))


# -- stages and batches ------------------------------------------------------------------------------------------------


def test_cuts_for_different_gpus_are_the_best_of_all():
    draw = random.Random(7)
    workload = Chain([MS] * 7, [MS] * 7).workload()
    forward = [op for op in workload.operators if op.phase == "forward"]
    for _ in range(40):
        fast = {op.id: draw.randint(1, 9) for op in workload.operators}
        slow = {op: ps * draw.choice((1, 2, 3)) for op, ps in fast.items()}
        stages = [draw.choice(([fast], [slow], [fast, slow])) for _ in range(3)]

        def longest(starts, stages=stages):
            ends = [*starts[1:], 7]
            return max(
                sum(times[op.id] for op in workload.operators if begin < int(op.layer[7:]) <= end)
                for begin, end, each in zip(starts, ends, stages, strict=True)
                for times in each
            )

        found = balanced_starts(workload, forward, 3, {}, stages)
        every = ((0, a, b) for a in range(1, 6) for b in range(a + 1, 7))
        assert longest(found) == min(longest(starts) for starts in every)


@pytest.mark.parametrize("gpus", [(FAST, SLOW), (SLOW, FAST)])
def test_the_faster_gpu_gets_more_layers(gpus):
    workload = replace(Chain([10 * MS] * 9, [20 * MS] * 9).workload(), gpu=FAST)
    plan = trine.Plan(pp=2, micro_batch=2, schedule="1f1b", inputs="none")
    result = simulated(plan, gpus, workload)
    (cut,) = result.plan["cuts"]
    counts = dict(zip(gpus, (int(cut[7:]) - 1, 10 - int(cut[7:])), strict=True))
    assert counts[FAST] > counts[SLOW]
    for other in range(2, 10):
        assert simulated(replace(plan, cuts=(f"linear.{other}",)), gpus, workload).step_time_ps >= result.step_time_ps


def test_batches_of_replicas_follow_from_the_slowest_stage():
    assert balanced_batches(8, 1, [1.0, 1.0]) == (4, 4)
    assert balanced_batches(4, 2, [1.0, 9.0]) == (2, 2)  # one unit each
    assert balanced_batches(8, 1, [1.0, 3.0]) == (6, 2)
    assert balanced_batches(16, 2, [1.0, 3.0, 3.0]) == (12, 2, 2)
    for sample_ps in ([1.0, 2.0, 5.0], [3.0, 3.0, 7.0], [1.0, 1.1, 1.2]):
        found = balanced_batches(12, 1, sample_ps)
        ways = [(a, b, 12 - a - b) for a in range(1, 11) for b in range(1, 12 - a)]
        longest = [max(n * ps for n, ps in zip(way, sample_ps, strict=True)) for way in (found, *ways)]
        assert longest[0] == min(longest)
    with pytest.raises(trine.PlanError, match="too few"):
        balanced_batches(2, 2, [1.0, 3.0])
    with pytest.raises(trine.PlanError, match="leave 1"):
        balanced_batches(9, 2, [1.0, 3.0])


def test_replicas_of_their_own_batches():
    gpus = (FAST, FAST, SLOW, SLOW)
    uneven = trine.Plan(dp=4, replica_batches=(6, 6, 2, 2), micro_batch=1)
    result = simulated(uneven, gpus, ALIGNED, fold="verify", software="none")
    assert result.plan["global_batch"] == 16
    assert result.plan["replica_batches"] == [6, 6, 2, 2]
    for batch, rows in ((6, (0, 1)), (2, (2, 3))):
        alone = simulated(trine.Plan(dp=4, batch=batch, micro_batch=1), gpus, ALIGNED, software="none")
        assert [result.rank_times.compute[row] for row in rows] == [alone.rank_times.compute[row] for row in rows]
    plan = trine.Plan(dp=4, batch=4, micro_batch=1)
    even = simulated(plan, gpus, ALIGNED, software="none")
    assert result.step_time_ps < even.step_time_ps
    dealt = simulated(replace(plan, replica_batches="time"), gpus, ALIGNED, software="none")
    assert sum(dealt.plan["replica_batches"]) == 16
    assert dealt.step_time_ps <= result.step_time_ps


def test_equal_batches_are_a_batch():
    gpus = (FAST, SLOW)
    assert (
        simulated(trine.Plan(dp=2, replica_batches=(3, 3)), gpus).step_time_ps
        == simulated(trine.Plan(dp=2, batch=3), gpus).step_time_ps
    )


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"dp": 2, "replica_batches": (1, 2, 3)}, "one batch for each of dp = 2"),
        ({"dp": 1, "replica_batches": (1,)}, "dp = 1 has one"),
        ({"dp": 2, "replica_batches": (1, 0)}, "positive"),
        ({"dp": 2, "replica_batches": (1, 2), "batch": 2}, "contradict"),
        ({"dp": 2, "replica_batches": "tame"}, "time"),
        ({"dp": 2, "replica_batches": 7}, "sequence"),
        ({"dp": 4, "ep": 2, "replica_batches": (1, 1, 2, 2)}, "does not combine with ep"),
    ],
)
def test_batches_that_cannot_be_are_refused(fields, says):
    with pytest.raises(trine.PlanError, match=says):
        trine.Plan(**fields)


def test_replicas_that_exchange_in_each_micro_batch_need_equally_many():
    plan = trine.Plan(dp=2, sharding="fsdp", replica_batches=(6, 2), micro_batch=1)
    with pytest.raises(trine.PlanError, match="a batch of 2 has 2, one of 6 has 6"):
        simulated(plan, (FAST, SLOW))
    assert simulated(replace(plan, micro_batch=None), (FAST, SLOW), fold="verify").step_time_ps > 0


def test_batches_on_the_command_line(tmp_path):
    job = ["train", MODEL, "--dp", "4", "--cluster", str(nodes(tmp_path, "dgx-h100", "dgx-a100"))]
    done = CliRunner().invoke(app, [*job, "--replica-batches", "3,3,1,1", "--json", "-"])
    assert done.exit_code == 0, done.stderr
    assert json.loads(done.stdout)["plan"]["global_batch"] == 8
    for text, says in (("3,x", "whole numbers"), ("often", "time"), ("3,3", "each of dp = 4")):
        done = CliRunner().invoke(app, [*job, "--replica-batches", text])
        assert (done.exit_code, len(done.stderr.splitlines())) == (2, 1)
        assert says in done.stderr


# -- memory ------------------------------------------------------------------------------------------------------------


def use(allocated, capacity, error=0.1, reserved=None):
    facts = MemoryFacts(error=error, outside_bytes=GIB)
    return use_of(allocated, allocated if reserved is None else reserved, facts, capacity)


def test_above_the_capacity_memory_does_not_fit():
    assert use(100 * GIB, 80 * GIB, error=0.5).verdict == "does not fit"
    assert use(60 * GIB, 80 * GIB, reserved=90 * GIB).verdict == "does not fit"
    assert use(75 * GIB, 80 * GIB).verdict == "tight"
    assert use(60 * GIB, 80 * GIB).verdict == "fits"
    assert use(60 * GIB, 80 * GIB).available_bytes == 79 * GIB
    assert use(60 * GIB, 0).available_bytes is None


def test_the_rank_with_the_least_headroom_counts():
    large, small, unknown = use(100 * GIB, 180 * GIB), use(90 * GIB, 80 * GIB), use(500 * GIB, 0)
    assert least_headroom([large, small, unknown]) == 1
    assert least_headroom([small, large]) == 0
    assert least_headroom([large, unknown]) == 0
    assert least_headroom([use(20 * GIB, 24 * GIB, 0.0), use(75 * GIB, 80 * GIB)]) == 1  # tight before fits
    assert least_headroom([unknown, use(600 * GIB, 0)]) == 1


@pytest.mark.parametrize("order", [("hgx-b200", "dgx-a100"), ("dgx-a100", "hgx-b200")])
def test_headline_brief_and_json_show_the_rank_with_the_least_headroom(tmp_path, order):
    job = [
        "train",
        "model:gpt-2,sequence=1024",
        "--dp",
        "4",
        "--batch",
        "256",
        "--cluster",
        str(nodes(tmp_path, *order)),
    ]
    brief = CliRunner().invoke(app, [*job, "--brief"])
    assert brief.exit_code == 0, brief.stderr
    done = CliRunner().invoke(app, [*job, "--json", "-"])
    answer = json.loads(done.stdout)
    rank = 2 * order.index("dgx-a100")
    assert answer["memory_rank"] == rank
    assert answer["memory_verdict"] == "does not fit"
    row = answer["memory"][rank]
    assert row["available_bytes"] == row["capacity_bytes"] - row["outside_bytes"]
    assert f"of 80 GiB (rank {rank}): DOES NOT FIT" in brief.stdout


@pytest.mark.parametrize("order", [("hgx-b200", "dgx-a100"), ("dgx-a100", "hgx-b200")])
def test_what_holds_memory_is_explained_of_the_gpu_with_the_least_headroom(monkeypatch, tmp_path, order):
    monkeypatch.setattr(explained, "other_plans", lambda *_: [("sharding zero1", {"sharding": "zero1"})])
    how = SimulateOptions(cluster=nodes(tmp_path, *order), software="megatron-core")
    plan = trine.Plan(dp=4, batch=64)
    found = explained.explain_memory(MODEL, plan, how)
    answer = trine.simulate(MODEL, plan, cluster=how.cluster, software=how.software)
    assert found.use == answer.memory_uses[2 * order.index("dgx-a100")]
    assert found.use.capacity_bytes == 80 * GIB
    assert [one.use.capacity_bytes for one in found.options] == [80 * GIB]


def test_of_many_programs_the_one_with_the_least_headroom_is_shown(monkeypatch):
    monkeypatch.setattr(shown_ranks, "peak_memory_ranks", lambda folded: [])
    patterns = [SimpleNamespace(ranks=np.array([2 * i, 2 * i + 1]), program=i) for i in range(40)]
    folded = SimpleNamespace(job=SimpleNamespace(patterns=patterns), rank_ends=lambda: np.arange(80))
    assert 75 not in shown_ranks.representative_ranks(folded)
    found = shown_ranks.representative_ranks(folded, lambda: 37)
    assert {75, 79} <= set(found)
    assert len(found) == shown_ranks.SHOWN


# -- input copies over a link that is down -----------------------------------------------------------------------------


def test_a_link_that_is_down_speeds_no_input_copy_up():
    plan = trine.Plan(dp=8, batch=1)
    whole = load_cluster("dgx-h100")
    before = trine.simulate(MODEL, plan, cluster=whole).step_time_ps
    for link in ("gpu0->pcie0", "gpu3->pcie1", "pcie0->host0"):
        result = trine.simulate(MODEL, plan, cluster=load_cluster("dgx-h100", links_down=[link]))
        assert result.step_time_ps >= before
        assert not any("no host is described" in text for text in result.not_modelled)


@pytest.mark.parametrize("link", ["pcie0->gpu0", "host0->pcie0", "dram0->host0", "pcie1->gpu3"])
def test_an_input_copy_without_a_route_names_the_link(link):
    cluster = load_cluster("dgx-h100", links_down=[link])
    with pytest.raises(trine.SpecError, match=f"link '{link}' is down"):
        trine.simulate(MODEL, trine.Plan(dp=8, batch=1), cluster=cluster)
    assert trine.simulate(MODEL, trine.Plan(dp=8, batch=1, inputs="none"), cluster=cluster).step_time_ps > 0


# -- the library -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("presets", "has_ll128"),
    [
        (("dgx-h100", "dgx-h100"), True),
        (("dgx-a100", "dgx-a100"), True),
        (("dgx-h100", "dgx-a100"), False),
        (("dgx-h100", "hgx-h200"), True),
        (("dgx-h100", "hgx-b200"), False),  # since NCCL 2.30 they do
        (("dgx-a100", "a40-pcie"), False),  # 8.0 and 8.6
    ],
)
def test_nccl_takes_ll128_between_gpus_of_one_compute_capability(tmp_path, presets, has_ll128):
    cluster = load_cluster(nodes(tmp_path, *presets))
    protocols = {protocol for _, protocol in runnable(comm_topology(cluster, range(4)), "nccl", "all_reduce")}
    assert ("ll128" in protocols) is has_ll128
    assert {"ll", "simple"} <= protocols
