"""Does a sweep keep its finished runs, even after kill -9, and resume without repeating them?"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace

import pytest
from click.testing import CliRunner
from full_disk import full_disk

from trine.cli.main import app
from trine.errors import InputError, SpecError
from trine.gpu.kernels.build import build_kernel
from trine.gpu.replay.options import EidolonOptions
from trine.gpu.replay.run import Prepared
from trine.gpu.replay.sweep import SweepGrid, sweep
from trine.gpu.replay.sweep_runs import Journal

BASE = EidolonOptions(cols=64, rows=64)
GRID = SweepGrid(rows=(64, 128), wakeup=("0", "2 us", "6 us"), sync=("spin", "mwait"))


@pytest.fixture
def counted(monkeypatch):
    """Record the wake-up time of every run made for a row."""
    made = []
    real = Prepared.run

    def run(self, **how):
        made.append(how["wakeup"])
        return real(self, **how)

    monkeypatch.setattr(Prepared, "run", run)
    return made


def stop_after(number: int):
    calls = []

    def progress(*_):
        calls.append(1)
        if len(calls) == number:
            raise KeyboardInterrupt

    return progress


def test_a_sweep_goes_on_from_what_an_earlier_one_kept(tmp_path, counted):
    path = tmp_path / "runs"
    whole = sweep(BASE, GRID, jobs=1)
    del counted[:]
    assert not sweep(BASE, GRID, jobs=1, progress=stop_after(5), journal=path).finished
    assert len(counted) == 5
    assert len(path.read_text().splitlines()) == 5
    del counted[:]
    journal = Journal(path)
    found = sweep(BASE, GRID, jobs=1, journal=journal)
    assert (found.finished, journal.num_taken, journal.notes) == (True, 5, [])
    assert found.text(volatile=False) == whole.text(volatile=False)
    assert found.fits == whole.fits
    del counted[:]
    assert sweep(BASE, GRID, jobs=2, journal=path).rows == found.rows
    assert not set(counted) & set(GRID.wakeup)  # the remaining runs search for mwait's break-even point
    sums = [json.loads(line) for line in path.read_text().splitlines()]
    assert [each["row"]["wakeup_s"] for each in sums[:3]] == [0, 2e-6, 6e-6]


@pytest.mark.parametrize(
    "other",
    [{"cols": 128}, {"peers": 2}, {"wakeup_from": "start"}, {"stragglers": {1: "1 us"}}, {"poll": "1 us"},
     {"fused": False}, {"gpu_model": "a100"}, {"fabric": "modelled"}, {"tile": (16, 64)}],
)  # fmt: skip
def test_runs_of_other_options_are_not_taken(tmp_path, other):
    grid = SweepGrid(wakeup=("2 us",), sync=("spin",))
    sweep(BASE, grid, jobs=1, journal=tmp_path / "runs")
    journal = Journal(tmp_path / "runs")
    try:
        found = sweep(replace(BASE, **other), grid, jobs=1, journal=journal)
    except InputError as error:
        pytest.skip(f"not an option here: {error}")
    assert (len(found.rows), journal.num_taken) == (1, 0)


def test_a_program_that_has_changed_is_run_again(tmp_path):
    taken = []
    for size_bytes in (1 << 12, 1 << 13, 1 << 12):
        journal = Journal(tmp_path / "runs")
        program = build_kernel("all_gather", 2, size_bytes, workgroups=1)
        sweep(
            EidolonOptions(kernel=program, symmetric=True, cluster="astra3-generic"),
            SweepGrid(),
            jobs=1,
            journal=journal,
        )
        taken.append(journal.num_taken)
    assert taken == [0, 0, 1]


@pytest.mark.parametrize(
    "damage",
    [
        lambda lines: [lines[0], lines[1][: len(lines[1]) // 2]],
        lambda lines: [lines[0], lines[1].replace(b'"flag_reads":', b'"flag_reads":1')],
        lambda lines: [lines[0], b"\xff\x00 nonsense", b"[1]", b"{}", b'{"key": 1, "sum": 2, "row": {}}'],
    ],
)
def test_lines_that_are_not_whole_are_run_again(tmp_path, damage):
    path = tmp_path / "runs"
    grid = SweepGrid(wakeup=("0", "2 us"), sync=("mwait",))
    whole = sweep(BASE, grid, jobs=1, journal=path)
    path.write_bytes(b"\n".join(damage(path.read_bytes().splitlines())))  # without a final newline
    journal = Journal(path)
    found = sweep(BASE, grid, jobs=1, journal=journal)
    assert journal.num_taken == 1
    assert found.text(volatile=False) == whole.text(volatile=False)
    assert len(Journal(path)._rows) == 2


def test_a_full_disk_under_the_journal_is_noted_and_the_sweep_goes_on(tmp_path):
    with full_disk(700):
        journal = Journal(tmp_path / "runs")
        found = sweep(BASE, SweepGrid(wakeup=("0", "2 us"), sync=("mwait",)), jobs=1, journal=journal)
    assert len(found.rows) == 2
    assert len(journal.notes) == 1
    assert journal.notes[0].startswith(f"runs are not kept: cannot write {tmp_path}/runs (")


def test_what_a_journal_cannot_tell_apart_is_refused(tmp_path):
    with pytest.raises(SpecError, match="not a regular file"):
        Journal(tmp_path)
    with pytest.raises(InputError, match="a journal keeps no runs with writes"):
        sweep(EidolonOptions(writes=str(tmp_path / "w.csv")), SweepGrid(), journal=tmp_path / "runs")


WORDS = ["eidolon", "sweep", "--rows", "64,128", "--cols", "64", "--wakeup", "0:6us:2us", "--jobs", "1"]


def test_the_command_leaves_its_journal_only_where_it_did_not_end(tmp_path, monkeypatch):
    target = tmp_path / "a.csv"
    first = CliRunner().invoke(app, [*WORDS, "--csv", str(target)])
    assert first.exit_code == 0, first.stderr
    assert [each.name for each in tmp_path.iterdir()] == ["a.csv"]
    broken = CliRunner().invoke(app, [*WORDS, "--json", str(tmp_path / "b.json"), "--csv", "/dev/full"])
    assert broken.exit_code == 2
    assert "note: finished runs are in" not in broken.stderr  # no journal next to a device


@pytest.mark.slow
def test_a_sweep_that_is_killed_keeps_what_has_ended_and_goes_on_from_there(tmp_path):
    target = tmp_path / "a.csv"
    journal = tmp_path / "a.csv.runs.jsonl"
    words = [sys.executable, "-m", "trine", "eidolon", "sweep", "--rows", "1024,2048", "--wakeup", "0:900us:10us",
             "--jobs", "1", "--csv", str(target)]  # fmt: skip
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while process.poll() is None and (not journal.exists() or journal.stat().st_size < 2000):
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    kept = journal.read_text().count("\n")
    assert kept >= 3
    assert [each.name for each in tmp_path.iterdir()] == [journal.name]
    done = subprocess.run(words, capture_output=True, text=True, check=True, env={**os.environ})
    assert f"note: {kept} runs come from {journal}, written by an earlier sweep\n" in done.stderr
    assert [each.name for each in tmp_path.iterdir()] == [target.name]
    assert len(target.read_text().splitlines()) == 1 + 2 * 2 * 91
