"""Do --overlap and --offload print the right lines, and reject values that have no effect?"""

import json

import pytest
from click.testing import CliRunner

from trine.cli.main import app

DDP = ["train", "vgg13-h100-b128", "--parallel", "ddp", "--gpus", "4", "--cluster", "dgx-h100"]


def invoke(*words):
    return CliRunner().invoke(app, [*(DDP[:2] if "--gpus" in words else DDP), *words])


def test_the_range_stands_above_the_summary_and_in_json(tmp_path):
    path = tmp_path / "answer.json"
    done = invoke("--overlap", "range", "--json", str(path))
    assert done.exit_code == 0
    first, second = done.stdout.splitlines()[:2]
    assert first.startswith("overlap  step ")
    assert "with contention" in first
    assert second.startswith("overlap saves ")
    content = json.loads(path.read_text())
    assert content["overlap"]["modelled_step_s"] == content["step_time_s"]
    assert content["plan"]["overlap"] == "modelled"
    assert content["energy"]["evidence"] == "assumed"


def test_offload_is_in_the_plan_and_takes_time():
    done = invoke("--offload", "optimizer", "--details")
    assert done.exit_code == 0
    assert "offload optimizer" in done.output
    assert "optimizer on the CPU" in done.output


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--overlap", "modeled"], "did you mean 'modelled'"),
        (["--overlap", "bad"], "--overlap must be one of ideal, modelled, none, range; got 'bad'"),
        (["--offload", "weights"], "offload must be one of none, optimizer, activations"),
        (["--overlap", "none", "--gpus", "1"], "but there is one GPU"),
    ],
)
def test_what_is_refused(words, said):
    done = invoke(*words)
    assert done.exit_code == 2
    assert said in " ".join(done.output.split())
