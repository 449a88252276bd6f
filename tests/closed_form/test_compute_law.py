"""Does a fit recover the law that generated the times, and is it the least-squares solution?"""

from __future__ import annotations

import random

import numpy as np
import pytest

from trine.common.median import median
from trine.compute.cost import Work
from trine.compute.law import FIXED_SPREAD_PS, OWN, POOLED, RELATIVE_ERROR, Law, Sample, fit_law, fit_laws
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
    """If FLOPs and bytes are proportional (linear layers at one batch size), the memory law sets the cost per byte."""
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
    """Times of a few clock ticks carry rounding error, which must not bend the law of long operators."""
    samples = made(Law(0.0, 0.5, 0.0), [Work(0, n * GIGA) for n in (4, 6, 9)]) + [Sample(Work(0, 10**6), 10**6)] * 3
    assert fit_law(samples, resolution_ps=10**6).ps_per_byte == pytest.approx(0.5, rel=2e-3)


def test_what_is_far_above_its_law_scales() -> None:
    """9 ms lie above a law of 1 ms: 0.25 ms may come from the algorithm, the rest scales with the operator."""
    before, after = Work(0, 10**9), Work(0, 4 * 10**9)
    expected = 4 * (10 * 10**9 - 25 * 10**7) + 2 * 25 * 10**7
    assert anchored(Law(0.0, 1.0, 0.0), before, 10 * 10**9, after) == expected


@pytest.mark.parametrize(
    ("law", "recorded", "expected"),
    [
        (Law(0.0, 1.0, 0.0), 1000, 4000),  # on its law: proportional
        (Law(0.0, 1.0, 0.0), 500, 2000),  # faster than its law: keeps its efficiency
        (Law(0.0, 1.0, 0.0), 1400, 4000 + 400 * 2),  # slower by less than 30 us: the excess grows with the square root
        (Law(0.0, 0.5, 500.0), 1000, 2500),  # the fixed part stays
        (Law(0.0, 0.0, 0.0), 1000, 1000),  # no law: the recorded time
    ],
)
def test_anchor_at_four_times_the_work(law: Law, recorded: int, expected: int) -> None:
    assert anchored(law, Work(0, 1000), recorded, Work(0, 4000)) == expected
    assert anchored(law, Work(0, 1000), recorded, Work(0, 1000)) == recorded


def test_operators_that_do_nothing_with_large_tensors_do_not_hide_the_law() -> None:
    """Dropout at inference passes gigabytes through in microseconds; many small operators are only fixed time."""
    samples = made(Law(0.0, 0.8, 6e6), [Work(0, n * 10**8) for n in (3, 4, 10, 80)])
    samples += [Sample(Work(0, 8 * GIGA), 8 * 10**6)] * 3 + [Sample(Work(0, 100), 6 * 10**6)] * 16
    law = fit_law(samples)
    assert law.ps_per_byte == pytest.approx(0.8, rel=0.02)
    assert law.fixed_ps == pytest.approx(6e6, rel=0.1)


def test_fixed_part_is_at_most_the_shortest_time() -> None:
    samples = [Sample(Work(0, n * 10**6), t * 10**6) for n, t in ((1, 50), (2, 400), (3, 300), (4, 350), (5, 310))]
    assert fit_law(samples).fixed_ps <= 50 * 10**6 + 1


def settled(law: Law, samples: list[Sample], memory: Law | None, resolution_ps: int) -> list[float]:
    """Return ``law`` after one more least-squares round with its Cauchy weights; a converged fit does not change."""
    rows = [
        (s.work.flops, s.work.bytes, 1.0, s.time_ps, max(s.time_ps, resolution_ps / RELATIVE_ERROR)) for s in samples
    ]
    rows += [(0.0, 0.0, 1.0, 0.0, FIXED_SPREAD_PS / RELATIVE_ERROR)]
    if memory is not None:
        byte_ps = memory.ps_per_byte * max(s.work.bytes for s in samples)
        rows += [(0.0, max(s.work.bytes for s in samples), 0.0, byte_ps, byte_ps / RELATIVE_ERROR)]
    table, n = np.array(rows), len(samples)
    predicted = table[:, :3] @ [law.ps_per_flop, law.ps_per_byte, law.fixed_ps]
    spread = np.concatenate([np.maximum(table[:n, 4], predicted[:n]), table[n:, 4]])
    off = np.abs(table[:, 3] - predicted) / spread
    by_size = np.argsort(off[:n], kind="stable")
    held = np.cumsum(table[by_size, 3])
    typical = off[by_size[np.searchsorted(held, held[-1] / 2)]]
    weight = 1 / (1 + (off / (2.385 * max(1.4826 * typical, 1e-3))) ** 2)
    weight[n:] = 1.0
    scale = (np.sqrt(weight) / spread)[:, None]
    used = slice(0 if memory is not None else 1, 3)
    found = np.linalg.lstsq(table[:, used] * scale, table[:, 3] * scale[:, 0], rcond=None)[0]
    return [0.0] * (memory is None) + list(found)


