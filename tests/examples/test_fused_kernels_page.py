"""Does the code on the fused-kernels page run and print the quoted output? Does the page name every kernel?"""

from __future__ import annotations

import re
from pathlib import Path

from trine.gpu.kernels.fused.build import known_fused

PAGE = Path(__file__).parents[2] / "docs/background/fused-kernels.md"


def test_its_code_prints_what_it_says(capsys):
    text = PAGE.read_text(encoding="utf-8")
    first, second = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    exec(first, {})
    printed = capsys.readouterr().out.splitlines()
    said = re.findall(r"print\(.*?\)  # (.*)", first)
    assert [line for line, comment in zip(printed, said, strict=True) if comment.startswith(line)] == printed
    exec(second, {})
    fused, unfused = (float(line.split()[0]) for line in capsys.readouterr().out.splitlines())
    assert 0 < fused < unfused


def test_it_names_every_kernel():
    text = PAGE.read_text(encoding="utf-8")
    assert all(f"| `{name}` |" in text for name in known_fused())
