"""Do ``trine sweep``, ``trine plot`` and ``--vary`` answer as single commands do, on one screen?"""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

import trine
from trine.cli.main import app
from trine.cli.output import recording

ASK = ["collective", "all_reduce", "--cluster", "dgx-h100"]
VARY = ["--processes", "1", "--vary", "size=1M,64M", "--vary", "nodes=1,2"]


def run(*words):
    return CliRunner().invoke(app, list(map(str, words)))


def single(*words):
    result = run(*words, "--json", "-")
    return json.loads(result.stdout[result.stdout.index("{") :])


def test_vary_gives_the_numbers_of_single_commands():
    document = single(*ASK, *VARY)
    assert document["schema"] == "trine/experiment/1"
    assert [(row["size"], row["nodes"]) for row in document["rows"]] == [("1M", 1), ("1M", 2), ("64M", 1), ("64M", 2)]
    for row in document["rows"]:
        (alone,) = single(*ASK, "--size", row["size"], "--nodes", row["nodes"])["rows"]
        assert (row["time_us"], row["algorithm"]) == (alone["time_us"], alone["algorithm"])


def test_equal_points_have_equal_records():
    from trine.cli.record import answer_point

    settings = {"workload": "vgg13-h100-b128", "iterations": 3, "bandwidth": "1 GB/s", "latency": "1 us"}
    assert answer_point("hop", settings) == answer_point("hop", settings)
    with pytest.raises(trine.InputError, match="iterations: must be a whole number, got '3'"):
        answer_point("hop", {**settings, "iterations": "3"})
    with pytest.raises(trine.InputError, match="workload: is missing"):
        answer_point("hop", {"iterations": 3})


def test_a_changed_link_equals_the_cluster_file_that_says_so(tmp_path):
    file = tmp_path / "slow.yaml"
    file.write_text("base: dgx-h100\nlinks: [{from: gpu0..7, to: nvswitch, duplex: true, bandwidth: 300 GB/s}]\n")
    (alone,) = single("collective", "all_reduce", "--size", "1G", "--cluster", file)["rows"]
    document = single(*ASK, "--size", "1G", "--processes", 1, "--vary", "cluster.links.nvlink.bandwidth=300 GB/s")
    assert document["rows"][0]["time_us"] == alone["time_us"]


def test_the_answer_fits_one_screen_and_says_what_to_type_next():
    result = run(*ASK, "--processes", 1, "--vary", "size=1M..4M", "--size", "1M")
    assert result.exit_code == 2
    result = run(*ASK, "--processes", 1, "--vary", "size=" + ",".join(f"{i}K" for i in range(1, 50)))
    lines = result.stdout.splitlines()
    assert result.exit_code == 0
    assert len(lines) <= 24
    assert max(map(len, lines)) <= 100
    assert lines[0] == "collective: 49 of 49 points answered"
    assert any(line.startswith("next: --experiment DIR") for line in lines[-2:])


def test_train_points_have_the_step_s_numbers():
    words = ["train", "vgg13-h100-b128", "--cluster", "dgx-h100", "--parallel", "ddp"]
    document = single(*words, "--processes", 1, "--vary", "layout.gpus=2,4,3", "--vary", "plan.tp_style=column")
    alone = single(*words, "--gpus", 4)
    row = next((row for row in document["rows"] if row["gpus"] == 4), None)
    assert row["status"] == "failed"  # --tp-style without --tp
    document = single(*words, "--processes", 1, "--vary", "gpus=2,4")
    row = document["rows"][1]
    shared = set(row) & set(alone) - {"gpu"}
    assert len(shared) > 20
    assert {name: row[name] for name in shared} == {name: alone[name] for name in shared}
    assert row["memory_needed_bytes"] == max(each["needed_bytes"] for each in alone["memory"])