def scattered(memory: Law | None, scatter: float) -> list[Sample]:
    random.seed(11)
    samples = []
    for _ in range(40):
        work = Work(random.randrange(10**8, 10**11), random.randrange(10**6, 10**9))
        true = (0.003 * work.flops if memory else 0.0) + 0.4 * work.bytes + 1e8
        samples.append(Sample(work, round(true * random.uniform(1 - scatter, 1 + scatter))))
    return samples


@pytest.mark.parametrize("resolution_ps", [1, 10**6, 10**8])
@pytest.mark.parametrize(("memory", "scatter"), [(None, 1e-3), (MEMORY, 1e-3), (MEMORY, 0.02), (MEMORY, 0.05)])
def test_a_fit_is_the_least_squares_solution_with_its_own_cauchy_weights(
    memory: Law | None, scatter: float, resolution_ps: int
) -> None:
    samples = scattered(memory, scatter)
    law = fit_law(samples, memory, resolution_ps=resolution_ps)
    if law.fixed_ps >= min(s.time_ps for s in samples) + resolution_ps:
        return  # the bound is tested below
    again = settled(law, samples, memory, resolution_ps)
    assert [law.ps_per_flop, law.ps_per_byte, law.fixed_ps] == pytest.approx(again, rel=max(scatter / 10, 5e-4))


@pytest.mark.parametrize(("scatter", "resolution_ps"), [(0.02, 1), (0.05, 1), (0.05, 10**6)])
def test_where_the_fixed_part_meets_its_bound_the_bytes_take_the_rest(scatter: float, resolution_ps: int) -> None:
    """The fixed part is the shortest time plus a clock tick; the cost per byte is fitted to the remainder."""
    samples = scattered(None, scatter)
    law = fit_law(samples, resolution_ps=resolution_ps)
    assert law.fixed_ps == min(s.time_ps for s in samples) + resolution_ps
    times, sizes = (
        np.array([float(x) for x in row]) for row in zip(*[(s.time_ps, s.work.bytes) for s in samples], strict=True)
    )
    rest = np.maximum(times - law.fixed_ps, 0.0)
    spread = np.maximum(np.maximum(times, resolution_ps / RELATIVE_ERROR), law.ps_per_byte * sizes)
    off = np.abs(rest - law.ps_per_byte * sizes) / spread
    by_size = np.argsort(off, kind="stable")
    held = np.cumsum(times[by_size])
    typical = off[by_size[np.searchsorted(held, held[-1] / 2)]]
    weight = 1 / (1 + (off / (2.385 * 1.4826 * typical)) ** 2) / spread**2
    again = float((weight * sizes * rest).sum() / (weight * sizes * sizes).sum())
    assert law.ps_per_byte == pytest.approx(again, rel=5e-4)


def test_a_memory_law_without_a_cost_of_bytes_says_nothing_of_them() -> None:
    works = [Work(f * GIGA, b * 10**6) for f, b in ((1, 9), (3, 1), (10, 40), (4, 80), (50, 10))]
    law = fit_law(made(Law(0.002, 0.6, 0.0), works), Law(0.0, 0.0, 1e6))
    assert (law.ps_per_flop, law.ps_per_byte) == pytest.approx((0.002, 0.6), rel=1e-6)


@pytest.mark.parametrize(("values", "middle"), [([7.0], 7.0), ([9.0, 1.0, 4.0], 4.0), ([1.0, 8.0, 2.0, 5.0], 3.5)])
def test_the_median_of_an_even_number_is_the_mean_of_the_middle_two(values: list[float], middle: float) -> None:
    assert median(values) == middle
