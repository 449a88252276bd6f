"""How long is the launching thread busy?"""

from __future__ import annotations

from dataclasses import replace

from compute_cases import US, Made, relus

from trine.compute import launch_costs
from trine.graph.workload import Workload


def with_launches(made: Made, launches: list[tuple[int, int] | None]) -> Workload:
    """(start, duration) in microseconds for each operator."""
    operators = [
        op if at is None else replace(op, launch_start_ps=at[0] * US, launch_duration_ps=at[1] * US)
        for op, at in zip(made.operators, launches, strict=True)
    ]
    return replace(made.workload(), operators=tuple(operators))


def test_without_a_cpu_side_a_default_is_assumed() -> None:
    costs = launch_costs(relus([(10, 5)] * 3).workload(), default_ps=7)
    assert (costs.cost_ps, costs.evidence) == ((7, 7, 7), "assumed")
    assert "no CPU side" in costs.notes[0]


def test_from_start_to_start() -> None:
    costs = launch_costs(with_launches(relus([(10, 5)] * 4), [(0, 5), (8, 6), (18, 4), (25, 9)]))
    assert [c // US for c in costs.cost_ps] == [8, 10, 7, 9]
    assert costs.evidence == "measured"


def test_a_wait_is_no_cost() -> None:
    blocked = with_launches(relus([(10, 5)] * 5), [(0, 8), (10, 8), (20, 300), (330, 8), (340, 10)])
    costs = launch_costs(blocked)
    assert [c // US for c in costs.cost_ps] == [10, 10, 10, 10, 10]
    assert any("1 launches" in note for note in costs.notes)


def test_of_rare_kinds_only_a_usual_gap_counts() -> None:
    made = relus([(10, 5)] * 4)
    made.run("aten::softmax", ["x0"], ["y0"])
    made.run("aten::relu", ["x0"], ["y0"])
    workload = with_launches(made, [(0, 8), (10, 8), (20, 8), (30, 8), (40, 20), (500, 10)])
    assert [c // US for c in launch_costs(workload).cost_ps] == [10, 10, 10, 10, 22, 10]


def test_operators_without_launch_get_the_default() -> None:
    costs = launch_costs(with_launches(relus([(10, 5)] * 3), [(0, 10), None, (10, 10)]), default_ps=3 * US)
    assert [c // US for c in costs.cost_ps] == [10, 3, 10]
    assert costs.evidence == "assumed"


def test_launch_order_is_that_of_the_cpu() -> None:
    costs = launch_costs(with_launches(relus([(10, 5)] * 3), [(20, 5), (0, 10), (10, 10)]))
    assert [c // US for c in costs.cost_ps] == [5, 10, 10]


def test_overlapping_threads_are_never_negative() -> None:
    costs = launch_costs(with_launches(relus([(10, 5)] * 3), [(0, 50), (10, 50), (20, 30)]))
    assert [c // US for c in costs.cost_ps] == [10, 10, 30]