def test_size_points_have_gpus_and_days():
    words = ["size", "model:gpt-2", "--tokens", "1B", "--days", 30, "--cluster", "dgx-h100", "--global-batch", 128]
    words += ["--max-gpus", 8]
    (row,) = single(*words, "--processes", 1, "--vary", "price=2")["rows"]
    (alone,) = single(*words, "--price", 2)["machines"]
    assert (row["gpus"], row["tp"]) == (alone["gpus"], alone["layout"]["tp"])
    assert (row["run_days"], row["usd"]) == (alone["cost"]["days"], alone["cost"]["usd"])


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["--vary", "nods=1,2"], "collective has no field 'nods'; did you mean 'nodes'?"),
        (["--vary", "nodes"], "--vary: takes FIELD=VALUES"),
        (["--vary", "nodes=1", "--vary", "nodes=2"], "--vary nodes is given twice"),
        (["--samples", "3"], "--samples needs --vary"),
        (["--vary", "nodes=uniform(1..4)"], "add samples"),
        (["--vary", "json=a,b"], "has no place in an experiment"),
        (["--vary", "nodes=1,2", "--plot", "x.png"], "--plot is about one answer"),
        (["--vary", "cluster.fabrik.link=ib-xdr"], "unknown key 'fabrik'; did you mean 'fabric'?"),
        (["--vary", "size=1M,2M", "--brief", "--details"], "contradict"),
    ],
)
def test_wrong_requests_exit_with_2(words, problem):
    result = run(*ASK, *words)
    assert result.exit_code == 2
    assert problem in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_a_command_without_an_answer_has_no_vary():
    assert "No such option" in run("cluster", "draw", "dgx-h100", "--vary", "nodes=1,2").stderr


def test_all_points_failed_exits_with_1():
    result = run(*ASK, "--size", "1M", "--processes", 1, "--vary", "routing=teleport,magic")
    assert result.exit_code == 1
    assert "failed" in result.stdout


@pytest.fixture
def experiment(tmp_path):
    path = tmp_path / "fabric.yaml"
    path.write_text(
        "command: collective\nsettings: {op: all_reduce, cluster: dgx-h100, options.library: nccl}\n"
        "vary:\n  machine.nodes: 2..8*2\n  size: [1M, 64M]\n"
    )
    return path


def test_sweep_of_a_file_its_status_json_and_picture(experiment):
    folder = experiment.with_suffix("")
    result = run("sweep", experiment, "--shard", "0/2", "--processes", 1)
    assert result.exit_code == 0
    assert "shard 0/2: 3 points answered now" in result.stdout
    assert "3 of 6 points answered, 3 left" in run("sweep", folder, "--status").stdout
    progress = single("sweep", folder, "--status")
    assert {name: progress[name] for name in ("points", "done", "failed", "left")} == {
        "points": 6, "done": 3, "failed": 0, "left": 3,
    }  # fmt: skip
    result = run("sweep", folder, "--processes", 1)
    assert "6 of 6 points answered" in result.stdout
    assert f"trine plot {folder} x=nodes y=time_us" in result.stdout.replace("\n    ", " ")
    result = run("plot", folder, "x=nodes", "y=time_us", "color=size")
    assert result.exit_code == 0
    assert (folder / "time_us-by-nodes.png").stat().st_size > 5000
    assert trine.Experiment(folder).to_frame()["nodes"].tolist() == [2, 2, 4, 4, 8, 8]


def test_a_changed_file_is_another_experiment(experiment, tmp_path):
    run("sweep", experiment, "--processes", 1, "--shard", "0/6")
    experiment.write_text(experiment.read_text().replace("64M", "32M"))
    result = run("sweep", experiment)
    assert result.exit_code == 2
    assert "holds another experiment: vary was" in result.stderr


