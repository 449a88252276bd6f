"""Do Hop's times match the formulas to the picosecond, in cases that can be worked out by hand?"""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from trine.decentralised.choices import run_hop
from trine.decentralised.protocol import GRAPHS, HopProtocol, worker_graph
from trine.decentralised.study import HopNumbers
from trine.decentralised.tasks import HopNetwork, HopWork
from trine.engine import run

GRADIENT, APPLY, BYTES, RATE, LATENCY = 10**9, 10**8, 10**6, 10**9, 10**6
MESSAGE = BYTES * 10**12 // RATE + LATENCY
K = 20


def network_of(graph, slow=()):
    """Return a network with one link per edge; ``slow`` edges have a tenth of the bandwidth."""
    number = {edge: i for i, edge in enumerate(graph.edges)}
    return HopNetwork(
        route=lambda a, b: (number[a, b],),
        link_bytes_per_s=[RATE // 10 if edge in slow else RATE for edge in graph.edges],
        link_latency_ps=[LATENCY] * len(number),
        link_names=[f"{a}->{b}" for a, b in graph.edges],
        rank_names=[str(i) for i in range(graph.num_workers)],
    )


def work_of(graph, gradient=GRADIENT, slow=(), factor=1, size=BYTES):
    own = np.full((graph.num_workers, K), gradient, np.int64)
    for worker in slow:
        own[worker] *= factor
    return HopWork(gradient_ps=own, apply_ps=np.full_like(own, APPLY), update_bytes=size)


def numbers_of(graph, protocol, work, network):
    settled = run_hop(graph, replace(protocol, iterations=K), work, network, run)
    return HopNumbers(graph=graph, protocol=replace(protocol, iterations=K), run=settled)


@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize("gradient", [MESSAGE // 3, 3 * MESSAGE])
def test_equal_workers(name, gradient):
    """An iteration takes the longer of gradient and message, plus the optimizer; in serial order, their sum."""
    graph = worker_graph(name, 8)
    work = work_of(graph, gradient)
    parallel = numbers_of(graph, HopProtocol(), work, network_of(graph))
    assert set(parallel.end_ps.tolist()) == {K * (max(gradient, MESSAGE) + APPLY)}
    serial = numbers_of(graph, HopProtocol(order="serial"), work, network_of(graph))
    assert set(serial.end_ps.tolist()) == {K * (gradient + APPLY + MESSAGE)}
    assert parallel.num_sent == serial.num_sent == K * len(graph.edges)
    assert parallel.sent_bytes == K * len(graph.edges) * BYTES
    assert parallel.staleness == serial.staleness == {0: K * len(graph.edges)}
    assert parallel.num_missed == parallel.num_unused == 0
    assert set(parallel.waiting_updates_ps.tolist()) == {K * max(0, MESSAGE - gradient)}
    assert set(serial.waiting_updates_ps.tolist()) == {K * MESSAGE}


def test_one_slow_link_stops_everybody_and_a_backup_worker_nobody():
    graph = worker_graph("ring-based", 8)
    network, work = network_of(graph, slow={(0, 1)}), work_of(graph)
    slow_message = BYTES * 10 * 10**12 // RATE + LATENCY
    standard = numbers_of(graph, HopProtocol(), work, network)
    # Worker 0 may be one iteration ahead, so the slow link is never idle; the ring ties the others to worker 1.
    assert standard.end_ps[1] == K * slow_message + APPLY
    assert standard.end_ps.min() > (K - 5) * slow_message
    backup = numbers_of(graph, HopProtocol(backup=1, max_gap=4), work, network)
    assert set(backup.end_ps.tolist()) == {K * (max(GRADIENT, MESSAGE) + APPLY)}
    assert backup.num_missed + sum(backup.staleness.values()) == K * len(graph.edges)
    assert backup.num_missed == K  # every update on the slow link misses its iteration
    assert backup.num_unused == K


def test_staleness_lets_a_slow_link_lag():
    """A link carries one update in the time of ten iterations, and updates may be 3 iterations old."""
    graph = worker_graph("ring-based", 8)
    work, network = work_of(graph, 2 * MESSAGE), network_of(graph, slow={(0, 1)})
    stale = numbers_of(graph, HopProtocol(staleness=3), work, network)
    slow_message = BYTES * 10 * 10**12 // RATE + LATENCY
    # Iteration k of worker 1 waits for update k - 3 of worker 0: the last one it waits for is K - 4, sent back to back.
    assert stale.end_ps[1] == (K - 3) * slow_message + APPLY
    assert max(stale.staleness) == 3
    # The initial parameters serve iterations 0 to 2.
    assert stale.num_missed == 3


@pytest.mark.parametrize("max_gap", [1, 2, 5])
def test_tokens_bound_the_lead_over_a_slow_worker(max_gap):
    graph = worker_graph("full", 4)
    protocol = HopProtocol(backup=1, max_gap=max_gap)
    numbers = numbers_of(graph, protocol, work_of(graph, slow=[2], factor=5, size=0), network_of(graph))
    ends = numbers.run.records.end_ps
    entries = [[int(ends[v.enter]) for v in visits] for visits in numbers.run.tasks.visits]
    lead = max(k - (np.searchsorted(entries[2], entries[0][k], "right") - 1) for k in range(K))
    assert lead == max_gap
    assert numbers.end_ps[2] == K * (5 * GRADIENT + APPLY)
    # Iteration k of the others begins when the slow worker enters k - max_gap; zero bytes still take their latency.
    assert numbers.end_ps[0] == (K - 1 - max_gap) * (5 * GRADIENT + APPLY) + GRADIENT + APPLY
    assert numbers.waiting_tokens_ps[0] > 0
    assert numbers.waiting_tokens_ps[2] == 0


def test_skipping_lets_a_slow_worker_keep_up():
    """A 5x slower worker needs K slow iterations without skipping; with skipping it hardly delays the others."""
    graph = worker_graph("ring-based", 8)
    work, network = work_of(graph, slow=[2], factor=5), network_of(graph)
    protocol = HopProtocol(backup=1, max_gap=6)
    patient = numbers_of(graph, protocol, work, network)
    hasty = numbers_of(graph, replace(protocol, max_skip=5), work, network)
    assert patient.end_ps.max() == K * (5 * GRADIENT + APPLY)
    assert hasty.end_ps.max() < 0.35 * patient.end_ps.max()
    assert hasty.skipped[2] > K // 2
    assert hasty.skipped.sum() == hasty.skipped[2]
    assert hasty.waiting_tokens_ps.sum() == 0
    path = hasty.run.choices.paths[2]
    assert all(b.iteration - a.iteration <= 6 for a, b in pairwise(path))


def test_updates_that_nobody_can_use_are_not_sent():
    graph = worker_graph("ring-based", 8)
    network, work = network_of(graph, slow={(0, 1)}), work_of(graph)
    protocol = HopProtocol(backup=1, max_gap=4)
    sends = numbers_of(graph, protocol, work, network)
    drops = numbers_of(graph, replace(protocol, drop_late=True), work, network)
    assert drops.end_ps.tolist() == sends.end_ps.tolist()
    assert len(drops.run.choices.dropped) > K // 2
    assert {(a, b) for a, b, _ in drops.run.choices.dropped} == {(0, 1)}
    assert drops.num_sent == sends.num_sent - len(drops.run.choices.dropped)
