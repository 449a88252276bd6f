"""Does a curve's likelihood equal an explicit Gaussian process? Do causes keep their numbers and names?"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from trine.check.hypotheses import LATE, SHARE, TCP_PARTS, Hypothesis, _by_tcp, expect
from trine.check.likelihood import NOISE, _best_value, _mean, _mixed, band_sigma, log_likelihood, weigh
from trine.cluster import load_cluster
from trine.cluster.parts import SCALE_OUT
from trine.cluster.presets import link_named
from trine.collectives.options import CollectiveOptions

#: Unevenly spaced sizes, twice as dense at 4 MiB.
SIZES = tuple(1024 * n for n in (1, 2, 8, 64, 512, 4096, 5793, 8192, 65536))
NEVER, TINY = 1e-12, 1e-6


def covariance_of(factor):
    """Return a covariance whose correlation falls by e over ``octaves``, plus independent noise per size."""
    at = np.log2(SIZES)
    slow = (factor * NOISE.drift) ** 2 * np.exp(-np.abs(at[:, None] - at[None, :]) / NOISE.octaves)
    return slow + NOISE.repeat**2 * np.eye(len(at))


def drawn(seed, factor):
    return np.random.default_rng(seed).multivariate_normal(np.zeros(len(SIZES)), covariance_of(factor), 3)


def dense(missed, covariance):
    _, log_det = np.linalg.slogdet(2 * math.pi * covariance)
    return -0.5 * (log_det + missed @ np.linalg.solve(covariance, missed))


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("wide", "factor"), [(NEVER, 1.0), (1 - NEVER, 2.55)])
def test_without_strays_it_is_the_normal_distribution_written_out(seed, wide, factor):
    noise = replace(NOISE, stray=NEVER, wide=wide)
    missed = drawn(seed, factor)
    found = log_likelihood(missed, SIZES, noise)
    assert found == pytest.approx([dense(row, covariance_of(factor)) for row in missed], rel=1e-5)


def test_usual_and_wide_machines_are_mixed_by_their_parts():
    missed = drawn(9, 1.5)
    usual, wide, both = (
        log_likelihood(missed, SIZES, replace(NOISE, wide=part)) for part in (NEVER, 1 - NEVER, NOISE.wide)
    )
    mixed = (1 - NOISE.wide) * np.exp(usual) + NOISE.wide * np.exp(wide)
    assert np.exp(both) == pytest.approx(mixed, rel=TINY)


@pytest.mark.parametrize("missed", [0.0, 0.3, -1.5, 4.0])
def test_one_size_is_ordinary_or_a_stray(missed):
    def density(variance):
        return math.exp(-0.5 * missed**2 / variance) / math.sqrt(2 * math.pi * variance)

    ordinary = NOISE.drift**2 + NOISE.repeat**2
    expected = (1 - NOISE.stray) * density(ordinary) + NOISE.stray * density(ordinary + NOISE.stray_by**2)
    (found,) = log_likelihood(np.array([[missed]]), SIZES[:1], replace(NOISE, wide=NEVER))
    assert found == pytest.approx(math.log(expected), rel=TINY)


def test_a_size_behind_a_certain_stray_is_weighed_by_what_is_left():
    """A size far from the others is independent of them: the likelihood is the product of both."""
    far, noise = (1, 2**60), replace(NOISE, octaves=0.5, wide=NEVER)
    missed = np.array([[0.4, -0.9]])
    alone = [log_likelihood(missed[:, i : i + 1], far[i : i + 1], noise)[0] for i in (0, 1)]
    assert log_likelihood(missed, far, noise)[0] == pytest.approx(sum(alone), rel=TINY)


def test_a_band_of_eighty_percent_is_two_and_a_half_deviations_wide():
    (sigma,) = band_sigma([100], [200])
    assert sigma == pytest.approx(math.log(2) / (2 * 1.2815515655), rel=TINY)


def test_chances_are_mixed_by_their_shares():
    assert _mixed(np.log([0.2, 0.4]), [0.25, 0.75]) == pytest.approx(math.log(0.35))
    assert _mean(np.array([-1000.0, -1000.0 + math.log(3)])) == pytest.approx(-1000 + math.log(2))


@pytest.mark.parametrize("top", [2.2, 3.0, 3.9])
def test_the_best_value_between_those_tried_is_that_of_the_parabola(top):
    values = [2.0**n for n in range(7)]
    fit = np.array([-3 * (n - top) ** 2 for n in range(7)])
    assert _best_value(values, fit) == pytest.approx(2**top)
    assert _best_value(values, np.arange(7.0)) == 64
    assert _best_value(values, -np.arange(7.0)) == 1


# -- causes ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def expected():
    return expect("all_reduce", [1 << n for n in range(12, 30)], load_cluster("dgx-h100"), CollectiveOptions())


def named(weights, kind):
    return next(each for each in weights.causes if each.cause.kind == kind)


@pytest.mark.parametrize("share", [0.83, 0.5, 0.29])
def test_a_share_of_the_speed_is_found_between_those_that_are_tried(expected, share):
    measured = [round(each.time_ps / share) for each in expected.usual]
    weights = weigh(expected, measured)
    found = named(weights, SHARE)
    assert found.cause.fitted
    assert found.cause.times_ps == pytest.approx(measured, rel=0.01)
    assert found.left == pytest.approx(0, abs=0.01)
    assert weights.log_odds > math.log(50) or share > 0.8


@pytest.mark.parametrize(("delay_us", "within"), [(5, 0.04), (37, 0.04), (900, 0.09)])
def test_a_delay_is_found_between_those_that_are_tried(expected, delay_us, within):
    measured = [each.time_ps + delay_us * 10**6 for each in expected.usual]
    weights = weigh(expected, measured)
    assert named(weights, LATE).cause.times_ps == pytest.approx(measured, rel=within)
    assert weights.causes[0].cause.kind == LATE


def test_probabilities_add_up_and_what_is_excluded_has_none(expected):
    measured = [round(each.time_ps * 2.2) for each in expected.usual]
    for excluded in ((), (SHARE,), (SHARE, LATE)):
        weights = weigh(expected, measured, excluded=excluded)
        assert sum(each.probability for each in weights.causes) + weights.unknown == pytest.approx(1, abs=1e-8)
        assert not {each.cause.kind for each in weights.causes} & set(excluded)
        order = [each.probability for each in weights.causes]
        assert order == sorted(order, reverse=True)
    assert weigh(expected, [each.time_ps for each in expected.usual]).log_odds < 0


def test_what_is_left_is_the_root_mean_square_of_the_logarithms(expected):
    measured = [round(each.time_ps * (3 if i % 2 else 2)) for i, each in enumerate(expected.usual)]
    for each in weigh(expected, measured).causes:
        ratios = [math.log(m / t) for m, t in zip(measured, each.cause.times_ps, strict=True)]
        assert each.left == pytest.approx(math.sqrt(sum(r * r for r in ratios) / len(ratios)), abs=1e-9)


def test_a_delay_is_at_most_the_least_difference_from_the_low_end(expected):
    usual = expected.usual
    slow = [usual[0].low_ps + round(3e6), *(each.time_ps + 10**9 for each in usual[1:])]
    cause = named(weigh(expected, slow), LATE).cause
    assert 0 < cause.times_ps[0] - usual[0].time_ps <= 3e6
    none = [usual[0].low_ps, *slow[1:]]
    assert all(each.cause.kind != LATE for each in weigh(expected, none).causes)


def test_a_link_explains_no_slow_call_of_a_few_bytes(expected):
    """Bandwidth causes are dropped if neighbouring sizes that they do not change are slow."""
    half = next(each for each in expected.causes if each.name.startswith("half of the links"))
    one, all_sizes = replace(expected, causes=(half,)), list(half.times_ps)
    assert any(each.cause.kind == "links" for each in weigh(one, all_sizes).causes)
    small = [3 * time if i < 2 else time for i, time in enumerate(all_sizes)]
    assert all(each.cause.kind != "links" for each in weigh(one, small).causes)


def test_a_fault_is_paired_with_each_algorithm():
    causes = [each for each in causes_of("dgx-a100") if each.name.startswith("4 of 8 NICs")]
    names = {each.name.partition(", with ")[2] for each in causes}
    assert {"", "ring"} <= names | {"ring"}
    assert len(causes) > 1
    assert sum(each.weight for each in causes) == pytest.approx(1.5)


def test_only_what_slows_some_size_is_a_cause(expected):
    usual = [each.time_ps for each in expected.usual]
    times = {"end": [*usual[:-1], 3 * usual[-1]], "none": usual, "faster": [time // 2 for time in usual]}
    causes = tuple(
        Hypothesis(kind=name, name=name, advice="", times_ps=tuple(own), group=name) for name, own in times.items()
    )
    weights = weigh(replace(expected, causes=causes), [2 * time for time in usual])
    assert {each.cause.name for each in weights.causes if not each.cause.fitted} == {"end"}


def test_causes_of_one_kind_share_its_part(expected):
    """If a cause is listed twice, each copy has half its probability alone, and the odds do not change."""
    usual = [each.time_ps for each in expected.usual]
    one = Hypothesis(kind="links", name="one", advice="", times_ps=tuple(2 * time for time in usual), group="one")
    two = replace(one, name="two", group="two")
    alone, both = (
        weigh(replace(expected, causes=causes), [round(2.1 * time) for time in usual])
        for causes in ((one,), (one, two))
    )
    assert both.log_odds == pytest.approx(alone.log_odds, abs=1e-8)
    assert named(both, "links").probability == pytest.approx(named(alone, "links").probability / 2, abs=1e-8)
    assert both.unknown == pytest.approx(alone.unknown, abs=1e-8)


# -- causes on a cluster -----------------------------------------------------------------------------------------------


@cache
def causes_of(cluster="dgx-h100", nodes=2, **options):
    return expect("all_reduce", [1 << 20], load_cluster(cluster, nodes=nodes), CollectiveOptions(**options)).causes


def count_of(causes):
    """Return the number of causes of each kind, without their pairs with other algorithms."""
    return Counter(each.kind for each in causes if ", with " not in each.name)


def test_every_kind_of_cause_is_tried_on_two_nodes():
    causes = causes_of()
    expected = {"nvls": 1, "channels": 4, "launch": 2, "nics": 5, "network": 1, "tcp": 4, "links": 4, "pcie": 1}
    assert count_of(causes) == {**expected, "algorithm": count_of(causes)["algorithm"]}
    assert count_of(causes)["algorithm"] > 5
    names = {each.name for each in causes}
    assert {f"{n} of 8 NICs of each node carry the traffic" for n in (7, 4)} <= names
    assert {f"one NIC runs at {part} of its rate" for part in ("half", "a quarter", "an eighth")} <= names
    assert {f"the run was launched as {way}" for way in ("single-process", "graph")} <= names


@pytest.mark.parametrize(
    ("options", "left_out"),
    [
        ({"algorithm": "ring"}, "algorithm"),
        ({"protocol": "simple"}, "algorithm"),
        ({"max_channels": 16}, "channels"),
        ({"nvls": False}, "nvls"),
    ],
)
def test_what_the_run_says_is_no_cause(options, left_out):
    whole = {kind for kind, _ in count_of(causes_of()).items()}
    assert whole - set(count_of(causes_of(**options))) == {left_out}


def test_one_node_has_no_network_and_one_of_pcie_has_pcie_links():
    assert not {"nics", "network", "tcp"} & set(count_of(causes_of(nodes=1)))
    pcie = count_of(causes_of("a40-pcie"))
    assert "pcie" not in pcie
    assert any(each.name == "PCIe between GPUs runs at half of its rate" for each in causes_of("a40-pcie"))
    assert pcie["tcp"] == 4


def test_tcp_is_never_faster_than_the_network_it_stands_in_for():
    """TCP runs at part of the catalogue's Ethernet rate, at most the network's; Ethernet itself has no such cause."""
    cluster = load_cluster("a40-pcie", nodes=2)
    outside = [link for link in cluster.links if link.link_class == SCALE_OUT]
    ethernet = link_named("ethernet-100")
    for part in TCP_PARTS:
        for rate, own in ((10**12, part * ethernet.bytes_per_s), (10**9, min(10**9, part * ethernet.bytes_per_s))):
            links = tuple(replace(link, bytes_per_s=rate) if link in outside else link for link in cluster.links)
            made = _by_tcp(replace(cluster, links=links), part)
            found = {(li.bytes_per_s, li.latency_ps, li.medium) for li in made.links if li.link_class == SCALE_OUT}
            assert found == {(round(own), ethernet.latency_ps, "ethernet-100")}
    for medium, is_tcp in (("ethernet-10", False), ("roce-100", True), (None, True)):
        links = tuple(replace(link, medium=medium) if link in outside else link for link in cluster.links)
        assert (_by_tcp(replace(cluster, links=links), 1.0) is not None) == is_tcp
