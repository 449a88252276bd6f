"""Do replays at small sizes reproduce Eidola's figures (arXiv 2606.12638) within issue 6's limits?"""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
import pytest

from trine.gpu.kernels.fused.expected import expected_reads
from trine.gpu.replay.options import EidolonOptions
from trine.gpu.replay.run import Prepared, run_eidolon
from trine.gpu.replay.sweep import sweep

#: Eidola's set-up with narrower rows: a compute unit for each of 43 workgroups, a flag from each of three peers.
EIDOLA = EidolonOptions(rows=1024, cols=32, peers=3, tile=(16, 32), workgroups=43, flags="single")
WAKEUPS_US = range(0, 53, 4)
CASES = {
    "a flag of each peer": EIDOLA,
    "one flag for all": EidolonOptions(rows=512, cols=128),
    "eight wavefronts": EidolonOptions(rows=512, cols=128, wavefronts=8, peers=7),
    "in two steps": EidolonOptions(kernel="gemm-allreduce", rows=128, cols=128, inner=32),
}


@pytest.fixture(scope="module", params=CASES)
def found(request):
    grid = {"wakeup": [f"{us} us" for us in WAKEUPS_US], "sync": ("spin", "mwait")}
    return CASES[request.param], sweep(CASES[request.param], grid)


def reads(found, way, key="flag_reads"):
    return np.array([row[key] for row in found.rows if row["sync"] == way])


def test_spinning_reads_grow_linearly(found):
    options, swept = found
    x, y = np.array(WAKEUPS_US), reads(swept, "spin")
    assert np.corrcoef(x, y)[0, 1] ** 2 >= 0.99
    slope = np.polyfit(x, y, 1)[0]
    work = Prepared(options).work
    # an uncontended read there and back, and the loop around it, in an empty memory system: measured, not derived
    interval_us = polling_interval_us(options)
    assert slope == pytest.approx(len(work.waiting_workgroups) / interval_us, rel=0.02)


def polling_interval_us(options):
    """Return the polling interval from the run itself: added wait per added read of one wavefront, with late flags."""
    lone = replace(options, wakeup="1 us")
    runs = [Prepared(lone).run(wakeup=f"{us} us") for us in (100, 1100)]
    waited_us = (runs[1].wait_total_ps - runs[0].wait_total_ps) / 1e6
    return waited_us / (runs[1].flag_reads - runs[0].flag_reads)


def test_reads_of_mwait_are_flat(found):
    asleep = reads(found[1], "mwait")
    assert len(set(asleep[1:])) == 1
    assert asleep[0] <= asleep[1]


def test_other_reads_are_those_of_the_data_flow_in_both(found):
    options, swept = found
    expected = sum(expected_reads(Prepared(options).work.built.options).values())
    assert set(reads(swept, "spin", "non_flag_reads")) == set(reads(swept, "mwait", "non_flag_reads")) == {expected}


def test_the_slope_of_figure_1_is_that_of_four_wavefronts():
    """134 to 660 flag reads from 0 to 40 us, 13.15 per us: the interval follows from the GPU, the four from the figure.

    The run has about 66 K other reads, 1024 x 1024 x 4 B in lines of 64 B.
    """
    swept = sweep(
        replace(EIDOLA, cols=1024, tile=(256, 1024), workgroups=4),
        {"wakeup": [f"{us} us" for us in WAKEUPS_US], "sync": ("spin",)},
    )
    assert swept.rows[0]["waiting_wavefronts"] == 4
    assert swept.fits[0].slope_per_s == pytest.approx((660 - 134) / 40e-6, rel=0.03)
    assert {row["non_flag_reads"] for row in swept.rows} == {65_536 + 4 * 64 + 256}


def test_known_gap_43_wavefronts_read_ten_times_as_often_as_in_figure_1():
    prepared = Prepared(EIDOLA)
    early, late = (prepared.run(wakeup=f"{us} us").flag_reads for us in (10, 40))
    assert (late - early) / 30 > 10 * (660 - 134) / 40


