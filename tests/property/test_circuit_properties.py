"""Is every run on circuits lawful: causal, within its ports, conserving, and blind to the numbers of ranks?"""

from dataclasses import replace

import numpy as np
from circuit_cases import circuit_graphs, circuits
from hypothesis import given, settings
from hypothesis import strategies as st

from trine.engine.circuit_model import CircuitSwitching
from trine.engine.reference import Reference
from trine.engine.run import run
from trine.graph.builder import TaskGraphBuilder
from trine.testing.circuits import require_lawful_circuits


@given(graph=circuit_graphs(), numbers=circuits())
@settings(max_examples=80, deadline=None)
def test_runs_are_lawful(graph, numbers):
    """Ports, circuits in use, bandwidth, buffers and causality: read off the records and the log of circuits."""
    model = CircuitSwitching(numbers)
    reference = Reference(graph, model)
    reference.run()
    require_lawful_circuits(graph, reference.records(), reference.circuits.history, model, "here")


@given(graph=circuit_graphs(), numbers=circuits(), seed=st.integers(0, 2**32 - 1))
@settings(max_examples=80, deadline=None)
def test_numbers_of_ranks_change_nothing_and_runs_repeat(graph, numbers, seed):
    number = np.random.default_rng(seed).permutation(len(graph.rank_names)).astype(np.int32)
    other = replace(
        graph,
        rank=np.where(graph.rank >= 0, number[graph.rank], np.int32(-1)),
        peer=np.where(graph.peer >= 0, number[graph.peer], np.int32(-1)),
    )
    model = CircuitSwitching(numbers)
    here = run(graph, network=model)
    for again in (run(graph, network=model), run(other, network=model)):
        np.testing.assert_array_equal(here.start_ps, again.start_ps)
        np.testing.assert_array_equal(here.end_ps, again.end_ps)


@given(
    hops=st.lists(st.tuples(st.integers(0, 4), st.integers(1, 4), st.integers(1, 10**4)), min_size=1, max_size=30),
    numbers=circuits(),
    more_ps=st.integers(0, 10**9),
)
@settings(max_examples=60, deadline=None)
def test_a_longer_set_up_never_helps_a_chain(hops, numbers, more_ps):
    builder = TaskGraphBuilder([], [])
    for number, (source, distance, size) in enumerate(hops):
        builder.transfer(source, (source + distance) % 5, [], size, [number - 1] if number else [])
    graph = builder.build()
    fast = run(graph, network=CircuitSwitching(numbers)).end_ps
    slow = run(graph, network=CircuitSwitching(replace(numbers, setup_ps=numbers.setup_ps + more_ps))).end_ps
    assert (slow >= fast + more_ps).all()  # the first always sets up
    assert ((slow - fast) % max(more_ps, 1) == 0).all()


@given(graph=circuit_graphs(max_ranks=5), numbers=circuits())
@settings(max_examples=60, deadline=None)
def test_without_set_up_and_waiting_it_is_a_wire_for_each_pair_and_direction(graph, numbers):
    """Ports for all and always room: as the fifo network with a link for each pair, which shares no code with it."""
    ranks = len(graph.rank_names)
    free = replace(numbers, setup_ps=0, ports=ranks, buffer_bytes=None, latency_ps=0)
    builder = TaskGraphBuilder([free.bytes_per_s] * ranks**2, [0] * ranks**2)
    direct = TaskGraphBuilder([], [])
    for task in range(graph.num_tasks):
        after = graph.predecessors(task).tolist()
        a, b, size = int(graph.rank[task]), int(graph.peer[task]), int(graph.size_bytes[task])
        if graph.kind[task] != 1 or a == b:
            a, b, size = 0, 0, 0
        builder.transfer(a, b, [a * ranks + b] if a != b else [], size, after)
        direct.transfer(a, b, [], size, after)
    wired = run(builder.build(), network="fifo").end_ps
    np.testing.assert_array_equal(wired, run(direct.build(), network=CircuitSwitching(free)).end_ps)
