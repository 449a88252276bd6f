"""How often do wavefronts of one compute unit read their flags, when the loop around a read takes the unit's turn?"""

import numpy as np
import pytest
from gpu_cases import NS, Programmer, case, read, small_model

from trine.gpu.draws import MODULUS, MULTIPLIER, first_draw
from trine.gpu.layout import CHANNEL, CU, layout_of

ENGINES = ("reference", "compiled")
#: Cycles of 500 ps after which flags are written.
SOON, LATE = 20_000, 60_000
BETWEEN_PS = (LATE - SOON) * 500


def one_unit(turn_ps):
    return small_model(
        num_cus=1, poll_ps=3 * NS, poll_turn_ps=turn_ps, workgroups_per_cu=64, wavefronts_per_cu=64, dispatch_ps=0
    )


def more_polls(groups, turn_ps, engine):
    """How many more polls ``groups`` workgroups make on one compute unit when what ends their wait comes later."""
    polls = []
    for cycles in (SOON, LATE):
        programmer = Programmer(1, groups)
        programmer.kernel(0, 1, groups + 1)
        for group in range(groups):
            programmer.acquire(0, group, address=0, group=group)
        programmer.compute(cycles, group=groups)
        for group in range(groups):
            programmer.release(0, group, group=groups)
        polls.append(int(case(programmer.build(), one_unit(turn_ps)).simulate(engine).gpu.polls[0]))
    return polls[1] - polls[0]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("turn_ns", [0, 16, 40])
def test_one_wavefront_has_the_turn_for_itself(engine, turn_ns):
    model = one_unit(turn_ns * NS)
    layout = layout_of(model)
    there = layout.path(CU, 0, CHANNEL, 0), layout.path(CHANNEL, 0, CU, 0)
    way_ps = sum(250 + hop.after_ps for path in there for hop in path)  # 16 B at 64 GB/s
    interval_ps = way_ps + 400 + model.memory.latency_ps + (3 + turn_ns) * NS
    assert more_polls(1, turn_ns * NS, engine) == pytest.approx(BETWEEN_PS / interval_ps, abs=1)


@pytest.mark.parametrize("engine", ENGINES)
def test_many_wavefronts_read_one_turn_after_the_other(engine):
    """Sixteen turns of 100 ns are more than a read takes: a read each 100 ns, however many wait."""
    assert more_polls(16, 100 * NS, engine) == pytest.approx(BETWEEN_PS / (100 * NS), abs=16)
    assert more_polls(16, 0, engine) > 2 * BETWEEN_PS / (100 * NS)


def test_the_numbers_that_are_drawn_are_those_of_the_minimal_standard_generator():
    """Park and Miller, CACM 31 (1988), with the multiplier of their reply of 1993: 399 268 537 after 10 000 from 1."""
    number = 1
    for _ in range(10_000):
        number = number * MULTIPLIER % MODULUS
    assert number == 399_268_537
    firsts = [first_draw(seed, cu) for seed in range(20) for cu in range(20)]
    assert len(set(firsts)) == 400
    assert 0 < min(firsts) <= max(firsts) < MODULUS
    assert first_draw(None, 3) == 0


@pytest.mark.parametrize("engine", ENGINES)
def test_a_drawn_order_changes_no_request(engine):
    """And with one wavefront a compute unit nothing at all."""

    def run(wavefronts, seed):
        programmer = Programmer(1, 0)
        programmer.kernel(0, wavefronts, 4)
        for group in range(4):
            programmer.load(24, read(0, address=4096 * group), group=group).barrier(group=group)
        return case(programmer.build(), small_model(issue_seed=seed, workgroups_per_cu=1)).simulate(engine).gpu

    for wavefronts, same in ((1, True), (4, False)):
        turns, drawn = run(wavefronts, None), [run(wavefronts, seed) for seed in range(4)]
        for each in drawn:
            assert np.array_equal(each.resource_data, turns.resource_data)
            assert np.array_equal(each.loads, turns.loads)
        assert all(np.array_equal(each.op_end_ps, turns.op_end_ps) for each in drawn) == same
