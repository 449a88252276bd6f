"""Do the commands and code of the guides to collectives and clusters run, and are all JSON keys documented?"""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from trine.cli.main import app
from trine.cluster import load_cluster

ROOT = Path(__file__).parents[2]
DATA = ROOT / "examples" / "data"
GUIDES = [ROOT / "docs" / "guides" / name for name in ("collectives.md", "clusters.md")]
COMMANDS = list(dict.fromkeys(
    line for guide in GUIDES for line in re.findall(r"^    (?:\$ )?(trine [^#\n]*)", guide.read_text(), re.MULTILINE)
    if " OP " not in line
))  # fmt: skip
CODE = [code for guide in GUIDES for code in re.findall(r"^```python\n(.*?)^```$", guide.read_text(), re.S | re.M)]
REFERENCE = (ROOT / "docs" / "reference" / "collective-json.md").read_text()


def answer(command: str) -> str:
    done = CliRunner().invoke(app, shlex.split(command)[1:])
    assert done.exit_code == 0, (command, done.output)
    assert done.output.strip(), command
    return done.stdout


@pytest.mark.parametrize("command", COMMANDS)
def test_command_runs(command, tmp_path, monkeypatch):
    shutil.copy(DATA / "two-nodes.yaml", tmp_path)
    plan = ROOT / "tests" / "data" / "mscclpp" / "v2_HEAD_allreduce_allpairs_4gpu.json"
    shutil.copy(plan, tmp_path / "allreduce_allpairs_4gpu.json")
    monkeypatch.chdir(tmp_path)
    assert "Traceback" not in answer(command)


def test_there_are_commands_and_code():
    assert len(COMMANDS) > 10
    assert len(CODE) == 2


@pytest.mark.parametrize("code", CODE, ids=["collectives", "clusters"])
def test_code_runs(code):
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, timeout=120, check=False, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr


def test_the_clusters_of_the_guide_are_those_of_the_example(tmp_path):
    blocks = re.findall(r"^```yaml\n(.*?)^```$", GUIDES[1].read_text(), re.S | re.M)
    whole = [block for block in blocks if "name:" in block]
    assert len(whole) == 2
    for block in whole:
        path = tmp_path / "cluster.yaml"
        path.write_text(block)
        example = load_cluster(DATA / f"{yaml.safe_load(block)['name']}.yaml")
        assert load_cluster(path).fingerprint == example.fingerprint


@pytest.mark.parametrize(
    "command",
    [
        "trine collective all_reduce --size 1K,1M --cluster dgx-h100 --explain --json -",
        "trine collective all_reduce --size 1K,1M --cluster dgx-h100 --network fair --explain --json -",
        f"trine check {DATA / 'gh200-8-tcp.log'} --cluster gh200-node --json -",
        "trine validate collectives --json -",
    ],
)
def test_every_json_key_is_documented(command):
    known = set(re.findall(r"`([^`]*)`", REFERENCE))
    assert keys(json.loads(answer(command))) <= known | {"below 1 MiB", "from 1 MiB"}


def keys(value: object) -> set[str]:
    """All keys at any depth."""
    if isinstance(value, dict):
        return set(value).union(*map(keys, value.values()))
    return set().union(*map(keys, value)) if isinstance(value, list) else set()
