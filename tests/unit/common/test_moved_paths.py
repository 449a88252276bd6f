"""Do import paths of earlier versions still work, with a warning, and are they the same modules?"""

from __future__ import annotations

import subprocess
import sys
import warnings
from importlib import import_module

import pytest

from trine.common._moved import MOVED

OLD = [
    ("trine.simulation.run", "trine.training.run"),
    ("trine.replay.options", "trine.gpu.replay.options"),
    ("trine.collectives.kernels.moe.options", "trine.gpu.kernels.moe.options"),
    ("trine.parallel.hop.protocol", "trine.decentralised.protocol"),
    *((f"trine.{old}", f"trine.{new}") for old, new in MOVED.items()),
]


@pytest.mark.parametrize(("old", "new"), OLD, ids=lambda name: name)
def test_the_old_path_is_the_same_module(old: str, new: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, old, raising=False)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        assert import_module(old) is sys.modules[new]
    assert f"{old} is now {new}; the old name goes away in trine 0.13" in [str(each.message) for each in said]


def test_names_that_never_were_stay_unknown() -> None:
    with pytest.raises(ModuleNotFoundError):
        import_module("trine.units_of_others")
    with pytest.raises(ModuleNotFoundError):
        import_module("trine.simulations")


def test_new_code_imports_no_old_path() -> None:
    """All public names, without a warning."""
    code = "import trine\nfor name in trine.__all__: getattr(trine, name)\nimport trine.cli.train, trine.gpu.cli.kernel"
    subprocess.run([sys.executable, "-W", "error::DeprecationWarning:trine", "-c", code], check=True)
