"""Does a sweep keep its finished runs, even after kill -9, and resume without repeating them?"""

from __future__ import annotations

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
from trine.errors import InputError, StorageError
from trine.gpu.kernels.build import build_kernel
from trine.gpu.replay.options import EidolonOptions
from trine.gpu.replay.run import Prepared
from trine.gpu.replay.sweep import sweep

BASE = EidolonOptions(cols=64, rows=64)
GRID = {"rows": (64, 128), "wakeup": ("0", "2 us", "6 us"), "sync": ("spin", "mwait")}


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


def journal_of(directory):
    """Return the only journal below a sweep's directory."""
    (path,) = directory.glob("*/journal/0-of-1/*.jsonl")
    return path


def test_a_sweep_goes_on_from_what_an_earlier_one_kept(tmp_path, counted):
    path = tmp_path / "runs"
    whole = sweep(BASE, GRID, jobs=1)
    del counted[:]
    stopped = sweep(BASE, GRID, jobs=1, progress=stop_after(2), directory=path)
    assert not stopped.finished
    kept = len(stopped.rows)
    assert 2 <= kept < len(whole.rows)
    assert len(journal_of(path).read_text().splitlines()) == 1 + kept
    del counted[:]
    found = sweep(BASE, GRID, jobs=1, directory=path)
    assert (found.finished, found.num_reused, found.folder) == (True, kept, stopped.folder)
    assert len([wakeup for wakeup in counted if wakeup in (0, 2_000_000, 6_000_000)]) == len(whole.rows) - kept
    assert found.text(volatile=False) == whole.text(volatile=False)
    assert found.fits == whole.fits
    del counted[:]
    again = sweep(BASE, GRID, jobs=2, directory=path)
    assert (again.rows, again.fits) == (found.rows, found.fits)
    assert not set(counted) & {0, 2_000_000, 6_000_000}  # the remaining runs search for mwait's break-even point


@pytest.mark.parametrize(
    "other",
    [{"cols": 128}, {"peers": 2}, {"wakeup_from": "start"}, {"straggler": {1: "1 us"}}, {"poll": "1 us"},
     {"fused": False}, {"gpu_model": "mi355x"}, {"fabric": "modelled"}, {"tile": (16, 64)}, {"wakeup": "3 us"}],
)  # fmt: skip
def test_runs_of_other_options_are_not_taken(tmp_path, other):
    vary = {"sync": ("spin",)}
    first = sweep(BASE, vary, jobs=1, directory=tmp_path / "runs")
    found = sweep(replace(BASE, **other), vary, jobs=1, directory=tmp_path / "runs")
    assert (len(found.rows), found.num_reused) == (1, 0)
    assert found.folder != first.folder


def test_a_program_that_has_changed_is_run_again(tmp_path):
    taken = []
    for size_bytes in (1 << 12, 1 << 13, 1 << 12):
        program = build_kernel("all_gather", 2, size_bytes, workgroups=1)
        options = EidolonOptions(kernel=program, symmetric=True, cluster="astra3-generic")
        taken.append(sweep(options, {}, jobs=1, directory=tmp_path / "runs").num_reused)
    assert taken == [0, 0, 1]


def test_a_torn_last_line_is_run_again(tmp_path):
    path = tmp_path / "runs"
    vary = {"wakeup": ("0", "2 us"), "sync": ("mwait",)}
    whole = sweep(BASE, vary, jobs=1, directory=path)
    journal = journal_of(path)
    journal.write_bytes(journal.read_bytes()[:-40])
    found = sweep(BASE, vary, jobs=1, directory=path)
    assert found.num_reused == 1
    assert found.text(volatile=False) == whole.text(volatile=False)


def test_a_changed_line_is_an_error_that_names_it(tmp_path):
    path = tmp_path / "runs"
    vary = {"wakeup": ("0", "2 us"), "sync": ("mwait",)}
    sweep(BASE, vary, jobs=1, directory=path)
    journal = journal_of(path)
    journal.write_bytes(journal.read_bytes().replace(b'"flag_reads":', b'"flag_reads":1'))
    with pytest.raises(InputError, match="line 2 is damaged"):
        sweep(BASE, vary, jobs=1, directory=path)


def test_a_full_disk_under_the_runs_is_an_error(tmp_path):
    vary = {"wakeup": ("0", "2 us"), "sync": ("mwait",)}
    sweep(BASE, vary, jobs=1, directory=tmp_path / "whole")
    left_bytes = journal_of(tmp_path / "whole").stat().st_size - 20
    with full_disk(left_bytes), pytest.raises(StorageError, match=r"cannot write: .*the same call goes on"):
        sweep(BASE, vary, jobs=1, directory=tmp_path / "runs")
    assert sweep(BASE, vary, jobs=1, directory=tmp_path / "runs").num_reused == 1


def test_what_a_folder_cannot_tell_apart_is_refused(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match="cannot write"):
        sweep(BASE, GRID, directory=tmp_path / "file")
    with pytest.raises(InputError, match="no folder keeps runs with writes"):
        sweep(EidolonOptions(writes=str(tmp_path / "w.csv")), {}, directory=tmp_path / "runs")


def test_a_failed_sweep_leaves_no_runs(tmp_path):
    with pytest.raises(InputError):
        sweep(EidolonOptions(tile=(64, 16)), {"rows": (64, 63 * 500), "cols": (16,)}, directory=tmp_path / "runs")
    assert list((tmp_path / "runs").iterdir()) == []


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
    folder = tmp_path / "a.csv.runs"
    words = [sys.executable, "-m", "trine", "eidolon", "sweep", "--rows", "1024,2048", "--wakeup", "0:900us:10us",
             "--jobs", "1", "--csv", str(target)]  # fmt: skip
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while process.poll() is None and num_lines(folder) < 4:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    kept = num_lines(folder) - 1
    assert kept >= 3
    assert [each.name for each in tmp_path.iterdir()] == [folder.name]
    done = subprocess.run(words, capture_output=True, text=True, check=True, env={**os.environ})
    assert f"note: {kept} runs come from {folder}, written by an earlier sweep\n" in done.stderr
    assert [each.name for each in tmp_path.iterdir()] == [target.name]
    assert len(target.read_text().splitlines()) == 1 + 2 * 2 * 91


def num_lines(directory):
    """Return the complete lines of the journals below a sweep's directory."""
    return sum(path.read_bytes().count(b"\n") for path in directory.glob("*/journal/0-of-1/*.jsonl"))
