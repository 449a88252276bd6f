"""Are the limits of ``trine check`` for noise, suspicious ranges and similar causes right?"""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from trine.check import compare
from trine.check import verdict as check
from trine.check.hypotheses import expect
from trine.check.likelihood import Weights
from trine.check.verdict import check_curve
from trine.cluster import load_cluster
from trine.collectives.options import CollectiveOptions
from trine.errors import InputError

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
    verdict = check_curve(expected, [round(1.2 * usual.high_ps) for usual in expected.usual])
    assert (verdict.suspicious_from is not None) == is_suspicious
    assert verdict.state == ("slow" if is_suspicious else "cannot decide")


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


def odds_of(monkeypatch, odds):
    weights = Weights(log_odds=math.log(odds), causes=(), unknown=1.0)
    monkeypatch.setattr(check, "weigh", lambda *_: weights)


@pytest.mark.parametrize(("places", "by", "likely"), [(range(5, 12), 1.2, 200), (range(1, 21), 1.16, 50)])
@pytest.mark.parametrize(
    ("odds", "state"), [(2.9, "model does not fit"), (3.1, "cannot decide"), (0.98, "cannot decide"), (1.02, "slow")]
)
def test_a_range_above_the_band_is_a_misfit_unless_a_fault_is_more_likely(
    expected, monkeypatch, odds, state, places, by, likely
):
    """A range in the middle alone, which a wrong choice of algorithm explains, needs higher odds for a fault."""
    odds = odds if odds > 2 else odds * likely
    odds_of(monkeypatch, odds)
    measured = [usual.time_ps for usual in expected.usual]
    for place in places:
        measured[place] = round(expected.usual[place].high_ps * by)
    verdict = check_curve(expected, measured)
    assert (verdict.state, verdict.noise) == (state, ())
    if state != "slow":
        assert verdict.reason.startswith(f"{len(places)} of 21 sizes lie above the band in a row, up to ")
        assert (verdict.suspicious_from, verdict.cause) == (None, None)


@pytest.mark.parametrize(("places", "by"), [((5, 6), 1.1), ((5,), 3.0), ((5, 7, 9), 1.3)])
def test_isolated_sizes_and_narrow_excesses_are_healthy(expected, monkeypatch, places, by):
    odds_of(monkeypatch, 19)
    measured = [usual.time_ps for usual in expected.usual]
    for place in places:
        measured[place] = round(expected.usual[place].high_ps * by)
    assert check_curve(expected, measured).state == "healthy"


@pytest.mark.parametrize(
    ("slow", "first", "last", "alone"),
    [
        ((4,), 4, 4, ()),  # there is no wider range
        ((4, 9, 10), 9, 10, (4,)),  # two sizes in the middle are two octaves
        ((0, 5, 6), 5, 6, (0,)),  # the first size alone is half an octave
        ((0, 1, 5), 0, 1, (5,)),  # two sizes at the end are one and a half octaves
        ((2, 3, 4, 9, 12, 13), 2, 13, (9,)),
        ((19, 20), 19, 20, ()),
    ],
)
def test_a_range_is_slow_from_an_octave_and_a_half_on(expected, monkeypatch, slow, first, last, alone):
    """Each size covers half the distance to its neighbours; a single size beside such a range is noise."""
    odds_of(monkeypatch, 1000)
    measured = [usual.time_ps for usual in expected.usual]
    for place in slow:
        measured[place] = round(expected.usual[place].high_ps * 1.3)
    verdict = check_curve(expected, measured)
    assert (verdict.suspicious_from, verdict.suspicious_to) == (SIZES[first], SIZES[last])
    assert verdict.noise == tuple(SIZES[place] for place in alone)


