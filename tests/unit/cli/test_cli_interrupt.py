"""Ctrl-C in commands with several runs: finished runs are shown, and an interrupted run never counts as a result."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace

import pytest

import trine.gpu.run
from trine.cluster import load_cluster
from trine.common.units import format_time
from trine.gpu import reference
from trine.gpu.cases import runs
from trine.gpu.collective.options import LoadStoreOptions
from trine.gpu.collective.two_levels import compare_fidelity
from trine.gpu.kernels.build import build_kernel
from trine.gpu.model.files import load_gpu_model
from trine.gpu.run import GpuRunOptions, run_gpus
from trine.training.ensemble import ensemble
from validation.gpu import measured as gpu_measured

MACHINE = load_cluster("astra3-generic")


def small_run(until_ps: int | None = None):
    program = build_kernel("all_gather", 2, 1 << 12, workgroups=1)
    return run_gpus(
        program, MACHINE, MACHINE.gpus[:2], load_gpu_model("astra3-generic"), options=GpuRunOptions(until_ps=until_ps)
    )


def test_a_run_that_was_stopped_is_not_taken_for_one_that_ended():
    assert small_run().whole().finished
    with pytest.raises(KeyboardInterrupt):
        small_run(until_ps=1000).whole()


def test_a_run_that_is_stopped_before_anything_happens_has_no_answer(monkeypatch):
    def stopped(system, *rest, **options):
        outcome = real(system, until_ps=0)
        return outcome._replace(records=replace(outcome.records, num_events=0))

    real = reference.simulate
    monkeypatch.setattr(reference, "simulate", stopped)
    program = build_kernel("all_gather", 2, 1 << 12, workgroups=1)
    with pytest.raises(KeyboardInterrupt):
        run_gpus(
            program,
            MACHINE,
            MACHINE.gpus[:2],
            load_gpu_model("astra3-generic"),
            options=GpuRunOptions(engine="reference"),
        )


def stop_at(monkeypatch, number: int) -> None:
    """Interrupt the run with this number, as by Ctrl-C, after it has begun."""
    count, real = [0], trine.gpu.run.simulate_system

    def simulate(system, control):
        count[0] += 1
        if count[0] < number:
            return real(system, control)
        return real(system, replace(control, until_ps=1000))

    monkeypatch.setattr(trine.gpu.run, "simulate_system", simulate)


def test_case_studies_tell_what_they_ran_and_stop(monkeypatch):
    stop_at(monkeypatch, 2)
    said: list[str] = []
    with runs.telling(said.append):
        first = runs.measure("all_gather", 2, 1 << 12, "put", 1)
        with pytest.raises(KeyboardInterrupt):
            runs.measure("all_gather", 2, 1 << 13, "put", 1)
    what = "all_gather/put (simple) of 4K on 2 GPUs; unroll 16, 512 requests a CU, ports fifo"
    assert said == [f"{what}: {format_time(first.time_ps)}"]
    runs.tell("to nobody")
    assert len(said) == 1


def test_validate_loadstore_shows_the_points_that_were_done(monkeypatch):
    from click.testing import CliRunner

    from validation.__main__ import app

    points = gpu_measured.chosen(["tutorial-get"], 1 << 20)
    assert len(points) == 2
    gpu_measured.predicted_ps.cache_clear()
    stop_at(monkeypatch, 2)
    done = CliRunner().invoke(app, ["loadstore", "--series", "tutorial-get"])
    gpu_measured.predicted_ps.cache_clear()
    assert done.exit_code == 130
    assert done.stderr.endswith("interrupted: the answer covers the run up to then\n")
    assert " 1K " in done.stdout
    assert " 1M " not in done.stdout


@pytest.mark.parametrize(
    ("stop", "said"), [(6, "32K: PARTIAL: the load-store run was stopped at 1 ns"), (8, "32K: PARTIAL: stopped before")]
)
def test_both_levels_show_the_sizes_that_were_done(monkeypatch, stop, said):
    stop_at(monkeypatch, stop)
    options = LoadStoreOptions(algorithm="put", workgroups=1)
    answer = compare_fidelity("all_gather", [1 << 14, 1 << 15, 1 << 16], MACHINE, range(2), options=options)
    assert not answer.finished
    assert [(row.finished, bool(row.parts)) for row in answer.rows] == [(True, True), (stop > 6, False)]
    assert (answer.rows[-1].ratio is None) == (stop == 6)
    assert said in answer.table()


def test_sizes_are_kept_where_the_operator_level_is_stopped(monkeypatch):
    from trine.gpu.collective import two_levels as compare

    real, count = compare._operator_parts, [0]

    def parts(*rest):
        count[0] += 1
        if count[0] == 2:
            raise KeyboardInterrupt
        return real(*rest)

    monkeypatch.setattr(compare, "_operator_parts", parts)
    options = LoadStoreOptions(algorithm="put", workgroups=1)
    answer = compare_fidelity("all_gather", [1 << 14, 1 << 15], MACHINE, range(2), options=options)
    assert (len(answer.rows), answer.finished) == (1, False)


def test_an_ensemble_is_of_the_seeds_that_were_run():
    def run(seed: int) -> int:
        if seed == 13:
            raise KeyboardInterrupt
        return 100 + seed

    found = ensemble(run, 5, first_seed=10)
    assert (found.seeds, found.times_ps, found.finished) == ((10, 11, 12), (110, 111, 112), False)
    assert found.summary().startswith("PARTIAL")
    assert found.to_json()["finished"] is False
    with pytest.raises(KeyboardInterrupt):
        ensemble(run, 5, first_seed=12)
    assert ensemble(run, 3, first_seed=10).finished


SWALLOWED = """
import ctypes, os, signal, time
from trine.cli.streams import keep_interrupts
keep_interrupts()
@ctypes.CFUNCTYPE(None)
def callback():
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(0.01)
try:
    callback()
    time.sleep(5)
    print("lost")
except KeyboardInterrupt:
    print("came again")
"""


def test_ctrl_c_in_a_callback_of_the_compiler_is_not_lost():
    done = subprocess.run([sys.executable, "-c", SWALLOWED], capture_output=True, text=True, check=True, timeout=60)
    assert (done.stdout, done.stderr) == ("came again\n", "")


@pytest.mark.slow
def test_a_sweep_that_is_stopped_says_nothing_about_its_workers(tmp_path):
    spec = tmp_path / "steps.yaml"
    spec.write_text(
        "command: train\nsettings: {workload: 'model:llama-3.2-1b', cluster: dgx-h100, gpus: 8}\n"
        "vary: {batch: '1..4000'}\n"
    )
    command = [sys.executable, "-m", "trine", "sweep", str(spec), "--processes", "2"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as run:
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline and not any((tmp_path / "steps" / "journal").rglob("*.jsonl*")):
            time.sleep(0.1)
        os.killpg(run.pid, signal.SIGINT)
        _, said = run.communicate(timeout=60)
    assert run.returncode == 130
    assert "interrupted" in said
    assert "resource_tracker" not in said
