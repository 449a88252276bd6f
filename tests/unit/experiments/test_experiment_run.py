"""Does an experiment answer every point once, keep reasons, and go on after any end?"""

from __future__ import annotations

import json
import os
from concurrent.futures import ThreadPoolExecutor

import pytest
from cpu_time import computes_for_less_than
from experiment_questions import __name__ as QUESTIONS
from experiment_questions import square, sweep

import trine
from trine.errors import InputError, SimulationError
from trine.experiments.journal import journals
from trine.experiments.spec import ExperimentSpec, Shard


def spec(question="square", **changes):
    return ExperimentSpec(
        **{"command": question, "vary": {"n": "1..40"}, "question": f"{QUESTIONS}:{question}", **changes}
    )


def starts(log):
    return [int(line.split()[1]) for line in log.read_text().splitlines() if line.startswith("start")]


def test_every_point_is_answered_once_and_a_second_run_computes_nothing(tmp_path):
    log = tmp_path / "log"
    asked = spec(settings={"log": str(log)})
    seen = []
    answer = sweep(asked, tmp_path / "e", processes=1, progress=lambda *counts: seen.append(counts))
    assert sorted(starts(log)) == list(range(1, 41))
    assert seen[-1] == (40, 0, 40)
    assert answer.to_frame()["square"].tolist() == [n * n for n in range(1, 41)]
    again = sweep(tmp_path / "e", processes=1)
    assert len(starts(log)) == 40
    assert again.document() == answer.document()


def test_two_processes_and_shards_give_the_bytes_of_one_process(tmp_path):
    sweep(spec(), tmp_path / "one", processes=1)
    sweep(spec(), tmp_path / "two", processes=2)
    for i in range(3):
        shard = sweep(spec(), tmp_path / "shards", processes=1, shard=f"{i}/3")
    shard = trine.Experiment(tmp_path / "shards")
    assert shard.left == 0
    shard.compact()
    parquet = [(tmp_path / name / "points.parquet").read_bytes() for name in ("one", "two", "shards")]
    assert parquet[0] == parquet[1] == parquet[2]


def test_another_number_of_shards_computes_only_the_points_left(tmp_path):
    log = tmp_path / "log"
    asked = spec(settings={"log": str(log)})
    sweep(asked, tmp_path / "e", processes=1, shard="1/4")
    assert sorted(starts(log)) == list(range(2, 41, 4))
    sweep(asked, tmp_path / "e", processes=1)
    assert sorted(starts(log)) == list(range(1, 41))


def test_any_executor_works(tmp_path):
    with ThreadPoolExecutor(3) as executor:
        answer = sweep(spec(), tmp_path / "e", executor=executor)
        assert executor.submit(int, "3").result() == 3  # still the caller's
    assert answer.to_frame()["square"].sum() == sum(n * n for n in range(1, 41))


def test_a_broken_executor_of_the_caller_is_named(tmp_path):
    executor = ThreadPoolExecutor(1)
    executor.shutdown()
    with pytest.raises(SimulationError, match="after shutdown"):
        sweep(spec(), tmp_path / "e", executor=executor)


def test_a_second_driver_at_the_same_time_is_refused(tmp_path):
    def second(*counts):
        if counts[0] == 1:
            with pytest.raises(InputError, match="another process is answering shard 0/1"):
                sweep(spec(), tmp_path / "e", processes=1)

    sweep(spec(), tmp_path / "e", processes=1, progress=second)
    assert sweep(spec(), tmp_path / "e", processes=1).left == 0


def test_failed_points_keep_their_reason(tmp_path):
    answer = sweep(spec("picky"), tmp_path / "e", processes=1)
    frame = answer.to_frame().set_index("n")
    assert frame.loc[5, "reason"] == "n is odd"
    assert frame.loc[7, "reason"] == "ZeroDivisionError: three"
    assert frame.loc[8, "half"] == 4
    assert answer.progress() == {"points": 40, "done": 20, "failed": 20, "left": 0}
    assert answer.reasons() == [("n is odd", 10), ("ZeroDivisionError: three", 10)]
    assert "10 failed: n is odd" in answer.summary()


