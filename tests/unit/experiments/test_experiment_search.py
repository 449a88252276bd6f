"""Does a search find the lowest point, equally with any number of workers and after a restart?"""

from __future__ import annotations

import sys

import pytest
from experiment_questions import __name__ as QUESTIONS
from experiment_questions import sweep

from trine.errors import InputError, MissingExtraError
from trine.experiments.journal import journals
from trine.experiments.spec import ExperimentSpec, SearchSpec

SEARCH = ExperimentSpec(
    command="bowl", vary={"x": "uniform(0.0..1.0)", "y": "log(1..64)"}, seed=2, question=f"{QUESTIONS}:bowl",
    search=SearchSpec(trials=60, minimise="cost"),
)  # fmt: skip


def test_a_search_comes_closer_than_random_samples_and_a_restart_asks_the_rest_only(tmp_path):
    frame = sweep(SEARCH, tmp_path / "whole", processes=1).to_frame()
    assert frame["point"].tolist() == list(range(60))
    assert frame["cost"][30:].median() < frame["cost"][:10].median() / 2
    assert frame["cost"].min() < 0.02
    sweep(SEARCH, tmp_path / "part", processes=1)
    (path,) = journals(tmp_path / "part")
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:22]))
    again = sweep(tmp_path / "part", processes=1).to_frame()
    assert len(journals(tmp_path / "part")) == 2
    assert (
        len(journals(tmp_path / "part")[1].read_bytes().splitlines())
        + len(journals(tmp_path / "part")[0].read_bytes().splitlines())
        == 62
    )  # two headers, and each trial once
    assert (again[["x", "y", "cost"]] == frame[["x", "y", "cost"]]).all().all()


@pytest.mark.slow
def test_two_processes_make_the_same_trials(tmp_path):
    one = sweep(SEARCH, tmp_path / "one", processes=1).to_frame()
    two = sweep(SEARCH, tmp_path / "two", processes=2).to_frame()
    assert (one[["x", "y", "cost"]] == two[["x", "y", "cost"]]).all().all()


def test_wrong_searches_are_refused(tmp_path, monkeypatch):
    from dataclasses import replace

    with pytest.raises(InputError, match="no number called 'coast' in the results; did you mean 'cost'"):
        sweep(replace(SEARCH, search=SearchSpec(trials=9, minimise="coast")), tmp_path / "e", processes=1)
    with pytest.raises(InputError, match="it has no shards"):
        sweep(SEARCH, tmp_path / "f", shard="0/2")
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'trine\[search\]'"):
        sweep(SEARCH, tmp_path / "g", processes=1)
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'trine\[dask\]'"):
        sweep(SEARCH, tmp_path / "h", scheduler="tcp://127.0.0.1:1")
