"""Does Hop keep its promises on random graphs, links and protocols?"""

from dataclasses import replace

import numpy as np
import pytest
from hop_cases import random_case

from trine.decentralised.choices import run_hop
from trine.decentralised.study import HopNumbers
from trine.engine import run

SEEDS = range(200, 240)


def settle(graph, protocol, work, links, **options):
    settled = run_hop(graph, protocol, work, links, lambda tasks: run(tasks, **options))
    return HopNumbers(graph=graph, protocol=protocol, run=settled)


@pytest.mark.parametrize("seed", SEEDS)
def test_gaps_ages_and_times_add_up(seed):
    graph, protocol, work, network = random_case(np.random.default_rng(seed))
    numbers = settle(graph, protocol, work, network)
    ends = numbers.run.records.end_ps
    entries = [
        [(int(ends[t.enter]), v.iteration) for v, t in zip(path, tasks, strict=True) if v.trains]
        for path, tasks in zip(numbers.run.choices.paths, numbers.run.tasks.visits, strict=True)
    ]
    for worker, mine in enumerate(entries):
        for other in graph.out[worker] if protocol.max_gap is not None else ():
            for now_ps, iteration in mine:
                theirs = max((k for ps, k in entries[other] if ps <= now_ps), default=-1)
                assert iteration - max(theirs, 0) <= protocol.max_gap
        assert mine[-1][1] == protocol.iterations - 1
    assert all(0 <= age <= protocol.staleness for age in numbers.staleness)
    averages = sum(len(path) * len(graph.into[worker]) for worker, path in enumerate(numbers.run.choices.paths))
    assert sum(numbers.staleness.values()) + numbers.num_missed == averages
    if not protocol.backup and protocol.staleness == 0:
        assert numbers.num_missed == 0
    parts = numbers.computing_ps + numbers.waiting_updates_ps + numbers.waiting_tokens_ps
    assert parts.tolist() == numbers.end_ps.tolist()


@pytest.mark.parametrize("seed", SEEDS[:12])
@pytest.mark.parametrize("name", ["fair", "equal", "fifo"])
def test_both_engines_settle_on_the_same(seed, name):
    case = random_case(np.random.default_rng(seed))
    fast, slow = settle(*case, network=name), settle(*case, network=name, engine="reference")
    assert fast.run.choices == slow.run.choices
    assert fast.run.records.end_ps.tolist() == slow.run.records.end_ps.tolist()


@pytest.mark.parametrize("seed", SEEDS[:20])
def test_waiting_for_fewer_is_never_slower_on_links_of_ones_own(seed):
    """On shared links it may be: who is early takes bandwidth from who is late."""
    rng = np.random.default_rng(seed)
    graph, protocol, work, network = random_case(rng)
    count = len(graph.edges)
    number = {edge: i for i, edge in enumerate(graph.edges)}
    own = replace(
        network,
        route=lambda a, b: (number[a, b],),
        link_bytes_per_s=[int(r) for r in rng.choice([10**9, 10**8], count)],
        link_latency_ps=[10] * count,
        link_names=[str(i) for i in range(count)],
    )
    standard = replace(protocol, backup=0, staleness=0, max_gap=None, max_skip=0, skip_behind=2, drop_late=False)
    stale = replace(standard, staleness=2)
    assert (settle(graph, stale, work, own).end_ps <= settle(graph, standard, work, own).end_ps).all()
    if min(map(len, graph.into)) > 1:
        backup = replace(standard, backup=1, max_gap=protocol.iterations)
        assert (settle(graph, backup, work, own).end_ps <= settle(graph, standard, work, own).end_ps).all()
