"""Do results that show some ranks of many say the same of the whole run as those that simulate all of them?"""

from __future__ import annotations

from synthetic import MS, Chain

import trine
from trine.parallel.plan import Plan

WORKLOAD = Chain([2 * MS] * 4, [4 * MS] * 4, [2**22] * 4, optimizer_ps=MS).workload()


def simulate(fold: str):
    cluster = trine.build_topology("switch", "5 GB/s", "2 us", 72)
    plan = Plan(dp=72, steps=3, bucket_bytes=2**23, first_bucket_bytes=2**22)
    return trine.simulate(WORKLOAD, plan, cluster=cluster, fold=fold, collective_costs="links")


def test_times_of_several_steps_of_72_ranks_are_those_of_the_unfolded_run():
    folded, whole = simulate("on"), simulate("off")
    assert folded.simulator.ranks_simulated < 72 == whole.simulator.ranks_simulated
    assert folded.step_ends_ps.tolist() == whole.step_ends_ps.tolist()
    assert folded.step_time_ps == whole.step_time_ps
    assert len(folded.step_ends_ps) == 3
    assert folded.end_time_ps == whole.end_time_ps
    for rank in (0, 4, 5, 6, 71):
        one, other = folded.rank(rank), whole.rank(rank)
        assert one.compute_s == other.compute_s
        assert one.communication_s == other.communication_s
        assert one.idle_s == other.idle_s