@pytest.mark.slow
def test_a_point_that_ends_its_process_fails_alone(tmp_path):
    answer = sweep(spec("fatal", vary={"n": "1..12"}), tmp_path / "e", processes=2)
    frame = answer.to_frame().set_index("n")
    assert frame.loc[3, "status"] == "failed"
    assert "worker ended 5 times" in frame.loc[3, "reason"]
    assert frame.drop(index=3)["square"].tolist() == [n * n for n in range(1, 13) if n != 3]


def test_a_torn_line_is_computed_again_and_a_damaged_line_is_refused(tmp_path):
    log = tmp_path / "log"
    asked = spec(settings={"log": str(log)})
    sweep(asked, tmp_path / "e", processes=1)
    (path,) = journals(tmp_path / "e")
    content = path.read_bytes()
    lines = content.splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:-1]) + lines[-1][:20])
    assert trine.Experiment(tmp_path / "e").left == 1
    again = sweep(tmp_path / "e", processes=1)
    assert again.left == 0
    assert len(starts(log)) == 41
    path.write_bytes(content.replace(lines[3], lines[3][:20] + b"\n"))
    with pytest.raises(InputError, match=r"line 4 is damaged: 'trine sweep .*/e --repair'"):
        again.compact()


def test_results_of_another_version_are_computed_again(tmp_path, monkeypatch):
    log = tmp_path / "log"
    asked = spec(settings={"log": str(log)})
    sweep(asked, tmp_path / "e", processes=1)
    (path,) = journals(tmp_path / "e")
    path.write_text(path.read_text().replace(f'"result_version":"{trine.__version__}', '"result_version":"0.0'))
    assert trine.Experiment(tmp_path / "e").counts == (0, 0)
    sweep(tmp_path / "e", processes=1)
    assert len(starts(log)) == 80
    assert trine.Experiment(tmp_path / "e").to_frame().shape[0] == 40


def test_a_directory_of_another_experiment_is_refused(tmp_path):
    sweep(spec(), tmp_path / "e", processes=1)
    with pytest.raises(InputError, match=r"holds another experiment: vary was .*1, 2.*; give another folder"):
        sweep(spec(vary={"n": "1..41"}), tmp_path / "e", processes=1)
    other = tmp_path / "other"
    other.mkdir()
    (other / "thesis.txt").write_text("mine")
    with pytest.raises(InputError, match=r"not empty \(thesis.txt\)"):
        sweep(spec(), other, processes=1)


def test_only_the_driver_s_restart_repeats_a_call(tmp_path):
    """A scheduler that gives a call to a second worker gets the points that the first one wrote."""
    from trine.experiments.worker import Task, answer_task, close_journals

    log, directory = tmp_path / "log", tmp_path / "e"
    asked = spec(settings={"log": str(log)})
    sweep(asked, directory, processes=1, shard="0/40")
    task = Task(asked.text, str(directory), Shard(), ((4, None), (5, None)), str(directory / "journal" / "claim"),
                question=square)  # fmt: skip
    (directory / "journal" / "claim").touch()
    first = answer_task(task)
    assert answer_task(task) == first
    assert starts(log) == [1, 5, 6]
    (directory / "journal" / "claim").unlink()  # the driver has the answer: Dask repeats calls whose results it loses
    with pytest.raises(OSError, match="claim"):
        answer_task(task)
    assert starts(log) == [1, 5, 6]
    close_journals(directory)


def test_a_worker_without_the_directory_leaves_the_journal_to_the_driver(tmp_path, monkeypatch):
    import trine.experiments.worker as worker

    monkeypatch.setattr(worker, "_journal", lambda task, spec: None)
    answer = sweep(spec(), tmp_path / "e", processes=1)
    assert len(answer.to_frame()) == 40
    assert len(journals(tmp_path / "e")) == 1


