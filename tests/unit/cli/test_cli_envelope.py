"""Every JSON answer of the command line has an envelope that names its command."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from envelope import opened

from trine.cli.main import app
from trine.results.stored import REPORTS

SOURCE = Path(__file__).parents[3] / "src" / "trine"
#: Modules of commands.
CLI = [*SOURCE.glob("**/cli/*.py"), *SOURCE.glob("**/cli.py")]
LOG = Path(__file__).parents[2] / "golden" / "inputs" / "nccl.log"
ONE = ("--dp", "2", "--topology", "ring", "--bandwidth", "1 GB/s", "--latency", "1 us")

#: Command lines and the name of the answer's form.
LINES = {
    ("cluster", "list"): "cluster-list",
    ("cluster", "links"): "cluster-links",
    ("cluster", "topologies"): "cluster-topologies",
    ("cluster", "show", "dgx-h100"): "cluster-show",
    ("gpu", "list"): "gpu-list",
    ("gpu", "show", "h100-sxm"): "gpu-show",
    ("trace", "models"): "trace-models",
    ("trace", "inspect", "vgg13-h100-b128"): "trace-inspect",
    ("train", "vgg13-h100-b128", "--gpus", "2", *ONE): "result",
    ("train", "vgg13-h100-b128", "--gpus", "2", *ONE, "--overlap", "range"): "result",
    ("hop", "vgg13-h100-b128", "--iterations", "3", "--bandwidth", "1 GB/s", "--latency", "1 us"): "hop",
    ("check", str(LOG), "--cluster", "dgx-h100"): "check",
}


def command_of(words: tuple[str, ...]) -> str:
    return " ".join(words[:2]) if words[0] in ("cluster", "gpu", "trace") else words[0]


@pytest.mark.parametrize("words", LINES, ids=[" ".join(words)[:40] for words in LINES])
def test_answers_have_their_envelope(words):
    done = CliRunner().invoke(app, [*words, "--json", "-"])
    assert done.exit_code == 0, done.output
    assert opened(done.stdout, command_of(words), LINES[words])


def test_a_block_inside_an_answer_has_none(tmp_path):
    words = ("train", "vgg13-h100-b128", "--gpus", "2", *ONE, "--overlap", "range", "--json", "-")
    answer = json.loads(CliRunner().invoke(app, list(words)).stdout)
    assert "schema" not in answer["overlap"]


def test_every_command_that_writes_json_is_named_as_it_is_called():
    named = set()
    for path in CLI:
        for call in ast.walk(ast.parse(path.read_text())):
            if isinstance(call, ast.Call) and getattr(call.func, "id", "") == "write_json":
                assert len(call.args) >= 3, f"{path.name}:{call.lineno}: name the command"
                if isinstance(call.args[2], ast.Constant):
                    named.add(call.args[2].value)
                else:
                    named_by = ast.unparse(call.args[2])
                    if (path.name, named_by) == ("vary.py", "words"):
                        continue  # of the command that --vary asks
                    assert named_by == "f'validate {name}'", f"{path.name}:{call.lineno}"
                    named |= {f"validate {name}" for name in REPORTS}
    assert len(named) >= 20
    for name in sorted(named):
        done = CliRunner().invoke(app, [*name.split(), "--help"])
        assert done.exit_code == 0, name
        assert f"trine {name}" in done.stdout or f"root {name}" in done.stdout, done.stdout[:200]
