"""Do `trine cluster import`, `export` and `draw` work, and report errors in one line?"""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from trine.cli.main import app
from trine.cluster import load_cluster

DATA = Path(__file__).parents[2] / "data"


def trine(*words):
    return CliRunner().invoke(app, ["cluster", *map(str, words)])


def test_import_says_what_it_took_and_writes_a_cluster_file(tmp_path):
    out = tmp_path / "h100.yaml"
    result = trine("import", DATA / "topologies" / "h100-8.smi.txt", "--gpu", "h100-sxm", "--yaml", out)
    assert result.exit_code == 0, result.output
    assert "8 gpu, 4 nic" in result.stdout
    assert "link nvlink: catalogue entry nvlink4: GPU model h100-sxm" in result.stdout
    assert "note: GPU0, GPU1" in result.stdout
    assert len(load_cluster(str(out)).gpus) == 8


def test_import_json(tmp_path):
    result = trine("import", DATA / "infragraph" / "device_dgx1.yaml", "--links-from", "catalogue", "--json", "-")
    answer = json.loads(result.stdout)
    assert answer["devices"]["gpu"] == 8
    assert sum(row["count"] for row in answer["links"]) == 2 * 37


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["device_dgx_h100.yaml"], "--links-from catalogue"),
        (["device_dgx_h100.yaml", "--link", "pcie"], "must be NAME=ENTRY"),
        (["device_dgx_h100.yaml", "--link", "pcie=pcie5", "--link", "pcie=pcie4"], "given twice"),
        (["device_dgx_h100.yaml", "--links-from", "thin air"], "must be 'catalogue'"),
        (["none.yaml"], "cannot be read"),
    ],
)
def test_import_refusals(words, message):
    result = trine("import", DATA / "infragraph" / words[0], *words[1:])
    assert result.exit_code == 2
    assert message in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1


def test_export_and_draw(tmp_path):
    result = trine("export", "dgx-h100", "--nodes", 2, "-o", tmp_path / "a.json")
    assert result.exit_code == 0, result.output
    assert load_cluster(str(tmp_path / "a.json")) == load_cluster("dgx-h100", nodes=2)
    assert trine("export", "dgx-h100", "-o", tmp_path / "a.csv").exit_code == 0
    assert "name the format" in trine("export", "dgx-h100", "-o", tmp_path / "a.doc").stderr
    assert trine("draw", tmp_path / "a.json", "-o", tmp_path / "a.svg").exit_code == 0
    assert (tmp_path / "a.svg").stat().st_size > 10_000
    assert trine("draw", "dgx-h101", "-o", tmp_path / "b.svg").exit_code == 2


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (
            ["cluster", "show", "a100-nvlink-4", "--yaml", "m.trine.json"],
            "ends in .json, but holds yaml: end it in .yaml",
        ),
        (["gpu", "show", "eidola", "--yaml", "m.JSON"], "ends in .JSON, but holds yaml"),
        (["cluster", "export", "a100-nvlink-4", "-o", "out.yaml", "--format", "graphml"], "holds graphml: end it in"),
        (["cluster", "export", "a100-nvlink-4", "-o", "out.csv", "--format", "infragraph"], ".json or .yaml or .yml"),
    ],
)
def test_a_name_that_ends_like_another_format_is_refused(tmp_path, monkeypatch, args, said):
    """trine must read every file it writes, and it chooses the format by the file's ending."""
    monkeypatch.chdir(tmp_path)
    answer = CliRunner().invoke(app, args)
    assert answer.exit_code == 2
    assert said in answer.output
    assert list(tmp_path.iterdir()) == []


def test_an_ending_of_no_format_may_hold_any(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert CliRunner().invoke(app, ["cluster", "show", "a100-nvlink-4", "--yaml", "machine.txt"]).exit_code == 0
    assert CliRunner().invoke(app, ["cluster", "show", "./machine.txt"]).exit_code == 0
