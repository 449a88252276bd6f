import numpy as np
from results_graphs import labelled, overlap, records, result

from trine.graph.builder import TaskGraphBuilder
from trine.results.waits import RANK_REASONS, REASONS


def parts(found, rank):
    times = found.rank_times
    return [int(getattr(times, name)[rank]) for name in ("compute", "communication", "exposed", "bubble", "idle")]


def waits(found, rank):
    row = found.rank_times.waits[rank].tolist()
    return {reason: ps for reason, ps in zip(RANK_REASONS, row, strict=True) if ps}


def test_overlap_worked_out_by_hand():
    found = result(*overlap())
    assert parts(found, 0) == [70, 40, 20, 0, 10]
    assert parts(found, 1) == [20, 40, 40, 0, 40]
    assert found.rank_times.input_copy.tolist() == [10, 0]
    assert found.slowest_rank == 0
    assert (found.compute_s, found.exposed_communication_s, found.idle_s) == (70e-12, 20e-12, 10e-12)


def test_waits_name_what_the_rank_waited_for():
    found = result(*overlap())
    assert waits(found, 0) == {"input copy": 10, "communication": 20}
    assert waits(found, 1) == {"end": 80}


def test_launches_are_not_compute_and_waiting_for_them_is_idle_even_in_a_pipeline():
    builder = TaskGraphBuilder([1], [0], rank_names=["a", "b"])
    launch = builder.compute(0, "cpu", 8)
    builder.compute(0, "compute", 2, [launch])
    builder.compute(1, "compute", 10)
    graph = labelled(builder.build(), stage=[0, 0, 1])
    found = result(graph, records((0, 0, 8), (8, 8, 10), (0, 0, 10)))
    assert parts(found, 0) == [2, 0, 0, 0, 8]
    assert waits(found, 0) == {"launch": 8}


def test_waiting_for_ones_own_stream_and_for_the_network_are_told_apart():
    builder = TaskGraphBuilder([1], [0])
    builder.compute(0, "compute", 5)
    builder.compute(0, "compute", 5)
    builder.transfer(0, 1, [0], 1)
    reasons = result(builder.build(), records((0, 0, 5), (0, 5, 10), (0, 3, 4))).wait_reasons
    assert [REASONS[reason] for reason in reasons] == ["start", "stream", "network"]


def test_a_wait_behind_joins_has_the_reason_of_the_task_behind_them():
    builder = TaskGraphBuilder([1], [0])
    send = builder.transfer(0, 1, [0], 1)
    late = builder.compute(1, "compute", 9)
    first = builder.join([send, late], need=1)
    second = builder.join([first])
    builder.compute(1, "other", 1, [second])
    found = result(builder.build(), records((0, 0, 5), (0, 0, 9), (5, 5, 5), (5, 5, 5), (5, 5, 6)))
    assert REASONS[found.wait_reasons[4]] == "communication"
    assert found.critical_path == [1]


def test_waiting_for_the_collective_of_another_axis_is_not_a_bubble():
    builder = TaskGraphBuilder([1], [0])
    builder.compute(0, "compute", 4)
    slow = builder.compute(1, "compute", 10)
    builder.transfer(1, 0, [0], 1, [slow])
    run = records((0, 0, 4), (0, 0, 10), (10, 10, 12))
    for axis, bubble in (("dp", 0), ("pp", 6)):
        label = overlap()[0].collectives[0]
        label = type(label)(kind="all_reduce", algorithm="ring", size_bytes=1, ranks=(0, 1), axis=axis)
        graph = labelled(builder.build(), stage=[0, 1, 1], collective=[-1, -1, 0], collectives=(label,))
        assert parts(result(graph, run), 0) == [4, 2, 2, bubble, 6 - bubble]


def test_shares_take_the_rank_where_a_layer_takes_longest():
    found = result(*overlap())
    assert [(s.name, s.compute_ps, s.communication_ps) for s in found.layers] == [("features.0", 60, 40), ("fc", 10, 0)]
    assert [(s.name, s.compute_ps, s.communication_ps) for s in found.operators] == [("conv", 60, 0), ("linear", 10, 0)]
    assert [(s.name, s.compute_ps, s.communication_ps) for s in found.phases] == [
        ("forward", 30, 0),
        ("backward", 30, 40),
        ("optimizer", 10, 0),
        ("input copy", 0, 10),
    ]
    assert found.stages == ()


def test_names_that_repeat_count_as_one():
    builder = TaskGraphBuilder([], [])
    builder.compute(0, "compute", 4)
    builder.compute(0, "compute", 6)
    graph = labelled(builder.build(), operator=[0, 1], operator_names=("relu", "relu"))
    shares = result(graph, records((0, 0, 4), (4, 4, 10))).operators
    assert [(s.name, s.compute_ps) for s in shares] == [("relu", 10)]


def test_the_last_of_several_steps_is_the_steady_state():
    builder = TaskGraphBuilder([10**12], [0])
    builder.compute(0, "compute", 50)
    builder.transfer(0, 1, [0], 10)
    builder.compute(0, "compute", 20)
    builder.transfer(0, 1, [0], 10)
    graph = labelled(builder.build(), step=[0, 0, 1, 1])
    found = result(graph, records((0, 0, 50), (50, 50, 60), (50, 60, 80), (80, 80, 90)))
    assert found.step_ends_ps.tolist() == [60, 90]
    assert (found.num_steps, found.step_time_ps, found.end_time_ps) == (2, 30, 90)
    assert parts(found, 0) == [20, 10, 10, 0, 0]
    assert found.links[0].size_bytes == 10
    assert found.links[0].utilisation == 10 / 30


def test_no_tasks_is_a_step_of_no_time():
    found = result(TaskGraphBuilder([5], [0], rank_names=["a"]).build(), records())
    assert found.step_time_ps == 0
    assert found.critical_path == []
    assert parts(found, 0) == [0, 0, 0, 0, 0]
    assert found.links[0].utilisation == 0
    assert "0 ps" in found.summary()


def test_critical_path_follows_streams_and_predecessors():
    found = result(*overlap())
    path = found.critical_path
    assert path == [4, 3]  # the transfer began at 50, but no predecessor ended then: it waited for the network
    graph, run = overlap()
    run.ready_ps[3] = run.start_ps[3] = 40
    found = result(graph, run)
    assert found.critical_path == [4, 3, 1, 0]
    assert found.critical_path_times == {
        "compute": 40, "communication": 50, "offload": 0, "input copy": 10, "launch": 0, "wait": 0
    }  # fmt: skip


def test_results_do_not_change_their_inputs():
    graph, run = overlap()
    before = [run.ready_ps.copy(), run.start_ps.copy(), run.end_ps.copy()]
    found = result(graph, run)
    found.summary()
    found.to_json()
    assert all(np.array_equal(a, b) for a, b in zip(before, (run.ready_ps, run.start_ps, run.end_ps), strict=True))