def test_eidolas_numbers_with_a_fitted_pause():
    """Only the pause is fitted, to the slope of figure 1; the line's start and all other counts are not."""
    paper = replace(EIDOLA, cols=1024, tile=(16, 1024), poll="3 us")
    prepared = Prepared(paper)
    at_once, late = (prepared.run(wakeup=f"{us} us") for us in (0, 40))
    assert at_once.flag_reads == pytest.approx(134, rel=0.15)
    assert late.flag_reads == pytest.approx(660, rel=0.06)
    assert at_once.non_flag_reads == late.non_flag_reads == pytest.approx(66_000, rel=0.06)


def test_known_gap_mwait_reads_less_than_in_the_paper():
    """The paper's figure 2 has 728 to 788 reads: more than one per flag plus one per wake-up if all flags land at once.

    If they land one by one, eight in a line, 706 are read (tests/closed_form/test_eidolon_reads.py).
    """
    asleep = Prepared(replace(EIDOLA, sync="mwait")).run(wakeup="40 us")
    assert asleep.flag_reads == 43 * 3 + 43 < 728


def test_eight_seeds_of_the_issue_order_are_eight_times_of_the_kernel():
    """The paper's variability, whose range it does not state. Here it is within 2 % of the time without a draw."""
    for base in (EidolonOptions(), EidolonOptions(rows=256, cols=256), replace(EIDOLA, cols=128)):
        usual = run_eidolon(base).end_ps
        drawn = [run_eidolon(replace(base, issue_seed=seed)) for seed in range(8)]
        assert len({each.end_ps for each in drawn}) == 8
        assert all(abs(each.end_ps / usual - 1) < 0.02 for each in drawn)
        assert {each.non_flag_reads for each in drawn} == {drawn[0].work.non_flag_reads}


def test_eight_draws_of_when_flags_land_are_eight_times_of_the_kernel():
    base = EidolonOptions(distribution="uniform(5 us, 15 us)")
    assert len({run_eidolon(replace(base, seed=seed)).end_ps for seed in range(8)}) == 8


def test_at_ten_times_the_break_even_mwait_reads_at_least_80_percent_less():
    base = EidolonOptions(rows=1024, cols=1024)
    swept = sweep(base, {"wakeup": ["0 us", "20 us"], "sync": ("spin", "mwait")})
    even_s = swept.fits[0].break_even_s
    assert even_s is not None
    at_ten_ps = round(10 * even_s * 1e12)
    spin, mwait = (Prepared(replace(base, sync=way)).run(wakeup=at_ten_ps).flag_reads for way in ("spin", "mwait"))
    assert mwait <= 0.2 * spin
    assert swept.fits[0].saved == pytest.approx(1 - mwait / spin)


def test_a_late_flag_costs_spinning_and_not_mwait():
    """One peer of three comes 20 us later (figure 5): all workgroups spin for it; a sleeping one reads once more."""
    base = EidolonOptions(rows=512, cols=128, flags="single", flag_spacing=64, wakeup="5 us")
    more = {}
    for way in ("spin", "mwait"):
        even, late = (run_eidolon(replace(base, sync=way, straggler=late)) for late in ({}, {3: "20 us"}))
        more[way] = late.flag_reads - even.flag_reads
        assert late.time_s - even.time_s == pytest.approx(20e-6, abs=0.31e-6)
        assert late.non_flag_reads == even.non_flag_reads
    waiting = 8  # tiles of 64 rows
    assert more["spin"] == pytest.approx(waiting * 20 / 0.3014, rel=0.03)
    assert 0 <= more["mwait"] <= waiting


def test_events_grow_linearly_with_rows_and_little_with_peers():
    """Figures 3 and 4 in events, which are the same on every machine."""

    def events(rows, peers):
        return run_eidolon(EidolonOptions(rows=rows, cols=256, peers=peers)).inside.records.num_events

    sizes = [256, 512, 1024, 2048]
    by_rows = [events(rows, 3) for rows in sizes]
    assert np.corrcoef(sizes, by_rows)[0, 1] ** 2 >= 0.99
    assert events(256, 255) < 10 * by_rows[0]


def test_255_peers_take_less_than_ten_times_as_long_as_3():
    def cpu_s(peers):
        began = time.process_time()
        run_eidolon(EidolonOptions(rows=1024, cols=1024, peers=peers))
        return time.process_time() - began

    cpu_s(3)  # the compiled kernels are loaded
    assert min(cpu_s(255) for _ in range(2)) < 10 * min(cpu_s(3) for _ in range(2))