@pytest.mark.parametrize(
    ("fast", "by", "is_misfit"),
    [
        ((8, 9), 1.4, False),
        ((8, 9), 1.6, True),
        ((8,), 1.6, False),
        ((0,), 9.0, False),
        ((0, 1), 1.6, True),
        (range(21), 1.1, False),
        (range(21), 1.2, True),
        (range(10), 1.2, False),
        (range(5, 8), 1.3, True),
        (range(5, 8), 1.24, False),
        (range(5, 7), 1.3, False),
        (range(11), 1.2, True),
    ],
)
def test_a_prediction_fits_unless_a_range_or_most_sizes_are_too_fast(expected, monkeypatch, fast, by, is_misfit):
    odds_of(monkeypatch, 1)
    measured = [usual.time_ps for usual in expected.usual]
    for place in fast:
        measured[place] = round(expected.usual[place].low_ps / by)
    verdict = check_curve(expected, measured)
    assert (verdict.state == check.MISFIT) == is_misfit
    if is_misfit:
        misfit = verdict.reason
        assert f"{len(fast)} of 21 sizes" in misfit
        assert misfit.endswith("the cluster's numbers may be too low")


@pytest.mark.parametrize(("num_slow", "is_misfit"), [(8, False), (9, True)])
def test_too_fast_and_too_slow_sizes_count_together_where_nothing_is_suspicious(
    expected, monkeypatch, num_slow, is_misfit
):
    """Two of 21 sizes are fast; with nine or more slow ones, most sizes lie outside."""
    odds_of(monkeypatch, 1)
    measured = [usual.time_ps for usual in expected.usual]
    for place in (0, 20):
        measured[place] = round(expected.usual[place].low_ps / 1.2)
    for place in range(2, 2 + num_slow):
        measured[place] = round(expected.usual[place].high_ps * 1.1)
    verdict = check_curve(expected, measured)
    assert (verdict.state == check.MISFIT) == is_misfit
    if is_misfit:
        misfit = verdict.reason
        assert f"and {num_slow} above it" in misfit
        assert misfit.endswith("may come from another machine")


@pytest.mark.parametrize(("places", "first"), [((6,), None), ((6, 7), 6), ((3, 6, 7, 8), 6)])
def test_what_a_cause_does_not_explain_begins_at_the_first_wide_range(expected, monkeypatch, places, first):
    usual = expected.usual
    (found, *_) = check.weigh(expected, [2 * each.high_ps for each in usual], check.NOISE).causes
    cause = replace(found.cause, times_ps=tuple(2 * each.time_ps for each in usual))
    weights = Weights(log_odds=10.0, causes=(replace(found, cause=cause, probability=0.9),), unknown=0.1)
    monkeypatch.setattr(check, "weigh", lambda *_: weights)
    measured = [round(2 * each.high_ps * (1.01 if i in places else 0.99)) for i, each in enumerate(usual)]
    assert check_curve(expected, measured).unexplained_from == (None if first is None else SIZES[first])


# -- the run behind a log ----------------------------------------------------------------------------------------------


def log_of(**facts):
    usual = {
        "path": "a.log", "op": "all_reduce", "launch": None, "library": None, "environment": {}, "num_ranks": None,
        "fewest_ranks": None, "most_ranks": None, "ranks_from": "its header",
        "op_from": "its header", "num_hosts": None, "bus_ratio": None,
        "rows": (),
    }  # fmt: skip
    return SimpleNamespace(**usual | facts)


@pytest.mark.parametrize(
    ("ranks", "fewest", "most", "says"),
    [
        (8, 8, 8, None),
        (None, None, None, None),
        (4, 4, 4, "is of 4 ranks .its header., cluster 'dgx-h100' has 8 GPUs: give --gpus 4$"),
        (16, 16, 16, "is of 16 ranks"),
        (None, 8, None, None),
        (None, 9, None, "at least 9 ranks"),
        (None, 4, 8, None),
        (6, 4, 8, None),
        (None, 4, 7, "4 to 7 ranks"),
        (16, None, None, "--gpus 16"),
    ],
)
def test_a_cluster_has_as_many_gpus_as_the_log_allows(ranks, fewest, most, says):
    log, cluster = log_of(num_ranks=ranks, fewest_ranks=fewest, most_ranks=most), load_cluster("dgx-h100")
    if says is None:
        compare._check_ranks(log, cluster)
        return
    with pytest.raises(InputError, match=says):
        compare._check_ranks(log, cluster)


