"""The code of docs/guides/notebooks.md runs and writes its files; its table names all tables and pictures."""

import re
from pathlib import Path

import pytest

GUIDE = (Path(__file__).parents[2] / "docs" / "guides" / "notebooks.md").read_text()


def test_the_code_runs(tmp_path, monkeypatch, capsys):
    pytest.importorskip("pandas")
    pytest.importorskip("matplotlib")
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for block in re.findall(r"```python\n(.*?)```", GUIDE, re.S):
        exec(block, names)
    assert (tmp_path / "timeline.svg").stat().st_size > 1000
    assert "@software{trine," in (tmp_path / "trine.bib").read_text()
    assert "exposed_communication_s" in capsys.readouterr().out
    result = names["result"]
    assert f"| {', '.join(result.tables())} (all tasks) | {', '.join(result.pictures())} |" in GUIDE  # type: ignore[attr-defined]
