"""After kills of workers, drivers and Dask's processes: is every point there, and no answered one computed again?"""

from __future__ import annotations

import contextlib
import socket
import time
from threading import Thread

import pytest
from experiment_kills import Dask, kill_at_random, kill_dask_at_random, start
from experiment_questions import __name__ as QUESTIONS
from experiment_questions import sweep
from long_tests import long

import trine
from trine.errors import InputError
from trine.experiments.executors import dask_address
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
    with Dask(tmp_path, nannies=True) as dask:
        driver = start(tmp_path / "e", tmp_path / "log", 60, 0.01, dask.address)
        driver.communicate(timeout=120)
        assert driver.returncode == 0
    assert trine.Experiment(tmp_path / "e").to_frame()["square"].tolist() == [n * n for n in range(1, 61)]
    monkeypatch.setattr("trine.experiments.executors._CONNECT_S", 0.2)
    spec = ExperimentSpec(command="q", vary={"n": "1..4"}, question=f"{QUESTIONS}:square")
    with pytest.raises(InputError, match=r"scheduler: no Dask scheduler answers at tcp://127.0.0.1:\d+ in 0.2 s"):
        sweep(spec, tmp_path / "none", scheduler=dask.address)


@pytest.mark.parametrize("is_silent", [False, True])
def test_another_server_in_the_place_of_a_scheduler_is_an_error_soon(tmp_path, monkeypatch, is_silent):
    pytest.importorskip("distributed")
    monkeypatch.setattr("trine.experiments.executors._CONNECT_S", 0.4)
    spec = ExperimentSpec(command="q", vary={"n": "1..4"}, question=f"{QUESTIONS}:square")
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        if not is_silent:
            Thread(target=_answer_http, args=(server,), daemon=True).start()
        start = time.monotonic()
        with pytest.raises(InputError, match="no Dask scheduler answers"):
            sweep(spec, tmp_path / "e", scheduler=f"127.0.0.1:{port}")
        assert time.monotonic() - start < 8


def _answer_http(server):
    with contextlib.suppress(OSError):
        while True:
            connection, _ = server.accept()
            connection.sendall(b"HTTP/1.0 400 Bad request\r\n\r\n" * 20)
            connection.close()


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("tcp://10.0.0.1:8786", "tcp://10.0.0.1:8786"), ("10.0.0.1:99", "tcp://10.0.0.1:99"), ("host", "tcp://host:8786"),
        ("tls://host:1/", "tls://host:1"), (" host:1 ", "tcp://host:1"), ("[::1]", "tcp://[::1]:8786"),
        ("tcp://[::1]:80", "tcp://[::1]:80"),
    ],
)  # fmt: skip
def test_addresses_are_completed(text, address):
    assert dask_address(text) == address


@pytest.mark.parametrize(
    "text", ["", "tcp://", "http://host:1", "host:99999", "host:x", "host:" + "9" * 5000, ":8786", "tcp:/h:1x"]
)
def test_wrong_addresses_are_refused(text):
    with pytest.raises(InputError, match=r"scheduler: must be an address such as tcp://10.0.0.1:8786"):
        dask_address(text)


def test_workers_of_another_version_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("trine.experiments.worker.RESULT_VERSION", "0.0/1")
    spec = ExperimentSpec(command="q", vary={"n": "1..4"}, question=f"{QUESTIONS}:square")
    with pytest.raises(InputError, match=r"a worker has result version 0\.0/1, the experiment"):
        sweep(spec, tmp_path / "e", processes=1)
