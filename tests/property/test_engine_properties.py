"""Is every run causal, byte-conserving, max-min fair, and independent of how tasks and links are numbered?"""

from fractions import Fraction

import numpy as np
import pytest
from engine_cases import capped_graphs, graphs, random_graph, renumbered
from hypothesis import given, settings
from hypothesis import strategies as st
from uncontended import uncontended

from trine.collectives.run import link_bytes
from trine.engine.models import EqualSplit, FairSharing
from trine.engine.run import run
from trine.graph.taskgraph import COMPUTE, JOIN, TRANSFER

NETWORKS = ("fair", "equal")
seeds = st.integers(0, 2**32)


@pytest.mark.parametrize("network", NETWORKS)
@given(graph=st.one_of(graphs(), capped_graphs()), seed=seeds)
@settings(max_examples=90, deadline=None)
def test_numbers_of_tasks_links_and_routes_do_not_matter(graph, seed, network):
    other, new = renumbered(graph, np.random.default_rng(seed))
    here, there = run(graph, network=network), run(other, network=network)
    for field in ("ready_ps", "start_ps", "end_ps"):
        np.testing.assert_array_equal(getattr(here, field), getattr(there, field)[new], err_msg=field)


@given(graph=graphs(max_tasks=80))
@settings(max_examples=30, deadline=None)
def test_the_same_run_twice_is_the_same(graph):
    first, second = run(graph), run(graph)
    np.testing.assert_array_equal(first.end_ps, second.end_ps)
    assert first.num_events == second.num_events


@pytest.mark.parametrize("network", NETWORKS)
@given(graph=graphs(max_tasks=80))
@settings(max_examples=60, deadline=None)
def test_causality(graph, network):
    records = run(graph, network=network)
    alone = uncontended(graph)
    last_of_stream = {}
    for task in range(graph.num_tasks):
        before = graph.predecessors(task)
        need = graph.num_required[task]
        ready = np.sort(records.end_ps[before])[need - 1] if need else 0
        assert records.ready_ps[task] == ready
        start, end = records.start_ps[task], records.end_ps[task]
        if graph.kind[task] == COMPUTE:
            stream = graph.stream[task]
            assert start == max(ready, last_of_stream.get(stream, 0))
            assert end == start + graph.duration_ps[task]
            last_of_stream[stream] = end
        elif graph.kind[task] == JOIN:
            assert ready == start == end
        else:
            assert ready == start
            assert end >= start + graph.route_latency_ps[graph.route[task]]
        # A quotient that float64 cannot hold may lose its last 2**-50; contention never speeds a task up otherwise.
        assert end >= alone[task] * (1 - 1e-12) - 1


class Recorder:
    """Network model that records its inputs and outputs."""

    def __init__(self, model):
        self.model, self.name, self.calls = model, model.name, []

    def rates(self, routes, capacity):
        rates = self.model.rates(routes, capacity)
        self.calls.append((list(routes), rates))
        return rates


@pytest.mark.parametrize("model", [FairSharing, EqualSplit])
@given(seed=seeds)
@settings(max_examples=30, deadline=None)
def test_no_link_carries_more_than_it_can(model, seed):
    graph = random_graph(np.random.default_rng(seed), 60, 5)
    recorder = Recorder(model())
    run(graph, network=recorder, engine="reference")
    for routes, rates in recorder.calls:
        load = np.zeros(len(graph.link_bytes_per_s))
        for route, rate in zip(routes, rates, strict=True):
            np.add.at(load, list(route), rate)
        assert (load <= graph.link_bytes_per_s * (1 + 1e-12)).all()
        assert min(rates, default=1) > 0


@pytest.mark.parametrize("network", NETWORKS)
@given(seed=seeds)
@settings(max_examples=30, deadline=None)
def test_each_link_is_busy_long_enough_for_its_bytes(network, seed):
    """Bytes are conserved: a link needs at least the time its bytes take at full bandwidth."""
    graph = random_graph(np.random.default_rng(seed), 120, 4)
    records = run(graph, network=network)
    total = link_bytes(graph)
    for link in range(len(total)):
        crosses = [
            t
            for t in np.flatnonzero((graph.kind == TRANSFER) & (graph.size_bytes > 0))
            if link in graph.route_links[graph.route_ptr[graph.route[t]] : graph.route_ptr[graph.route[t] + 1]]
        ]
        busy, until = 0, 0
        entered = {t: records.start_ps[t] + graph.route_latency_ps[graph.route[t]] for t in crosses}
        for t in sorted(crosses, key=entered.__getitem__):
            busy += max(0, records.end_ps[t] - max(until, entered[t]))
            until = max(until, records.end_ps[t])
        assert busy >= Fraction(int(total[link]) * 10**12, int(graph.link_bytes_per_s[link])) * (
            1 - Fraction(1, 10**12)
        )


def textbook_max_min(routes, capacity):
    """Return max-min rates by progressive filling in exact fractions: raise all rates, freeze flows on full links."""
    rates = [Fraction(0)] * len(routes)
    growing = set(range(len(routes)))
    while growing:
        steps = {}
        for link, bytes_per_s in enumerate(capacity):
            count = sum(routes[f].count(link) for f in growing)
            if count:
                load = sum(rates[f] * routes[f].count(link) for f in range(len(routes)))
                steps[link] = (bytes_per_s - load) / count
        step = min(steps.values())
        for f in growing:
            rates[f] += step
        full = {link for link in steps if steps[link] == step}
        growing -= {f for f in growing if full & set(routes[f])}
    return rates


@given(seed=seeds, num_links=st.integers(1, 8), num_flows=st.integers(1, 20))
@settings(max_examples=150, deadline=None)
def test_fair_rates_are_those_of_the_textbook(seed, num_links, num_flows):
    rng = np.random.default_rng(seed)
    capacity = [int(c) for c in rng.choice([10**9, 10**9 + 7, 4 * 10**10, 65 * 10**9], num_links)]
    routes = [
        [int(link) for link in rng.choice(num_links, size=rng.integers(1, num_links + 1), replace=False)]
        for _ in range(num_flows)
    ]
    expected = [float(rate) for rate in textbook_max_min(routes, capacity)]
    np.testing.assert_allclose(FairSharing().rates(routes, capacity), expected, rtol=1e-12)


@given(graph=graphs(max_tasks=60), factor=st.integers(2, 5))
@settings(max_examples=30, deadline=None)
def test_uncontended_ends_never_grow_with_bandwidth(graph, factor):
    from dataclasses import replace

    faster = replace(graph, link_bytes_per_s=graph.link_bytes_per_s * factor)
    assert (uncontended(faster) <= uncontended(graph)).all()
