"""Does a schedule with the library's costs match the library's time if it has the links to itself?"""

import pytest

from trine.cluster import load_cluster
from trine.collectives import make_schedule
from trine.collectives.nccl import Collectives
from trine.collectives.nccl.steps import StepCosts
from trine.collectives.run import run_schedule
from trine.collectives.schedule import ROOTED

MACHINES = [
    ("dgx-h100", {}),
    ("dgx-a100", {"nodes": 2}),
    ("mi300x-node", {}),
    ("l40s-pcie", {}),
    ("dgx-h100", {"nodes": 4}),
]
KINDS = ("all_reduce", "reduce_scatter", "all_gather", "broadcast", "all_to_all", "send_recv")


@pytest.mark.parametrize(("name", "machine"), MACHINES, ids=str)
@pytest.mark.parametrize("size", [64 << 10, 16 << 20])
def test_alone_it_takes_what_the_library_takes(name: str, machine: dict[str, int], size: int) -> None:
    cluster = load_cluster(name, **machine)
    costs = StepCosts(cluster)
    for kind in KINDS:
        group = (0, 1) if kind == "send_recv" else tuple(range(len(cluster.gpus)))
        before = costs.slowest_ratio
        costs.slowest_ratio = 0.0
        algorithm, step_ps = costs(kind, size, group, None)
        slower, costs.slowest_ratio = costs.slowest_ratio, max(before, costs.slowest_ratio)
        schedule = make_schedule(kind, len(group), size, algorithm, 0 if kind in ROOTED else -1)
        gpus = [cluster.gpus[rank] for rank in group]
        alone_ps = run_schedule(schedule, cluster, gpus, step_ps=step_ps).end_ps
        wanted_ps = Collectives(cluster, group).predict(kind, size).time_ps
        print(f"{name} {machine} {kind} {size}: {alone_ps / wanted_ps:.3f}, bare links {slower:.2f}")
        if slower <= 1.0:
            assert abs(alone_ps / wanted_ps - 1) <= 0.1
        else:  # slower than the library even on bare links: no time is added, and the result reports the ratio
            assert step_ps == 0
            assert alone_ps / wanted_ps == pytest.approx(slower)


def test_what_has_no_library_costs_is_left_alone() -> None:
    costs = StepCosts(load_cluster("dgx-h100"))
    assert costs("all_reduce", 1 << 20, (3,), None) == (None, 0)
    assert costs("all_to_all_v", 1 << 20, (0, 1), None) == (None, 0)
