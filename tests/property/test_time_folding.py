"""Is a run of few micro-batches that repeat equal to the run of all, to the picosecond?"""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import numpy as np
import pytest
from folded_cases import Case, chain, joined, random_case
from long_tests import enough_repeat, long

import trine
from trine.cluster import load_cluster
from trine.cluster.select import slow_down
from trine.errors import TrineError
from trine.folding import deferral, shifts, stages
from trine.folding.lists import Times, Track, tracks_of
from trine.folding.period import MAX_TRIED, _SomeRanks, _Sorted, _Stretch, _stretches, _with_rank, first_counts
from trine.folding.shifts import TasksByStart
from trine.graph.taskgraph import Records
from trine.results import Result
from trine.results.repeats import Repeat, Repeats
from trine.software.profile import known_software

#: Seeds whose jobs repeat, with one and several micro-batches per period, windows and steps.
SEEDS = (2, 5, 9, 14, 21, 33, 36, 47)
PARTS = ("compute", "communication", "exposed", "bubble", "idle", "input_copy", "offload", "waits")


def many_micro_batches(seed: int) -> Case | None:
    """Return a random job of at most 16 ranks with 24 to 64 micro-batches; None if its layout cannot have them."""
    rng, case = Random(seed * 7 + 1), random_case(seed, 16)
    size = rng.choice((1, 2))
    try:
        plan = replace(case.plan, batch=size * rng.choice((24, 32, 40, 64)), micro_batch=size, replica_batches=())
    except TrineError:
        return None
    return replace(case, plan=plan)


def assert_same(few: Result, every: Result) -> None:
    assert few.step_ends_ps.tolist() == every.step_ends_ps.tolist()
    for part in PARTS:
        assert np.array_equal(getattr(few.rank_times, part), getattr(every.rank_times, part)), part
    for table in ("collectives", "layers", "operators", "phases", "stages", "critical_path_times", "energy"):
        assert getattr(few, table) == getattr(every, table), table
    few_links, links = ([(link.name, link.size_bytes) for link in each.links] for each in (few, every))
    assert few_links == links
    assert [peak.total_bytes for peak in few.memory_peaks] == [peak.total_bytes for peak in every.memory_peaks]
    few_shares, shares = ([row for row in each.evidence if row.share is not None] for each in (few, every))
    assert few_shares == shares


def compare(seed: int) -> bool:
    """Compare one random job; return whether few of its micro-batches stood for all."""
    case = many_micro_batches(seed)
    if case is None:
        return False
    try:
        few = case.run(fold="exact")
    except TrineError:
        return False
    if few.repeats is None:
        return False
    assert_same(few, case.run(fold="off"))
    return True


@pytest.mark.parametrize("seed", SEEDS)
def test_random_jobs_are_equal_folded_and_unfolded(seed: int) -> None:
    compare(seed)


@pytest.mark.slow
@pytest.mark.parametrize("wanted", [20, pytest.param(500, marks=long)])
def test_many_random_jobs_that_repeat_are_equal(wanted: int) -> None:
    enough_repeat(compare, wanted)


SCHEDULES = [
    {"pp": 4, "schedule": "1f1b"},
    {"pp": 4, "schedule": "interleaved", "virtual_stages": 2},
    {"pp": 4, "schedule": "zb-h1"},
    {"pp": 4, "schedule": "dualpipe"},
    {"pp": 4, "schedule": "gpipe"},
    {"dp": 2, "pp": 4, "schedule": "gpipe", "steps": 2, "sharding": "zero1"},
    {"dp": 4, "sharding": "fsdp"},
    {"dp": 4, "sharding": "zero2", "steps": 2},
    {"dp": 2, "pp": 2, "schedule": "1f1b", "offload": "activations"},
]


@pytest.mark.parametrize("fields", SCHEDULES, ids=lambda fields: fields.get("schedule", fields.get("sharding")))
def test_every_schedule_repeats_and_every_task_is_equal(fields: dict[str, object]) -> None:
    """Equal layers: then each stage has the same pace. ``verify`` compares task by task and raises for a difference."""
    workload = chain(8, (5,) * 8)
    balanced = replace(workload, operators=tuple(replace(op, gpu_time_ps=500_000_000) for op in workload.operators))
    plan = trine.Plan(batch=64, micro_batch=1, inputs="none", **fields)  # type: ignore[arg-type]
    cluster = load_cluster("dgx-h100", gpus=plan.num_ranks)
    result = trine.simulate(balanced, plan, cluster=cluster, gpu="h100-sxm", fold="verify")
    assert result.repeats is not None
    assert "equal to the picosecond" in result.repeats.verified
    assert result.repeats.simulated + result.repeats.count * result.repeats.period == 64
    every = trine.simulate(balanced, plan, cluster=cluster, gpu="h100-sxm", fold="off")
    assert_same(result, every)
    assert result.memory_uses == every.memory_uses


