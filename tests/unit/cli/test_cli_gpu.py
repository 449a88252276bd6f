"""Does ``trine gpu`` show every number with its unit and evidence, and write files that read back?"""

from __future__ import annotations

import json
from pathlib import Path

from click.testing import CliRunner

from trine.cli.main import app
from trine.gpu.model import values
from trine.gpu.model.files import known_gpu_models, load_gpu_model

RUNNER = CliRunner()


def run(*args: str) -> tuple[int, str]:
    result = RUNNER.invoke(app, ["gpu", *args])
    return result.exit_code, result.output


def test_list_has_every_model() -> None:
    code, text = run("list")
    assert code == 0
    assert [line.split()[0] for line in text.splitlines()[1:]] == list(known_gpu_models())
    code, text = run("list", "--json", "-")
    models = json.loads(text[text.index("{\n") :])["gpu_models"]
    assert [model["name"] for model in models] == list(known_gpu_models())
    assert all(sum(model["evidence"].values()) >= 30 for model in models)


def test_show_has_every_number_with_its_unit() -> None:
    code, text = run("show", "h100-sxm")
    assert code == 0
    lines = [line.split() for line in text.splitlines()]
    assert ["memory.latency", "180", "ns", "measured"] in [line[:4] for line in lines]
    assert [line[0] for line in lines if "." in line[0] or line[0] in ("clock", "line", "header")] == [
        field.path for field, _ in values(load_gpu_model("h100-sxm"))
    ]
    assert "memory in all: 3.352 TB/s" in text
    assert "notes: L1 caches are not modelled" in text
    assert "2402.13499" not in text.split("notes:")[0]
    assert "2402.13499" in run("show", "h100-sxm", "--sources")[1].split("notes:")[0]
    assert "L2 in all" not in run("show", "astra3-generic")[1]


def test_json_has_values_in_base_units() -> None:
    code, text = run("show", "mi300x", "--json", "-")
    assert code == 0
    fields = json.loads(text[text.index("{\n") :])["fields"]
    assert fields["memory.latency"] | {"source": ""} == {
        "value": 192000,
        "unit": "ps",
        "evidence": "measured",
        "source": "",
    }
    assert fields["cus.count"]["value"] == 304
    assert fields["cus.count"]["unit"] is None


def test_yaml_is_a_file_to_change(tmp_path: Path) -> None:
    target = tmp_path / "mine.yaml"
    code, _ = run("show", "a100-80gb", "--yaml", str(target))
    assert code == 0
    assert load_gpu_model(target) == load_gpu_model("a100-80gb")
    assert run("show", str(target))[1].startswith("a100-80gb: ")


def test_errors_are_one_line_and_exit_code_2(tmp_path: Path) -> None:
    code, text = run("show", "h100")
    assert code == 0  # an alias of h100-sxm
    code, text = run("show", "h1oo-sxm")
    assert code == 2
    assert "did you mean 'h100-sxm'" in text
    code, text = run("show", str(tmp_path / "none.yaml"))
    assert code == 2
    assert "cannot be read" in text
    code, text = run("show", "h200", "--yaml", str(tmp_path / "no" / "such.yaml"))
    assert code == 2
    assert "cannot write" in text
