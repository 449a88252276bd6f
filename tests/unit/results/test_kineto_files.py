"""Do the traces of ``train --kineto`` hold the simulated step, for trine's readers of measured traces?"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import trine
from trine.errors import InputError
from trine.results import Result
from trine.results.activity import computing
from trine.runs.folder import read_run
from trine.workload.pytorch.kineto import read_kineto

MODEL = "model:gpt-2,layers=2,sequence=128"


@pytest.fixture(scope="module")
def result() -> Result:
    plan = trine.Plan(dp=2, tp=2, batch=2, micro_batch=1)
    return trine.simulate(MODEL, plan, cluster="dgx-h100", fold="off")


@pytest.fixture(scope="module")
def folder(result: Result, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("kineto")
    result.to_kineto(folder)
    return folder


def test_times_are_those_of_the_step(result: Result, folder: Path) -> None:
    run = read_run(folder)
    assert run.time_ps == result.step_time_ps
    mask = computing(result.graph) & (result.graph.labels.collective < 0)
    for trace in run.ranks:
        own = mask & (result.graph.rank == trace.rank)
        expected = (result.records.end_ps - result.records.start_ps)[own]
        found = [each.duration_ps for each in trace.activities if each.collective is None and each.launch >= 0]
        assert sorted(found) == sorted(expected.tolist())


def test_collectives_have_their_groups_sizes_and_algorithms(result: Result, folder: Path) -> None:
    run = read_run(folder)
    labels = [label for label in result.graph.collectives if len(label.ranks) > 1]
    assert len(run.instances) == len(labels)
    assert all(instance.is_whole for instance in run.instances)
    found = sorted((each.call.group.ranks, each.call.kind, each.call.size_bytes, each.call.algorithm)
                   for each in run.instances)  # fmt: skip
    expected = sorted((label.ranks, label.kind, label.size_bytes, label.algorithm.replace("/", "_").upper())
                      for label in labels)  # fmt: skip
    assert found == expected


def test_the_reader_of_single_traces_finds_phases_and_ranks(result: Result, folder: Path) -> None:
    kineto = read_kineto(folder / "rank3.json.gz")
    assert (kineto.rank, kineto.world_size, kineto.gpu) == (3, 4, "h100-sxm")
    labels = result.graph.labels
    own = computing(result.graph) & (result.graph.rank == 3) & (labels.collective < 0)
    assert len(kineto.kernels) == int(own.sum()) + 2  # and two copies of inputs
    trace = read_run(folder).ranks[3]
    phases = [each.phase for each in trace.activities if each.collective is None and each.launch >= 0]
    for number, name in enumerate(("forward", "backward", "optimizer")):
        assert phases.count(name) == int(np.count_nonzero(labels.phase[own] == number)), name


def test_launches_follow_each_other_and_end_before_their_kernels(folder: Path) -> None:
    for trace in read_run(folder).ranks:
        ends = [call.end_ps for call in trace.calls]
        starts = [call.start_ps for call in trace.calls]
        assert all(end <= start for end, start in zip(ends, starts[1:], strict=False))
        for activity in trace.activities:
            if activity.launch >= 0:
                assert trace.calls[activity.launch].end_ps <= activity.start_ps


def test_equal_runs_give_equal_bytes(result: Result, folder: Path, tmp_path: Path) -> None:
    result.to_kineto(tmp_path)
    for rank in range(4):
        name = f"rank{rank}.json.gz"
        assert (tmp_path / name).read_bytes() == (folder / name).read_bytes()


def test_messages_of_a_pipeline_are_sends_and_receives(tmp_path: Path) -> None:
    plan = trine.Plan(pp=2, batch=4, micro_batch=1)
    trine.simulate(MODEL, plan, cluster="dgx-h100", fold="off").to_kineto(tmp_path)
    run = read_run(tmp_path)
    messages = [each for each in run.instances if each.call.kind == "send_recv"]
    assert {each.call.group.name for each in messages} == {"0->1", "1->0"}
    assert len([each for each in messages if each.call.group.name == "0->1"]) >= 4
    assert all(len(each.members) == 2 for each in messages)


def test_a_run_that_stands_for_more_is_refused(tmp_path: Path) -> None:
    plan = trine.Plan(dp=2, batch=64, micro_batch=1)
    folded = trine.simulate(MODEL, plan, cluster="dgx-h100")
    assert folded.repeats is not None
    with pytest.raises(InputError, match="add --no-fold"):
        folded.to_kineto(tmp_path)
