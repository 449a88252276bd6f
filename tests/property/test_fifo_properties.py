"""Is every run on the fifo network lawful: causal, conserving, and blind to the numbers of links and routes?"""

from dataclasses import replace

import numpy as np
from engine_cases import graphs, random_graph, renumbered
from hypothesis import given, settings
from hypothesis import strategies as st

from trine.common.units import transfer_ps
from trine.engine.run import run
from trine.graph.taskgraph import COMPUTE, JOIN, TRANSFER

seeds = st.integers(0, 2**32)


def links_of(graph, task):
    route = graph.route[task]
    return graph.links_of(route)


def service_ps(graph, task, link):
    return transfer_ps(int(graph.size_bytes[task]), int(graph.link_bytes_per_s[link]))


@given(graph=graphs(), seed=seeds)
@settings(max_examples=60, deadline=None)
def test_numbers_of_links_and_routes_do_not_matter(graph, seed):
    other, _ = renumbered(graph, np.random.default_rng(seed), tasks_too=False)
    here, there = run(graph, network="fifo"), run(other, network="fifo")
    for field in ("ready_ps", "start_ps", "end_ps"):
        np.testing.assert_array_equal(getattr(here, field), getattr(there, field), err_msg=field)


@given(graph=graphs(max_tasks=80))
@settings(max_examples=60, deadline=None)
def test_causality(graph):
    records = run(graph, network="fifo")
    for task in range(graph.num_tasks):
        before = graph.predecessors(task)
        need = graph.num_required[task]
        ready, start, end = (getattr(records, name)[task] for name in ("ready_ps", "start_ps", "end_ps"))
        assert ready == (np.sort(records.end_ps[before])[need - 1] if need else 0)
        if graph.kind[task] == JOIN:
            assert ready == start == end
        elif graph.kind[task] == COMPUTE:
            assert ready <= start == end - graph.duration_ps[task]
        else:
            least = int(graph.route_latency_ps[graph.route[task]])
            if graph.size_bytes[task]:
                least += sum(service_ps(graph, task, link) for link in links_of(graph, task))
            assert ready <= start <= end - least
            if len(links_of(graph, task)) <= 1:
                assert end - start == least  # it has queued before it starts, and nowhere else


@given(seed=seeds)
@settings(max_examples=40, deadline=None)
def test_a_link_serves_one_message_at_a_time(seed):
    """On routes of one link service is [end - latency - service, end - latency]: these must not overlap, nor leave a
    gap while a message waits."""
    graph = random_graph(np.random.default_rng(seed), 100, 3)
    single = np.array([graph.kind[t] == TRANSFER and graph.size_bytes[t] > 0 for t in range(graph.num_tasks)])
    only = np.array([not single[t] or len(links_of(graph, t)) == 1 for t in range(graph.num_tasks)])
    graph = replace(graph, size_bytes=np.where(only, graph.size_bytes, 0))  # longer routes carry nothing
    records = run(graph, network="fifo")
    for link in range(len(graph.link_bytes_per_s)):
        tasks = [t for t in np.flatnonzero(single & only) if links_of(graph, t)[0] == link]
        tasks.sort(key=lambda t: records.start_ps[t])
        free_ps = 0
        for task in tasks:
            start = records.start_ps[task]
            assert start == max(free_ps, records.ready_ps[task])
            free_ps = start + service_ps(graph, task, link)
        arrivals = [(records.ready_ps[task], task) for task in tasks]
        assert arrivals == sorted(arrivals)


@given(graph=graphs(max_tasks=60))
@settings(max_examples=30, deadline=None)
def test_the_same_run_twice_is_the_same(graph):
    first, second = run(graph, network="fifo"), run(graph, network="fifo")
    np.testing.assert_array_equal(first.end_ps, second.end_ps)
    assert first.num_events == second.num_events


@given(graph=graphs(), extra=st.integers(0, 10**7))
@settings(max_examples=40, deadline=None)
def test_software_before_the_first_link_delays_as_the_engines_agree(graph, extra):
    later = replace(graph, route_latency_ps=graph.route_latency_ps + extra)
    fast, slow = run(later, network="fifo"), run(later, network="fifo", engine="reference")
    for field in ("ready_ps", "start_ps", "end_ps"):
        np.testing.assert_array_equal(getattr(fast, field), getattr(slow, field), err_msg=field)
    assert (fast.start_ps >= fast.ready_ps).all()
