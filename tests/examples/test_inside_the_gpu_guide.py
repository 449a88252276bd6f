"""The Python of docs/guides/inside-the-gpu.md runs and draws its picture."""

import re
from pathlib import Path

import pytest

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "inside-the-gpu.md"


def test_the_guide_runs(tmp_path, monkeypatch, capsys):
    pytest.importorskip("matplotlib")
    monkeypatch.chdir(tmp_path)
    (code,) = re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    exec(compile(code, str(GUIDE), "exec"), {})
    assert "1 of 16 GPUs" in capsys.readouterr().out
    assert (tmp_path / "noc.png").stat().st_size > 10_000
