"""Does a fit return the law that made the times, and is it the least squares solution?"""

from __future__ import annotations

import random

import numpy as np
import pytest

from trine.compute.cost import Work
from trine.compute.fit import OWN, POOLED, fit_laws
from trine.compute.law import FIXED_SPREAD_PS, RELATIVE_ERROR, Law, Sample, fit_law
from trine.compute.linear import anchored

GIGA = 10**9
MEMORY = Law(0.0, 0.5, 0.0)


def made(law: Law, works: list[Work]) -> list[Sample]:
    return [Sample(work, round(law.time_ps(work))) for work in works]


def test_exact_times_without_fixed_part_give_none() -> None:
    works = [Work(0, n * GIGA) for n in (1, 2, 5, 9)]
    assert fit_law(made(Law(0.0, 0.5, 0.0), works)) == Law(0.0, 0.5, 0.0)


def test_three_coefficients_are_found_again() -> None:
    true = Law(0.002, 0.6, 4e6)
    works = [Work(f * GIGA, b * 10**6) for f, b in ((1, 9), (3, 1), (10, 40), (4, 80), (50, 10))]
    law = fit_law(made(true, works), MEMORY)
    assert law.ps_per_flop == pytest.approx(true.ps_per_flop, rel=0.02)
    assert law.ps_per_byte == pytest.approx(true.ps_per_byte, rel=0.02)
    assert law.fixed_ps == pytest.approx(true.fixed_ps, rel=0.05)


def test_an_outlier_hardly_moves_the_law() -> None:
    samples = made(Law(0.0, 0.5, 0.0), [Work(0, n * GIGA) for n in range(1, 12)])
    samples[4] = Sample(samples[4].work, samples[4].time_ps * 5)
    assert fit_law(samples).ps_per_byte == pytest.approx(0.5, rel=0.01)


def test_what_the_data_cannot_tell_comes_from_memory() -> None:
    """FLOPs and bytes proportional, as of linear layers at one batch size: the bytes' cost is that of memory."""
    samples = made(Law(0.02, 0.5, 0.0), [Work(64 * n * 10**7, 4 * n * 10**7) for n in (1, 2, 4, 7)])
    law = fit_law(samples, MEMORY)
    assert law.ps_per_byte == pytest.approx(0.5, rel=0.01)
    assert law.ps_per_flop == pytest.approx(0.02, rel=0.01)


def test_solution_is_that_of_numpy_where_no_coefficient_is_negative() -> None:
    random.seed(5)
    samples = [
        Sample(Work(f, b), round((0.003 * f + 0.4 * b + 2e7) * random.uniform(0.995, 1.005)))
        for f, b in ((random.randrange(10**9, 10**11), random.randrange(10**6, 10**9)) for _ in range(30))
    ]
    law = fit_law(samples, MEMORY)
    typical = max(s.work.bytes for s in samples)
    rows = [(s.work.flops, s.work.bytes, 1.0, s.time_ps, s.time_ps) for s in samples]
    rows += [(0.0, 0.0, 1.0, 0.0, FIXED_SPREAD_PS / RELATIVE_ERROR)]
    rows += [(0.0, typical, 0.0, 0.5 * typical, 0.5 * typical / RELATIVE_ERROR)]
    table = np.array(rows)
    plain = np.linalg.lstsq(table[:, :3] / table[:, 4:], table[:, 3] / table[:, 4], rcond=None)[0]
    assert [law.ps_per_flop, law.ps_per_byte, law.fixed_ps] == pytest.approx(list(plain), rel=0.05)


def test_no_coefficient_is_negative() -> None:
    falling = [Sample(Work(0, n * GIGA), (20 - n) * GIGA) for n in (1, 5, 10, 15)]
    law = fit_law(falling)
    assert min(law.ps_per_flop, law.ps_per_byte, law.fixed_ps) >= 0.0


def test_few_operators_borrow_bandwidth_and_take_the_best_rate() -> None:
    relus = [("elementwise", s) for s in made(Law(0.0, 0.5, 0.0), [Work(0, n * GIGA) for n in (1, 2, 3)])]
    slow, fast = Sample(Work(10 * GIGA, GIGA), 2 * GIGA), Sample(Work(20 * GIGA, GIGA), 2 * GIGA)
    laws = fit_laws([*relus, ("linear", slow), ("linear", fast)], 1)
    law, origin = laws.by_kind["linear"]
    assert (origin, laws.by_kind["elementwise"][1]) == (POOLED, OWN)
    assert law.ps_per_byte == pytest.approx(0.5, rel=1e-9)
    assert law.ps_per_flop == pytest.approx(1.5 / 20, rel=1e-9)


def test_coarse_clocks_weigh_less() -> None:
    """Times of a few steps of the clock carry its rounding: they must not bend the law of long operators."""
    samples = made(Law(0.0, 0.5, 0.0), [Work(0, n * GIGA) for n in (4, 6, 9)]) + [Sample(Work(0, 10**6), 10**6)] * 3
    assert fit_law(samples, resolution_ps=10**6).ps_per_byte == pytest.approx(0.5, rel=2e-3)


def test_what_is_far_above_its_law_scales() -> None:
    """Of 9 ms above a law of 1 ms, a quarter of a millisecond may be the algorithm's, the rest is the operator's."""
    before, after = Work(0, 10**9), Work(0, 4 * 10**9)
    expected = 4 * (10 * 10**9 - 25 * 10**7) + 2 * 25 * 10**7
    assert anchored(Law(0.0, 1.0, 0.0), before, 10 * 10**9, after) == expected


@pytest.mark.parametrize(
    ("law", "recorded", "expected"),
    [
        (Law(0.0, 1.0, 0.0), 1000, 4000),  # on its law: proportional
        (Law(0.0, 1.0, 0.0), 500, 2000),  # faster than its law: stays as efficient
        (Law(0.0, 1.0, 0.0), 1400, 4000 + 400 * 2),  # slower by less than 30 us: that grows with the root
        (Law(0.0, 0.5, 500.0), 1000, 2500),  # the fixed part stays
        (Law(0.0, 0.0, 0.0), 1000, 1000),  # no law: as recorded
    ],
)
def test_anchor_at_four_times_the_work(law: Law, recorded: int, expected: int) -> None:
    assert anchored(law, Work(0, 1000), recorded, Work(0, 4000)) == expected
    assert anchored(law, Work(0, 1000), recorded, Work(0, 1000)) == recorded


def test_operators_that_do_nothing_with_large_tensors_do_not_hide_the_law() -> None:
    """A dropout at inference passes on gigabytes in microseconds; many small operators are all fixed time."""
    samples = made(Law(0.0, 0.8, 6e6), [Work(0, n * 10**8) for n in (3, 4, 10, 80)])
    samples += [Sample(Work(0, 8 * GIGA), 8 * 10**6)] * 3 + [Sample(Work(0, 100), 6 * 10**6)] * 16
    law = fit_law(samples)
    assert law.ps_per_byte == pytest.approx(0.8, rel=0.02)
    assert law.fixed_ps == pytest.approx(6e6, rel=0.1)


def test_fixed_part_is_at_most_the_shortest_time() -> None:
    samples = [Sample(Work(0, n * 10**6), t * 10**6) for n, t in ((1, 50), (2, 400), (3, 300), (4, 350), (5, 310))]
    assert fit_law(samples).fixed_ps <= 50 * 10**6 + 1
