"""Does each block of the "how to add" guide run unchanged, and does each kind name at most three files?"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from trine.cluster import load_gpu, presets

GUIDE = (Path(__file__).parents[2] / "docs" / "guides" / "extend.md").read_text()
KINDS = (
    "An algorithm", "A pipeline schedule", "A network model", "A form of parallelism", "A trace format", "A GPU",
    "A precision", "A column", "An output",
)  # fmt: skip
#: Kinds that are records or rows of tables: the page names the files, and other tests check the records.
RECORDS = ("A GPU", "A precision", "A column")
#: Kinds whose code is in plug-ins.md.
PLUG_INS = ("An algorithm", "A pipeline schedule", "A network model", "A trace format")
BLOCKS = re.findall(r"^## ([^\n]+)\n(?:(?!^## ).)*?^```python\n(.*?)^```$", GUIDE, re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize(("title", "code"), BLOCKS, ids=[title for title, _ in BLOCKS])
def test_block_runs(title, code):
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr


def test_every_kind_has_a_block_and_a_row_of_at_most_three_files():
    assert tuple(re.findall(r"^## ([^\n]+)$", GUIDE, re.M)) == KINDS
    assert [title for title, _ in BLOCKS] == [kind for kind in KINDS if kind not in (*PLUG_INS, *RECORDS)]
    linked = re.findall(r"^## ([^\n]+)\n\n[^#]*\(plug-ins\.md#[\w-]+\)", GUIDE, re.M)
    assert tuple(linked) == PLUG_INS
    rows = re.findall(r"^\| \[[^\]]+\]\(#([\w-]+)\) \| ([^|]*) \|$", GUIDE, re.M)
    assert [kind for kind, _ in rows] == [kind.lower().replace(" ", "-") for kind in KINDS]
    for kind, files in rows:
        assert 1 <= len(re.findall(r"`[a-z_]+/[\w/.]*`", files)) <= 3, kind


def test_the_gpu_of_the_page_is_found_with_its_units(tmp_path, monkeypatch):
    (text,) = re.findall(r"^```yaml\n(.*?)^```$", GUIDE, re.DOTALL | re.MULTILINE)
    shutil.copytree(presets.PRESETS / "gpus", tmp_path / "gpus")
    (tmp_path / "gpus" / "example-gpu.yaml").write_text(text)
    monkeypatch.setattr(presets, "PRESETS", tmp_path)
    for cached in (presets._read_gpu, presets._text):
        cached.cache_clear()
    try:
        gpu = load_gpu("Example GPU 40GB")
    finally:
        monkeypatch.undo()
        for cached in (presets._read_gpu, presets._text):
            cached.cache_clear()
    assert gpu.memory_bytes == 40 * 2**30
    assert gpu.memory_bytes_per_s == 1500 * 10**9
    assert gpu.flop_per_s["bfloat16"] == 300 * 10**12
