"""Do the commands of the guide print what the page shows?"""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner

from trine.cli.main import app
from trine.decide.cost import read_price

PAGE = (Path(__file__).parents[2] / "docs" / "guides" / "decide.md").read_text(encoding="utf-8")


def shown() -> list[tuple[list[str], str]]:
    """Return the commands before each output of the page, and the output."""
    blocks = re.findall(r"((?:^    \$ trine [^\n]*\n)+)\n```text\n(.*?)```", PAGE, re.M | re.S)
    return [(re.findall(r"\$ trine (.*)", commands), output) for commands, output in blocks]


@pytest.mark.slow
def test_outputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert len(shown()) == 3
    for commands, output in shown():
        for command in commands:
            done = CliRunner().invoke(app, shlex.split(command))
            assert done.exit_code == 0, done.output
        assert done.stdout == output, commands[-1]


def test_the_price_file(tmp_path: Path) -> None:
    (content,) = re.findall(r"```yaml\n(.*?)```", PAGE, re.S)
    path = tmp_path / "prices.yaml"
    path.write_text(content)
    assert read_price(path).of("a100-80gb") == 1.3