def test_keys_are_equal_for_equal_inputs_only(tmp_path):
    first = sweep(spec(), tmp_path / "a", processes=1).to_frame()
    second = sweep(spec(vary={"n": "20..60"}), tmp_path / "b", processes=1).to_frame()
    third = sweep(spec(settings={"sleep": 0.0}), tmp_path / "c", processes=1).to_frame()
    shared = first.merge(second, on="key")
    assert shared["n_x"].tolist() == shared["n_y"].tolist() == list(range(20, 41))
    assert first["key"].is_unique
    assert not set(first["key"]) & set(third["key"])


def test_the_environment_and_the_resolved_specification_are_kept(tmp_path):
    sweep(spec(), tmp_path / "e", processes=1)
    (environment,) = json.loads((tmp_path / "e" / "environment.json").read_text()).values()
    assert environment["trine"] == trine.__version__
    assert environment["cpus"] == os.cpu_count()
    stored = json.loads((tmp_path / "e" / "experiment.json").read_text())
    assert stored["vary"] == {"n": list(range(1, 41))}


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"processes": 0}, "processes: must be 1 to 4096"),
        ({"processes": 2, "scheduler": "tcp://x:1"}, "both choose the workers"),
        ({"shard": "4/4"}, "shard"),
        ({"worker": 2}, "no argument 'worker'"),
    ],
)
def test_wrong_arguments_are_refused(tmp_path, arguments, problem):
    with pytest.raises(InputError, match=problem):
        sweep(spec(), tmp_path / "e", **arguments)


def test_columns_and_types_of_later_points_are_in_the_table(tmp_path, monkeypatch):
    import polars

    monkeypatch.setattr("trine.experiments.table.GROUP_ROWS", 7)
    answer = sweep(spec("late"), tmp_path / "e", processes=1)
    frame = polars.read_parquet(tmp_path / "e" / "points.parquet")
    assert frame["mixed"].to_list() == [str(n) for n in range(1, 41)]
    assert frame["number"].to_list() == [n if n < 35 else n / 2 for n in range(1, 41)]
    assert frame["late"].to_list() == [None] * 30 + [True] * 10
    assert [row["late"] for row in answer.rows] == frame["late"].to_list()


def test_duckdb_and_polars_read_the_parquet(tmp_path):
    import duckdb
    import polars

    sweep(spec("picky"), tmp_path / "e", processes=1)
    path = tmp_path / "e" / "points.parquet"
    (found,) = duckdb.sql(f"select count(*), sum(half) from '{path}' where status = 'done'").fetchall()
    assert found == (20, sum(range(1, 21)))
    frame = polars.read_parquet(path)
    assert frame.filter(polars.col("status") == "failed").height == 20
    assert frame["point"].to_list() == list(range(40))


def test_a_picture_needs_known_columns(tmp_path):
    answer = sweep(spec("picky"), tmp_path / "e", processes=1)
    figure = answer.plot("points", path=tmp_path / "half.svg", x="n", y="half", color="status")
    assert figure.axes[0].get_xlabel() == "n"
    (line,) = [line for line in figure.axes[0].get_lines() if line.get_label() == "done"]
    assert list(line.get_ydata()) == list(range(1, 21))
    with pytest.raises(InputError, match="no column 'hlaf'; did you mean 'half'"):
        answer.plot("points", x="n", y="hlaf")
    with pytest.raises(InputError, match="no point has a number"):
        answer.plot("points", x="n", y="reason")


def test_a_point_is_fast_besides_its_question(tmp_path):
    asked = spec(vary={"n": "1..2000"})
    with computes_for_less_than(2000 * 0.0006):  # the goal is 0.002 s
        sweep(asked, tmp_path / "e", processes=1)
