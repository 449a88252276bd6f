"""Do the commands and the Python code of docs/guides/eidolons.md run and print the quoted output?"""

import re
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner

from trine.cli.main import app

GUIDE = (Path(__file__).parents[2] / "docs" / "guides" / "eidolons.md").read_text()
COMMANDS = re.findall(r"^    \$ trine (.*)$", GUIDE, re.MULTILINE)


def run(*words):
    done = CliRunner().invoke(app, [*words])
    assert done.exit_code == 0, done.output
    return done.stdout


def test_the_commands_print_what_the_guide_says(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    printed = {command: run(*shlex.split(command)) for command in COMMANDS}
    for block in re.findall(r"^```\n(.*?)^```", GUIDE, re.MULTILINE | re.DOTALL):
        assert any(block in text for text in printed.values()), block


def test_the_table_of_flag_reads():
    rows = re.findall(r"^\| `(--sync [^`]*)` \| (\d+) \| ([^|]*) \|$", GUIDE, re.MULTILINE)
    assert len(rows) == 3
    for options, reads, time in rows:
        text = run("eidolon", "run", "gemv-allreduce", "--distribution", "uniform(5 us, 15 us)", *options.split())
        assert re.search(rf"^flag reads +{reads} ", text, re.MULTILINE), text
        assert re.search(rf"^time +{re.escape(time.strip())}$", text, re.MULTILINE), text


def test_the_python_runs(tmp_path, monkeypatch, capsys):
    pytest.importorskip("matplotlib")
    monkeypatch.chdir(tmp_path)
    (code,) = re.findall(r"```python\n(.*?)```", GUIDE, re.DOTALL)
    exec(compile(code, "eidolons.md", "exec"), {})
    assert "2 peers replayed" in capsys.readouterr().out
    assert (tmp_path / "waiting.png").stat().st_size > 5000
