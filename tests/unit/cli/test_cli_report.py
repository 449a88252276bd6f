"""Does ``--report`` work on every command that answers, cost little, and load nothing where it is not asked?"""

from __future__ import annotations

import gc
import json
import re
import subprocess
import sys
import time

import pytest
from click.testing import CliRunner

from trine.cli.commands import COMMANDS, PREPARE
from trine.cli.main import app
from trine.cli.parameters import all_parameters, report_parameters
from trine.cli.reports import repeated_line

RUNNER = CliRunner()
STEP = ["train", "vgg13-h100-b128", "--gpus", "4", "--parallel", "ddp", "--cluster", "dgx-h100"]
#: Commands that answer, with a line each that is quick.
LINES = {
    "train": STEP[1:],
    "size": [
        "model:llama-3-8b",
        "--serve",
        "--requests-per-second",
        "1",
        "--isl",
        "99",
        "--osl",
        "9",
        "--cluster",
        "a40-pcie",
    ],
    "collective": ["all_reduce", "--size", "1M", "--cluster", "dgx-h100"],
    "infer": ["model:llama-3-8b", "--cluster", "dgx-h100", "--isl", "500", "--osl", "100", "--concurrency", "4"],
    "gpu list": [],
}


def page_in(path) -> dict:
    """Return the page of a report."""
    data = re.search(r'id="data">(.*?)</script>', path.read_text(), re.S)
    assert data is not None
    return json.loads(data[1])["page"]


@pytest.mark.parametrize("words", LINES)
def test_the_command_writes_a_report_with_its_own_line(tmp_path, words: str):
    path = tmp_path / "answer.html"
    done = RUNNER.invoke(app, [*words.split(), *LINES[words], "--report", str(path)])
    assert done.exit_code == 0, done.output
    assert f"report written to {path}" in done.stderr
    page = page_in(path)
    commands = [block["line"] for section in page["sections"] for block in section["blocks"] if "line" in block]
    assert " ".join(["trine", words, *LINES[words]]).strip() in commands


def test_every_command_that_answers_has_the_option():
    with_option = set()
    for command in COMMANDS:
        parameters = all_parameters(command.function())
        if report_parameters(command.words, parameters):
            with_option.add(command.words)
    asked = {
        each.words for each in COMMANDS
        if each.panel != PREPARE and any(parameter.name == "json" for parameter in all_parameters(each.function()))
    }  # fmt: skip
    own = {each for each in asked if each.startswith("validate ")}  # --report DIR writes their page with pictures
    assert asked - own <= with_option
    assert {
        "train",
        "plan",
        "size",
        "sweep",
        "collective",
        "infer",
        "kernel run",
        "eidolon run",
        "check",
    } <= with_option


def test_the_report_of_a_run_has_what_json_lacks(tmp_path):
    path, answer, later = tmp_path / "run.html", tmp_path / "run.json", tmp_path / "later.html"
    done = RUNNER.invoke(app, [*STEP, "--report", str(path), "--json", str(answer)])
    assert done.exit_code == 0, done.output
    done = RUNNER.invoke(app, ["report", str(answer), "-o", str(later)])
    assert done.exit_code == 0, done.output
    kinds, later_kinds = (kinds_in(page_in(each)["sections"]) for each in (path, later))
    assert kinds - later_kinds == {"timeline", "points", "areas", "heat", "command"}


def kinds_in(part: object) -> set[str]:
    """Return the kinds of all blocks of a page, those inside others included."""
    if isinstance(part, list):
        return set().union(*map(kinds_in, part))
    if not isinstance(part, dict):
        return set()
    own = {part["kind"]} if isinstance(part.get("kind"), str) else set()
    return own.union(*map(kinds_in, part.values()))


def test_two_runs_write_equal_bytes(tmp_path):
    contents = []
    for name in ("a", "b"):
        assert RUNNER.invoke(app, [*STEP, "--report", str(tmp_path / name)]).exit_code == 0
        contents.append((tmp_path / name).read_bytes())
    assert contents[0] == contents[1]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([*STEP, "--report", "{tmp}/none/x.html"], "cannot write: No such file or directory"),
        ([*STEP, "--report", "{tmp}/x", "--json", "{tmp}/x"], "--json and --report both write it"),
        ([*STEP, "--report", "-"], "--report - names no file"),
        ([*STEP, "--report", "{tmp}"], "cannot write: Is a directory"),
        (["report", "{tmp}/none.json", "-o", "{tmp}/x.html"], "No such file"),
        (["report", "{tmp}/foreign.json", "-o", "{tmp}/x.html"], "is no answer of trine: write one with --json FILE"),
    ],
)
def test_wrong_files_are_one_line_before_the_command_runs(tmp_path, words: list[str], message: str):
    (tmp_path / "foreign.json").write_text('{"a": 1}')
    began = time.process_time()
    done = RUNNER.invoke(app, [word.format(tmp=tmp_path) for word in words])
    assert done.exit_code == 2
    assert message in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert time.process_time() - began < 2


def test_an_older_answer_is_shown_with_its_version(tmp_path):
    answer, path = tmp_path / "old.json", tmp_path / "old.html"
    answer.write_text(json.dumps({"schema": "trine/result/1", "version": "0.9.0", "step_time_s": 1.5}))
    done = RUNNER.invoke(app, ["report", str(answer), "-o", str(path)])
    assert done.exit_code == 0
    assert "note: the answer is of trine 0.9.0" in done.stderr
    assert page_in(path)["version"] == "0.9.0"


def test_the_repeated_line_leaves_the_report_out():
    typed = ["all_reduce", "--size", "1M", "--report", "a b.html", "--report=x", "--name", "two words"]
    assert repeated_line("collective", typed) == "trine collective all_reduce --size 1M --name 'two words'"


def test_commands_without_a_report_load_none_of_it():
    code = (
        "import sys; from trine.cli.main import _run; _run(sys.argv[1:]); "
        "print([name for name in sys.modules if name.startswith('trine.report')])"
    )
    words = ["collective", "all_reduce", "--size", "1M", "--cluster", "dgx-h100", "--brief"]
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_a_report_costs_at_most_a_second_and_a_fifth_of_the_run(tmp_path):
    import trine
    from trine.report.documents import page_of
    from trine.report.html import write_page
    from trine.report.run_blocks import blocks_of_run

    plan = trine.Plan(dp=32, tp=8, pp=4, batch=32, micro_batch=1)
    cluster = trine.load_cluster("dgx-h100", nodes=128)
    began = time.process_time()
    result = trine.simulate("model:llama-3-70b", plan, cluster=cluster)
    document = {"schema": "trine/result/1", "version": "x", **result.document()}
    ran = time.process_time() - began
    gc.collect()  # the run's garbage is not the report's
    began = time.process_time()
    write_page(page_of(document, run=blocks_of_run(result)), tmp_path / "step.html")
    wrote = time.process_time() - began
    assert wrote < min(1, 0.2 * ran)
