"""After kills of workers, drivers and Dask's processes: is every point there, and no answered one computed again?"""

from __future__ import annotations

import pytest
from experiment_kills import Dask, kill_at_random, kill_dask_at_random, start
from experiment_questions import __name__ as QUESTIONS
from experiment_questions import sweep
from long_tests import long

import trine
from trine.errors import InputError, SimulationError
from trine.experiments.spec import ExperimentSpec


def test_two_kills(tmp_path):
    assert kill_at_random(tmp_path, kills=2, points=80, sleep=0.03, seed=4) <= 2


@long
@pytest.mark.slow
def test_150_kills_of_workers_and_drivers(tmp_path):
    assert 30 < kill_at_random(tmp_path, kills=150, points=2500, sleep=0.05, seed=1) < 120


@long
@pytest.mark.slow
def test_50_kills_of_dask_workers_drivers_and_schedulers(tmp_path):
    killed = kill_dask_at_random(tmp_path, kills=50, points=1500, sleep=0.05, seed=2)
    assert set(killed) == {"worker", "driver", "scheduler"}


@pytest.mark.slow
def test_dask_without_kills_with_nannies_and_a_scheduler_that_never_comes(tmp_path, monkeypatch):
    import trine.experiments.run as run

    with Dask(tmp_path, nannies=True) as dask:
        driver = start(tmp_path / "e", tmp_path / "log", 60, 0.01, dask.address)
        driver.communicate(timeout=120)
        assert driver.returncode == 0
    assert trine.Experiment(tmp_path / "e").to_frame()["square"].tolist() == [n * n for n in range(1, 61)]
    monkeypatch.setattr(run, "_MAX_LOSSES", 0)
    monkeypatch.setattr("trine.experiments.executors._CONNECT_S", 0.2)
    monkeypatch.setattr("trine.experiments.executors.DASK_PATIENCE_S", 0.1)
    spec = ExperimentSpec(command="q", vary={"n": "1..4"}, question=f"{QUESTIONS}:square")
    with pytest.raises(SimulationError, match="workers were lost 1 times in a row"):
        sweep(spec, tmp_path / "none", scheduler=dask.address)


def test_workers_of_another_version_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("trine.experiments.worker.RESULT_VERSION", "0.0/1")
    spec = ExperimentSpec(command="q", vary={"n": "1..4"}, question=f"{QUESTIONS}:square")
    with pytest.raises(InputError, match=r"a worker has result version 0\.0/1, the experiment"):
        sweep(spec, tmp_path / "e", processes=1)
