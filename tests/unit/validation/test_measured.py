"""Do the bundled measurements match their sources, and does each have a machine and a reason for its quality?"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from trine.collectives.options import LAUNCHES
from validation.measured import COUNTED, FOLDER, QUALITIES, SPLITS, Series, load_machines, load_measurements

COLLECTED = Path(__file__).parents[4] / "shared" / "data" / "measured"


def series(machine: str, op: str, gpus: int, **options: object) -> Series:
    (found,) = [
        each
        for each in load_measurements()
        if (each.machine.name, each.op, each.num_gpus) == (machine, op, gpus)
        and all(getattr(each.options, name) == value for name, value in options.items())
    ]
    return found


def test_numbers_as_published() -> None:
    """The expected numbers were read off the sources by eye, to catch slips in the bundling."""
    point = series("h200-8", "all_gather", 8).points[0]
    assert (point.size_bytes, point.time_ps) == (17179869184, 41594900000)
    curve = {p.size_bytes: p.time_ps for p in series("mi300x-8-aac8", "all_reduce", 8).points}
    assert (curve[1024], curve[8589934592]) == (13670000, 47617000000)
    vtrain = {p.size_bytes: p.time_ps for p in series("vtrain-v100", "all_reduce", 8).points}
    assert max(vtrain) / vtrain[max(vtrain)] == pytest.approx((1 << 30) / 13969e6, rel=0.01)


def test_every_series_has_ascending_positive_points_and_a_source() -> None:
    for each in load_measurements():
        sizes = [point.size_bytes for point in each.points]
        assert sizes == sorted(set(sizes))
        assert all(point.time_ps > 0 and point.spread >= 1 for point in each.points)
        assert each.source
        assert each.machine.split in SPLITS
        assert each.machine.launch in LAUNCHES


def test_whatever_is_not_clean_says_why() -> None:
    for each in load_measurements():
        for point in each.points:
            assert point.quality in QUALITIES
            assert point.reason or point.quality == "clean", each.name


def test_names_tell_series_apart_unless_they_are_repeats() -> None:
    keys = [(each.name, each.source, each.observed) for each in load_measurements()]
    assert len(keys) == len(set(keys))


def test_all_machines_are_used_and_most_points_count() -> None:
    used = {each.machine.name for each in load_measurements()}
    assert used == set(load_machines())
    points = [point for each in load_measurements() for point in each.points]
    assert sum(point.quality in COUNTED for point in points) > 0.7 * len(points)


def test_every_cluster_that_is_named_can_be_built_and_is_large_enough() -> None:
    for each in load_measurements():
        cluster = each.load_cluster()
        if cluster is not None:
            assert len(cluster.gpus) >= each.num_gpus, each.name


def test_licences_lie_beside_the_data() -> None:
    for project in ("aiconfigurator", "splitwise", "vidur", "vtrain"):
        assert (FOLDER / "licences" / f"{project}-LICENSE").stat().st_size > 500
    sizes = {path: path.stat().st_size for path in FOLDER.rglob("*") if path.is_file()}
    of_steps, of_serving = (
        sum(size for path, size in sizes.items() if FOLDER / part in path.parents) for part in ("training", "serving")
    )
    assert sum(sizes.values()) - of_steps - of_serving < 400_000
    assert of_steps < 1_000_000
    assert of_serving < 100_000


@pytest.mark.skipif(not COLLECTED.is_dir(), reason="the collection is not on this machine")
def test_the_bundle_is_what_its_script_writes(tmp_path: Path) -> None:
    script = Path(__file__).parents[3] / "benchmarks" / "bundle_measurements.py"
    subprocess.run([sys.executable, script, COLLECTED, tmp_path], check=True, capture_output=True)
    for name in ("series.csv", "points.csv"):
        assert (tmp_path / name).read_text() == (FOLDER / name).read_text()
