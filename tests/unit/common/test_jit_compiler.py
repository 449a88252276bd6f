"""Kernels compile with any numba; trine's shorter compilation gives the same answers."""

from __future__ import annotations

import os
import subprocess
import sys

import numba
import pytest

from trine.common import _jit

SCRIPT = """
import sys
import trine.common._jit as jit
if sys.argv[1] == "unknown":
    jit.KNOWN_VERSIONS = ((9999, 0), (9999, 0))
from trine.cluster import load_cluster
from trine.gpu.kernels.build import build_kernel
from trine.gpu.model.files import load_gpu_model
from trine.gpu.run import run_gpus
machine = load_cluster("astra3-generic")
program = build_kernel("all_gather", 2, 1 << 14, workgroups=2)
answer = run_gpus(program, machine, machine.gpus[:2], load_gpu_model("astra3-generic"))
print(answer.whole().end_ps, answer.records.end_ps.tolist())
from trine.gpu import _loop
print(type(_loop.by_reference).__name__, file=sys.stderr)
"""


def test_the_installed_numba_is_one_that_the_shorter_compilation_knows():
    assert _jit.KNOWN_VERSIONS[0] <= numba.version_info.short <= _jit.KNOWN_VERSIONS[1]


@pytest.mark.slow
def test_an_unknown_numba_compiles_as_usual(tmp_path):
    runs = [
        subprocess.run(
            [sys.executable, "-c", SCRIPT, kind], capture_output=True, text=True, check=True, timeout=300,
            env={**os.environ, "NUMBA_CACHE_DIR": str(tmp_path / kind)},
        )
        for kind in ("known", "unknown")
    ]  # fmt: skip
    assert runs[0].stdout == runs[1].stdout != ""
    assert [run.stderr.splitlines()[-1] for run in runs] == ["_Intrinsic", "CPUDispatcher"]
