"""Are plug-ins found in the documented order, collisions and broken ones named, and built-in names free of a scan?"""

from __future__ import annotations

import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from trine.common.plugins import Registry
from trine.errors import InputError

GROUP = "trine.test.things"
BUILT_IN = {"zero": "math:pi", "one": "math:e"}


def registry() -> Registry[object]:
    return Registry("thing", GROUP, BUILT_IN)


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Install a package, by name, that offers entry points."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def add(package: str, **points: str) -> None:
        folder = tmp_path / f"{package}-1.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1\n")
        lines = [f"{name} = {value}" for name, value in points.items()]
        (folder / "entry_points.txt").write_text("\n".join([f"[{GROUP}]", *lines]) + "\n")

    return add


def test_order_is_built_in_then_registered_then_entry_points_by_name(install) -> None:
    install("acme", zebra="math:tau", apple="math:inf")
    things = registry()
    things.register("mine", "made here")
    assert things.names() == ("zero", "one", "mine", "apple", "zebra")
    things.register("late", "made later")
    assert things.names() == ("zero", "one", "mine", "late", "apple", "zebra")
    assert [repr(thing)[:6] for thing in things.each()] == ["3.1415", "2.7182", "'made ", "'made ", "inf", "6.2831"]
    assert all(name in things for name in things.names())
    assert "pear" not in things
    with pytest.raises(InputError, match="a thing named 'apple' exists already"):
        things.register("apple", "again")


def test_known_names_need_no_scan(monkeypatch: pytest.MonkeyPatch) -> None:
    def scan(**_: object) -> None:
        raise AssertionError("entry points were read")

    monkeypatch.setattr(metadata, "entry_points", scan)
    things = registry()
    things.register("mine", "made here")
    assert (things.get("mine"), "one" in things, "mine" in things) == ("made here", True, True)
    assert next(things.each()) == things.get("zero")
    with pytest.raises(AssertionError):
        things.get("other")


def test_a_run_without_plug_ins_does_not_look_for_any() -> None:
    code = (
        "import sys\nfrom importlib import metadata\n"
        "def scan(group='', **_):\n"
        "    assert not group.startswith('trine'), group\n    return metadata.EntryPoints(())\n"
        "metadata.entry_points = scan\n"
        "import trine\n"
        "trine.simulate('resnet50-h100-b128', trine.Plan(dp=2), engine='reference',"
        " cluster=trine.build_topology('ring', '65 GB/s', '1 us', 2))\n"
        "assert 'trine.workload.tracing.tracer' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_collisions_name_both(install) -> None:
    install("acme", apple="math:inf")
    install("bolts", apple="math:tau")
    for _ in range(2):  # the error stays
        with pytest.raises(InputError, match="the package 'acme' and the package 'bolts' both offer a thing"):
            registry().names()


def test_collision_with_a_built_in_or_registered_one(install) -> None:
    install("acme", one="math:inf")
    things = registry()
    assert things.get("one") == things.get("one") != float("inf")
    with pytest.raises(InputError, match="trine itself and the package 'acme' both offer a thing named 'one'"):
        things.names()
    other: Registry[object] = Registry("thing", GROUP, {})
    other.register("one", 1)
    with pytest.raises(InputError, match="this program, at run time, and the package 'acme' both offer"):
        other.names()


@pytest.mark.parametrize(
    ("value", "cause"),
    [
        ("no_such_module_here:x", "ModuleNotFoundError: No module named 'no_such_module_here'"),
        ("math:no_such_thing", "AttributeError: module 'math' has no attribute 'no_such_thing'"),
    ],
)
def test_a_broken_plug_in_is_named_with_its_cause(install, value: str, cause: str) -> None:
    install("acme", broken=value)
    with pytest.raises(InputError) as caught:
        registry().get("broken")
    assert str(caught.value) == f"the thing 'broken' of the package 'acme' cannot be loaded from {value!r}: {cause}"
