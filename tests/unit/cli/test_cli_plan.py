"""``trine plan``: search, fixed fields, configurations, errors."""

import json

import pytest
from click.testing import CliRunner

from trine.cli.main import app

#: A search of a second: one node, a short model, few layouts.
SMALL = ("plan", "llama-3.2-1b,layers=4,sequence=1024", "--gpus", "4", "--cluster", "dgx-h100", "--global-batch", "8",
         "--workers", "1", "--fix", "cp=1", "--fix", "recompute=none", "--fix", "offload=none")  # fmt: skip


def asked(*words, code=0):
    answer = CliRunner().invoke(app, list(words))
    assert answer.exit_code == code, answer.output
    return answer


def test_the_best_layouts_are_ranked_and_the_command_simulates_the_first(tmp_path):
    path = tmp_path / "answer.json"
    text = asked(*SMALL, "--json", str(path)).stdout
    answer = json.loads(path.read_text())
    assert answer["schema"] == "trine/plan/1"
    times = [row["step_time_s"] for row in answer["layouts"]]
    assert times == sorted(times)
    assert len(times) == 5
    assert all(row["bound_s"] <= row["step_time_s"] for row in answer["layouts"])
    assert sum(row["layouts"] for row in answer["rejected"]) + answer["num_simulated"] >= answer["num_layouts"] - 5
    assert answer["command"] == "plan"
    command = answer["train_command"].split()
    assert command[:2] == ["trine", "train"]
    assert answer["train_command"] in " ".join(text.split())
    step = json.loads(asked(*command[1:], "--json", "-").stdout)
    assert step["step_time_s"] == pytest.approx(times[0])


def test_the_command_keeps_another_gpu():
    options = ("--gpu", "a100-80gb", "--fix", "tp=2", "--fix", "micro_batch=1")
    answer = json.loads(asked(*SMALL, *options, "--json", "-").stdout)
    command = answer["train_command"].split()
    assert command[command.index("--gpu") + 1] == "a100-80gb"
    step = json.loads(asked(*command[1:], "--json", "-").stdout)
    assert step["step_time_s"] == pytest.approx(answer["layouts"][0]["step_time_s"])


def test_fixed_fields_hold_and_top_sets_the_number_of_layouts():
    answer = json.loads(asked(*SMALL, "--fix", "tp=2", "--top", "2", "--json", "-").stdout)
    assert [row["tp"] for row in answer["layouts"]] == [2, 2]


def test_a_configuration_is_compared_with_the_best(tmp_path):
    path = tmp_path / "run.sh"
    path.write_text("--tensor-model-parallel-size 4 --sequence-parallel --micro-batch-size 2 --global-batch-size 8")
    text = asked(*SMALL, "--from", str(path), "--emit", "megatron").stdout
    assert "yours  tp 4, mb 2, sp" in text
    assert "--tensor-model-parallel-size" in text
    path.write_text("--tensor-model-parallel-size 4 --global-batch-size 16")
    assert "global batch of 16, not 8" in asked(*SMALL, "--from", str(path), code=2).stderr


def test_the_frontier_is_a_table_and_a_picture(tmp_path):
    path, answer = tmp_path / "picture.svg", tmp_path / "answer.json"
    fixed = ("--fix", "micro_batch=1", "--fix", "pp=1")
    text = asked(*SMALL, *fixed, "--pareto", "--plot", str(path), "--json", str(answer)).stdout
    memory = [row["memory_bytes"] for row in json.loads(answer.read_text())["frontier"]]
    assert len(memory) > 1
    assert memory == sorted(memory, reverse=True)
    assert "time against memory" in text
    assert path.stat().st_size > 1000


@pytest.mark.parametrize(
    ("words", "message"),
    [(("--fix", "tpp=2"), "did you mean 'tp'"), (("--fix", "tp=3"), "tp 3 x cp 1 cannot make 4 GPUs"),
     (("--emit", "megatro"), "did you mean 'megatron'"), (("--top", "0"), "from 1 to"),
     (("--software", "megatron"), "megatron")],
)  # fmt: skip
def test_faulty_input_names_what_is_wrong(words, message):
    assert message in asked(*SMALL, *words, code=2).stderr


def test_a_search_without_machine_and_batch_states_what_it_assumes():
    words = [word for word in SMALL if word not in ("--cluster", "dgx-h100", "--global-batch", "8")]
    fixed = ("--fix", "tp=2", "--fix", "pp=1", "--fix", "micro_batch=1")
    answer = json.loads(asked(*words, *fixed, "--json", "-").stdout)
    assert answer["global_batch"] == 4 * 2**20 // 1024
    assert "machine dgx-h100" in answer["notes"][0]
    assert "global batch 4,096 samples" in answer["notes"][0]
    command = answer["train_command"].split()
    assert command[command.index("--global-batch") + 1] == "4096"
    assert command[command.index("--cluster") + 1] == "dgx-h100"


def test_a_search_needs_a_machine_or_a_number_of_gpus():
    assert "--cluster" in asked("plan", "llama-3.2-1b", "--global-batch", "8", code=2).stderr
    assert "--global-batch N" in asked("plan", "resnet50", "--gpus", "4", code=2).stderr


def test_a_bare_model_name_is_a_model_everywhere():
    words = ("train", "llama-3.2-1b,layers=2,sequence=512", "--json", "-")
    bare, full = (json.loads(asked(words[0], prefix + words[1], *words[2:]).stdout) for prefix in ("", "model:"))
    assert bare["step_time_s"] == full["step_time_s"]
    assert "did you mean 'llama-3-8b'" in asked("train", "llama-3-8c", code=2).stderr
