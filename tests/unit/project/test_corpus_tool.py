"""Does tools/corpus.py recognise file types, and count correct, read, rejected and failed files?"""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[2]
TOOL = TESTS.parent / "tools" / "corpus.py"
LOG = "# nThread 1\n      1024   256  float  sum  -1   9.1  0.11  0.20  0   9.0  0.11  0.20  0\n"


@pytest.fixture(scope="module")
def corpus():
    spec = importlib.util.spec_from_file_location("corpus", TOOL)
    module = importlib.util.module_from_spec(spec)
    sys.modules["corpus"] = module  # dataclasses look types up here
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("mscclpp/v2_HEAD_allgather_2gpu.json", "MSCCL++ plan"),
        ("mscclpp/allgather_ring_4_1_1.xml", "MSCCL plan"),
        ("topologies/h100-8.smi.txt", "topology matrix"),
        ("topologies/a100-2.lstopo.xml", "topology XML"),
        ("topologies/h100-2.nccl.xml", "topology XML"),
        ("infragraph/device_dgx1.yaml", "cluster file"),
        ("torch213-cpu/cnn_kineto.json.gz", "PyTorch trace"),
        ("torch213-cpu/cnn_et.json.gz", "PyTorch trace"),
    ],
)
def test_files_are_told_apart(corpus, name, kind):
    assert corpus.kind_of(TESTS / "data" / name)[0] == kind


def test_names_and_logs_are_told_apart(corpus, tmp_path):
    for name, text, kind in (
        ("a.log", LOG, "log of nccl-tests"), ("x.0.et", "", "Chakra trace"), ("k.gpu", "", "GPU program"),
        ("c.csv", "source,target\na,b\n", "edge list"), ("n.txt", "nothing", "unknown"),
        ("m.yaml", "family: llama\n", "model file"),
    ):  # fmt: skip
        (tmp_path / name).write_text(text)
        assert corpus.kind_of(tmp_path / name)[0] == kind


@pytest.mark.slow
def test_the_table_counts_every_outcome(tmp_path):
    shutil.copy(TESTS / "data/topologies/h100-8.smi.txt", tmp_path / "read.txt")
    shutil.copy(TESTS / "data/topologies/h100-8.smi.txt", tmp_path / "right.txt")
    shutil.copy(TESTS / "data/topologies/h100-8.smi.txt", tmp_path / "wrong.txt")
    (tmp_path / "refused.xml").write_text("<unknown/>")
    command = "cluster import {file} --gpu h100-sxm"
    expected = {"right.txt": {"command": command, "says": "8 gpu"}, "wrong.txt": {"command": command, "says": "9 gpu"}}
    (tmp_path / "expected.yaml").write_text(json.dumps(expected))
    words = [sys.executable, str(TOOL), str(tmp_path), "--json", str(tmp_path / ".table.json")]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    rows = {row["file"]: row["result"] for row in json.loads((tmp_path / ".table.json").read_text())}
    assert rows == {"read.txt": "read", "right.txt": "right", "wrong.txt": "failed", "refused.xml": "refused"}
    assert done.returncode == 1
    assert done.stdout.splitlines()[-1] == "4 files: 1 right, 1 read, 1 refused, 1 failed"


def test_what_is_expected_of_a_file_that_is_not_there_is_an_error(tmp_path):
    (tmp_path / "a.txt").write_text("x")
    (tmp_path / "expected.yaml").write_text("b.txt: {code: 0}\n")
    done = subprocess.run([sys.executable, str(TOOL), str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "b.txt: there is no such file" in done.stderr