@pytest.mark.parametrize("software", known_software())
def test_every_software_profile_repeats(software: str) -> None:
    """Also profiles with costs of each micro-batch, and with launching threads that wait rarely."""
    workload = trine.load("model:llama-3-8b,layers=4,sequence=4096,gpu=h100-sxm")
    plan, cluster = trine.Plan(dp=2, batch=64, micro_batch=1, sharding="fsdp"), load_cluster("dgx-h100", gpus=2)
    try:
        few = trine.simulate(workload, plan, cluster=cluster, software=software)
    except TrineError:
        plan = replace(plan, sharding="zero1")
        few = trine.simulate(workload, plan, cluster=cluster, software=software)
    assert few.repeats is not None
    assert_same(few, trine.simulate(workload, plan, cluster=cluster, software=software, fold="off"))


@pytest.mark.parametrize("fields", [{"dp": 16, "sharding": "fsdp"}, {"dp": 8, "tp": 2, "sharding": "fsdp"}])
def test_runs_without_the_signals_of_collectives_repeat(
    fields: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Large runs simulate only the first signal of a collective; here one slow NIC makes the ranks differ."""
    monkeypatch.setattr(stages, "FEW_TASKS", 0)
    cluster = slow_down(joined("dgx-h100", 2, "rail"), [("node0.nic0->leaf0.rail0", 0.5)])
    plan = trine.Plan(batch=64, micro_batch=1, inputs="none", **fields)  # type: ignore[arg-type]
    few, every = (
        trine.simulate(chain(8), plan, cluster=cluster, cpu=False, placement="round-robin", fold=fold)
        for fold in ("verify", "off")
    )
    assert few.repeats is not None
    assert "equal to the picosecond" in few.repeats.verified
    assert_same(few, every)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_look_at_single_ranks_changes_no_repetition(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The search leaves out lengths that single ranks do not repeat, or with other periods; here it tries them all."""
    case = many_micro_batches(seed)
    if case is None:
        return
    quick = case.run(fold="exact")
    monkeypatch.setattr(_SomeRanks, "may_repeat", lambda *_: True)
    assert case.run(fold="exact").repeats == quick.repeats


@pytest.mark.parametrize("seed", range(40))
def test_each_run_of_all_ranks_lies_in_a_time_that_they_have_in_common(seed: int) -> None:
    """Tasks of one to four ranks, each with stretches of one shift; a run of all tasks together is a time of each."""
    rng = np.random.default_rng(seed)
    tables = []
    for _ in range(int(rng.integers(1, 5))):
        start = np.append(0, np.sort(rng.integers(1, 400, int(rng.integers(2, 60)))))
        lengths = rng.integers(1, 20, len(start))
        shift = np.repeat(rng.choice([-1, 6, 30, 30], len(start)), lengths)[: len(start)]
        shift[[0, -1]] = -1  # the last task has no later one
        tables.append(_sorted_tasks(start, shift))
    common: list[_Stretch] = []
    for number, table in enumerate(tables):
        common = _with_rank(common, [before.tasks.start for before in tables[:number]], table)
    start, shift = (np.concatenate(column) for column in zip(*((t.tasks.start, t.shift) for t in tables), strict=True))
    order = np.argsort(start, kind="stable")
    for run in _stretches(_sorted_tasks(start[order], shift[order])):
        assert any(
            part.period_ps == run.period_ps and part.begin_ps <= run.begin_ps and run.end_ps <= part.end_ps
            for part in common
        )


def _sorted_tasks(start: np.ndarray, shift: np.ndarray) -> _Sorted:
    """Return tasks in order of start that differ in their shifts alone."""
    zeros = np.zeros(len(start), np.int64)
    tasks = TasksByStart(
        start=start, end=start, latest_end=start, key=zeros, phase=zeros, entry=zeros,
        entries=Times(start, start, start), sequence=zeros, microbatch=zeros, begin=zeros, length=zeros,
    )  # fmt: skip
    return _Sorted(tasks, shift, np.full(len(start), -1))


@pytest.mark.parametrize("batch", [12, 15, 16, 64])
def test_a_first_attempt_has_at_most_half_of_the_micro_batches(batch: int) -> None:
    """A pipeline of six stages fills and drains with eight micro-batches."""
    plan = trine.Plan(pp=6, schedule="1f1b", batch=batch, micro_batch=1)
    counts = first_counts(plan, batch)
    assert (len(counts) > 0) == (batch >= 16)
    assert sum(counts) <= MAX_TRIED * batch


def test_the_cost_does_not_grow_with_the_micro_batches() -> None:
    workload, cluster = chain(8), load_cluster("dgx-h100", gpus=4)
    fields = {"dp": 2, "pp": 2, "schedule": "1f1b", "micro_batch": 1, "inputs": "none"}
    plans = [trine.Plan(batch=count, **fields) for count in (64, 1024)]  # type: ignore[arg-type]
    few, many = (trine.simulate(workload, plan, cluster=cluster, gpu="h100-sxm") for plan in plans)
    assert few.simulator.events == pytest.approx(many.simulator.events, rel=0.05)
    assert few.repeats is not None
    assert many.repeats is not None
    pace = many.repeats.windows[0].end_ps - many.repeats.windows[0].start_ps
    assert many.step_time_ps - few.step_time_ps == pace * (1024 - 64) // many.repeats.period


def test_jobs_that_never_repeat_state_the_reason() -> None:
    workload, cluster = chain(8), load_cluster("dgx-h100", gpus=4)
    plan = trine.Plan(dp=4, batch=32, micro_batch=1)
    jitter = trine.Stragglers(jitter=trine.parallel.stragglers.parse_jitter("normal:5%"))
    for settings, reason in (
        ({"stragglers": jitter}, "jitter makes every operator different"),
        ({"network": "fifo"}, "has a state besides its flows"),
    ):
        result = trine.simulate(workload, plan, cluster=cluster, gpu="h100-sxm", **settings)  # type: ignore[arg-type]
        (row,) = [row for row in result.evidence if row.what == "micro-batches"]
        assert reason in row.detail
        assert result.repeats is None
    uneven = trine.simulate(workload, replace(plan, batch=33, micro_batch=2), cluster=cluster, gpu="h100-sxm")
    assert "different sizes" in next(row.detail for row in uneven.evidence if row.what == "micro-batches")


@pytest.mark.parametrize("batch", [32, 128])
def test_launches_that_wait_for_their_queue_from_a_later_micro_batch_on(batch: int) -> None:
    """The first six micro-batches fill the queue; none of them may stand for those that wait for it."""
    plan = trine.Plan(dp=2, sharding="fsdp", batch=batch, micro_batch=1)
    model = "model:llama-3-8b,layers=4,sequence=4096"
    result = trine.simulate(model, plan, cluster="dgx-h100", fold="verify")
    if batch == 128:
        assert result.repeats is not None
        assert min(result.repeats.repeated) >= 6


def test_stretched_times_keep_order_and_count_each_repetition() -> None:
    """Against a brute-force sum over picoseconds."""
    repeats = Repeats(
        windows=(Repeat(10, 14, frozenset({0})), Repeat(20, 25, frozenset({1}))), count=3, repeated=(1,),
        micro_batches=8, simulated=5,
    )  # fmt: skip
    instants = np.arange(40)
    weight = np.array([4 if 10 <= t < 14 or 20 <= t < 25 else 1 for t in range(40)])
    stretched = repeats.stretch(instants)
    assert stretched.tolist() == [int(weight[:t].sum()) for t in range(40)]
    assert np.array_equal(repeats.simulated_ps(stretched), instants)
    times = np.array([5, 11, 13, 14, 22, 30])
    records = Records(ready_ps=times, start_ps=times, end_ps=times + 3, num_events=0, engine="", network="")
    shown = repeats.shown(repeats.stretched(records))
    assert shown.start_ps.tolist() == [5, 11, 13, 14 + 12, 22 + 12, 30 + 27]
    assert (shown.end_ps - shown.start_ps == 3).all()


@pytest.mark.parametrize(
    ("fields", "is_early"),
    [
        ({"dp": 8, "pp": 2, "schedule": "1f1b", "algorithm": (("all_reduce", "ring"),)}, True),
        ({"dp": 16, "sharding": "fsdp"}, False),
    ],
)
def test_windows_before_the_first_stop_are_found_among_few_classes(
    fields: dict[str, object], is_early: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until gradients are reduced over a slow NIC, the replicas are alike.

    If they gather parameters in each micro-batch, the windows lie behind the stop, and all classes are searched.
    """
    monkeypatch.setattr(stages, "FEW_TASKS", 0)
    monkeypatch.setattr(deferral, "MANY_TASKS", 0)
    monkeypatch.setattr(deferral, "WORTH_A_STOP", 2.0)
    searched: list[int] = []
    monkeypatch.setattr(shifts, "tracks_of", lambda *args, **named: _counted(searched, *args, **named))
    cluster = slow_down(joined("dgx-h100", 2, "rail"), [("node0.nic0->leaf0.rail0", 0.5)])
    plan = trine.Plan(batch=64, micro_batch=1, inputs="none", **fields)  # type: ignore[arg-type]
    few, every = (
        trine.simulate(chain(8), plan, cluster=cluster, cpu=False, placement="round-robin", fold=fold)
        for fold in ("verify", "off")
    )
    assert few.repeats is not None
    assert few.scope is not None
    assert "equal to the picosecond" in few.repeats.verified
    assert_same(few, every)
    assert len(few.scope.stages) > 1
    assert (few.repeats.windows[-1].end_ps < few.scope.stages[1].begins_ps) is is_early
    assert searched[0] == few.scope.stages[0].num_classes
    assert (max(searched) == searched[0]) is is_early


def _counted(searched: list[int], *args: Any, **named: Any) -> list[Track]:
    tracks = tracks_of(*args, **named)
    searched.append(len(tracks))
    return tracks
