"""Are files written after the reader of stdout has closed the pipe (``trine ... --json FILE | head -1``)?"""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest


@pytest.mark.parametrize("target", ["file", "-"])
def test_files_are_written_when_nobody_reads_stdout(tmp_path, target):
    """The pipe's reader closes before the first line: no text arrives, but all files are written."""
    reader, writer = os.pipe()
    os.close(reader)
    answer, timeline = tmp_path / "answer.json", tmp_path / "timeline.json"
    words = ["eidolon", "run", "gemv-allreduce", "--rows", "64", "--cols", "64", "--perfetto", timeline]
    words += ["--json", answer if target == "file" else "-"]
    done = subprocess.run(
        [sys.executable, "-m", "trine", *map(str, words)], stdout=writer, stderr=subprocess.PIPE, text=True, check=False
    )
    os.close(writer)
    assert done.returncode == (0 if target == "file" else 1), done.stderr  # exit 1: the requested JSON is lost
    assert "Traceback" not in done.stderr
    assert "BrokenPipe" not in done.stderr
    assert timeline.stat().st_size > 100
    assert target == "-" or json.loads(answer.read_text())["time_s"] > 0
