"""Do drawn times have the means and shapes of their distributions, and the same seed the same picoseconds?"""

from __future__ import annotations

import math

import numpy as np
import pytest

from trine.errors import InputError
from trine.gpu.replay.distributions import Distribution, draw_times, draw_writes, parse_distribution

US = 10**6
N = 200_000


def times_of(text, number=N, seed=1, peer=0):
    return draw_times(parse_distribution(text), number, seed, peer)


def quantile(times, share):
    return np.quantile(times, share) / US


def test_uniform():
    times = times_of("uniform(5us, 15 us)")
    assert times.min() >= 5 * US
    assert times.max() < 15 * US
    assert times.mean() / US == pytest.approx(10, rel=0.003)
    assert times.std() / US == pytest.approx(10 / math.sqrt(12), rel=0.01)


def test_exponential():
    times = times_of("exponential(10 us)")
    assert times.mean() / US == pytest.approx(10, rel=0.01)
    assert quantile(times, 0.5) == pytest.approx(10 * math.log(2), rel=0.01)


def test_lognormal():
    times = times_of("lognormal(10 us, 0.5)")
    assert quantile(times, 0.5) == pytest.approx(10, rel=0.01)
    assert times.mean() / US == pytest.approx(10 * math.exp(0.125), rel=0.01)


def test_normal_far_from_zero():
    times = times_of("normal(100 us, 10 us)")
    assert times.mean() / US == pytest.approx(100, rel=0.001)
    assert times.std() / US == pytest.approx(10, rel=0.01)
    assert quantile(times, 0.1587) == pytest.approx(90, rel=0.003)


def test_normal_is_cut_off_at_zero():
    times = times_of("normal(0 s, 10 us)")
    assert times.min() >= 0
    assert times.mean() / US == pytest.approx(10 * math.sqrt(2 / math.pi), rel=0.01)  # half-normal


def test_constant():
    assert parse_distribution("10 us") == parse_distribution("constant(10 us)")
    assert times_of("10 us", 3).tolist() == [10 * US] * 3


def test_a_seed_gives_the_same_times_and_another_others():
    assert (times_of("exponential(1us)", 100) == times_of("exponential(1us)", 100)).all()
    assert (times_of("exponential(1us)", 100, seed=2) != times_of("exponential(1us)", 100)).any()
    assert (times_of("exponential(1us)", 100, peer=3) != times_of("exponential(1us)", 100)).any()
    # the raw stream of PCG64 is guaranteed by numpy (NEP 19): these picoseconds must never change
    assert times_of("uniform(0s, 1s)", 3, seed=0, peer=0).tolist() == FIRST


#: numpy.random.Generator(PCG64(SeedSequence([0, 0]))).random(3), times 10^12: another way to the same numbers.
FIRST = [
    round(value * 1e12) for value in np.random.Generator(np.random.PCG64(np.random.SeedSequence([0, 0]))).random(3)
]


def flags(peers, each):
    peer = np.repeat(np.array(peers, np.int64), each)
    return {"peer": peer, "address": np.arange(len(peer), dtype=np.int64) * 64, "size_bytes": 8, "value": 1}


def test_a_peer_has_the_same_times_whoever_else_there_is():
    uniform = parse_distribution("uniform(0 s, 1 ms)")
    few = draw_writes(**flags([2, 5], 4), distribution=uniform, seed=7).columns
    many = draw_writes(**flags([0, 2, 3, 5], 4), distribution=uniform, seed=7).columns
    assert (few.time_ps == many.time_ps[np.isin(many.peer, [2, 5])]).all()


def test_the_order_of_flags_does_not_matter():
    uniform = parse_distribution("uniform(0 s, 1 ms)")
    given = flags([0, 1], 5)
    turned = {name: value[::-1] if isinstance(value, np.ndarray) else value for name, value in given.items()}
    a = draw_writes(**given, distribution=uniform, seed=3).columns
    b = draw_writes(**turned, distribution=uniform, seed=3).columns
    assert (a.time_ps == b.time_ps[::-1]).all()
    assert (a.address == b.address[::-1]).all()


def test_together_base_and_straggler():
    columns = draw_writes(
        **flags([0, 1], 3), distribution=parse_distribution("uniform(1 us, 2 us)"), seed=3, together=True,
        base_ps=10 * US, offset_ps={1: 100 * US},
    ).columns  # fmt: skip
    first, second = columns.time_ps[:3], columns.time_ps[3:]
    assert len(set(first.tolist())) == len(set(second.tolist())) == 1
    assert 11 * US <= first[0] < 12 * US
    assert 111 * US <= second[0] < 112 * US


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("unifrom(1us, 2us)", "unknown distribution 'unifrom'; did you mean 'uniform'"),
        ("uniform(1us)", "uniform takes least and most, got '1us'"),
        ("uniform(2us, 1us)", "the first must not be the larger"),
        ("uniform(1, 2)", "the least of uniform needs a unit"),
        ("lognormal(1us, 1us)", "sigma must be a number without a unit, got '1us'"),
        ("lognormal(1us, nan)", "its sigma from 0 to 10"),
        ("exponential(2000000 s)", "its times must be from 0"),
        ("soon", "must be a time, or one of constant, uniform"),
        ("normal(-1us, 1us)", "the mean of normal must not be negative, got .-1us"),
    ],
)
def test_faults_are_named(text, message):
    with pytest.raises(InputError, match=message):
        parse_distribution(text)


def test_faults_of_a_draw_are_named():
    some = parse_distribution("1 us")
    with pytest.raises(InputError, match="seed: must be a whole number from 0, got -1"):
        draw_writes(**flags([0], 1), distribution=some, seed=-1)
    with pytest.raises(InputError, match="offset_ps: rank 4 writes nothing"):
        draw_writes(**flags([0], 1), distribution=some, seed=0, offset_ps={4: 1})
    with pytest.raises(InputError, match="is in the past"):
        draw_writes(**flags([0], 1), distribution=some, seed=0, offset_ps={0: -2 * US})
    with pytest.raises(InputError, match="unknown distribution 'gamma'"):
        Distribution(kind="gamma", first_ps=1)
