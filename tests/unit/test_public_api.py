"""Is the public surface what it says, complete, and cheap to import?"""

import subprocess
import sys

import pytest

import trine

HEAVY = ("numba", "numpy", "pydantic", "torch", "typer", "rich", "yaml", "matplotlib", "pandas", "pyarrow")


def test_all_is_sorted_complete_and_resolves():
    assert trine.__all__ == sorted(trine.__all__)
    assert set(trine.__all__) == set(trine._PUBLIC)
    for name in trine.__all__:
        assert getattr(trine, name).__module__.startswith("trine."), name


def test_unknown_names_are_attribute_errors():
    with pytest.raises(AttributeError, match="simulat"):
        _ = trine.simulat


def test_importing_trine_imports_nothing_heavy():
    code = f"import sys, trine; print([m for m in {HEAVY!r} if m in sys.modules])"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "[]"


def test_loading_and_planning_need_no_numba():
    code = (
        "import sys, trine; trine.load('vgg13-h100-b128'); trine.Plan(dp=2); trine.load_cluster('dgx-h100');"
        "print('numba' in sys.modules, 'torch' in sys.modules)"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "False False"


def test_help_needs_neither_numba_nor_numpy():
    code = (
        "import sys\nfrom trine.cli.main import app\n"
        "try:\n app(['--help'])\nexcept SystemExit: pass\n"
        "print('numba' in sys.modules, 'numpy' in sys.modules, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "False False"
    assert "train" in done.stdout
