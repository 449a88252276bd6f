"""Does Hop's task graph, with its choices, match workers with real queues and tokens to the picosecond?"""

import numpy as np
import pytest
from hop_cases import LiteralHop, random_case

from trine.decentralised import choices as hop_choices
from trine.decentralised.choices import run_hop
from trine.decentralised.tasks import build_hop
from trine.engine import run
from trine.errors import DeadlockError


@pytest.mark.parametrize("seed", range(120))
def test_task_graph_equals_queues_and_tokens(seed):
    graph, protocol, work, network = random_case(np.random.default_rng(seed))
    settled = run_hop(graph, protocol, work, network, lambda tasks: run(tasks, engine="reference"))
    literal = LiteralHop(graph, protocol, work, network).run()
    ends = settled.records.end_ps
    for worker, path in enumerate(settled.choices.paths):
        mine = [
            (v.iteration, v.trains, int(ends[t.finish]))
            for v, t in zip(path, settled.tasks.visits[worker], strict=True)
        ]
        assert mine == literal.workers[worker].finishes, (worker, protocol)
        entered = [
            (int(ends[t.enter]), v.iteration)
            for v, t in zip(path, settled.tasks.visits[worker], strict=True)
            if v.trains
        ]
        assert entered == literal.workers[worker].entries
        for other in graph.into[worker]:
            place = graph.out[other].index(worker)
            arrived = {
                (other, v.iteration): int(ends[t.sends[place]])
                for v, t in zip(settled.choices.paths[other], settled.tasks.visits[other], strict=True)
                if v.trains and (other, worker, v.iteration) not in settled.choices.dropped
            }
            assert arrived == {key: ps for key, ps in literal.workers[worker].queue.items() if key[0] == other}
    assert settled.choices.dropped == literal.dropped


def test_the_cases_skip_and_drop():
    """The test above would also pass on cases without skips and drops, so count them."""
    skipped = dropped = runs = 0
    for seed in range(120):
        graph, protocol, work, network = random_case(np.random.default_rng(seed))
        settled = run_hop(graph, protocol, work, network, lambda tasks: run(tasks, engine="reference"))
        skipped += sum(not v.trains for path in settled.choices.paths for v in path)
        dropped += len(settled.choices.dropped)
        runs = max(runs, settled.num_runs)
    assert skipped > 20
    assert dropped > 50
    assert runs > 3


@pytest.mark.parametrize("seed", range(0, 120, 4))
def test_guesses_that_deadlock_only_cost_time(seed, monkeypatch):
    """Every other guess deadlocks: the run then settles choices one instant at a time and reaches the same result."""
    case = random_case(np.random.default_rng(seed))
    fast = run_hop(*case, run)
    seen = {"guesses": 0, "choices": None, "safe": None}
    certain = hop_choices._Rule.certain

    def remember_certain(rule):
        seen["safe"] = certain(rule)
        return seen["safe"]

    def remember_choices(*arguments):
        seen["choices"] = arguments[-1]
        return build_hop(*arguments)

    def simulate(tasks):
        if seen["safe"] is not None and seen["choices"] != seen["safe"]:
            seen["guesses"] += 1
            if seen["guesses"] % 2:
                raise DeadlockError("a guess")
        return run(tasks)

    monkeypatch.setattr(hop_choices._Rule, "certain", remember_certain)
    monkeypatch.setattr(hop_choices, "build_hop", remember_choices)
    slow = run_hop(*case, simulate)
    assert slow.choices == fast.choices
    assert slow.records.end_ps.tolist() == fast.records.end_ps.tolist()
    assert slow.num_runs >= fast.num_runs
