"""``trine plan --serve`` and ``trine size --serve``: one screen, files, launch commands, errors with the option."""

import json

import pytest
from click.testing import CliRunner

from trine.cli.main import app

SERVED = ["llama-3-8b", "--cluster", "dgx-h100", "--isl", "512", "--osl", "64"]
PLAN = ["plan", *SERVED, "--serve", "--gpus", "2", "--precision", "fp8"]
SIZE = ["size", *SERVED, "--serve", "--requests-per-second", "100", "--precision", "fp8"]


def run(*words):
    return CliRunner().invoke(app, list(words))


def changed(words, option, value):
    """Return a command line with another value of an option."""
    if option not in words:
        return [*words, option, value]
    place = words.index(option)
    return [*words[: place + 1], value, *words[place + 2 :]]


def test_plan_prints_one_screen_a_launch_command_and_files(tmp_path):
    pytest.importorskip("matplotlib")
    picture, file = tmp_path / "front.png", tmp_path / "plan.json"
    found = run(*PLAN, "--tpot", "10ms", "--emit", "sglang", "--plot", str(picture), "--json", str(file))
    assert found.exit_code == 0
    answer, _, command = found.stdout.partition("\n\n# llama-3-8b (fp8) with SGLang")
    assert len(answer.splitlines()) <= 24
    assert "TPOT at most 10 ms" in answer
    assert "python -m sglang.launch_server --model-path MODEL" in command
    content = json.loads(file.read_text())
    assert content["schema"] == "trine/plan-serve/1"
    assert content["command"] == "plan"
    assert content["engine"].startswith("SGLang")
    assert picture.stat().st_size > 10_000


def test_every_option_of_serving_changes_the_plan():
    def row(option="--json", value="-"):
        content = json.loads(run(*changed([*PLAN, "--json", "-"], option, value)).stdout)
        return {name: content[name] for name in ("layouts", "front", "gpu", "num_gpus")}

    usual = row()
    changes = [
        ["--isl", "1024"], ["--osl", "128"], ["--prefix", "256"], ["--ttft", "100ms"], ["--tpot", "8ms"],
        ["--engine", "sglang"], ["--precision", "bf16"], ["--kv-dtype", "fp8"], ["--gpus", "1"], ["--top", "1"],
        ["--cluster", "hgx-h200"],
    ]  # fmt: skip
    for change in changes:
        assert row(*change) != usual, change


def test_the_next_command_of_a_plan_runs():
    content = json.loads(run(*PLAN, "--tpot", "10ms", "--json", "-").stdout)
    again = json.loads(run(*content["infer_command"].split()[1:], "--json", "-").stdout)
    assert again["tpot_s"]["value"] == content["layouts"][0]["tpot_s"]


def test_size_with_a_file_of_prices_a_picture_and_a_report(tmp_path):
    pytest.importorskip("matplotlib")
    prices, picture, report = tmp_path / "prices.yaml", tmp_path / "size.png", tmp_path / "size.html"
    prices.write_text("date: 2026-11-01\nusd_per_gpu_hour: {h100: 2.0}\n")
    found = run(*SIZE, "--price", str(prices), "--plot", str(picture), "--report", str(report))
    assert found.exit_code == 0
    assert "$/M tokens" in found.stdout
    assert picture.stat().st_size > 5_000
    assert "$ per million tokens" in report.read_text()
    plain = json.loads(run(*SIZE, "--price", "2", "--json", "-").stdout)["machines"][0]
    assert plain["dollars_per_hour"] == 2 * plain["num_gpus"]
    assert "$/M tokens" not in run(*SIZE).stdout
    other = run(*changed(SIZE, "--cluster", "hgx-h200"), "--price", str(prices))
    assert (other.exit_code, other.stderr.strip()) == (2, "error: --price: no price for h200; known: h100-sxm")


def test_size_prints_one_screen_and_json():
    found = run(*SIZE, "--tpot", "10ms")
    assert found.exit_code == 0
    assert len(found.stdout.splitlines()) <= 24
    assert "100 requests/s of 512 + 64 tokens, TPOT at most 10 ms" in found.stdout
    content = json.loads(run(*SIZE, "--json", "-", "--utilisation", "0.5").stdout)
    assert content["command"] == "size"
    assert content["utilisation"] == 0.5
    assert content["machines"][0]["requests_per_s"] >= 200
    assert len(run(*SIZE, "--brief").stdout.splitlines()) == 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([*PLAN, "--global-batch", "8"], "error: --global-batch: is an option of training: leave it out with --serve"),
        ([*PLAN, "--pareto"], "error: --pareto: is an option of training"),
        ([*PLAN, "--fix", "tp=2"], "error: --fix: is an option of training"),
        ([*PLAN, "--from", "x.sh"], "error: --from: is an option of training"),
        ([*PLAN, "--emit", "megatron"], "error: --emit: with --serve, one of vllm, sglang, trtllm; got 'megatron'"),
        ([*PLAN, "--emit", "vllm", "--engine", "sglang"], "error: --emit: the plan is for sglang: use --emit sglang"),
        ([*PLAN, "--ttft", "1ms"], "error: --ttft: 1 ms is below the fastest possible prefill"),
        (changed(PLAN, "--osl", "1"), "error: --osl: must be a whole number from 2"),
        (["plan", "llama-3-8b", "--serve", "--isl", "1", "--osl", "2"], "error: a search needs a machine: --cluster"),
        (["plan", "llama-3-8b", "--serve", "--cluster", "dgx-h100", "--osl", "2"], "tokens of a prompt: --isl N"),
        (["plan", *SERVED, "--global-batch", "8"], "error: --isl: is an option of serving: add --serve"),
        (["plan", "llama-3-8b", "--cluster", "dgx-h100", "--global-batch", "8", "--emit", "vllm"],
         "error: --emit: vllm serves models: add --serve"),
        ([*SIZE, "--days", "3"], "error: --days: is an option of training"),
        ([*SIZE, "--mtbf-per-gpu", "3"], "error: --mtbf-per-gpu: is an option of training"),
        (changed(SIZE, "--requests-per-second", "0"), "error: --requests-per-second: must be a number above 0"),
        (["size", *SERVED, "--serve"], "error: serving needs the rate of requests: --requests-per-second N"),
        (["size", "llama-3-8b", "--serve", "--requests-per-second", "1", "--isl", "9", "--osl", "9"],
         "error: add a machine: --cluster NAME or FILE"),
        (["size", "llama-3-8b", "--utilisation", "0.5"], "error: --utilisation: is an option of serving: add --serve"),
        (["size", "llama-3-8b"], "error: training needs the number of tokens: --tokens N"),
    ],
)  # fmt: skip
def test_wrong_options_exit_with_2_and_one_line(words, message):
    found = run(*words)
    assert found.exit_code == 2
    assert message in found.stderr
    assert len(found.stderr.strip().splitlines()) == 1
