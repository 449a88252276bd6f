"""Are predicted collectives close to measured ones? Tolerances a case; the worst case is printed.

Measurements: src/trine/presets/measured (sources in its rows). Parameters were fitted on the split "fit" of them, so
those rows guard the fit; the others, and the predictions without a machine's family, are the validation.
"""

from __future__ import annotations

import numpy as np
import pytest

from trine.cluster import load_cluster
from trine.collectives.nccl import Collectives
from trine.collectives.options import CollectiveOptions
from validation.collectives import BELOW, FROM, CollectiveValidation, left_out, validate_collectives
from validation.measured import load_measurements


@pytest.fixture(scope="module")
def validation() -> CollectiveValidation:
    return validate_collectives()


def test_every_point_is_compared_or_its_series_skipped_with_a_reason(validation: CollectiveValidation) -> None:
    everything = load_measurements()
    assert len(validation.compared) + sum(len(s.points) for s, _ in validation.skipped) == sum(
        len(s.points) for s in everything
    )
    assert all(why for _, why in validation.skipped)
    assert {s.machine.name for s, _ in validation.skipped} <= {
        s.machine.name for s in everything if s.machine.cluster is None
    }


def test_all_machines_meet_the_targets(validation: CollectiveValidation) -> None:
    for name, band, stats in validation.totals():
        print(f"{name}, {band}: median {stats.median:.3f} p90 {stats.p90:.3f} inside {stats.inside:.2f}")
        if name in ("all machines", "held-out machines", "machines used for fitting"):
            assert stats.meets(band)
    worst = validation.worst(1)[0]
    print(f"worst: {worst.series.machine.name} {worst.series.op} {worst.point.size_bytes} B, {worst.error:+.2f}")


def test_machines_that_had_no_part_in_the_fit_meet_the_targets(validation: CollectiveValidation) -> None:
    without, stale = left_out(validation)
    assert without is not None
    assert not stale
    everything = np.array([abs(each.error) for each in without.counted])
    for band, median in ((BELOW, 0.25), (FROM, 0.12)):
        stats = next(stats for name, size, stats in without.totals() if name == "all machines" and size == band)
        points = [abs(each.error) for each in without.counted if (each.point.size_bytes >= 1 << 20) == (band == FROM)]
        p90 = float(np.quantile(points, 0.9))
        print(f"left out, {band}: median {stats.median:.3f} p90 {stats.p90:.3f}, by point {p90:.3f}")
        assert stats.median <= median
        assert p90 <= 0.40
        assert stats.inside >= 0.80
    assert np.quantile(everything, 0.9) <= 0.40


def test_small_messages_of_a_machine_never_seen_are_a_known_gap(validation: CollectiveValidation) -> None:
    """By machine instead of by point the 90th percentile misses 40 %: the same GPUs launch in 14 to 45 us (RCCL)."""
    without, _ = left_out(validation)
    assert without is not None
    stats = next(stats for name, size, stats in without.totals() if (name, size) == ("all machines", BELOW))
    assert 0.40 < stats.p90 < 0.60


#: (preset, load_cluster's arguments, options, op, size in bytes, measured us, tolerance, where)
LARGE = [
    ("dgx-a100", {}, {}, "all_reduce", 1 << 30, 8193.0, 0.05, "vTrain trace/a100 AR_GPU8, 1 GiB"),
    ("dgx-a100", {"gpus": 4}, {}, "all_reduce", 1 << 30, 7259.4, 0.05, "vTrain trace/a100 AR_GPU4, 1 GiB"),
    ("dgx-h100", {"nodes": 2}, {}, "all_reduce", 1 << 30, 4490.8, 0.10, "2 nodes x 8 H100 HGX, 8 HCAs"),
    ("hgx-h200", {}, {"nvls": False}, "all_reduce", 8 << 30, 41117.0, 0.05, "ml-engineering, NCCL_NVLS_ENABLE=0"),
    ("hgx-h200", {}, {}, "all_reduce", 8 << 30, 31774.0, 0.05, "ml-engineering, NVLS"),
]


@pytest.mark.parametrize("case", LARGE, ids=lambda case: case[-1])
def test_large_all_reduces_reach_the_measured_bandwidth(case: tuple) -> None:
    preset, machine, options, op, size, measured_us, tolerance, _ = case
    answer = Collectives(load_cluster(preset, **machine), None, CollectiveOptions(**options)).predict(op, size)
    error = answer.time_ps / 1e6 / measured_us - 1
    print(f"{preset} {machine} {options}: {answer.busbw_bytes_per_s / 1e9:.1f} GB/s on the bus, {error:+.3f}")
    assert abs(error) <= tolerance
