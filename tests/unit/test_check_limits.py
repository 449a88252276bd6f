"""Do the limits of ``trine check`` lie where it says: what is noise, what is suspicious, which causes are alike?"""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from trine.cluster import load_cluster
from trine.collectives.options import CollectiveOptions
from trine.studies import check
from trine.studies.check import check_curve
from trine.studies.hypotheses import expect
from trine.studies.likelihood import Weights

SIZES = tuple(1 << power for power in range(10, 31))


@pytest.fixture(scope="module")
def expected():
    return expect("all_reduce", SIZES, load_cluster("dgx-h100"), CollectiveOptions())


@pytest.mark.parametrize(("times", "is_noise"), [(1.1, False), (1.2, True)])
def test_a_lone_size_is_noise_from_fifteen_percent_above_its_band(expected, times, is_noise):
    measured = [usual.time_ps for usual in expected.usual]
    measured[4] = round(expected.usual[4].high_ps * times)
    verdict = check_curve(expected, measured)
    assert verdict.suspicious_from is None
    assert verdict.noise == ((SIZES[4],) if is_noise else ())


@pytest.mark.parametrize(("odds", "is_suspicious"), [(49, False), (51, True)])
def test_odds_of_fifty_are_suspicious(expected, monkeypatch, odds, is_suspicious):
    weights = Weights(log_odds=math.log(odds), causes=(), unknown=1.0)
    monkeypatch.setattr(check, "weigh", lambda *_: weights)
    verdict = check_curve(expected, [2 * usual.high_ps for usual in expected.usual])
    assert (verdict.suspicious_from is not None) == is_suspicious


@pytest.mark.parametrize(("probability", "unknown", "is_named"), [(0.45, 0.55, False), (0.55, 0.45, True)])
def test_a_cause_is_named_where_it_is_likelier_than_none(expected, monkeypatch, probability, unknown, is_named):
    measured = [2 * usual.high_ps for usual in expected.usual]
    (best, *_) = check.weigh(expected, measured, check.NOISE).causes
    weights = Weights(log_odds=10.0, causes=(replace(best, probability=probability),), unknown=unknown)
    monkeypatch.setattr(check, "weigh", lambda *_: weights)
    assert (check_curve(expected, measured).cause is not None) == is_named


@pytest.mark.parametrize(("apart", "are_alike"), [(1.02, True), (1.1, False)])
def test_causes_are_alike_within_three_percent(expected, apart, are_alike):
    (found, *_) = check.weigh(expected, [2 * usual.high_ps for usual in expected.usual], check.NOISE).causes
    other = replace(found.cause, name="another", times_ps=tuple(round(t * apart) for t in found.cause.times_ps))
    weights = Weights(log_odds=10.0, causes=(found, replace(found, cause=other)), unknown=0.0)
    assert weights.alike(found.cause) == (("another",) if are_alike else ())
