"""One kernel of a step, load by load: the right collective, the step's start times, and the late peers."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from envelope import opened

from trine.cli.main import app
from trine.cluster.load import load_cluster
from trine.common.units import parse_time
from trine.errors import InputError
from trine.gpu.detail.choice import DetailOptions, choose, parse_detail
from trine.gpu.detail.detail import kernel_detail
from trine.gpu.kernels.build import build_kernel
from trine.gpu.kernels.nccl_nvls import CHANNELS
from trine.gpu.model.files import load_gpu_model
from trine.gpu.peers import STORE
from trine.gpu.replay.run import BegunKernel
from trine.gpu.run import run_gpus
from trine.graph.grid import RankGrid
from trine.parallel.plan import Plan
from trine.parallel.stragglers import Stragglers
from trine.training import simulate
from trine.training.options import SimulateOptions
from trine.workload.synthesis.model import synthesize

REFERENCE = Path(__file__).parents[3] / "docs" / "reference" / "detail-json.md"
PLAN = Plan(tp=4, batch=1)
#: Rank 2's operators take twice as long; there are no CPU launches, which would hide that.
SLOW = Stragglers(slow=((2, 2.0),))
HOW = SimulateOptions(cluster="dgx-h100", cpu=False, software="none", stragglers=SLOW, compare=False)
COMMAND = ["train", "model:gpt-2,layers=2,sequence=128", "--tp", "4", "--batch", "1", "--cluster", "dgx-h100"]


@pytest.fixture(scope="module")
def model():
    return synthesize("llama-3-8b", layers=2, sequence=64)


@pytest.fixture(scope="module")
def detail(model):
    return kernel_detail(model, PLAN, DetailOptions(rank=0, layer=1), options=HOW)


def chosen(result, plan=PLAN, **options):
    return choose(result, RankGrid(plan.axes), DetailOptions(**options))


# -- which collective


@pytest.fixture(scope="module")
def step(model):
    return simulate(model, PLAN, options=HOW)


def test_a_layer_is_named_by_number_by_name_or_by_the_beginning_of_its_name(step):
    first = chosen(step, layer=1).what
    assert (first.layer, first.phase, first.kind, first.axis) == (
        "layers.1.attention.out",
        "forward",
        "all_reduce",
        "tp",
    )
    for name in ("layers.1", "layers.1.attention", "layers.1.attention.out"):
        assert chosen(step, layer=name).what == first
    assert chosen(step, layer="layers.1.mlp").what.layer == "layers.1.mlp.down"
    assert chosen(step, layer=1, phase="backward").what.phase == "backward"
    assert chosen(step, layer=1, op="tp").what == chosen(step, layer=1, op="all_reduce").what == first
    others = chosen(step, layer=1).others
    assert [chosen(step, layer=1, number=n + 2).what.words for n in range(len(others))] == list(others)
    assert len(others) == 3


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"rank": 4}, "there is no rank 4; ranks are 0 to 3, the nearest is 3"),
        ({"layer": 7}, "there is no layer 7; the nearest is 1"),
        ({"layer": "layers.1.mlp.dwn"}, "did you mean 'layers.1.mlp.down'"),
        ({"layer": "layers.0.attention.core"}, "the nearest is of 'layers.0.attention.out'"),
        ({"layer": 1, "op": "all_reduc"}, "did you mean 'all_reduce'"),
        ({"layer": 1, "phase": "optimizer"}, "known: backward, forward"),
        ({"layer": 1, "microbatch": 3}, "the nearest is 0"),
        ({"step": 2}, "the nearest is 0"),
        ({"layer": 1, "number": 9}, "4 fit, the nearest is 4"),
    ],
)
def test_what_the_step_does_not_have_is_refused_with_the_nearest_that_it_has(step, options, words):
    with pytest.raises(InputError, match=re.escape(words)):
        chosen(step, **options)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("rank", "rank=0,layer=3"),
        ("rnk=0", "did you mean 'rank'"),
        ("rank=0,rank=1", "says rank twice"),
        ("rank=one", "a whole number from 0"),
        ("number=0", "a whole number from 1"),
        ("phase=forwards", "did you mean 'forward'"),
        ("sync=mwai", "did you mean 'mwait'"),
    ],
)
def test_text_that_is_no_choice_is_refused(text, words):
    with pytest.raises(InputError, match=re.escape(words)):
        parse_detail(text)


def test_text_is_the_options():
    assert parse_detail("rank=5, layer=3,op=tp,sync=spin") == DetailOptions(rank=5, layer=3, op="tp", sync="spin")
    assert parse_detail("layer=layers.3,algorithm=ring").layer == "layers.3"


# -- when ranks begin


def test_ranks_come_when_their_operators_have_ended(step):
    found = chosen(step, layer=1)
    graph, records = step.graph, step.records
    for rank, start_ps in enumerate(found.start_ps.tolist()):
        ends = records.end_ps[(graph.rank == rank) & (graph.kind == 0) & (records.end_ps <= start_ps)]
        assert ends.max() == start_ps  # the operator before it ends then
    assert found.start_ps[2] > found.start_ps[0] == found.start_ps[1] == found.start_ps[3]
    assert len(set(found.end_ps.tolist())) == 1


def test_a_step_of_ranks_that_fold_and_that_do_not_gives_the_same_starts(model):
    plan = Plan(tp=4, dp=32, batch=32)
    slow = Stragglers(slow=((70, 1.3),))
    how = replace(HOW, stragglers=slow, cluster=load_cluster("dgx-h100", gpus=128))
    folded, plain = (simulate(model, plan, options=replace(how, fold=fold)) for fold in ("on", "off"))
    assert not folded.scope.shows_all
    one, other = (chosen(result, plan, rank=69, layer=1) for result in (folded, plain))
    assert one.what == other.what
    assert one.group == other.group == (68, 69, 70, 71)
    assert one.start_ps.tolist() == other.start_ps.tolist()
    assert one.end_ps.tolist() == other.end_ps.tolist()
    assert one.start_ps.argmax() == 2


# -- simulation


def test_the_replay_does_what_the_rank_does_among_its_peers(detail):
    kernel, chosen_one = detail.kernel, detail.chosen
    work = kernel.work
    begun = BegunKernel(
        program=work.program, cluster=work.cluster, group=work.group, model=work.model, origin="",
        starts_ps=chosen_one.start_ps - chosen_one.start_ps.min(),
    )  # fmt: skip
    whole = run_gpus(work.program, work.cluster, work.group, work.model, tasks=begun.tasks)
    kernels = whole.graph.rank[whole.graph.num_tasks - work.program.num_kernels :]
    assert kernels.tolist() == work.program.kernel_rank.tolist()
    groups = np.flatnonzero(np.repeat(work.program.kernel_rank, np.diff(work.program.kernel_ptr)) == 0)
    assert whole.gpu.workgroup_end_ps[groups].tolist() == kernel.inside.records.workgroup_end_ps.tolist()
    assert whole.gpu.polls[0] == kernel.inside.records.polls[0]
    first = whole.gpu.workgroup_start_ps[np.repeat(work.program.kernel_rank, np.diff(work.program.kernel_ptr)) == 2]
    assert first.min() >= chosen_one.start_ps.max() - chosen_one.start_ps.min()


def test_who_comes_late_is_who_is_waited_for(detail):
    late = int(detail.chosen.start_ps.max() - detail.chosen.start_ps.min())
    assert late > parse_time("20 us", "")
    assert detail.time_ps == detail.after_last_ps + late
    waited = {peer.rank: peer.waits_ended_ps for peer in detail.peers}
    assert max(waited, key=waited.get) == 2
    assert waited[2] > 0.9 * late
    assert sum(detail.kernel.waits_ended_ps.values()) == detail.kernel.wait_total_ps
    assert [peer.start_ps for peer in detail.peers] == [0, 0, late, 0]
    assert all(peer.first_write_ps > peer.start_ps for peer in detail.peers if peer.rank != 0)


def test_who_comes_late_itself_does_not_wait(model):
    found = kernel_detail(model, PLAN, DetailOptions(rank=2, layer=1, sync="spin"), options=HOW)
    assert found.late_ps > parse_time("20 us", "")
    assert found.time_ps == found.after_last_ps
    assert found.kernel.wait_ps < parse_time("3 us", "")
    assert len(found.waits) == 1


def test_spinning_reads_flags_for_as_long_as_it_waits_and_mwait_does_not(detail):
    spin, mwait = detail.waits
    assert (spin.sync, mwait.sync) == ("spin", "mwait")
    interval = detail.kernel.polling_interval_ps
    expected = detail.kernel.wait_total_ps / interval
    assert spin.flag_reads == pytest.approx(expected, rel=0.25)
    assert mwait.flag_reads < spin.flag_reads / 10
    assert mwait.wakeups > 0 == spin.wakeups
    assert abs(mwait.time_ps - spin.time_ps) < parse_time("2 us", "")


def test_without_a_late_rank_levels_are_compared_like_with_like(model):
    alike = replace(HOW, stragglers=None)
    found = kernel_detail(model, PLAN, DetailOptions(rank=1, layer=1, sync="spin"), options=alike)
    assert found.time_ps == found.after_last_ps
    assert found.operator_ps == found.operator_after_last_ps
    assert found.kernel.wait_ps < parse_time("3 us", "")


def test_levels_agree_where_the_step_has_the_load_store_levels_costs(model, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    how = replace(HOW, stragglers=None, collective_costs="loadstore")
    found = kernel_detail(model, PLAN, DetailOptions(rank=1, layer=1, sync="spin"), options=how)
    assert found.time_ps == pytest.approx(found.operator_ps, rel=0.01)


def test_ranks_are_where_the_placement_puts_them(model):
    found = kernel_detail(
        model, PLAN, DetailOptions(rank=0, layer=1, sync="spin"), options=replace(HOW, placement=[3, 2, 1, 0])
    )
    names = [found.kernel.work.cluster.devices[device].name for device in found.kernel.work.group]
    assert names == ["gpu3", "gpu2", "gpu1", "gpu0"]


def test_a_collective_across_nodes_is_looked_at_too():
    model = synthesize("gpt-2", layers=2, sequence=64)
    how = replace(HOW, cluster=load_cluster("dgx-h100", nodes=2), stragglers=Stragglers(slow=((3, 1.5),)))
    found = kernel_detail(model, Plan(dp=16, batch=16), DetailOptions(rank=9, layer=1, sync="spin"), options=how)
    assert found.algorithm == "hierarchical"
    peers = {peer.rank: peer for peer in found.peers}
    # its counterpart in the other node, and all ranks of its node
    assert {rank for rank, peer in peers.items() if peer.writes} == {1, *range(8, 16)} - {9}
    assert max(peers, key=lambda rank: peers[rank].waits_ended_ps) == 1  # it waits for rank 3 of its node
    assert peers[1].first_write_ps > found.chosen.start_ps[3] - found.chosen.start_ps.min() > 0
    assert peers[1].flags == peers[1].writes  # over NICs, flags follow the data


def test_sums_in_switches_are_looked_at_in_the_run_of_all(model):
    found = kernel_detail(model, PLAN, DetailOptions(layer=1, algorithm="nvls", sync="spin"), options=HOW)
    kernel, starts = found.kernel, found.chosen.start_ps - found.chosen.start_ps.min()
    begun = BegunKernel(
        program=kernel.work.program, cluster=kernel.work.cluster, group=kernel.work.group, model=kernel.work.model,
        starts_ps=starts, origin="",
    )  # fmt: skip
    run = run_gpus(begun.program, begun.cluster, begun.group, begun.model, tasks=begun.tasks)
    assert kernel.end_ps == run.records.end_ps[run.graph.rank == 0].max()
    assert kernel.flag_reads == run.gpu.acquires[0] + run.gpu.flagged_loads[0]
    peers = {peer.rank: peer for peer in found.peers}
    assert max(peers, key=lambda rank: peers[rank].waits_ended_ps) == 2  # the late rank
    assert not any("replayed" in words for words in (found.details(), json.dumps(found.document()), kernel.headline))
    assert "simulated 4 GPUs, showing 1" in found.details()
    assert kernel.inside.num_replayed == 0
    lines = 512 * 1024 // 4 // 128  # per chunk: each peer stores its chunk to all, and loads from all
    assert [peers[rank].writes - peers[rank].flags for rank in (1, 2, 3)] == [lines] * 3
    steps = 2 * CHANNELS  # each channel loads every rank's step, to receive and to send
    assert [peers[rank].loads for rank in (1, 2, 3)] == [lines + steps] * 3
    assert peers[0].writes == peers[0].loads == 0


def test_a_rooted_collective_is_looked_at():
    """torch.nn.DataParallel broadcasts its weights from the first GPU: every rank has a start time."""
    model, plan = synthesize("gpt-2", layers=1, sequence=64), Plan(dp=4, batch=4, data="dp")
    result = simulate(model, plan, options=replace(HOW, stragglers=None))
    found = chosen(result, plan, rank=2, op="broadcast")
    assert found.group == (0, 1, 2, 3)
    assert (found.start_ps < found.end_ps).all()
    cluster = load_cluster("dgx-h100")
    kernel = BegunKernel(
        program=build_kernel("broadcast", 4, 1 << 16, algorithm="ring"), cluster=cluster, group=cluster.gpus[:4],
        model=load_gpu_model("h100-sxm"), starts_ps=np.array([0, 0, 900_000, 0]), origin="",
    ).replayed(2)  # fmt: skip
    record = kernel.incoming.outside
    assert set(record.rank[record.kind == STORE].tolist()) == {1}  # the previous rank of the ring
    assert kernel.end_ps > 900_000


def test_a_broadcast_of_who_updated_the_weights_is_refused():
    """The operator level does not know this broadcast's root; for DDP's buffers it is the first rank."""
    model, plan = synthesize("gpt-2", layers=1, sequence=64), Plan(dp=4, batch=4, sharding="zero1")
    result = simulate(model, plan, options=replace(HOW, stragglers=None, software="internevo"))
    with pytest.raises(InputError, match=r"op: broadcast .*, optimizer.*: each rank broadcasts the weights that it"):
        chosen(result, plan, op="broadcast")


def test_what_has_no_peers_is_refused(model):
    with pytest.raises(InputError, match="several GPUs of a cluster"):
        kernel_detail(model, Plan(batch=1), DetailOptions(), options=SimulateOptions(gpu="h100-sxm"))
    with pytest.raises(InputError, match="takes part in no collective that has a kernel"):
        kernel_detail(model, Plan(batch=1), DetailOptions(), options=SimulateOptions(cluster="dgx-h100"))


# -- the command


def test_the_command_answers_with_documented_keys_and_a_timeline(tmp_path):
    timeline = tmp_path / "kernel.pftrace"
    words = [*COMMAND, "--detail", "rank=1,layer=1", "--json", "-", "--detail-perfetto", str(timeline)]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    found = opened(done.stdout, "train", "result")["detail"]
    told = REFERENCE.read_text()
    rows = [found, found["collective"], found["operator"], found["loadstore"], found["peers"][0], found["ways"][0]]
    for key in [key for row in rows for key in row]:
        assert f"`{key}`" in told, key
    assert found["rank"] == 1
    assert found["ways"][0]["flag_reads"] == found["kernel"]["flag_reads"]
    assert json.dumps(found)
    assert b"writes of peers" in timeline.read_bytes()
    assert "load by load" in done.stderr


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["--detail-perfetto", "x.pftrace"], "--detail-perfetto is the timeline of the kernel of --detail"),
        (["--detail", "rank=0", "--repeat", "2"], "it does not go with --repeat"),
        (["--detail", "rank=0,layer=9"], "--detail, layer: there is no layer 9; the nearest is 1"),
        (["--detail", "rank=0,algorithm=nvl"], "did you mean 'nvls'"),
        (["--detail", "rank=0,poll=none,sync=mwait"], "--detail, poll none does not go with mwait"),
    ],
)
def test_the_command_refuses_in_one_line(words, problem):
    done = CliRunner().invoke(app, [*COMMAND, *words])
    assert done.exit_code == 2
    assert problem in done.output


def test_a_rank_that_is_not_shown_can_be_looked_at():
    done = CliRunner().invoke(
        app, [*COMMAND, "--show-rank", "3", "--no-fold", "--brief", "--detail", "rank=0,sync=spin"]
    )
    assert done.exit_code == 0, done.output
    assert "rank 0, all_reduce of embedding" in done.stdout
