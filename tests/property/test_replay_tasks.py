"""Does a rank replayed from its record alone keep the times of the full run if its tasks wait for other ranks?"""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
from gpu_cases import NS, Case, Programmer, case, graph_builder, small_model, write
from gpu_random import across_case
from gpu_replay import ENGINES, assert_same_target, by_instant

from trine.errors import InputError
from trine.gpu.replay.arrivals import load_arrivals, save_arrivals
from trine.gpu.replayed import run_target
from trine.gpu.run import GpuRunControl, GpuRunOptions, run_gpus
from trine.gpu.system import KernelTasks
from trine.graph.taskgraph import COMPUTE, JOIN, TRANSFER


def full_run(made, rank, engine="compiled"):
    tasks = KernelTasks(made.graph, np.asarray(made.task_kernel, np.int32))
    how = GpuRunOptions(engine=engine, record=rank)
    return run_gpus(made.program, made.cluster, made.group, made.model, tasks=tasks, options=how), tasks


def alone(made, rank, outside, tasks, engine="compiled"):
    return run_target(
        made.program, made.cluster, made.group, made.model, target=rank, outside=outside, tasks=tasks,
        control=GpuRunControl(engine=engine),
    )  # fmt: skip


def own_rows(made, rank):
    """Return the rank's computes and joins and its GPU's sends, derived independently from the routes."""
    graph, source = made.graph, made.cluster.link_table.source

    def is_own(task):
        if graph.kind[task] != TRANSFER:
            return graph.rank[task] == rank
        route = int(graph.route[task])
        links = graph.links_of(route)
        return graph.size_bytes[task] > 0 and len(links) > 0 and source[links[0]] == made.group[rank]

    return np.array([task for task in range(graph.num_tasks) if is_own(task)], np.int64)


def assert_replays(made, rank, engine="compiled"):
    """Check that the rank is equal in both runs; return both."""
    full, tasks = full_run(made, rank, engine)
    found = alone(made, rank, full.arrivals, tasks, engine)
    rows = own_rows(made, rank)
    for field in ("ready_ps", "start_ps", "end_ps"):
        np.testing.assert_array_equal(getattr(full.records, field)[rows], getattr(found.records, field), err_msg=field)
    np.testing.assert_array_equal(found.graph.kind, made.graph.kind[rows])
    computes = found.records
    computes = replace(
        computes, **{f: getattr(computes, f)[found.graph.kind == COMPUTE] for f in ("ready_ps", "start_ps", "end_ps")}
    )
    assert_same_target(full, made.system(), rank, replace(found, records=computes))
    return full, found


REFUSED = ("in an unknown order", "goes through rank", "leads through rank", "fair arbitration")


def is_refused(problem):
    """Return the reason why a run cannot be recorded; the error must name one."""
    found = [words for words in REFUSED if words in str(problem)]
    assert found, problem
    return found[0]


@pytest.mark.parametrize("first", range(0, 60, 30))
def test_random_graphs_across_ranks(first):
    """Every rank in turn; a run that no record can express is rejected when recorded, rarely except for routes."""
    seen = dict.fromkeys(("replayed", "waited", "sent", "joined", "tied"), 0)
    for seed in range(first, first + 30):
        made = across_case(seed)
        system = made.system()
        for rank in range(system.num_ranks) if system.num_ranks > 1 and by_instant(system) else ():
            try:
                full, found = assert_replays(made, rank)
            except InputError as problem:
                seen["tied"] += is_refused(problem) == REFUSED[0]
                continue
            seen["replayed"] += 1
            seen["waited"] += len(full.arrivals.task) > 0
            seen["sent"] += int((found.graph.kind == TRANSFER).sum())
            seen["joined"] += int((found.graph.kind == JOIN).sum())
    assert seen["replayed"] > 10
    assert seen["waited"] > 0.8 * seen["replayed"]
    assert seen["sent"] > 10
    assert seen["joined"] > 0
    assert seen["tied"] < seen["replayed"] / 2


@pytest.mark.parametrize("seed", range(4))
def test_random_graphs_by_the_twin(seed):
    made = across_case(seed, size=2)
    system = made.system()
    for rank in range(system.num_ranks) if system.num_ranks > 1 and by_instant(system) else ():
        try:
            assert_replays(made, rank, "reference")
        except InputError as problem:
            is_refused(problem)


# -- one graph, step by step


def chain(engine_model=None, launch_ps=2000 * NS, both=False):
    """Return a case: rank 1 stores to rank 0, rank 0's kernel runs, its GPU sends, rank 1's second kernel runs."""
    programmer = Programmer(2)
    for rank in (1, 0, 1, 0) if both else (1, 0, 1):
        programmer.kernel(rank, 2, 1)
        programmer.store(16, write(1 - rank, 4096)).load(4, (0, rank, 0, 128, -1)).wait()
    made = case(programmer.build(), small_model(launch_ps=launch_ps))
    builder = graph_builder(made.cluster)
    first = builder.compute(1, "stream", 0, name="first")
    second = builder.compute(0, "stream", 0, [first], name="second")
    route = made.cluster.paths(made.cluster.gpus[0], made.cluster.gpus[1])[0][0]
    sent = builder.transfer(0, 1, route, 50_000, [second], name="sent")
    third = builder.compute(1, "stream", 0, [sent], name="third")
    kernels = [0, 1, -1, 2]
    if both:  # the fourth with the second, on another stream
        builder.compute(0, "other", 0, [first] if both == "one" else [], name="fourth")
        kernels.append(3)
    builder.compute(0, "after", 700, [third, sent], name="after")
    return Case(made.program, made.model, made.cluster, made.group, builder.build(), [*kernels, -1])


