"""Does a replay of a measured run give the measured times, and the times that follow by hand from other durations?"""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from run_traces import all_reduce, call, kernel, launch, trace, two_ranks, write

from trine.runs.folder import read_run
from trine.runs.measured_run import MeasuredRun, measured_run
from trine.runs.rank_trace import CollectiveCall, CpuCall, GpuActivity, GroupKey, RankTrace
from trine.runs.replay import Replay

US = 10**6


def test_kernels_of_one_rank_change_the_run_by_hand(tmp_path: Path) -> None:
    """Three rounds of max(100, 140) us of kernels, 50 us of transfer and 10 us of idle time between rounds."""
    run = read_run(write(tmp_path, two_ranks()))
    replay = Replay(run)
    start_us = 55  # launches before the first kernel
    assert replay.time_ps(replay.base) == run.time_ps == (start_us + 3 * 190 + 2 * 10) * US
    durations = replay.base.copy()
    for number, activity in enumerate(run.ranks[1].activities):
        if activity.collective is None:
            durations.kernels[1][number] = 100 * US
    assert replay.time_ps(durations) == (start_us + 3 * 150 + 2 * 10) * US
    for number, activity in enumerate(run.ranks[0].activities):
        if activity.collective is not None:
            durations.kernels[0][number] = durations.kernels[1][number] = 20 * US
    assert replay.time_ps(durations) == (start_us + 3 * 120 + 2 * 10) * US
    for number, activity in enumerate(run.ranks[1].activities):
        if activity.collective is None:
            durations.kernels[1][number] = 30 * US  # rank 0 is then the last
    assert replay.time_ps(durations) == (start_us + 3 * 120 + 2 * 10) * US


def test_a_launch_bound_rank_follows_its_launches(tmp_path: Path) -> None:
    """Ten launches of 20 us, each before a kernel of 5 us: 10 x 20 + 5 us; at 4 us each, 4 + 10 x 5."""
    events = []
    for number in range(10):
        events += [launch(100 + 20 * number, 20, number + 1), kernel("k", 120 + 20 * number, 5, correlation=number + 1)]
    run = read_run(write(tmp_path, [trace(0, 1, events)]))
    replay = Replay(run)
    assert replay.time_ps(replay.base) == 205 * US
    durations = replay.base.copy()
    durations.calls[0] = [4 * US] * 10
    assert replay.time_ps(durations) == 54 * US


def test_a_copy_that_the_cpu_waits_for_follows_the_gpu(tmp_path: Path) -> None:
    """A kernel of 100 us, then a blocking copy of 2 us, then a launch of 10 us with a kernel of 5 us."""
    copy = kernel("Memcpy DtoH (Device -> Pageable)", 110, 2, correlation=2)
    copy["cat"] = "gpu_memcpy"
    events = [
        launch(0, 10, 1), kernel("a", 10, 100, correlation=1), launch(10, 104, 2, "cudaMemcpyAsync"), copy,
        launch(114, 10, 3), kernel("b", 124, 5, correlation=3),
    ]  # fmt: skip
    run = read_run(write(tmp_path, [trace(0, 1, events)]))
    replay = Replay(run)
    assert replay.time_ps(replay.base) == 129 * US
    durations = replay.base.copy()
    durations.kernels[0][0] = 40 * US
    assert replay.time_ps(durations) == 69 * US


def test_a_hidden_collective_binds_by_its_event(tmp_path: Path) -> None:
    """A kernel that waited for a collective by an event still does when the launches no longer delay it."""
    wait = launch(60, 0, 0, "cudaStreamWaitEvent")
    events = [
        launch(0, 10, 1), kernel("a", 10, 5, correlation=1), launch(10, 10, 2), all_reduce(20, 50, 2, (0, 1)), wait,
        launch(60, 40, 3), kernel("b", 100, 5, correlation=3),
    ]  # fmt: skip
    run = read_run(write(tmp_path, [trace(rank, 2, events) for rank in range(2)]))
    replay = Replay(run)
    durations = replay.base.copy()
    durations.calls = [[0, 0, 0], [0, 0, 0]]
    durations.gaps = [[0, 0, 0], [0, 0, 0]]
    assert replay.time_ps(durations) == (5 + 30 + 5) * US