def test_a_changed_input_file_is_refused(tmp_path):
    cluster = tmp_path / "mine.yaml"
    cluster.write_text("base: dgx-h100\nname: mine\n")
    path = tmp_path / "e.yaml"
    settings = f"{{op: all_reduce, cluster: {cluster}}}"
    path.write_text(f"command: collective\nsettings: {settings}\nvary: {{size: [1M, 2M]}}\n")
    assert run("sweep", path, "--processes", 1).exit_code == 0
    cluster.write_text("base: dgx-h100\nname: other\n")
    result = run("sweep", tmp_path / "e")
    assert result.exit_code == 2
    assert "has changed since the experiment" in result.stderr


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["sweep", "none.yaml"], "none.yaml: cannot be read"),
        (["sweep", ".", "--status"], "experiment.json: cannot be read"),
        (["plot", ".", "x=a"], "y is missing"),
        (["plot", ".", "z=a"], "is no axis"),
    ],
)
def test_wrong_names_exit_with_2(words, problem):
    result = run(*words)
    assert result.exit_code == 2
    assert problem in result.stderr


def test_ctrl_c_answers_the_points_up_to_then(monkeypatch, experiment):
    from trine.cli.progress import RowsLine

    def interrupt(line, done, total):
        if done == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(RowsLine, "rows", interrupt)
    result = run(*ASK, *VARY)
    assert result.exit_code == 130
    assert "2 of 4 points answered, 2 left" in result.stdout
    assert "interrupted" in result.stderr
    result = run("sweep", experiment, "--processes", 1)
    assert result.exit_code == 130
    assert "goes on with the 4 points left" in result.stdout.replace("\n    ", " ")


def test_points_that_do_not_fit_are_left_out_of_pictures(tmp_path):
    """Micro-batches of 16 sequences of 8,192 tokens need more than 80 GiB: they have no time to draw."""
    pytest.importorskip("matplotlib")
    model = "model:llama-3-8b,layers=8"
    question = ["train", model, "--dp", 8, "--batch", 32, "--cluster", "dgx-h100"]
    folder = tmp_path / "points"
    asked = run(*question, "--processes", 1, "--vary", "micro_batch=1,32", "--experiment", folder)
    assert asked.exit_code == 0, asked.output
    rows = trine.Experiment(folder).rows
    assert [row["memory_verdict"] for row in rows] == ["fits", "does not fit"]
    picture = run("plot", folder, "x=micro_batch", "y=step_time_s", "--output", tmp_path / "a.svg")
    assert "hollow: 1 point whose job does not fit in memory" in picture.output
    assert "hollow: 1 point" in (tmp_path / "a.svg").read_text()
    other = run("plot", folder, "x=micro_batch", "y=compute", "--output", tmp_path / "b.svg")
    assert other.exit_code == 2


def test_vary_keeps_warnings():
    """Each warning of a single answer stands below the table, with its number of points."""
    question = ["train", "model:gpt-2,layers=2,sequence=128", "--dp", 2, "--batch", 4, "--cluster", "dgx-h100",
                "--software", "torchtitan"]  # fmt: skip
    alone = single(*question, "--recompute", "full")["warnings"]
    assert alone
    document = single(*question, "--processes", 1, "--vary", "recompute=full,none")
    assert {each["warning"]: each["points"] for each in document["warnings"]}[alone[0]] >= 1
    text = " ".join(run(*question, "--processes", 1, "--vary", "recompute=full,none").stdout.split())
    assert "warning" in text
    assert alone[0][:60] in text


@pytest.mark.parametrize(
    ("options", "key"), [(["--explain-memory"], "memory_explained"), (["--tokens", "1e9"], "cost")]
)
def test_a_point_of_an_experiment_keeps_what_its_options_add(options, key):
    job = ["model:gpt-2,layers=2,sequence=128", "--dp", "2", "--topology", "ring", "--bandwidth", "10 GB/s"]
    with recording() as plain:
        assert CliRunner().invoke(app, ["train", *job, "--latency", "1 us"]).exit_code == 0
    with recording() as extended:
        assert CliRunner().invoke(app, ["train", *job, "--latency", "1 us", *options]).exit_code == 0
    assert key not in plain[0]
    assert key in extended[0]
