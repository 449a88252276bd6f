"""The code of docs/guides/sweeps.md prints what the page shows, and its experiment files are valid."""

import re
import textwrap
from pathlib import Path

import pytest

from trine.experiments.spec import read_experiment
from trine.experiments.sweeps import resolved

GUIDE = (Path(__file__).parents[2] / "docs" / "guides" / "sweeps.md").read_text()


def test_the_code_prints_the_table(tmp_path, monkeypatch, capsys):
    pytest.importorskip("pandas")
    monkeypatch.chdir(tmp_path)
    ((code, shown),) = re.findall(r"```python\n(.*?)```\n\n((?:    [^\n]*\n)+)", GUIDE, re.S)
    exec(code, {})
    assert capsys.readouterr().out == textwrap.indent(textwrap.dedent(shown), " ")


def test_the_experiment_files_are_valid(tmp_path):
    files = re.findall(r"```yaml\n(.*?)```", GUIDE, re.S)
    assert len(files) == 2
    base = files[0].partition("vary:")[0]
    for number, text in enumerate(files):
        path = tmp_path / f"{number}.yaml"
        path.write_text(text if "command:" in text else base + text)
        spec = read_experiment(path)
        assert resolved(spec, tmp_path).size == (4 * 4 * 20, 100)[number]
