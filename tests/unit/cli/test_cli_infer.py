"""The command ``trine infer``: one screen, JSON, prices, and errors that name the option."""

import json

import pytest
from click.testing import CliRunner

from trine.cli.main import app

USUAL = ["infer", "llama-3-8b", "--cluster", "dgx-h100", "--isl", "512", "--osl", "64", "--concurrency", "8"]


def run(*arguments):
    return CliRunner().invoke(app, [*USUAL, *arguments])


def test_one_screen_has_the_numbers_that_people_ask_for():
    found = run("--price", "2.5")
    assert found.exit_code == 0
    for words in ("TTFT", "TPOT", "end to end", "tokens/s", "per GPU", "per user", "KV cache", "price", "energy"):
        assert words in found.stdout
    assert len(found.stdout.splitlines()) <= 24
    assert "a decode step of 8 requests" in found.stdout


def test_brief_is_one_line():
    assert len(run("--brief").stdout.splitlines()) == 1


def test_json_goes_to_stdout():
    content = json.loads(run("--json", "-").stdout)
    assert content["command"] == "infer"
    assert content["model"] == "llama-3-8b"
    assert content["question"]["concurrency"] == 8


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--tp", "3"], "error: --tp: 3 ways do not divide the 32 heads: use tp 2 or 4"),
        (["--engine", "vllm:99"], "error: --engine: unknown version '99' of vllm: known are 0.2 to 0.24"),
        (["--batch", "2"], "error: --concurrency: give either a batch or a concurrency"),
        (["--prefix", "600"], "error: --prefix: 600 tokens are more than the prompt's 512"),
        (["--kv-dtype", "int4"], "error: --kv-dtype: unknown precision 'int4'"),
        (
            ["--spec", "3"],
            "error: --spec: takes K:PROBABILITY with K from 1 to 64 and a probability above 0 and at most 1, such as 3",
        ),
        (["--spec", "3:1.5"], "error: --spec: takes K:PROBABILITY"),
        (["--phase", "other"], "error: --phase: must be one of both, prefill, decode; got 'other'"),
        (["--memory-fraction", "0"], "error: --memory-fraction: must be a share from 0.01 to 1, got 0"),
        (["--price", "cheap"], "error: --price"),
    ],
)
def test_wrong_options_exit_with_2_and_one_line(arguments, message):
    found = run(*arguments)
    assert found.exit_code == 2
    assert message in found.stderr
    assert len(found.stderr.strip().splitlines()) == 1


def test_a_missing_machine_is_named():
    found = CliRunner().invoke(app, ["infer", "llama-3-8b", "--isl", "1", "--osl", "1", "--batch", "1"])
    assert found.exit_code == 2
    assert "add a machine: --cluster NAME or FILE" in found.stderr
