"""Is the public surface as documented, complete, and cheap to import?"""

import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import trine

HEAVY = ("numba", "numpy", "torch", "click", "rich", "yaml", "matplotlib", "pandas", "pyarrow")


def test_all_is_sorted_complete_and_resolves():
    assert trine.__all__ == sorted(trine.__all__)
    assert set(trine.__all__) == set(trine._PUBLIC)
    for name in trine.__all__:
        assert getattr(trine, name).__module__.startswith("trine."), name


def test_type_checkers_see_what_the_runtime_sees(tmp_path):
    """As in trio's test_exports: mypy finds every public name, with a type, and no name that does not exist."""
    from mypy import api

    program = tmp_path / "uses.py"
    lines = ["import trine", *(f"reveal_type(trine.{name})" for name in trine.__all__), "trine.no_such_name"]
    program.write_text("\n".join(lines) + "\n")
    root = Path(__file__).parents[3]
    settings = ["--config-file", str(root / "pyproject.toml"), "--cache-dir", str(root / ".mypy_cache")]
    found, errors, _ = api.run([*settings, "--no-error-summary", str(program)])
    assert not errors
    rows = found.splitlines()
    assert len(rows) == len(trine.__all__) + 1, found
    for name, row in zip(trine.__all__, rows, strict=False):
        assert "Revealed type is" in row, f"{name}: {row}"
        assert 'is "Any"' not in row, f"{name} has no type"
    assert "no_such_name" in rows[-1]


def test_every_public_name_is_documented_and_typed():
    for name in trine.__all__:
        value = getattr(trine, name)
        assert inspect.getdoc(value), name
        if inspect.isfunction(value):
            hints = value.__annotations__
            missing = [each for each in inspect.signature(value).parameters if each not in hints]
            assert not missing, f"{name}: no types for {missing}"
            assert "return" in hints, name


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
