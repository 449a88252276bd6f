"""Does a sweep give the same rows on any number of cores, and keep finished rows if it is stopped or fails?"""

from __future__ import annotations

import json
import threading

import pytest
from click.testing import CliRunner

from trine.cli.main import app
from trine.errors import InputError
from trine.gpu.replay.options import EidolonOptions
from trine.gpu.replay.run import Prepared
from trine.gpu.replay.sweep import num_runs, sweep

BASE = EidolonOptions(cols=64)
GRID = {"rows": (128, 64, 256), "wakeup": ("0", "2 us", "6 us"), "sync": ("spin", "mwait")}


@pytest.fixture(scope="module")
def on_one_core():
    return sweep(BASE, GRID, jobs=1)


@pytest.mark.parametrize("jobs", [2, 5])
def test_rows_and_fits_do_not_depend_on_the_number_of_cores(on_one_core, jobs):
    ticks = []
    found = sweep(BASE, GRID, jobs=jobs, progress=lambda *tick: ticks.append(tick))
    assert found.text(volatile=False) == on_one_core.text(volatile=False)
    assert [(row["rows"], row["sync"], row["wakeup_s"]) for row in found.rows] == [
        (rows, sync, us / 1e6) for rows in (128, 64, 256) for sync in ("spin", "mwait") for us in (0, 2, 6)
    ]
    assert found.fits == on_one_core.fits
    assert len(found.fits) == 3
    assert len(found.rows) == num_runs(GRID)
    assert 1 < len(ticks) <= len(found.rows)
    assert ticks[-1][0] == ticks[-1][1]
    assert [done for done, _, _ in ticks] == sorted(done for done, _, _ in ticks)


@pytest.mark.parametrize("jobs", [1, 2])
def test_what_had_been_run_is_left_of_a_sweep_that_is_stopped(on_one_core, jobs):
    """Ctrl-C arrives halfway through the rows."""

    def stop(done, total, _):
        if done > total // 2:
            raise KeyboardInterrupt

    found = sweep(BASE, GRID, jobs=jobs, progress=stop)
    assert not found.finished
    kept = [(row["rows"], row["sync"], row["wakeup_s"], row["flag_reads"]) for row in on_one_core.rows]
    rows = [(row["rows"], row["sync"], row["wakeup_s"], row["flag_reads"]) for row in found.rows]
    assert 0 < len(rows) < len(kept)
    assert [row for row in kept if row in rows] == rows


@pytest.mark.parametrize("jobs", [1, 3])
def test_the_first_error_of_the_grid_is_told(jobs):
    """The grid has an impossible workload followed by one that never waits."""
    grid = {"rows": (64, 63 * 500, 64 * 500), "cols": (16,), "sync": ("spin",)}
    with pytest.raises(InputError) as error:
        sweep(EidolonOptions(tile=(64, 16)), grid, jobs=jobs)
    with pytest.raises(InputError) as alone:
        Prepared(EidolonOptions(rows=63 * 500, cols=16, tile=(64, 16), sync="spin")).run()
    assert str(error.value) == str(alone.value)


def test_no_thread_is_left():
    before = threading.active_count()
    sweep(BASE, {"rows": (64, 128), "sync": ("spin",)}, jobs=2)
    assert threading.active_count() == before


def test_jobs_count_from_one():
    for wrong in (0, -3, True):
        with pytest.raises(InputError, match="--jobs counts from 1"):
            sweep(BASE, {"sync": ("spin",)}, jobs=wrong)


def test_the_command_has_them():
    runner, words = CliRunner(), ["eidolon", "sweep", "--rows", "64,128", "--cols", "64"]
    wrong = runner.invoke(app, [*words, "--jobs", "0"])
    assert (wrong.exit_code, wrong.stderr) == (2, "error: --jobs counts from 1, got 0\n")
    answers = [json.loads(runner.invoke(app, [*words, "--jobs", jobs, "--json", "-"]).stdout) for jobs in ("1", "2")]
    one, two = ([{**row, "wall_s": None} for row in answer["runs"]] for answer in answers)
    assert one == two
    assert len(one) == 4