@pytest.mark.parametrize(("ratio", "is_right"), [(None, True), (1.75, True), (1.78, True), (1.8, False), (1.0, False)])
def test_the_ratio_of_bandwidths_says_which_collective_it_is(ratio, is_right):
    """The ratio of an all-reduce over 8 ranks is 2 * 7 / 8, within 2 %."""
    if is_right:
        compare._check_ratio(log_of(bus_ratio=ratio), "all_reduce", 8)
        return
    with pytest.raises(InputError, match=r"but 1.750 for all_reduce of 8 ranks"):
        compare._check_ratio(log_of(bus_ratio=ratio), "all_reduce", 8)
    (note,) = compare._check_ratio(log_of(bus_ratio=ratio, op_from="as given"), "all_reduce", 8)
    assert note.endswith("1.750 for all_reduce of 8 ranks: --op or --gpus contradicts the log")


@pytest.mark.parametrize(
    ("facts", "options"),
    [
        ({}, {}),
        ({"launch": "graph", "library": "rccl"}, {"launch": "graph", "library": "rccl"}),
        ({"environment": {"ALGO": "Ring", "PROTO": "LL"}}, {"algorithm": "ring", "protocol": "ll"}),
        ({"environment": {"ALGO": "^ring", "PROTO": "LL,LL128"}}, {}),
        ({"environment": {"ALGO": "CollnetDirect"}}, {"algorithm": "auto"}),
        ({"environment": {"ALGO": "ring", "PROTO": "ll"}, "op": "all_gather"}, {"protocol": "ll"}),
        ({"environment": {"NVLS_ENABLE": "0"}}, {"nvls": False}),
        ({"environment": {"NVLS_ENABLE": "1"}}, {}),
        ({"environment": {"MIN_NCHANNELS": "2", "MAX_NCHANNELS": "4"}}, {"min_channels": 2, "max_channels": 4}),
        ({"environment": {"MIN_NCHANNELS": "0", "MAX_NCHANNELS": "x"}}, {}),
        ({"environment": {"NVLS_CHUNKSIZE": "524288"}}, {"nvls_chunk": 512 << 10}),
        ({"environment": {"NVLS_CHUNKSIZE": "0"}}, {}),
    ],
)
def test_settings_of_a_log_are_options(facts, options):
    found, stated = compare.options_of(log_of(**facts))
    assert found == CollectiveOptions(**options)
    for name, value in facts.get("environment", {}).items():
        assert any(text.startswith(f"the log sets NCCL_{name}={value}") for text in stated)
    assert any("number of ranks" in text for text in stated)
    assert any("process-per-gpu" in text for text in stated) == ("launch" not in facts)


def test_a_log_without_a_collective_or_results_is_refused():
    with pytest.raises(InputError, match="give --op"):
        compare.check_log(log_of(op=None), load_cluster("dgx-h100"))
    with pytest.raises(InputError, match="has no out-of-place results"):
        compare.check_log(log_of(num_ranks=8), load_cluster("dgx-h100"))


def test_a_fault_of_the_machine_makes_no_size_faster_and_one_size_slower(expected):
    """A slow link may make the library choose an algorithm that trine takes for faster: the sound time stays."""
    usual = np.array([row.time_ps for row in expected.usual])
    faults = [cause for cause in expected.causes if "link" in cause.name or "PCIe" in cause.name]
    assert len(faults) >= 5
    for cause in faults:
        assert (np.array(cause.times_ps) >= usual).all(), cause.name
        assert (np.array(cause.times_ps) > 1.2 * usual).any(), cause.name
