"""Does the code on the page about built GPU programs run? Does the page name every algorithm?"""

from __future__ import annotations

import re
from pathlib import Path

from trine.gpu.kernels.build import known_kernels, known_ops

PAGE = Path(__file__).parents[2] / "docs/background/gpu-kernels.md"


def test_its_code_runs(capsys):
    for block in re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL):
        exec(block, {})
    assert "ring-get" in capsys.readouterr().out


def test_its_table_names_every_algorithm():
    text = PAGE.read_text(encoding="utf-8")
    for op in known_ops():
        for name in (op, *known_kernels(op)):
            assert f"`{name}`" in text or f"| {name} |" in text