def test_operators_and_phases_come_from_the_calls_around_a_launch(tmp_path: Path) -> None:
    events = [
        call("aten::linear", 0, 10, **{"Input Dims": [[2, 3]]}), launch(1, 2, 1), kernel("gemm", 20, 5, correlation=1),
        call("autograd::engine::evaluate_function: MmBackward0", 10, 10), call("MmBackward0", 11, 8), launch(12, 2, 2),
        kernel("gemm", 30, 5, correlation=2),
        call("Optimizer.step#Adam.step", 30, 10, "user_annotation"), call("aten::_foreach_add", 31, 8),
        launch(32, 2, 3), kernel("add", 40, 5, correlation=3),
    ]  # fmt: skip
    run = read_run(write(tmp_path, [trace(0, 1, events)]))
    found = [(activity.operator, activity.phase) for activity in run.ranks[0].activities]
    assert found == [("aten::linear", "forward"), ("MmBackward0", "backward"), ("aten::_foreach_add", "optimizer")]
    assert run.ranks[0].activities[0].work is not None
    assert run.ranks[0].activities[1].work is None


def random_run(chance: random.Random) -> MeasuredRun:
    """Return a run of up to four ranks whose kernels, launches and collectives obey the rules of streams and groups."""
    num_ranks, rounds = chance.randrange(1, 5), chance.randrange(1, 12)
    clock = [chance.randrange(50) for _ in range(num_ranks)]
    cpu = [0] * num_ranks
    traces = [RankTrace(f"rank{rank}", rank, num_ranks, "", "", [], [], []) for rank in range(num_ranks)]
    for number in range(rounds):
        entries = []
        for rank, one in enumerate(traces):
            for _ in range(chance.randrange(1, 4)):
                begin = cpu[rank] + chance.randrange(5)
                cpu[rank] = begin + chance.randrange(1, 8)
                one.calls.append(CpuCall(begin, cpu[rank], False, "op"))
                start = max(cpu[rank], clock[rank]) + chance.randrange(4)
                clock[rank] = start + chance.randrange(30)
                one.activities.append(GpuActivity("k", 1, start, clock[rank], "op", "forward", len(one.calls) - 1))
            entries.append(clock[rank] + chance.randrange(4))
        end = max(entries) + chance.randrange(20)
        for rank, one in enumerate(traces):
            collective = CollectiveCall("all_reduce", GroupKey("g", ()), number, 8, 8, num_ranks, "RING")
            own_end = end + chance.randrange(3)
            one.activities.append(GpuActivity("nccl", 2, entries[rank], own_end, "c", "forward", -1, None, collective))
            clock[rank] = max(clock[rank], own_end if chance.random() < 0.7 else clock[rank])
    for one in traces:
        one.activities.sort(key=lambda activity: (activity.start_ps, activity.end_ps))
    return measured_run(traces)


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_the_measured_durations_give_the_measured_time(seed: int) -> None:
    run = random_run(random.Random(seed))
    replay = Replay(run)
    assert replay.time_ps(replay.base) == run.time_ps


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_shorter_durations_never_take_longer(seed: int) -> None:
    chance = random.Random(seed)
    run = random_run(chance)
    replay = Replay(run)
    durations = replay.base.copy()
    for values in (*durations.kernels, *durations.calls):
        for number, value in enumerate(values):
            values[number] = round(value * chance.random())
    assert replay.time_ps(durations) <= run.time_ps


@pytest.mark.parametrize("chunk", [1, 7, 64, 2**20])
def test_pieces_of_any_length_give_the_same_events(tmp_path: Path, chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    import json

    from trine.runs import json_stream

    path = (
        write(tmp_path, [trace(0, 2, [kernel('größe \\" [{', 1.125, 2)], extra=[1, {"a": [2.5, None]}])]) / "rank0.json"
    )
    monkeypatch.setattr(json_stream, "_CHUNK_BYTES", chunk)
    values = list(json_stream.read_values(path))
    document = json.loads(path.read_text())
    events = document.pop("traceEvents")
    assert [value for key, value in values if key == json_stream.EVENTS] == events
    assert {key: value for key, value in values if key != json_stream.EVENTS} == document
