"""Are slow ranks and jitter read, drawn and applied as documented, for one rank as for all?"""

import math
import statistics

import numpy as np
import pytest

from trine.errors import InputError
from trine.parallel import draws
from trine.parallel.stragglers import DISTRIBUTIONS, Jitter, Stragglers, parse_jitter, parse_slow, scaled_ps
from trine.training.ensemble import ensemble

RANKS, INDICES = np.arange(400)[:, None], np.arange(500)[None, :]
SPREADS = {"normal": 0.05, "lognormal": 0.4, "gamma": 0.3, "exponential": 0.2, "pareto": 6.0}


def splitmix64(state):
    """One output of splitmix64 in Python integers."""
    mask = 2**64 - 1
    z = (state + 0x9E3779B97F4A7C15) & mask
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
    return z ^ (z >> 31)


def test_the_published_first_output():
    """splitmix64 with seed 0: the first number of the reference implementation's stream."""
    assert splitmix64(0) == 0xE220A8397B1DCDAF


@pytest.mark.parametrize(("seed", "rank", "index", "lane"), [(0, 0, 0, 0), (7, 12345, 678, 2), (-1, 2**31, 10**9, 5)])
def test_uniform_is_splitmix_of_the_counters(seed, rank, index, lane):
    state = splitmix64(seed % 2**64)
    for part in (rank, index, lane):
        state = splitmix64(state ^ (part + 1))
    got = draws.uniform(seed, np.array([rank]), np.array([index]), lane)
    assert got.tolist() == [((state >> 11) + 0.5) * 2.0**-53]


def test_own_functions_are_those_of_libm():
    x = np.concatenate([2.0 ** np.linspace(-60, 10, 20001), [1.0, 0.5, np.nextafter(1, 0)]])
    np.testing.assert_allclose(draws.log(x), [math.log(v) for v in x], rtol=1e-15, atol=1e-16)
    y = np.linspace(-50, 50, 20001)
    np.testing.assert_allclose(draws.exp(y), [math.exp(v) for v in y], rtol=1e-14)
    turns = np.linspace(0, 1, 20001)
    np.testing.assert_allclose(draws._cos_turns(turns), np.cos(2 * np.pi * turns), atol=2e-15)


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_mean_and_spread(name):
    jitter = Jitter(distribution=name, spread=SPREADS[name])
    factors = jitter.factors(11, RANKS, INDICES)
    assert factors.mean() == pytest.approx(jitter.mean, abs=0.003)
    spread = {
        "normal": 0.05,
        "lognormal": 0.4,
        "gamma": 0.3,
        "exponential": 0.2,
        "pareto": math.sqrt(6 / (5**2 * 4)),
    }[name]
    assert factors.std() == pytest.approx(spread, rel=0.02)
    assert factors.min() > 0
    if name in ("exponential", "pareto"):
        assert factors.min() >= 1


def test_quantiles():
    """Against the standard library's normal distribution and closed forms."""
    quantiles = [0.01, 0.1, 0.5, 0.9, 0.99]
    normal = statistics.NormalDist()
    z = draws.normal(3, RANKS, INDICES)
    np.testing.assert_allclose(np.quantile(z, quantiles), [normal.inv_cdf(q) for q in quantiles], atol=0.02)
    pareto = Jitter(distribution="pareto", spread=5.0).factors(3, RANKS, INDICES)
    np.testing.assert_allclose(np.quantile(pareto, quantiles), [(1 - q) ** -0.2 for q in quantiles], rtol=0.01)
    exponential = Jitter(distribution="exponential", spread=0.1).factors(3, RANKS, INDICES)
    np.testing.assert_allclose(
        np.quantile(exponential, quantiles), [1 - 0.1 * math.log(1 - q) for q in quantiles], rtol=0.01
    )


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_one_rank_alone_gets_what_it_gets_among_all(name):
    """To the bit: folded and unfolded runs ask for different sets of ranks."""
    stragglers = Stragglers(slow=((17, 1.3),), jitter=Jitter(distribution=name, spread=SPREADS[name]), seed=5)
    whole = stragglers.factors(RANKS, INDICES)
    assert (stragglers.factors(np.array([17]), np.arange(500)) == whole[17]).all()
    order = np.random.default_rng(0).permutation(400)[:37]
    assert (stragglers.factors(order[:, None], INDICES) == whole[order]).all()
    assert float(stragglers.factors(np.array(17), np.array(3))) == whole[17, 3]