@pytest.mark.parametrize("engine", ENGINES)
def test_who_waits_for_whom(engine):
    made = chain()
    full, found = assert_replays(made, 0, engine)
    ends = full.records.end_ps
    assert full.arrivals.task.tolist() == [0, 2, 3]
    assert full.arrivals.task_end_ps.tolist() == ends[[0, 2, 3]].tolist()
    assert found.records.ready_ps.tolist() == [ends[0], ends[1], ends[3]]
    assert found.end_ps == full.end_ps
    assert found.graph.predecessor_idx.tolist() == [0, 1]  # local dependencies: sent, after
    full, found = assert_replays(made, 1, engine)
    assert full.arrivals.task.tolist() == [2]
    assert found.records.ready_ps.tolist() == [0, ends[2]]


def test_a_file_keeps_the_ends(tmp_path):
    made = chain()
    full, tasks = full_run(made, 0)
    save_arrivals(tmp_path / "a.npz", full.arrivals)
    again = alone(made, 0, load_arrivals(tmp_path / "a.npz"), tasks)
    assert again.records.end_ps.tolist() == alone(made, 0, full.arrivals, tasks).records.end_ps.tolist()


def test_launches_that_take_no_time():
    """Two kernels reach their GPU's queue at one instant; their order is known only if one task is waited for."""
    assert_replays(chain(launch_ps=0), 0)
    assert_replays(chain(launch_ps=0, both="one"), 0)
    programmer = Programmer(2)
    for rank in (1, 1, 0, 0):
        programmer.kernel(rank, 1, 1)
        programmer.compute(100)
    made = case(programmer.build(), small_model(launch_ps=0, dispatch_ps=0))
    builder = graph_builder(made.cluster)
    ends = [builder.compute(1, f"stream {i}", 0) for i in range(2)]
    for i, before in enumerate(ends):
        builder.compute(0, f"stream {i}", 0, [before])
    tied = Case(made.program, made.model, made.cluster, made.group, builder.build(), [0, 1, 2, 3])
    with pytest.raises(InputError, match=r"record: compute task 2 .* and compute task 3 .* begin at one instant"):
        full_run(tied, 0)
    assert_replays(tied, 1)
    assert_replays(replace(tied, model=small_model(launch_ps=1, dispatch_ps=0)), 0)


def test_without_a_record_of_this_graph_it_is_refused():
    made = chain()
    full, tasks = full_run(made, 0)
    with pytest.raises(
        InputError,
        match=re.escape(
            "'second' (task 1, rank 0, stream stream) waits for compute 'first' "
            "(task 0, rank 1, stream stream): replaying that needs the record"
        ),
    ):
        alone(made, 0, None, tasks)
    short = replace(full.arrivals, task=full.arrivals.task[1:], task_end_ps=full.arrivals.task_end_ps[1:])
    with pytest.raises(InputError, match="the record has not its end: it is of another graph of tasks"):
        alone(made, 0, short, tasks)
    unsent = replace(full.arrivals, task=full.arrivals.task[[0, 2]], task_end_ps=full.arrivals.task_end_ps[[0, 2]])
    with pytest.raises(InputError, match=r"'sent' .*: the record has not its end"):
        alone(made, 0, unsent, tasks)
    large = replace(full.arrivals, task=full.arrivals.task + 100)
    with pytest.raises(InputError, match="the record has task 103 of 5"):
        alone(made, 0, large, tasks)
    early = replace(full.arrivals, task_end_ps=np.where(full.arrivals.task == 2, 1, full.arrivals.task_end_ps))
    with pytest.raises(InputError, match=r"'sent' .* ends at 1 ps, before it left"):
        alone(made, 0, early, tasks)


def test_a_transfer_that_goes_through_the_target_is_not_recorded():
    programmer = Programmer(3)
    for rank in range(3):
        programmer.kernel(rank, 1, 1)
        programmer.compute(100)
    made = case(programmer.build(), topology="mesh:1x3")
    builder = graph_builder(made.cluster)
    for rank in range(3):
        builder.compute(rank, "stream", 0)
    gpus = made.cluster.gpus
    builder.transfer(0, 2, made.cluster.paths(gpus[0], gpus[2])[0][0], 4096, name="far")
    made = Case(made.program, made.model, made.cluster, made.group, builder.build(), [0, 1, 2, -1])
    with pytest.raises(InputError, match=r"record: transfer 'far' .* goes through rank 1: that is not recorded"):
        full_run(made, 1)
    for rank in (0, 2):
        assert_replays(made, rank)