def test_draws_are_apart():
    """Other seeds, ranks and indices are uncorrelated."""
    jitter = Jitter(distribution="normal", spread=0.1)
    one, other = jitter.factors(1, RANKS, INDICES), jitter.factors(2, RANKS, INDICES)
    assert abs(np.corrcoef(one.ravel(), other.ravel())[0, 1]) < 0.01
    assert abs(np.corrcoef(one[:-1].ravel(), one[1:].ravel())[0, 1]) < 0.01
    assert abs(np.corrcoef(one[:, :-1].ravel(), one[:, 1:].ravel())[0, 1]) < 0.01
    assert (jitter.factors(1, RANKS, INDICES) == one).all()


def test_slow_ranks_multiply():
    stragglers = Stragglers(slow=parse_slow(["rank=17:1.3", "rank=2-4:0.5"]))
    assert stragglers.factors(np.array([1, 2, 3, 4, 5, 17]), np.array(0)).tolist() == [1, 0.5, 0.5, 0.5, 1, 1.3]
    with pytest.raises(InputError, match="no rank 17: the job has ranks 0 to 16"):
        stragglers.check(17)
    stragglers.check(18)


def test_durations_are_rounded_to_the_nearest_and_stay_positive():
    durations = np.array([0, 1, 10, 10**12, 3])
    assert scaled_ps(durations, np.array([5.0, 0.1, 1.25, 1.3, 0.5])).tolist() == [0, 1, 12, 13 * 10**11, 2]
    assert scaled_ps(durations, np.ones(5)).tolist() == durations.tolist()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("normal:5%", ("normal", 0.05)),
        ("normal:0.05", ("normal", 0.05)),
        ("lognormal: 0.1", ("lognormal", 0.1)),
        ("pareto:20", ("pareto", 20.0)),
    ],
)
def test_jitter_is_read(text, expected):
    jitter = parse_jitter(text)
    assert (jitter.distribution, jitter.spread) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("normal", "DISTRIBUTION:SPREAD"),
        ("norml:5%", "did you mean 'normal'"),
        ("normal:x", "is no number"),
        ("normal:nan", "is no number"),
        ("normal:0", "positive number"),
        ("normal:0.3", "at most 0.25"),
        ("pareto:5%", "tail index"),
        ("pareto:1", "has no mean"),
        ("gamma:1.5", "at most 1"),
    ],
)
def test_jitter_that_cannot_be_is_refused(text, why):
    with pytest.raises(InputError, match=why):
        parse_jitter(text)


@pytest.mark.parametrize(
    ("texts", "why"),
    [
        (["17:1.3"], "takes rank=17:1.3"),
        (["rank=17"], "takes rank=17:1.3"),
        (["rank=17:1..3"], "takes rank=17:1.3"),
        (["rank=9-8:2"], "from the smaller to the larger"),
        (["rank=3:0"], "above 0"),
        (["rank=3:2", "rank=1-4:3"], "given twice"),
        (["rank=3:inf"], "takes rank=17:1.3"),
        ([], "neither slow ranks nor jitter"),
    ],
)
def test_slow_ranks_that_cannot_be_are_refused(texts, why):
    with pytest.raises(InputError, match=why):
        Stragglers(slow=parse_slow(texts))


def test_an_unknown_unit_of_jitter_names_the_nearest():
    with pytest.raises(InputError, match="did you mean 'step'"):
        Stragglers(slow=((1, 2.0),), per="steps")


def test_ensemble_statistics():
    times = [int(t) for t in np.random.default_rng(1).integers(10**9, 2 * 10**9, 101)]
    result = ensemble(lambda seed: times[seed - 7], 101, first_seed=7)
    assert result.seeds == tuple(range(7, 108))
    assert (result.min_ps, result.max_ps) == (min(times), max(times))
    assert result.median_ps == statistics.median(times)
    assert result.mean_ps == pytest.approx(statistics.fmean(times), rel=1e-15)
    assert result.std_ps == pytest.approx(statistics.stdev(times), rel=1e-12)
    inclusive = statistics.quantiles(times, n=20, method="inclusive")
    assert (result.p5_ps, result.p95_ps) == pytest.approx((inclusive[0], inclusive[-1]))
    answer = result.to_json()
    assert answer["runs"][3] == {"seed": 10, "time_ps": times[3]}
    assert "101 runs, seeds 7 to 107" in result.summary()
    counts = [int(line.split()[3]) for line in result.summary().splitlines()[2:]]
    assert sum(counts) == 101


def test_ensembles_that_cannot_be():
    one = ensemble(lambda seed: 5, 1)
    assert (one.std_ps, one.min_ps, one.p95_ps) == (0, 5, 5)
    assert len(one.summary().splitlines()) == 2  # no histogram of a single time
    with pytest.raises(InputError, match="repeats are 1 to"):
        ensemble(lambda seed: 5, 0)
